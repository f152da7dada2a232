// train_gpt answer: scores are those of the model in memory, continuations those of generate, and what is refused.
#include "llmc/commands/answer.h"
#include "llmc/base/json.h"
#include "test/program.h"

namespace {

using Ints = std::vector<int32_t>;

// A run of a char tokenizer's stories with one checkpoint, of 2 layers and 16 positions.
struct Asked {
    TinyRuns runs;
    std::string folder = runs.path("run"), file = runs.path("requests.jsonl");
    Tokenizer tokenizer;

    Asked() {
        must_succeed(runs.train("run", {{"steps", "20"}}));
        tokenizer = load_tokenizer(find_checkpoint(folder).path + "/tokenizer.json");
    }
    Finished answer(const std::string& requests, FlagMap flags = {}) const {
        put_file(file, requests);
        flags.insert({{"resume", folder}, {"requests", file}, {"sample-tokens", "12"}, {"temperature", "0"}});
        return run(command_of(flags, "answer"));
    }
    std::vector<Json> answers(const std::string& requests, const FlagMap& flags = {}) const {
        const Finished finished = answer(requests, flags);
        must_succeed(finished);
        std::vector<Json> all;
        std::istringstream lines(finished.out);
        for (std::string line; std::getline(lines, line);) all.push_back(parse_json(line));
        return all;
    }
    Ints tokens(const std::string& text) const { return tokenizer.encode(text); }
};

std::string scored(const Ints& tokens, int start) {
    return json_text(Json{{"tokens", tokens}, {"start", start}}) + "\n";
}
std::string continued(const Ints& tokens, const std::vector<std::string>& until = {}) {
    return json_text(Json{{"tokens", tokens}, {"until", until}}) + "\n";
}

// Each token's probability from a forward pass over those before it, in double precision.
RowScore in_memory(const Asked& asked, const Ints& tokens, size_t start) {
    const std::string checkpoint = find_checkpoint(asked.folder).path;
    Cpu cpu(1);
    const GptShape shape = checkpoint_shape(checkpoint);
    Gpt<Cpu> model(cpu, shape, 1, shape.max_seq_len);
    read_weights(StoredModel(checkpoint), model.parameters,
                 [&](size_t i, const float* values) { model.set_weight(model.parameters.parameters[i], values); });
    RowScore score;
    for (size_t t = start; t < tokens.size(); t++) {
        model.forward(tokens.data(), 1, int64_t(t));
        const float* logits = model.logits(int64_t(t) - 1, 1);
        double sum = 0;
        for (int64_t v = 0; v < shape.vocab_size; v++) sum += std::exp(double(logits[v]));
        score.nll += std::log(sum) - double(logits[tokens[t]]);
        score.matches &= std::max_element(logits, logits + shape.vocab_size) - logits == tokens[t];
    }
    return score;
}

}  // namespace

TEST_CASE("answer scores texts as the model in memory does", "[answer]") {
    const Asked asked;
    const Ints most = asked.tokens("Once upon a time,");
    REQUIRE(most.size() == 17);  // one more than the model reads
    std::string text = asked.answers(continued(asked.tokens("Once")))[0]["text"];
    const Ints greedy = asked.tokens("Once" + text);
    const std::vector<std::pair<Ints, int>> rows = {
        {most, 1}, {{most.begin(), most.begin() + 5}, 4}, {greedy, 4}, {greedy, 3}, {most, 16}};
    std::string requests;
    for (const auto& [tokens, start] : rows) requests += scored(tokens, start);
    const std::vector<Json> got = asked.answers(requests);
    REQUIRE(got.size() == rows.size());
    for (size_t i = 0; i < rows.size(); i++) {
        const RowScore want = in_memory(asked, rows[i].first, size_t(rows[i].second));
        // A mean of losses that are rounded once or twice.
        CHECK(std::fabs(got[i]["logprob"].get<double>() + want.nll) <= 4 * kEpsF32 * want.nll);
        CHECK(got[i]["is_greedy"] == want.matches);
    }
    CHECK(got[2]["is_greedy"] == true);
    CHECK(got[0]["is_greedy"] == false);
    for (const char* batch : {"1", "2", "7"}) CHECK(asked.answers(requests, {{"batch-size", batch}}) == got);
}

TEST_CASE("answer continues texts as generate does, in the requests' order, up to the first stop", "[answer]") {
    const Asked asked;
    const std::vector<std::string> prompts = {"One", "The fox ran", "A"};
    std::vector<std::string> want;
    std::string requests;
    for (const std::string& prompt : prompts) {
        const Finished alone = run(command_of(
            {{"resume", asked.folder}, {"prompt", prompt}, {"sample-tokens", "12"}, {"temperature", "0"}}, "generate"));
        must_succeed(alone);
        want.push_back(alone.out);
        requests += continued(asked.tokens(prompt));
    }
    requests += scored(asked.tokens("One"), 1);
    for (const char* batch : {"1", "2", "8"}) {
        const std::vector<Json> got = asked.answers(requests, {{"batch-size", batch}});
        REQUIRE(got.size() == 4);
        for (size_t i = 0; i < prompts.size(); i++) CHECK(got[i]["text"] == want[i]);
        CHECK(got[3].contains("logprob"));
    }
    // Of several stops the first in the text ends it, and is its end.
    const std::string stop = want[0].substr(4, 2), later = want[0].substr(9, 3);
    const std::string text = asked.answers(continued(asked.tokens("One"), {later, stop, "never"}))[0]["text"];
    CHECK(text == want[0].substr(0, want[0].find(stop) + 2));
}

TEST_CASE("answer refuses requests that are none", "[answer]") {
    const Asked asked;
    const auto refusal = [&](const std::string& requests) {
        const Finished finished = asked.answer(requests);
        CHECK(finished.exit_code == 2);
        CHECK(finished.out == "");
        return finished.err;
    };
    const std::string good = scored({1, 2}, 1);
    for (const char* bad :
         {"{", "[1]", "{}", "{\"tokens\":[]}", "{\"tokens\":\"a\"}", "{\"tokens\":[1,-2]}", "{\"tokens\":[1,2.5]}",
          "{\"tokens\":[1,99999]}", "{\"tokens\":[1,2],\"start\":0}", "{\"tokens\":[1,2],\"start\":2}",
          "{\"tokens\":[1,2],\"start\":\"1\"}", "{\"tokens\":[1],\"until\":[\"\"]}", "{\"tokens\":[1],\"until\":[3]}",
          "{\"tokens\":[1],\"until\":\"a\"}"}) {
        INFO(bad);
        CHECK(contains(refusal(good + bad + "\n" + good), asked.file + ":2: expected {\"tokens\": [...], "));
    }
    const Ints tokens(18, 3);
    CHECK(contains(refusal(scored(tokens, 1)), ":1: 18 tokens, and the model reads 16"));
    CHECK(contains(refusal(continued({tokens.begin(), tokens.begin() + 17})), ":1: 17 tokens, and the model reads 16"));
    CHECK(asked.answers("").empty());
    const Finished bare = run(command_of({{"resume", asked.folder}}, "answer"));
    CHECK((bare.exit_code == 2 && contains(bare.err, "expected --requests FILE")));
}
