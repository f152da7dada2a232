// --summary, bits per byte, and the time that counts for a run's budget.
#include "llmc/run/summary.h"
#include <numbers>
#include <sstream>
#include "llmc/base/json.h"  // parse_json
#include "llmc/comm/ranks.h"
#include "llmc/data/tokenizer.h"
#include "test/program.h"

namespace {

// The lines below "---", by their names.
std::map<std::string, double> values_of(const std::string& printed) {
    std::map<std::string, double> values;
    const size_t begin = printed.find("\n---\n");
    if (begin == std::string::npos) return values;
    std::istringstream lines(printed.substr(begin + 5));
    for (std::string name, value; lines >> name >> value;) values[name.substr(0, name.size() - 1)] = std::stod(value);
    return values;
}

}  // namespace

TEST_CASE("the summary has a line for each figure", "[summary]") {
    const std::string text = summary_text({.evaluation = {.loss = 1.25, .bits_per_byte = NAN},
                                           .training_s = 300.125,
                                           .total_s = 325.5,
                                           .peak_bytes = size_t(3) << 30,
                                           .mfu = 0.398,
                                           .tokens = 499600000,
                                           .steps = 953,
                                           .parameters = 50300000,
                                           .layers = 8});
    CHECK(text ==
          "---\n"
          "val_loss:           1.250000\n"
          "val_bpb:            nan\n"
          "training_seconds:   300.1\n"
          "total_seconds:      325.5\n"
          "peak_memory_mb:     3072.0\n"
          "peak_vram_mb:       3072.0\n"
          "mfu_percent:        39.80\n"
          "total_tokens_M:     499.600\n"
          "num_steps:          953\n"
          "num_params_M:       50.300\n"
          "depth:              8\n");
}

TEST_CASE("bits per byte: the losses of targets that are text, over their bytes", "[summary]") {
    // Symbols of one, two and three bytes, and a token without text: by hand, from the loss of each target.
    const TinyRuns runs;
    constexpr int64_t B = 2, T = 16, V = 60;
    DataLoader data({.pattern = runs.path("data/val_*.bin"), .batch_size = B, .seq_len = T, .vocab_size = V});
    Cpu cpu(1);
    Gpt<Cpu> model(cpu, {1, 2, 16, T, V}, B, T);
    model.initialize_weights(3);
    for (int64_t i = 0; i < model.weights.size; i++) model.weights.data[i] *= 8;  // losses that differ
    std::vector<int32_t> token_bytes;
    for (int32_t id = 0; id < V; id++) token_bytes.push_back(id % 4);

    constexpr int64_t kBatches = 3;
    double loss = 0, text_loss = 0;
    int64_t bytes = 0;
    for (int64_t i = 0; i < kBatches; i++) {
        const Batch batch = data.next();
        model.forward(batch.tokens.data(), B, T);
        model.loss(batch.targets.data());
        for (int64_t t = 0; t < B * T; t++) {
            const int32_t target = batch.targets[size_t(t)];
            loss += double(model.acts.losses[t]) / (B * T * kBatches);
            if (target % 4 == 0) continue;
            text_loss += double(model.acts.losses[t]);
            bytes += target % 4;
        }
    }
    OneRank alone;
    const Evaluation seen = evaluate(model, data, alone, B, T, kBatches * B * T, token_bytes);
    // Both sums are of a hundred doubles; a batch's mean is a float's eight digits at least.
    CHECK(seen.loss == Approx(loss).epsilon(1e-7));
    CHECK(seen.bits_per_byte == Approx(text_loss / (std::numbers::ln2 * double(bytes))).epsilon(1e-12));
    CHECK(std::isnan(evaluate(model, data, alone, B, T, kBatches * B * T).bits_per_byte));
}

TEST_CASE("a token has the bytes of its symbol, the separator none", "[summary]") {
    const std::vector<int32_t> bytes = byte_tokenizer().token_bytes();
    REQUIRE(bytes.size() == 256);
    CHECK(bytes[0] == 0);
    for (size_t id = 1; id < 256; id++) CHECK(bytes[id] == 1);
    Symbols symbols;
    symbols.add("a\u00e9\u20ac\U0001F600", "test");
    CHECK(char_tokenizer(symbols).token_bytes() == std::vector<int32_t>{1, 2, 3, 4});
}

