// Sampling: the drawn tokens, their frequencies, their context, and that no token outside of the vocabulary is drawn.
#include "llmc/eval/sample.h"
#include "test/program.h"

namespace {

using Ints = std::vector<int32_t>;

// exp(logit) is 1, 2, 3, ...: probabilities in proportion.
Floats logs_of(const std::vector<double>& weights) {
    Floats logits;
    for (const double w : weights) logits.push_back(float(std::log(w)));
    return logits;
}

std::vector<int64_t> counts_of(const Floats& logits, const SampleConfig& config, int64_t draws) {
    std::vector<int64_t> counts(logits.size());
    Rng rng(1, Stream::tests);
    for (int64_t i = 0; i < draws; i++) counts[size_t(draw(logits, config, rng))]++;
    return counts;
}

// Each count is binomial: five standard deviations leave a wrong alarm once in 1.7 million, if the seed were not fixed.
void check_frequencies(const std::vector<int64_t>& counts, const std::vector<double>& weights) {
    double sum = 0;
    int64_t draws = 0;
    for (const double w : weights) sum += w;
    for (const int64_t n : counts) draws += n;
    for (size_t i = 0; i < weights.size(); i++) {
        const double p = weights[i] / sum, expected = double(draws) * p;
        INFO("token " << i << ": " << counts[i] << " times, expected " << expected);
        CHECK(std::fabs(double(counts[i]) - expected) <= 5 * std::sqrt(expected * (1 - p)));
    }
}

// A model of 49 symbols, whose vocabulary is padded to 128.
struct Model {
    static constexpr int64_t V = 49, T = 16;
    Cpu cpu{1};
    Gpt<Cpu> gpt;
    Model() : gpt(cpu, {1, 2, 16, T, V}, 4, T) {
        gpt.initialize_weights(3);
        // Larger weights, so that the softmax is far from flat.
        for (int64_t i = 0; i < gpt.weights.size; i++) gpt.weights.data[i] *= 8;
    }
    Ints continued(const Ints& prompt, const SampleConfig& config, uint64_t seed, Context context = Context::cached) {
        Rng rng(seed, Stream::sampling);
        return sample(gpt, prompt, T, gpt.shape.vocab_size, config, context, rng);
    }
    // The logits after the last T of these tokens.
    Floats logits(Ints tokens) {
        if (tokens.size() > size_t(T)) tokens.erase(tokens.begin(), tokens.end() - T);
        gpt.forward(tokens.data(), 1, int64_t(tokens.size()));
        const float* row = gpt.logits(int64_t(tokens.size()) - 1, 1);
        return Floats(row, row + V);
    }
};

Ints tokens_up_to(int32_t n) {
    Ints tokens;
    for (int32_t i = 0; i < n; i++) tokens.push_back((i * 7 + 3) % int32_t(Model::V));
    return tokens;
}

std::string sampled_text(const std::string& out_dir) {
    const std::vector<std::string> records = records_in(out_dir, "sample");
    REQUIRE(records.size() == 1);
    std::string text;
    from_json({{"", "text", &text, ""}}, records[0], out_dir);
    return text;
}

}  // namespace

TEST_CASE("temperature 0 takes the likeliest token, of equals the first", "[sample]") {
    for (const int top_k : {0, 1, 3}) {
        const SampleConfig config{.temperature = 0, .top_k = top_k};
        CHECK(counts_of({-1, 4, 3.9f, 0}, config, 10) == std::vector<int64_t>{0, 10, 0, 0});
        CHECK(counts_of({-1, 2, 0, 2, 2}, config, 10) == std::vector<int64_t>{0, 10, 0, 0, 0});
        CHECK(counts_of({-1e30f, -2e30f, -9e29f}, config, 10) == std::vector<int64_t>{0, 0, 10});
    }
    // Many are compared side by side: the maximum at each place, before an equal one and after a NaN.
    Rng rng(1, Stream::sampling);
    for (const int n : {16, 17, 47})
        for (int at = 1; at < n; at++) {
            Floats logits(size_t(n), -2.f);
            logits[size_t(at)] = logits.back() = -1, logits[size_t(at) - 1] = at > 1 ? NAN : -3;
            CHECK(draw(logits, {.temperature = 0}, rng) == at);
        }
    CHECK(draw({NAN, 1, 2}, {.temperature = 0}, rng) == 0);
}

