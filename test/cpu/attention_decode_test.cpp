// Attention of the newest token against the KV cache: against PyTorch, and at every position of texts that go
// around the ring, with the bits of attention over the whole text.
#include "llmc/cpu/attention_decode.h"
#include "test/cpu/attention_reference.h"  // Sizes, plain_attention
#include "test/fixture.h"                  // Fixture
#include "test/op_testing.h"               // on_any_threads, bell
#include "test/testing.h"

static KeyValueShape cache_of(const Sizes& s, int64_t window) {
    return {.B = s.B, .NH = s.NH, .NKV = s.NKV, .HS = s.HS, .window = window, .scale = s.scale};
}

// Tokens [from, to) of each row of qkv (B, T, row).
static Floats tokens_of(const Sizes& s, const Floats& qkv, int64_t from, int64_t to) {
    Floats part;
    for (int64_t b = 0; b < s.B; b++) {
        const auto row = qkv.begin() + b * s.T * s.row();
        part.insert(part.end(), row + from * s.row(), row + to * s.row());
    }
    return part;
}

// What attention_decode gives for every token of a text, (B, T, NH, HS): the first `prompt` tokens are remembered
// together, each further one by itself. Before the last of the prompt there is nothing to ask.
static Floats decoded(Cpu& cpu, const Sizes& s, const KeyValueShape& cache, const Floats& qkv, int64_t prompt) {
    const size_t n = size_t(s.B * cache.row_size()), C = size_t(s.NH * s.HS);
    const Ints document_starts = s.document_starts();
    Guarded keys(n), values(n);
    Floats all(s.out(), 0);
    for (int64_t t = prompt - 1; t < s.T; t++) {
        const Ints positions(size_t(s.B), int32_t(t));
        Ints starts;
        for (int64_t b = 0; b < s.B && !document_starts.empty(); b++)
            starts.push_back(document_starts[size_t(b * s.T + t)]);
        const Floats now = tokens_of(s, qkv, t, t + 1), first = tokens_of(s, qkv, 0, prompt);
        if (t == prompt - 1)
            attention_remember<float>(cpu, keys, values, first.data(), nullptr, prompt, cache);
        else
            attention_remember<float>(cpu, keys, values, now.data(), positions.data(), 1, cache);
        Guarded out(size_t(s.B) * C);
        attention_decode<float>(cpu, out, now.data(), keys, values, positions.data(),
                                starts.empty() ? nullptr : starts.data(), cache);
        const Floats of_rows = out.get();
        for (int64_t b = 0; b < s.B; b++)
            std::copy_n(of_rows.begin() + b * int64_t(C), C, all.begin() + (b * s.T + t) * int64_t(C));
    }
    keys.get(), values.get();
    return all;
}

static Floats attention_out(Cpu& cpu, const Sizes& s, const Floats& qkv) {
    const Ints starts = s.document_starts();
    AttentionShape shape = s;
    shape.starts = starts.empty() ? nullptr : starts.data();
    Guarded out(s.out()), lse(s.lse());
    attention_forward<float>(cpu, out, lse, qkv.data(), shape);
    return out.get();
}

TEST_CASE("attention_decode agrees with PyTorch", "[attention_decode]") {
    const Fixture f("attention_decode");
    const auto [T, NH, NKV, HS, window, scale] = GENERATE(table<int, int, int, int, int, float>(
        {{1, 1, 1, 4, 0, 0.f}, {70, 2, 1, 8, 69, 0.f}, {150, 3, 1, 4, 63, 0.75f}, {140, 2, 2, 4, 70, 0.f}}));
    const std::string name = format("%dx%dx%dx%dw%d.", T, NH, NKV, HS, window);
    INFO(name);
    const Floats qkv = f.floats(name + "qkv");
    const Ints lasts = f.ints(name + "lasts"), starts = f.ints(name + "starts");
    const int64_t B = int64_t(lasts.size());
    Sizes s{{B, T, NH, NKV, HS, window, scale}};
    for (int64_t b = 0; b < B; b++)  // two documents, of which the second begins at starts[b]
        for (int64_t t = 0; t < T; t++) s.documents.push_back(t >= starts[size_t(b)]);
    const Plain plain = plain_attention(s, qkv, Floats(s.out(), 0));
    const KeyValueShape cache = cache_of(s, window);
    const auto got = on_any_threads([&](Cpu& cpu) {
        const size_t n = size_t(B * cache.row_size());
        Guarded keys(n), values(n), out(size_t(B * NH * HS));
        Floats now;
        for (int64_t b = 0; b < B; b++) {  // each row as long as it is
            const int64_t length = lasts[size_t(b)] + 1;
            KeyValueShape one = cache;
            one.B = 1;
            const float* row = qkv.data() + b * T * s.row();
            attention_remember<float>(cpu, keys + b * one.row_size(), values + b * one.row_size(), row, nullptr, length,
                                      one);
            now.insert(now.end(), row + (length - 1) * s.row(), row + length * s.row());
        }
        attention_decode<float>(cpu, out, now.data(), keys, values, lasts.data(), starts.data(), cache);
        return std::vector<Floats>{out.get()};
    });
    std::vector<double> bounds;
    for (int64_t b = 0; b < B; b++) {
        const auto from = plain.out_bounds.begin() + (b * T + lasts[size_t(b)]) * NH * HS;
        bounds.insert(bounds.end(), from, from + NH * HS);
    }
    check_within("out", got[0], f.floats("want." + name + "out"), bounds);
}