TEST_CASE("a run ends with its figures, alone and as ranks", "[summary]") {
    const TinyRuns runs;
    std::map<std::string, double> alone;
    for (const std::string ranks : {"0", "3"}) {
        const Finished ended = runs.train(
            "ranks " + ranks,
            {{"summary", "true"}, {"virtual-ranks", ranks}, {"total-batch-size", "0"}, {"peak-flops", "1e9"}});
        must_succeed(ended);
        std::map<std::string, double> values = values_of(ended.out);
        REQUIRE(values.size() == 11);
        double loss = 0, bpb = 0;
        from_json({{"", "loss", &loss, ""}, {"", "bpb", &bpb, ""}}, records_in(runs.path("ranks " + ranks), "val")[0],
                  "log.jsonl");
        CHECK(values["val_loss"] == Approx(loss).margin(5e-7));
        CHECK(values["val_bpb"] == Approx(bpb).margin(5e-7));
        CHECK(bpb == Approx(loss / std::numbers::ln2).epsilon(1e-6));  // stories are ASCII: one byte per token
        CHECK(contains(ended.out, format(" | loss %7.4f | bpb %.4f\n", loss, bpb)));
        // The file has 1.8k tokens, of which 20 steps of 32 or 96 are less or more.
        CHECK(contains(ended.out, " passes; device: ") == (ranks == "3"));
        CHECK(values["num_steps"] == 20);
        CHECK(values["total_tokens_M"] == Approx(20 * 2 * 16 * (ranks == "0" ? 1 : 3) * 1e-6).margin(5e-4));
        CHECK(values["training_seconds"] <= values["total_seconds"]);
        CHECK(values["peak_memory_mb"] > 1);
        CHECK(values["peak_memory_mb"] < 4096);
        double ms = 0;
        for (const std::string& line : records_in(runs.path("ranks " + ranks), "step"))
            ms += double(parse_json(line)["ms"]);
        const double flops =
            parse_json(records_in(runs.path("ranks " + ranks), "start")[0])["model"]["flops_per_token"];
        // Virtual ranks share one device. Two digits after the point are printed.
        CHECK(values["mfu_percent"] ==
              Approx(100 * flops * 20 * 2 * 16 * (ranks == "0" ? 1 : 3) / (ms * 1e-3 * 1e9)).margin(0.0051));
        CHECK(values["depth"] == 2);
        CHECK(values["num_params_M"] > 0.01);
    }
    CHECK(!contains(runs.train("silent").out, "\n---\n"));
}

TEST_CASE("the time budget counts steps, and nothing beside them", "[summary]") {
    // Behind every step a look at all validation data and a sample, which together take longer than the step.
    const TinyRuns runs(20000);
    const Finished ended = runs.train("a", {{"summary", "true"},
                                            {"steps", "100000"},
                                            {"time-budget", "0.3"},
                                            {"val-every", "1"},
                                            {"val-tokens", "0"},
                                            {"sample-every", "1"},
                                            {"sample-tokens", "50"}});
    must_succeed(ended);
    std::map<std::string, double> values = values_of(ended.out);
    double step_ms = 0, longest_ms = 0;
    for (const auto& [step, line] : records_by_step(runs.path("a"), "step")) {
        double ms = 0;
        from_json({{"", "ms", &ms, ""}}, line, "log.jsonl");
        step_ms += ms;
        longest_ms = std::max(longest_ms, ms);
    }
    const double training_s = state_in(step_folder(runs.path("a"), int64_t(values["num_steps"]))).training_s;
    CHECK(training_s == Approx(step_ms * 1e-3).epsilon(1e-9));  // of the same doubles, added up once more
    CHECK(training_s >= 0.3);
    CHECK(training_s - longest_ms * 1e-3 <= 0.3);  // the step that has used it up is the last one
    CHECK(values["training_seconds"] == Approx(training_s).margin(0.051));
    CHECK(values["total_seconds"] > 2 * training_s);
}