TEST_CASE("frequencies are those of the softmax at each temperature", "[sample]") {
    const std::vector<double> weights = {4, 1, 0.1, 2, 3, 1e-9};
    const Floats logits = logs_of(weights);
    for (const double temperature : {1.0, 0.5, 2.0}) {
        std::vector<double> want;
        for (const double w : weights) want.push_back(std::pow(w, 1 / temperature));
        check_frequencies(counts_of(logits, {.temperature = temperature}, 200000), want);
    }
    // A constant added to all logits changes nothing, however large, as long as the differences are kept.
    Floats shifted = {0, 1, 2};
    const SampleConfig config{.temperature = 1};
    const std::vector<int64_t> counts = counts_of(shifted, config, 1000);
    for (float& logit : shifted) logit += 1e6f;
    CHECK(counts_of(shifted, config, 1000) == counts);
    // Cold enough to be sure, without a division by zero.
    CHECK(counts_of({1, 2, 1.5f}, {.temperature = 1e-30}, 100) == std::vector<int64_t>{0, 100, 0});
}

TEST_CASE("top-k never leaves the k likeliest, and keeps their proportions", "[sample]") {
    const std::vector<double> weights = {4, 1, 5, 2, 3};
    const std::vector<std::vector<double>> cut = {{0, 0, 5, 0, 0}, {4, 0, 5, 0, 0}, {4, 0, 5, 0, 3},
                                                  {4, 0, 5, 2, 3}, weights,         weights};
    for (int k = 1; k <= 6; k++)
        check_frequencies(counts_of(logs_of(weights), {.temperature = 1, .top_k = k}, 50000), cut[size_t(k) - 1]);
    // Of equals at the border the first are taken.
    const std::vector<int64_t> counts = counts_of({0, 1, 0, 0}, {.temperature = 1, .top_k = 2}, 1000);
    CHECK(counts[0] > 0);
    CHECK((counts[2] == 0 && counts[3] == 0));
}

TEST_CASE("top-p never leaves the nucleus, and keeps its proportions", "[sample]") {
    const std::vector<double> weights = {4, 1, 5, 2, 3};  // of 15
    const std::vector<std::pair<double, std::vector<double>>> cut = {
        {0.01, {0, 0, 5, 0, 0}}, {0.33, {0, 0, 5, 0, 0}}, {0.34, {4, 0, 5, 0, 0}}, {0.59, {4, 0, 5, 0, 0}},
        {0.61, {4, 0, 5, 0, 3}}, {0.79, {4, 0, 5, 0, 3}}, {0.81, {4, 0, 5, 2, 3}}, {0.94, weights}};
    for (const auto& [top_p, want] : cut) {
        INFO("top-p " << top_p);
        check_frequencies(counts_of(logs_of(weights), {.temperature = 1, .top_p = top_p}, 20000), want);
    }
    // Of what a temperature makes of them, and of those that top-k leaves: 25 and 16 of 41.
    const std::vector<double> squares = {16, 0, 25, 0, 0};
    CHECK(counts_of(logs_of(weights), {.temperature = 0.5, .top_k = 2, .top_p = 0.6}, 1000)[0] == 0);
    check_frequencies(counts_of(logs_of(weights), {.temperature = 0.5, .top_k = 2, .top_p = 0.62}, 20000), squares);
    // Of equals the first.
    const std::vector<int64_t> counts = counts_of({0, 1, 0, 0}, {.temperature = 1, .top_p = 0.6}, 1000);
    CHECK((counts[0] > 0 && counts[2] == 0 && counts[3] == 0));
    // What is not a number is no reason to take none.
    CHECK(counts_of({NAN, NAN}, {.temperature = 1, .top_p = 0.5}, 1).size() == 2);
}

TEST_CASE("a padding token is never sampled, however likely it would be", "[sample]") {
    Model model;
    const Parameter& wte = *model.gpt.parameters.begin();
    REQUIRE(wte.name == "wte.weight");
    const SampleConfig config{.num_tokens = 200, .temperature = 1};
    // The final norm ends in 1, ..., 1 for every token, and the padding's rows are all 100.
    for (const Parameter& p : model.gpt.parameters) {
        if (p.name == "ln_f.bias") std::fill_n(model.gpt.weights.at(p), p.size(), 1.f);
        if (p.name == "ln_f.weight") std::fill_n(model.gpt.weights.at(p), p.size(), 0.01f);
    }
    const Ints want = model.continued({1}, config, 5);
    std::fill(model.gpt.weights.at(wte) + Model::V * 16, model.gpt.weights.at(wte) + wte.size(), 100.f);
    model.logits({1});
    const Floats padded(model.gpt.logits(0, 1), model.gpt.logits(0, 1) + model.gpt.shape.padded_vocab_size());
    REQUIRE(std::max_element(padded.begin(), padded.end()) - padded.begin() >= Model::V);
    for (const double temperature : {0.0, 1.0, 5.0})
        for (const int32_t token : model.continued({1}, {.num_tokens = 200, .temperature = temperature}, 5))
            REQUIRE((token >= 0 && token < Model::V));
    CHECK(model.continued({1}, config, 5) == want);
}