// The ring goes around: 200 tokens in 64, 128 or 256 slots; prompts of one token, within a tile, over tiles, longer
// than the ring, and the whole text.
TEST_CASE("attention_decode has the bits of attention over the whole text", "[attention_decode]") {
    const int64_t window = GENERATE(0, 1, 31, 62, 63, 64, 100, 127, 199, 230), prompt = GENERATE(1, 37, 150, 200);
    INFO("window " << window << ", a prompt of " << prompt);
    const Sizes s{{2, 200, 2, 1, 20, window}};
    const Floats qkv = bell(uint64_t(window), int64_t(s.qkv()));
    const auto got = on_any_threads([&](Cpu& cpu) {
        return std::vector{decoded(cpu, s, cache_of(s, window), qkv, prompt), attention_out(cpu, s, qkv)};
    });
    const auto from_prompt_on = [&](const Floats& out) {
        return tokens_of({{2, 200, 2, 0, 20}}, out, prompt - 1, 200);  // (B, T, NH, HS)
    };
    check_equal("out", from_prompt_on(got[0]), from_prompt_on(got[1]));
}

TEST_CASE("attention_decode has these bits for every head size and group of heads", "[attention_decode]") {
    const auto [NH, NKV] = GENERATE(table<int, int>({{1, 1}, {4, 2}, {6, 2}, {5, 1}, {3, 3}}));
    const int64_t HS = GENERATE(1, 4, 16, 33, 64, 80, 128, 256);
    const float scale = HS % 2 ? 0.3f : 0;
    const Sizes s{{3, 70, NH, NKV, HS, 65, scale}};
    const Floats qkv = bell(uint64_t(HS), int64_t(s.qkv()));
    Cpu cpu(2);
    check_equal("out", decoded(cpu, s, cache_of(s, 65), qkv, 1), attention_out(cpu, s, qkv));
}

TEST_CASE("attention_decode stays inside documents", "[attention_decode]") {
    const auto lengths =
        GENERATE(values<std::vector<int64_t>>({{1}, {2}, {1, 2, 3, 64}, {63, 65}, {64}, {97, 2, 150}}));
    const int64_t window = GENERATE(20, 199);
    const Sizes s{{2, 200, 2, 1, 8, window}, documents_of(2, 200, lengths)};
    const Floats qkv = bell(3, int64_t(s.qkv()));
    Cpu cpu(2);
    check_equal("out", decoded(cpu, s, cache_of(s, window), qkv, 1), attention_out(cpu, s, qkv));
}

TEST_CASE("attention_decode: a NaN in a key or value spoils what sees it, and nothing when it is gone",
          "[attention_decode]") {
    const Sizes s{{1, 150, 1, 1, 4, 70}};
    const int64_t which = GENERATE(1, 2), at = GENERATE(0, 10, 63, 64);
    Floats qkv = bell(1, int64_t(s.qkv()));
    qkv[s.at(0, at, which, 0)] = std::nanf("");
    Cpu cpu(1);
    const Floats got = decoded(cpu, s, cache_of(s, 70), qkv, 1);
    for (int64_t t = 0; t < s.T; t++) {
        INFO("token " << t);
        const Floats out(got.begin() + t * 4, got.begin() + t * 4 + 4);
        CHECK(count_not_finite(out) == (s.sees(0, t, at) ? which == 1 ? 4 : 1 : 0));
    }
}

TEST_CASE("attention_decode in bf16 rounds each result once", "[attention_decode]") {
    const auto [NH, NKV, HS, window] =
        GENERATE(table<int64_t, int64_t, int64_t, int64_t>({{1, 1, 1, 70}, {4, 2, 20, 31}, {2, 1, 256, 199}}));
    INFO(NH << " heads of " << HS);
    check_rounds_once([NH = NH, NKV = NKV, HS = HS, window = window]<class T>(Cpu& cpu) {
        const KeyValueShape shape{.B = 2, .NH = NH, .NKV = NKV, .HS = HS, .window = window};
        const int64_t tokens = 90;
        const auto text = bf16_randn<T>(shape.B * tokens * shape.qkv_row(), 1);
        const auto now = bf16_randn<T>(shape.B * shape.qkv_row(), 2);
        const Ints positions{89, 64}, starts{0, 60};
        Guarded<T> keys(size_t(shape.B * shape.row_size())), values(keys.n), out(size_t(shape.B * NH * HS));
        attention_remember(cpu, keys.data(), values.data(), text.data(), nullptr, tokens, shape);
        attention_decode(cpu, out.data(), now.data(), keys.data(), values.data(), positions.data(), starts.data(),
                         shape);
        return std::vector<Floats>{stored(out)};
    });
}
