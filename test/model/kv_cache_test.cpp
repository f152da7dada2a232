// Decoding with the KV cache: for every architecture the logits have the bits of a pass over the whole text, in rows of
// different lengths, on any number of threads, and beyond the context, where windows slide.
#include "llmc/model/gpt_decoder.h"
#include "llmc/cpu/kernels.h"
#include "test/model/architectures.h"  // kArchitectureCases
#include "test/op_testing.h"           // Ints, check_equal
#include "test/testing.h"

// GPT-2 as well as the others, with more than a tile of 64 tokens.
static std::vector<ArchitectureCase> all_cases() {
    std::vector<ArchitectureCase> cases = kArchitectureCases;
    cases.push_back({"gpt2", 2, 80, {2, 3, 24, 80, 70}});
    return cases;
}

// Weights of all kinds away from zero: projections, gates and lambdas begin there.
static std::unique_ptr<Gpt<Cpu>> model_of(Cpu& cpu, const GptShape& shape, int64_t B = 2) {
    auto model = std::make_unique<Gpt<Cpu>>(cpu, shape, B, shape.max_seq_len, Recompute::never);
    for (const Parameter& p : model->parameters) {
        Floats values = randn(size_t(p.size()), uint64_t(p.offset), 0.3f);
        std::fill(values.begin() + p.exported_rows * (p.size() / p.shape[0]), values.end(), 0.f);
        model->set_weight(p, values.data());
    }
    return model;
}

static Ints text_of(int64_t n, int64_t V, uint64_t seed) {
    Rng rng(seed, Stream::tests);
    Ints tokens(static_cast<size_t>(n));
    for (int32_t& token : tokens) token = int32_t(rng.below(uint64_t(V)));
    return tokens;
}

static Floats row_of_logits(Gpt<Cpu>& model, int64_t row) {
    const float* logits = model.logits(row, 1);
    return Floats(logits, logits + model.shape.vocab_size);
}

// Behind each of the first n tokens: from one pass.
static std::vector<Floats> whole_logits(Gpt<Cpu>& model, const Ints& text) {
    model.forward(text.data(), 1, int64_t(text.size()));
    std::vector<Floats> all;
    for (size_t t = 0; t < text.size(); t++) all.push_back(row_of_logits(model, int64_t(t)));
    return all;
}

static void check_bits(const std::string& name, const Floats& got, const Floats& want) {
    check_equal(name, got, want);
    REQUIRE(count_not_finite(got) == 0);
}

TEST_CASE("decode gives the bits of a pass over the whole text, for every architecture", "[kv_cache]") {
    const size_t i = GENERATE(range(size_t(0), all_cases().size()));
    const ArchitectureCase c = all_cases()[i];
    const int threads = GENERATE(1, 3);
    const bool documents = GENERATE(false, true);
    INFO(c.fixture << ", " << threads << " threads" << (documents ? ", documents" : ""));
    Cpu cpu(threads);
    const auto model = model_of(cpu, c.shape);
    const int64_t T = c.shape.max_seq_len, V = c.shape.vocab_size;
    std::vector<Ints> texts = {text_of(T, V, 1), text_of(T, V, 2)};
    const std::vector<size_t> prompts = {1, size_t(T / 2)};
    if (documents) {
        model->document_token = 5;
        for (Ints& text : texts) text[0] = text[size_t(T / 3)] = text[size_t(T / 2 + 2)] = 5;
    }
    const std::vector<std::vector<Floats>> want = {whole_logits(*model, texts[0]), whole_logits(*model, texts[1])};

    GptDecoder<Cpu, float> decoder(*model, 2, T, T);
    for (size_t row = 0; row < 2; row++) {
        decoder.prefill(int64_t(row), Ints(texts[row].begin(), texts[row].begin() + ptrdiff_t(prompts[row])));
        check_bits("prefill", row_of_logits(*model, int64_t(prompts[row]) - 1), want[row][prompts[row] - 1]);
    }
    for (size_t step = 0; prompts[1] + step < size_t(T); step++) {
        decoder.decode({texts[0][prompts[0] + step], texts[1][prompts[1] + step]});
        for (size_t row = 0; row < 2; row++) {
            INFO("row " << row << " at position " << prompts[row] + step);
            check_bits("decode", row_of_logits(*model, int64_t(row)), want[row][prompts[row] + step]);
        }
    }
}

// What follows a text is the same in a row that it was copied to, and a row can begin anew.
TEST_CASE("copies of a row go their own ways", "[kv_cache]") {
    const ArchitectureCase& c = architecture_case("nano_d4");
    Cpu cpu(2);
    const auto model = model_of(cpu, c.shape, 3);
    const int64_t V = c.shape.vocab_size;
    const Ints prompt = text_of(20, V, 1), tails[] = {text_of(6, V, 2), text_of(6, V, 3), text_of(6, V, 4)};
    model->document_token = prompt[8];  // a document that began in the prompt goes on
    GptDecoder<Cpu, float> decoder(*model, 3, 32, 32);
    decoder.prefill(2, text_of(31, V, 9));
    decoder.prefill(1, prompt);
    for (const int64_t row : {0, 2}) decoder.copy(1, row);
    for (size_t i = 0; i < 6; i++) {
        decoder.decode({tails[0][i], tails[1][i], tails[2][i]});
        std::vector<Floats> got;
        for (int64_t row = 0; row < 3; row++) got.push_back(row_of_logits(*model, row));
        for (size_t row = 0; row < 3; row++) {
            Ints text = prompt;
            text.insert(text.end(), tails[row].begin(), tails[row].begin() + ptrdiff_t(i) + 1);
            check_bits("decode", got[row], whole_logits(*model, text).back());
        }
    }
}

// The same model with room for all of the text, whose layers see no further than the context of the other.
TEST_CASE("beyond the context windows slide on", "[kv_cache]") {
    const char* fixture = GENERATE("nano_d4", "nano_d2", "stage_a", "llama");
    INFO(fixture);
    const ArchitectureCase& c = architecture_case(fixture);
    const int64_t T = c.shape.max_seq_len, all = 4 * T + 3;
    Cpu cpu(2);
    GptShape longer = c.shape;
    longer.max_seq_len = all;
    const auto model = model_of(cpu, c.shape), whole = model_of(cpu, longer);
    whole->windows = model->windows;
    for (int64_t& window : whole->windows) window = window < 0 ? T - 1 : std::min(window, T - 1);
    const Ints text = text_of(all, c.shape.vocab_size, 1);
    const std::vector<Floats> want = whole_logits(*whole, text);
    GptDecoder<Cpu, float> decoder(*model, 1, T, all);
    decoder.prefill(0, Ints(text.begin(), text.begin() + T - 2));
    for (size_t t = size_t(T) - 2; t < text.size(); t++) {
        decoder.decode({text[t]});
        INFO("position " << t);
        check_bits("decode", row_of_logits(*model, 0), want[t]);
    }
}

TEST_CASE("a text cannot grow beyond the positions that there are", "[kv_cache]") {
    Cpu cpu(1);
    const auto model = model_of(cpu, {1, 1, 8, 6, 10});
    CHECK(error_of([&] { GptDecoder<Cpu, float>(*model, 1, 6, 7); }) ==
          "2: a text of 7 tokens: the model has learned 6 positions");
    GptDecoder<Cpu, float> decoder(*model, 1, 6, 6);
    CHECK(error_of([&] { decoder.decode({1}); }).starts_with("1: "));  // no text yet
    decoder.prefill(0, {1, 2, 3, 4, 5});
    decoder.decode({1});
    CHECK(error_of([&] { decoder.decode({1}); }).starts_with("1: "));
}
