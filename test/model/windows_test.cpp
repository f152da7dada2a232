// Attention windows per layer and step, and documents that are found by their first token.
#include "llmc/cpu/kernels.h"
#include "llmc/model/gpt.h"
#include "test/model/architectures.h"  // small_shape
#include "test/testing.h"

using Windows = std::vector<int64_t>;

static Architecture of_windows(const char* pattern, int64_t short_window = 0) {
    Architecture a;
    a.windows = pattern, a.short_window = short_window;
    return a;
}

TEST_CASE("a letter a layer, repeated; the last layer sees all", "[windows]") {
    CHECK(layer_windows(of_windows("SSSL"), 6, 2048) == Windows{512, 512, 512, -1, 512, -1});
    CHECK(layer_windows(of_windows("SSSL"), 3, 1024) == Windows{256, 256, -1});
    CHECK(layer_windows(of_windows("SL"), 4, 513) == Windows{256, -1, 256, -1});  // 129 rounded up to 256
    CHECK(layer_windows(of_windows("S"), 2, 512) == Windows{128, -1});
    CHECK(layer_windows(of_windows("S"), 2, 128) == Windows{-1, -1});
    CHECK(layer_windows(of_windows("S", 7), 2, 32) == Windows{7, -1});
    CHECK(layer_windows(of_windows("L"), 2, 32) == Windows{-1, -1});
    Architecture mistral = of_windows("S", 7);
    mistral.full_last_layer = false;
    CHECK(layer_windows(mistral, 3, 32) == Windows{7, 7, 7});
    CHECK(contains(error_of([] { layer_windows(of_windows("SSX"), 2, 64); }), "window-pattern = SSX: letter X"));
    CHECK(contains(error_of([] { layer_windows(of_windows(""), 2, 64); }), "window-pattern is empty"));
}

TEST_CASE("a part of every window, of long layers too", "[windows]") {
    CHECK(layer_windows(of_windows("SL"), 2, 2048, 0.25) == Windows{128, 512});
    CHECK(layer_windows(of_windows("SL"), 2, 2048, 0.26) == Windows{256, 640});
    CHECK(layer_windows(of_windows("SL"), 2, 2048, 1) == Windows{512, -1});
    CHECK(layer_windows(of_windows("SL"), 2, 1000, 1. / 3) == Windows{128, 384});
    CHECK(layer_windows(of_windows("SL"), 2, 1000, 0.999) == Windows{256, -1});
    CHECK(layer_windows(of_windows("SL", 100), 2, 120, 0.5) == Windows{50, 60});
}

// The losses of tokens 0, 1, 2, ... of a small model, whose weights depend on the seed alone.
static Floats losses_of(const std::vector<int32_t>& tokens, int64_t T, double part, int32_t document_token = -1) {
    Cpu cpu;
    GptShape shape = small_shape("nanochat", {3, 2, 32, T, 50}, "SSL", 6);
    shape.architecture.smear = false;  // it looks at the token before, of another document too
    shape.architecture.init.zero_projections = false;
    shape.architecture.init.head = 1;
    Gpt<Cpu> model(cpu, shape, 1, T);
    model.initialize_weights(3);
    model.set_windows(part);
    model.document_token = document_token;
    model.forward(tokens.data(), 1, int64_t(tokens.size()));
    model.loss(tokens.data());
    return Floats(model.acts.losses, model.acts.losses + tokens.size());
}

TEST_CASE("a token further back than all windows together changes nothing", "[windows]") {
    constexpr int64_t kT = 40;
    std::vector<int32_t> tokens;
    for (int i = 0; i < kT; i++) tokens.push_back(int32_t(i * 7 % 50));
    std::vector<int32_t> other = tokens;
    other[0] = 49;
    // A fifth: windows of 2, 2 and 8 tokens, so that token 12 is the last that token 0 reaches.
    const Floats before = losses_of(tokens, kT, 0.2), after = losses_of(other, kT, 0.2);
    for (size_t t = 0; t < kT; t++) {
        INFO(t);
        CHECK((before[t] == after[t]) == (t > 12));
    }
    const Floats whole_before = losses_of(tokens, kT, 1), whole_after = losses_of(other, kT, 1);
    for (size_t t = 0; t < kT; t++) CHECK(whole_before[t] != whole_after[t]);
}

TEST_CASE("documents found by their first token do not see each other", "[windows]") {
    constexpr int64_t kT = 24;
    constexpr int32_t kFirst = 44;
    std::vector<int32_t> tokens;
    for (int i = 0; i < kT; i++) tokens.push_back(int32_t(i * 11 % 43));
    tokens[9] = tokens[10] = tokens[20] = kFirst;
    std::vector<int32_t> other = tokens;
    other[3] = 1, other[15] = 2;
    const Floats before = losses_of(tokens, kT, 1, kFirst), after = losses_of(other, kT, 1, kFirst);
    for (size_t t = 0; t < kT; t++) {
        INFO(t);
        const bool reached = (t >= 3 && t < 9) || (t >= 15 && t < 20);
        CHECK((before[t] != after[t]) == reached);
    }
}