TEST_CASE("each token is drawn from the last T before it", "[sample]") {
    Model model;
    const int32_t T = int32_t(Model::T);
    // Prompts of one token, of exactly the context, and beyond it; and 40 tokens to slide over.
    // Positions are learned, so that there is nowhere to slide to.
    for (const Context context : {Context::recompute, Context::cached, Context::sliding})
        for (const int32_t length : {1, T - 1, T, 3 * T}) {
            Ints tokens = tokens_up_to(length);
            const SampleConfig config{.num_tokens = 40, .temperature = 0.9, .top_k = 20, .top_p = 0.95};
            const Ints got = model.continued(tokens, config, 11, context);
            REQUIRE(got.size() == 40);
            Rng rng(11, Stream::sampling);
            for (const int32_t token : got) {
                REQUIRE(token == draw(model.logits(tokens), config, rng));
                tokens.push_back(token);
            }
        }
    const Ints long_prompt = tokens_up_to(3 * T);
    CHECK(model.continued(long_prompt, {.num_tokens = 20, .temperature = 1}, 2) ==
          model.continued(Ints(long_prompt.end() - T, long_prompt.end()), {.num_tokens = 20, .temperature = 1}, 2));
}

// Each text uses its own random numbers, which do not depend on the other texts.
TEST_CASE("samples of one prompt do not disturb each other", "[sample]") {
    Model model;
    const SampleConfig config{.num_tokens = 30, .temperature = 1};
    for (const Context context : {Context::recompute, Context::cached}) {
        std::vector<Rng> rngs;
        std::vector<Ints> got(4);
        for (uint64_t seed = 0; seed < 4; seed++) rngs.emplace_back(seed, Stream::sampling);
        const std::vector<Ints> prompts(4, {3, 1});
        sample_each(model.gpt, prompts, Model::T, Model::V, config, context, rngs, [&](size_t i, int32_t token) {
            got[i].push_back(token);
            return !(i == 1 && got[i].size() == 3);
        });
        for (uint64_t seed = 0; seed < 4; seed++) {
            Ints want = model.continued({3, 1}, config, seed);
            if (seed == 1) want.resize(3);
            CHECK(got[seed] == want);
        }
    }
    // Ids from num_ids on are not drawn, however likely.
    std::vector<Rng> rngs = {Rng(1, Stream::sampling)};
    sample_each(model.gpt, {{3, 1}}, Model::T, 7, config, Context::cached, rngs, [&](size_t, int32_t token) {
        REQUIRE((token >= 0 && token < 7));
        return true;
    });
}

TEST_CASE("prompts of any length are continued as each of them alone", "[sample]") {
    Model model;
    const SampleConfig config{.num_tokens = 30, .temperature = 1};  // beyond T, the longer ones first
    const std::vector<Ints> prompts = {tokens_up_to(5), tokens_up_to(9), tokens_up_to(9), {7}};
    for (const Context context : {Context::recompute, Context::cached}) {
        std::vector<Rng> rngs;
        std::vector<Ints> got(prompts.size());
        for (size_t i = 0; i < prompts.size(); i++) rngs.emplace_back(uint64_t(i), Stream::sampling);
        sample_each(model.gpt, prompts, Model::T, Model::V, config, context, rngs, [&](size_t i, int32_t token) {
            got[i].push_back(token);
            return !(i == 1 && got[i].size() == 3);
        });
        for (size_t i = 0; i < prompts.size(); i++) {
            Ints want = model.continued(prompts[i], config, uint64_t(i), context);
            if (i == 1) want.resize(3);
            CHECK(got[i] == want);
        }
    }
}

TEST_CASE("a run's sample follows from its seed", "[sample]") {
    const TinyRuns runs;
    const FlagMap flags = {{"steps", "5"}, {"sample-tokens", "60"}, {"prompt", "This prompt is longer than T."}};
    FlagMap other = flags;
    other["threads"] = "2";
    must_succeed(runs.train("a", flags));
    must_succeed(runs.train("b", other));
    other["temperature"] = "0";
    must_succeed(runs.train("cold", other));
    const std::string text = sampled_text(runs.path("a"));
    CHECK(text.size() == 60);
    CHECK(sampled_text(runs.path("b")) == text);
    CHECK(sampled_text(runs.path("cold")) != text);
    // Another seed for the sample alone: the weights are those of the same checkpoint.
    must_succeed(runs.resume("a", {{"seed", "8"}}));
    CHECK(records_in(runs.path("a"), "sample").size() == 2);
    CHECK(records_in(runs.path("a"), "sample")[0] != records_in(runs.path("a"), "sample")[1]);
}
