// The kernels of decoding attention against the plain version in double, which test/cpu/attention_test.cpp compares
// with PyTorch.
#include "llmc/cuda/attention/attention_decode.cuh"
#include "test/cpu/attention_reference.h"  // Sizes, plain_attention
#include "test/cuda_testing.h"             // OnDevice, rounded, twice_the_same

template <class T>
constexpr double kStored = std::is_same_v<T, bf16> ? kEpsBf16 / 2 : 0;

// The rows' tokens before `lasts` are remembered, those of `prompt` together, and attention of `lasts` is looked at.
template <class T>
static void check_decode(const Sizes& s, const Ints& lasts, int64_t prompt) {
    INFO("T=" << s.T << " NH=" << s.NH << " NKV=" << s.NKV << " HS=" << s.HS << " window=" << s.window << " prompt of "
              << prompt);
    const Floats qkv = rounded<T>(bell(uint64_t(s.HS), int64_t(s.qkv())));
    const Plain want = plain_attention(s, qkv, Floats(s.out(), 0), kStored<T>);
    const Ints document_starts = s.document_starts();
    const KeyValueShape cache{.B = s.B, .NH = s.NH, .NKV = s.NKV, .HS = s.HS, .window = s.window, .scale = s.scale};
    const size_t n = size_t(s.B * cache.row_size()), C = size_t(s.NH * s.HS);
    // Token t of each row of qkv; a row that is at its end stays there, as one that needs no more tokens would.
    const auto tokens = [&](int64_t t, int64_t count) {
        Floats part;
        for (int64_t b = 0; b < s.B; b++) {
            const auto from = qkv.begin() + (b * s.T + std::min<int64_t>(t, lasts[size_t(b)])) * s.row();
            part.insert(part.end(), from, from + count * s.row());
        }
        return part;
    };
    Cuda cuda;
    const auto got = twice_the_same([&] {
        OnDevice<T> keys(cuda, n), values(cuda, n), out(cuda, size_t(s.B) * C);
        const OnDevice<T> first(cuda, tokens(0, prompt));
        attention_remember(cuda, keys.data, values.data, first.data, nullptr, prompt, cache);
        Ints positions, starts;
        for (int64_t t = prompt; t <= *std::max_element(lasts.begin(), lasts.end()); t++) {
            positions.clear();
            for (const int32_t last : lasts) positions.push_back(std::min(int32_t(t), last));
            const OnDevice<T> now(cuda, tokens(t, 1));
            const OnDevice<int32_t> at(cuda, positions);
            attention_remember(cuda, keys.data, values.data, now.data, at.data, 1, cache);
            cuda.synchronize();
        }
        for (int64_t b = 0; b < s.B && !document_starts.empty(); b++)
            starts.push_back(document_starts[size_t(b * s.T + lasts[size_t(b)])]);
        const OnDevice<T> now(cuda, tokens(s.T - 1, 1));
        const OnDevice<int32_t> at(cuda, lasts), from(cuda, starts);
        attention_decode(cuda, out.data, now.data, keys.data, values.data, at.data,
                         starts.empty() ? nullptr : from.data, cache);
        keys.values(), values.values();
        return std::vector<Floats>{out.get()};
    });
    Floats of_lasts;
    std::vector<double> bounds;
    for (int64_t b = 0; b < s.B; b++) {
        const int64_t from = (b * s.T + lasts[size_t(b)]) * int64_t(C);
        of_lasts.insert(of_lasts.end(), want.out.begin() + from, want.out.begin() + from + int64_t(C));
        bounds.insert(bounds.end(), want.out_bounds.begin() + from, want.out_bounds.begin() + from + int64_t(C));
    }
    check_within("out", got[0], of_lasts, bounds);
}

// Rings of 64, 128 and 192 slots; rows of all lengths, of which the first have only begun.
TEMPLATE_TEST_CASE("attention_decode's kernels are right for every window", "[attention_decode]" ON_DEVICE, bf16,
                   float) {
    const int64_t window = GENERATE(0, 1, 62, 63, 64, 130);
    if (kWatched && window != 0 && window != 63 && window != 130) return;  // of each ring one
    check_decode<TestType>({{5, 150, 2, 1, 16, window}}, {0, 63, 64, 100, 149}, 1);
}

// A tile for each warp and then some; prompts within the ring and longer than it.
TEMPLATE_TEST_CASE("attention_decode's kernels are right for long rows", "[attention_decode]" ON_DEVICE, bf16, float) {
    const int64_t window = GENERATE(99, 639);
    if (kWatched && window != 99) return;
    check_decode<TestType>({{2, 640, 1, 1, 8, window}}, {639, 620}, 621);
}

TEMPLATE_TEST_CASE("attention_decode's kernels are right for every head size and group of heads",
                   "[attention_decode]" ON_DEVICE, bf16, float) {
    const auto [NH, NKV] = GENERATE(table<int, int>({{1, 1}, {4, 2}, {3, 1}}));
    const int64_t HS = GENERATE(4, 20, 64, 128, 256);
    if (kWatched && NH != (HS < 64 ? 1 : HS < 256 ? 4 : 3)) return;  // of each one, not each with each
    check_decode<TestType>({{2, 70, NH, NKV, HS, 66, 0.25f}}, {69, 33}, 30);
}

TEMPLATE_TEST_CASE("attention_decode's kernels stay inside documents", "[attention_decode]" ON_DEVICE, bf16, float) {
    const auto lengths = GENERATE(values<std::vector<int64_t>>({{1}, {63, 65}, {97, 2, 150}}));
    check_decode<TestType>({{2, 150, 2, 1, 8, 149}, documents_of(2, 150, lengths)}, {149, 98}, 90);
}
