// Attention's kernels against the plain version in double, which test/cpu/attention_test.cpp compares with PyTorch.
#include <utility>
#include "llmc/cuda/attention/attention.cuh"
#include "test/cpu/attention_reference.h"  // Sizes, plain_attention
#include "test/cuda_testing.h"             // OnDevice, rounded, twice_the_same

#ifdef ANVIL_EMULATED
// With the emulator's cuDNN, which counts its plans.
struct WithCudnn {
    WithCudnn() { setenv("ANVIL_EMULATOR_CUDNN", "1", 1); }
    ~WithCudnn() { unsetenv("ANVIL_EMULATOR_CUDNN"); }
};
#endif

template <class T>
static bool has_two_kernels(const Cuda& cuda, const AttentionShape& shape) {
    return std::is_same_v<T, bf16> && shape.HS <= 128 && takes_hopper_kernels(cuda);
}

template <class T>
constexpr double kStored = std::is_same_v<T, bf16> ? kEpsBf16 / 2 : 0;

// out, lse, dqkv; and the same of the kernels that other chips than this one have, where there are two
template <class T>
static std::vector<Floats> attention(const Sizes& sizes, const Floats& qkv, const Floats& dout,
                                     AttentionKernels kernels = AttentionKernels::own) {
    Cuda cuda;
    cuda.attention = kernels;
    const OnDevice<T> d_qkv(cuda, qkv), d_dout(cuda, dout);
    const OnDevice<int32_t> d_starts(cuda, sizes.document_starts());
    AttentionShape shape = sizes;
    if (!sizes.documents.empty()) shape.starts = d_starts.data;
    if (kernels != AttentionKernels::own) plan_attention<T>(cuda, {shape}, true);
    return twice_the_same([&] {
        std::vector<Floats> results;
        const auto run = [&] {
            OnDevice<T> d_out(cuda, sizes.out()), d_dqkv(cuda, sizes.qkv());
            OnDevice<float> d_lse(cuda, sizes.lse());
            attention_forward(cuda, d_out.data, d_lse.data, d_qkv.data, shape);
            attention_backward(cuda, d_dqkv.data, d_dout.data, d_out.data, d_lse.data, d_qkv.data, shape);
            results.insert(results.end(), {d_out.get(), d_lse.get(), d_dqkv.get()});
        };
        run();
        if (!has_two_kernels<T>(cuda, shape)) {
            results.insert(results.end(), {results[0], results[1], results[2]});
        } else {
            const int chip = std::exchange(cuda.compute_capability, 80);
            run();
            cuda.compute_capability = chip;
        }
        return results;
    });
}

static void check_results(const std::vector<Floats>& got, const Plain& want) {
    check_within("out", got[0], want.out, want.out_bounds);
    check_within("lse", got[1], want.lse, want.lse_bounds);
    check_within("dqkv", got[2], want.dqkv, want.dqkv_bounds);
    check_within("out, other kernel", got[3], want.out, want.out_bounds);
    check_within("lse, other kernel", got[4], want.lse, want.lse_bounds);
    check_within("dqkv, other kernel", got[5], want.dqkv, want.dqkv_bounds);
}

template <class T>
static void check_attention_on_device(const Sizes& s, AttentionKernels kernels = AttentionKernels::own) {
    INFO("B=" << s.B << " T=" << s.T << " NH=" << s.NH << " NKV=" << s.NKV << " HS=" << s.HS << " window=" << s.window);
    const Floats qkv = rounded<T>(bell(uint64_t(s.T), int64_t(s.qkv())));
    const Floats dout = rounded<T>(bell(uint64_t(s.HS), int64_t(s.out())));
    const bool by_head = kernels != AttentionKernels::own && s.NH != s.NKV;
    const Plain want = plain_attention(s, qkv, dout, kStored<T>, by_head ? kStored<T> : 0);
    check_results(attention<T>(s, qkv, dout, kernels), want);
}

TEMPLATE_TEST_CASE("attention's kernels are right for every window", "[attention]" ON_DEVICE, bf16, float) {
    const int64_t T = GENERATE(1, 7, 64, 65, 200), window = GENERATE(-1, 0, 1, 5, 30, 62, 63, 64, 65, 127);
    if (window >= T) return;  // all keys again
    if (kWatched && T == 200 && window != -1 && window != 63) return;
    check_attention_on_device<TestType>({{1, T, 1, 1, 64, window}});
}

TEMPLATE_TEST_CASE("attention's kernels are right for every group of heads", "[attention]" ON_DEVICE, bf16, float) {
    const auto [NH, NKV] = GENERATE(table<int, int>({{2, 1}, {2, 2}, {4, 1}, {4, 2}}));
    const int64_t window = GENERATE(-1, 20);
    if (kWatched && (NKV == 1) != (window < 0)) return;
    check_attention_on_device<TestType>({{2, 70, NH, NKV, 64, window, 0.25f}});
}

// Documents of one token, of two, of odd lengths, that end with a tile of 32, 64 or 128 or beside it, and one that is
// the row; B and NH of more than one, so that rows and heads are told apart.
TEMPLATE_TEST_CASE("attention's kernels are right among documents", "[attention]" ON_DEVICE, bf16, float) {
    const int64_t T = GENERATE(1, 65, 200);
    const auto lengths = GENERATE(values<std::vector<int64_t>>({{1}, {1, 2, 29, 33}, {64}, {128, 200}, {97, 2, 150}}));
    const int64_t window = GENERATE_COPY(-1, 0, T / 4);
    if (kWatched && (window == 0 || (T == 200 && (window < 0 || lengths.size() % 2 == 0)))) return;
    INFO("documents of " << lengths[0] << " and " << lengths.size() - 1 << " other lengths");
    check_attention_on_device<TestType>({{2, T, 2, 1, 64, window}, documents_of(2, T, lengths)});
}

TEST_CASE("attention's kernels are right among documents for heads of 128 in bf16", "[attention]" ON_DEVICE) {
    const int64_t window = GENERATE(-1, 70);
    if (kWatched && window < 0) return;
    check_attention_on_device<bf16>({{1, 230, 2, 1, 128, window}, documents_of(1, 230, {5, 90, 64, 33})});
}

TEST_CASE("attention's kernels are right among documents for heads of any multiple of 4 in fp32",
          "[attention]" ON_DEVICE) {
    const int64_t HS = GENERATE(4, 20, 128, 256);
    check_attention_on_device<float>({{1, 90, 2, 1, HS, 30}, documents_of(1, 90, {5, 40, 17})});
}

// More tiles of 32 queries than lanes in a warp, which look for the last that sees a key.
TEST_CASE("attention's kernels are right for documents of many tiles", "[attention][slow]" ON_DEVICE) {
    const auto lengths = GENERATE(values<std::vector<int64_t>>({{20, 5000}, {20, 1085, 500}}));
    if (kWatched && lengths.size() > 2) return;
    check_attention_on_device<float>({{1, 1200, 1, 1, 4}, documents_of(1, 1200, lengths)});
}

// A document that begins with a block of 128 queries is worked on in the same tiles as a row of its own.
TEMPLATE_TEST_CASE("attention's kernels: documents in a row are rows of their own", "[attention]" ON_DEVICE, bf16,
                   float) {
    const Sizes packed{{1, 300, 2, 1, 64}, documents_of(1, 300, {128, 172})};
    const Floats qkv = rounded<TestType>(randn(packed.qkv(), 1)), dout = rounded<TestType>(randn(packed.out(), 2));
    const auto got = attention<TestType>(packed, qkv, dout);
    for (const auto& [first, length] : std::vector<std::pair<int64_t, int64_t>>{{0, 128}, {128, 172}}) {
        const auto part = [first = first, length = length](const Floats& x, int64_t row) {
            return Floats(x.begin() + first * row, x.begin() + (first + length) * row);
        };
        const Sizes alone{{1, length, 2, 1, 64}};
        const int64_t row = alone.row(), out_row = alone.NH * alone.HS;
        const auto want = attention<TestType>(alone, part(qkv, row), part(dout, out_row));
        check_equal("out", part(got[0], out_row), want[0]);
        check_equal("dqkv", part(got[2], row), want[2]);
        check_equal("out, other kernel", part(got[3], out_row), want[3]);
        check_equal("dqkv, other kernel", part(got[5], row), want[5]);
    }
}

// With equal scores and values and gradients that are rows of the identity, the weights can be read off
// (test/cpu/attention_test.cpp).
template <class T>
static void check_pairs(const Sizes& s) {
    Floats qkv(s.qkv(), 0), dout(s.out(), 0);
    for (int64_t t = 0; t < s.T; t++)
        qkv[s.at(0, t, 1, 0) + size_t(t)] = qkv[s.at(0, t, 2, 0) + size_t(t)] = dout[size_t(t * s.HS + t)] = 1;
    const auto got = attention<T>(s, qkv, dout);
    int64_t wrong = 0;
    for (int64_t t = 0; t < s.T; t++) {
        int64_t keys = 0;
        for (int64_t key = 0; key < s.T; key++) keys += s.sees(0, t, key);
        for (int64_t key = 0; key < s.T; key++) {
            const bool sees = s.sees(0, t, key);
            for (const size_t kernel : {0, 3}) {
                wrong += (got[kernel][size_t(t * s.HS + key)] != 0) != sees;
                wrong += (got[kernel + 2][s.at(0, key, 2, 0) + size_t(t)] != 0) != sees;
                wrong += (got[kernel + 2][s.at(0, t, 0, 0) + size_t(key)] != 0) != (sees && keys > 1);
            }
        }
    }
    INFO("T=" << s.T << " window=" << s.window << (s.documents.empty() ? "" : ", documents"));
    CHECK(wrong == 0);
}
TEST_CASE("attention's kernels see the pairs of the mask and no others", "[attention]" ON_DEVICE) {
    const int64_t window = GENERATE(-1, 0, 1, 31, 32, 63, 64, 127, 128);
    const bool documents = GENERATE(false, true);
    if (kWatched && window != -1 && window != 31) return;  // it is about values
    const auto numbers = [&](int64_t T) { return documents ? documents_of(1, T, {33, 3, 1, 28, 15}) : Ints{}; };
    check_pairs<bf16>({{1, 128, 1, 1, 128, window, 1}, numbers(128)});
    check_pairs<bf16>({{1, 64, 1, 1, 64, window, 1}, numbers(64)});
    check_pairs<float>({{1, 128, 1, 1, 128, window, 1}, numbers(128)});
}

TEST_CASE("attention's kernels are right for heads of 128 in bf16", "[attention]" ON_DEVICE) {
    const int64_t T = GENERATE(7, 65, 200), window = GENERATE(-1, 1, 62, 64, 127);
    if (window >= T || (kWatched && T == 200 && window != 64)) return;
    check_attention_on_device<bf16>({{1, T, 2, 1, 128, window}});
}

TEST_CASE("attention's kernels are right for heads of any multiple of 4 in fp32", "[attention]" ON_DEVICE) {
    const int64_t HS = GENERATE(4, 20, 32, 96, 128, 132, 256), window = GENERATE(-1, 30);
    check_attention_on_device<float>({{1, 70, 2, 1, HS, window}});
}

// Tiles with columns of zeros up to 64 and to 128, of which no bit may reach the tensors: neighboring heads lie after
// each head, and a token after the last. More than 128: without tensor cores.
TEST_CASE("attention's kernels are right for heads of any multiple of 8 in bf16", "[attention]" ON_DEVICE) {
    const int64_t HS = GENERATE(8, 16, 24, 32, 40, 48, 56, 72, 80, 96, 112, 120, 136, 256);
    const bool documents = GENERATE(false, true);
    if (kWatched && HS != 8 && HS != 40 && HS != 80 && HS != 136) return;  // of each kernel and its widths one or two
    INFO((documents ? "documents" : "one document"));
    const auto numbers = documents ? documents_of(2, 70, {5, 40, 17}) : Ints{};
    check_attention_on_device<bf16>({{2, 70, 2, 1, HS, documents ? 30 : -1}, numbers});
}

// Tiles of 64 keys and blocks of 128 queries, and queries of which each sees another number of keys.
TEST_CASE("attention's kernels are right for narrow heads over many tiles", "[attention]" ON_DEVICE) {
    const int64_t HS = GENERATE(32, 80), window = GENERATE(-1, 100);
    const bool documents = GENERATE(false, true);
    if (kWatched && documents == (window < 0)) return;
    const auto numbers = documents ? documents_of(1, 330, {5, 200, 64, 33}) : Ints{};
    check_attention_on_device<bf16>({{1, 330, 1, 1, HS, window}, numbers});
}

// Same formulas, same roundings but that of each query head's dK and dV: what holds for our kernels holds for cuDNN's.
TEST_CASE("cuDNN's attention is right where it has kernels", "[attention][cudnn]" ON_DEVICE) {
    const auto [T, NH, NKV, HS, window] = GENERATE(table<int, int, int, int, int>(
        {{64, 2, 2, 64, -1}, {200, 2, 2, 64, -1}, {200, 4, 2, 128, -1}, {256, 2, 1, 64, 63}, {256, 2, 2, 128, 64}}));
    if (kWatched && T > 64) return;  // what is emulated for it is no kernel of ours
    const Sizes s{{2, T, NH, NKV, HS, window}};
#ifdef ANVIL_EMULATED
    const WithCudnn with_cudnn;
#endif
    Cuda cuda;
    std::string why;
    if (cuda.cudnn_attention().supports(s, &why))
        for (const AttentionKernels kernels : {AttentionKernels::cudnn, AttentionKernels::mixed})
            check_attention_on_device<bf16>(s, kernels);
    else
        CHECK(!why.empty());
}

// In blocks of 128 queries and tiles of 64 keys, and with tiles that only other warps of a block see.
TEST_CASE("attention's kernels are right over many tiles", "[attention]" ON_DEVICE) {
    const int64_t window = GENERATE(-1, 100, 300);
    if (kWatched && window != 100) return;
    check_attention_on_device<bf16>({{1, 500, 1, 1, 64, window}});
}

// In tiles of 128 keys, two under way: of seven each place is filled four times. With documents and windows a block's
// first tile is another one.
TEST_CASE("attention's kernels are right where tiles take turns in shared memory", "[attention][slow]" ON_DEVICE) {
    const int64_t HS = GENERATE(64, 128);
    const bool documents = GENERATE(false, true);
    if (kWatched && documents == (HS == 64)) return;
    const auto numbers = documents ? documents_of(1, 800, {140, 520, 77}) : Ints{};
    check_attention_on_device<bf16>({{1, 800, 1, 1, HS, documents ? 430 : -1}, numbers});
}

// Scores in the thousands: weights that are nearly one-hot, and sums that overflow unless they are shifted.
TEMPLATE_TEST_CASE("attention's kernels take large scores", "[attention]" ON_DEVICE, bf16, float) {
    const Sizes s{{1, 70, 1, 1, 64, -1, 4.f}};
    const Floats qkv = rounded<TestType>(bell(1, int64_t(s.qkv()), 4)),
                 dout = rounded<TestType>(bell(2, int64_t(s.out())));
    const Plain want = plain_attention(s, qkv, dout, kStored<TestType>);
    check_results(attention<TestType>(s, qkv, dout), want);
}

// The weights of a row that are made tile by tile belong to one largest score, however large: their mean is exact.
TEMPLATE_TEST_CASE("attention's kernels: equal values stay what they are", "[attention]" ON_DEVICE, bf16, float) {
    using T = TestType;
    const float x = GENERATE(17.f, 18.f, 19.f, 20.f, 21.f, 22.f, 23.f);
    if (kWatched && x != 17) return;  // it is about values
    const Sizes s{{1, 500, 1, 1, 64, -1, 1.f}};
    Floats qkv(s.qkv(), x);  // scores of 64 x^2
    for (int64_t t = 0; t < s.T; t++) std::fill_n(qkv.begin() + int64_t(s.at(0, t, 2, 0)), s.HS, 1.f);
    Cuda cuda;
    cuda.attention = AttentionKernels::own;
    const OnDevice<T> d_qkv(cuda, qkv);
    OnDevice<T> out(cuda, s.out());
    OnDevice<float> lse(cuda, s.lse());
    if (GENERATE(false, true)) cuda.compute_capability = 80;  // the kernel that all chips have
    attention_forward(cuda, out.data, lse.data, d_qkv.data, s);
    // Two float32 sums of 500 equal terms, whose roundings may all go the same way; half a unit of bf16 is far more.
    check_relative("out", out.get(), Floats(s.out(), 1), std::is_same_v<T, bf16> ? 0 : 500 * kEpsF32);
}

// What a query does not see has no influence on one bit, however large: scores and dP overflow there.
TEMPLATE_TEST_CASE("attention's kernels see the window and no more", "[attention]" ON_DEVICE, bf16, float) {
    const int64_t window = GENERATE(0, 5, 63, 64, 65), t = GENERATE(97, 128, 149);
    if (kWatched && (window != 64 || t != 128)) return;  // it is about values
    const Sizes s{{1, 150, 1, 1, 64, window}};
    const Floats qkv = rounded<TestType>(randn(s.qkv(), 1)), dout = rounded<TestType>(randn(s.out(), 2));
    const auto before = attention<TestType>(s, qkv, dout);
    const auto compare = [&](const Floats& changed, int64_t first, int64_t end) {
        const auto after = attention<TestType>(s, changed, dout);
        const auto part = [&](const Floats& x, int64_t row) {
            return Floats(x.begin() + first * row, x.begin() + end * row);
        };
        for (const size_t kernel : {0, 3}) {
            check_equal("out", part(after[kernel], s.NH * s.HS), part(before[kernel], s.NH * s.HS));
            check_equal("lse", part(after[kernel + 1], 1), part(before[kernel + 1], 1));
        }
        CHECK(!same_bits(before[0], after[0]));
        return after;
    };
    const Floats huge = rounded<TestType>(Floats(1, 3e38f));
    INFO("window=" << window << " t=" << t);
    {  // nothing before the window of t is seen by t or what follows, so no gradient there changes either
        Floats changed = qkv;
        std::fill_n(changed.begin(), s.at(0, t - window, 0, 0), huge[0]);
        const auto after = compare(changed, t, s.T);
        const auto own = [&](const Floats& x) { return Floats(x.begin() + int64_t(s.at(0, t, 0, 0)), x.end()); };
        for (const size_t dqkv : {2, 5}) check_equal("dqkv", own(after[dqkv]), own(before[dqkv]));
    }
    {  // nothing from t on is seen by what comes before, and what those see is theirs alone
        Floats changed = qkv;
        std::fill(changed.begin() + int64_t(s.at(0, t, 0, 0)), changed.end(), huge[0]);
        const auto after = compare(changed, 0, t);
        const auto own = [&](const Floats& x) {
            return Floats(x.begin(), x.begin() + int64_t(s.at(0, t - window, 0, 0)));
        };
        for (const size_t dqkv : {2, 5}) check_equal("dqkv", own(after[dqkv]), own(before[dqkv]));
    }
}

TEMPLATE_TEST_CASE("attention's kernels hand a NaN on", "[attention]" ON_DEVICE, bf16, float) {
    const Sizes s{{2, 40, 1, 1, 64}};
    const int64_t which = GENERATE(0, 1, 2), t = GENERATE(0, 39);
    INFO("a NaN in " << "qkv"[which] << " at " << t);
    Floats qkv = rounded<TestType>(randn(s.qkv(), 1));
    const Floats dout = rounded<TestType>(randn(s.out(), 2));
    qkv[s.at(1, t, which, 0) + 3] = std::nanf("");
    const auto got = attention<TestType>(s, qkv, dout);
    for (const size_t kernel : {0, 3}) {
        const auto row = [&](int64_t b, int64_t t) { return got[kernel].begin() + (b * s.T + t) * s.HS; };
        CHECK(count_not_finite(Floats(row(1, t), row(1, t) + s.HS)) >= (which == 2 ? 1 : s.HS));
        CHECK(count_not_finite(Floats(row(0, 0), row(1, 0))) == 0);  // the other sequence
        const Floats& dqkv = got[kernel + 2];
        CHECK(count_not_finite(Floats(dqkv.begin() + int64_t(s.at(1, 0, 0, 0)), dqkv.end())) > 0);
        CHECK(count_not_finite(Floats(dqkv.begin(), dqkv.begin() + int64_t(s.at(1, 0, 0, 0)))) == 0);
    }
}

// What the graphs of cuDNN cannot mask is not left to it, and whoever insists is told so.
TEST_CASE("documents are never cuDNN's", "[attention]" ON_DEVICE) {
    Cuda cuda;
    const int32_t starts = 0;
    AttentionShape shape{1, 256, 2, 2, 64};
    shape.starts = &starts;  // not read
    std::string why;
    CHECK(!cuda.cudnn_attention().supports(shape, &why));
    CHECK(plan_attention<bf16>(cuda, {shape}, true) == "own kernels (cuDNN: " + why + ")");
    CHECK(!takes_cudnn<bf16>(cuda, shape, false));
    CHECK(cuda.cudnn_attention().plans_made() == 0);
    cuda.attention = AttentionKernels::cudnn;
    CHECK(error_of([&] { plan_attention<bf16>(cuda, {shape}, true); }) == "2: --attention cudnn: " + why);
}

// How many blocks there are, which pieces each takes and how many slots the sums of dq have follows from the number of
// SMs. On the emulator a block runs until no pieces are left, so there they are shared only if it may not take more.
template <int HS>
static void check_hopper_blocks(const Sizes& sizes) {
    Cuda cuda;
    if (!takes_hopper_kernels(cuda)) return;
    const OnDevice<bf16> qkv(cuda, bell(1, int64_t(sizes.qkv()))), dout(cuda, bell(2, int64_t(sizes.out())));
    const OnDevice<int32_t> starts(cuda, sizes.document_starts());
    AttentionShape shape = sizes;
    if (!sizes.documents.empty()) shape.starts = starts.data;
    OnDevice<bf16> out(cuda, sizes.out());
    OnDevice<float> lse(cuda, sizes.lse());
    flash_attention_forward_hopper<HS>(cuda, out.data, lse.data, qkv.data, shape);
    const auto dqkv_of = [&](int num_sms, int most_pieces) {
        cuda.num_sms = num_sms;
        OnDevice<bf16> dqkv(cuda, sizes.qkv());
        flash_attention_backward_hopper<HS>(cuda, dqkv.data, dout.data, out.data, lse.data, qkv.data, shape,
                                            most_pieces);
        return dqkv.get();
    };
    const Floats want = dqkv_of(1, INT_MAX);
    for (const auto& [num_sms, most_pieces] : {std::pair(1, 1), {1, 4}, {7, 2}, {132, 1}}) {
        if (kWatched && num_sms != 1) continue;
        INFO(num_sms << " SMs, at most " << most_pieces << " pieces a block");
        CHECK(dqkv_of(num_sms, most_pieces) == want);
        if (kWatched) break;
    }
}
TEST_CASE("attention's backward on Hopper has the same bits for any number of blocks", "[attention][slow]" ON_DEVICE) {
    if (kWatched) {  // what blocks hand on: two parts of a sum, and a slot from one head to the next
        SECTION("few heads of 64") { check_hopper_blocks<64>({{1, 130, 4, 4, 64}}); }
        SECTION("few heads of 128") { check_hopper_blocks<128>({{1, 130, 4, 4, 128}}); }
        return;
    }
    SECTION("heads of 64") { check_hopper_blocks<64>({{2, 300, 6, 3, 64}}); }
    SECTION("heads of 128") { check_hopper_blocks<128>({{2, 270, 3, 3, 128}}); }
    SECTION("a window") { check_hopper_blocks<64>({{1, 500, 4, 4, 64, 130}}); }
    SECTION("documents") { check_hopper_blocks<64>({{2, 400, 4, 2, 64}, documents_of(2, 400, {150, 64, 100, 86})}); }
}

TEST_CASE("cuDNN's backward is taken by name, or where ours is not the faster one", "[attention]" ON_DEVICE) {
    const AttentionShape heads_of_64{2, 256, 2, 2, 64}, heads_of_128{2, 256, 2, 2, 128},
        windowed{2, 256, 2, 2, 128, 128}, too_far{2, 256, 2, 2, 128, 255};
    Cuda cuda;
    const bool is_hopper = takes_hopper_kernels(cuda), chooses = cuda.cudnn_attention().deterministic();
    CHECK(wants_cudnn_backward(cuda, heads_of_64) == !is_hopper);
    CHECK(wants_cudnn_backward(cuda, windowed) == !(is_hopper && chooses));
    CHECK(wants_cudnn_backward(cuda, heads_of_128));
    CHECK(wants_cudnn_backward(cuda, too_far));
    for (const AttentionKernels kernels : {AttentionKernels::own, AttentionKernels::cudnn, AttentionKernels::mixed}) {
        cuda.attention = kernels;
        for (const AttentionShape& shape : {heads_of_64, heads_of_128, windowed})
            CHECK(wants_cudnn_backward(cuda, shape) == (kernels == AttentionKernels::cudnn));
    }
    for (const int chip : {80, 89, 100, 120}) {
        cuda.attention = AttentionKernels::automatic, cuda.compute_capability = chip;
        CHECK(!takes_hopper_kernels(cuda));
        CHECK(wants_cudnn_backward(cuda, heads_of_64));
    }
}

#ifdef ANVIL_EMULATED
TEST_CASE("cuDNN plans for the shapes that were told and the passes that are needed, all else is our own kernels'",
          "[attention]" ON_DEVICE) {
    const WithCudnn with_cudnn;
    const AttentionShape whole{2, 256, 2, 2, 64}, windowed{2, 256, 2, 2, 64, 128}, too_far{2, 256, 2, 2, 64, 255};
    AttentionShape documents = whole;
    const int32_t starts = 0;
    documents.starts = &starts;
    for (const bool learns : {false, true}) {
        Cuda cuda(0, {"", AttentionKernels::cudnn});
        const auto plans = [&] { return cuda.cudnn_attention().plans_made(); };
        CHECK(!takes_cudnn<bf16>(cuda, whole, false));  // nothing was told yet
        CHECK(plans() == 0);
        const size_t most = attention_workspace<bf16>(cuda, whole, learns);
        CHECK(plans() == 0);
        const std::string text = plan_attention<bf16>(cuda, {whole, windowed}, learns);
        CHECK(text == format("emulated cuDNN 9.19.0 for batches of 2 x 256, %s; own kernels elsewhere",
                             learns ? "the same bits each time" : "forward"));
        CHECK(plans() == (learns ? 4 : 2));
        CHECK(attention_workspace<bf16>(cuda, whole, learns) <= most);
        for (const AttentionShape& told : {whole, windowed, too_far}) {
            CHECK(takes_cudnn<bf16>(cuda, told, false));
            CHECK(takes_cudnn<bf16>(cuda, told, true) == learns);
        }
        for (int64_t T = 1; T < 300; T++)
            for (const bool is_backward : {false, true})
                if (T != 256) CHECK(!takes_cudnn<bf16>(cuda, {2, T, 2, 2, 64}, is_backward));
        for (int64_t window = 0; window < 255; window++)
            CHECK(takes_cudnn<bf16>(cuda, {2, 256, 2, 2, 64, window}, false) == (window == 128));
        CHECK(!takes_cudnn<bf16>(cuda, {1, 256, 2, 2, 64}, false));
        CHECK(!takes_cudnn<bf16>(cuda, documents, false));
        CHECK(!takes_cudnn<float>(cuda, whole, false));
        CHECK(!takes_cudnn<bf16>(cuda, {1, 7, 2, 2, 200}, false));
        CHECK(plans() == (learns ? 4 : 2));
    }
}

TEST_CASE("a mixed attention is cuDNN's forward and our own backward", "[attention]" ON_DEVICE) {
    const WithCudnn with_cudnn;
    const AttentionShape shape{2, 256, 2, 2, 64};
    Cuda cuda(0, {"", AttentionKernels::mixed}), own(0, {"", AttentionKernels::own});
    const size_t most = attention_workspace<bf16>(cuda, shape);
    CHECK(plan_attention<bf16>(cuda, {shape}, true) ==
          "emulated cuDNN 9.19.0 for batches of 2 x 256, forward, and our own backward; own kernels elsewhere");
    CHECK(cuda.cudnn_attention().plans_made() == 1);
    CHECK(takes_cudnn<bf16>(cuda, shape, false));
    CHECK(!takes_cudnn<bf16>(cuda, shape, true));
    CHECK(attention_workspace<bf16>(cuda, shape) <= most);
    CHECK(attention_workspace<bf16>(cuda, shape) >= attention_workspace<bf16>(own, shape));
}

TEST_CASE("which attention runs is said, with the reason", "[attention]" ON_DEVICE) {
    const AttentionShape shape{2, 256, 2, 2, 128}, odd{2, 256, 5, 2, 128}, windowed{2, 256, 2, 2, 128, 100};
    Cuda none;
    CHECK(plan_attention<bf16>(none, {shape}, true) == format("own kernels (cuDNN: %s)", kNoCudnn));
    CHECK(plan_attention<float>(none, {shape}, true) == "own kernels (cuDNN's are for bf16)");
    const WithCudnn with_cudnn;
    Cuda fastest(0, {"", AttentionKernels::automatic, false}), own(0, {"", AttentionKernels::own});
    CHECK(plan_attention<bf16>(own, {shape}, true) == "own kernels (--attention own)");
    CHECK(own.cudnn_attention().plans_made() == 0);
    CHECK(contains(plan_attention<bf16>(fastest, {shape}, true), "backward at its fastest"));
    Cuda automatic;
    const bool by_window = takes_hopper_kernels(automatic);
    CHECK(contains(plan_attention<bf16>(automatic, {shape, windowed}, true),
                   by_window ? "the same bits each time, with our own backward for windows; own"
                             : "the same bits each time; own"));
    CHECK(automatic.cudnn_attention().plans_made() == (by_window ? 3 : 4));
    CHECK(plan_attention<bf16>(fastest, {odd}, true) == "own kernels (cuDNN: 5 heads cannot share 2)");
    CHECK(
        contains(plan_attention<bf16>(fastest, {shape, odd}, true), "own kernels elsewhere (5 heads cannot share 2)"));
}
#endif

TEST_CASE("attention's kernels refuse shapes that they are not made for", "[attention]" ON_DEVICE) {
    Cuda cuda;
    cuda.attention = AttentionKernels::own;
    OnDevice<bf16> x(cuda, 64);
    OnDevice<float> y(cuda, 64);
    CHECK(error_of([&] { attention_forward(cuda, x.data, y.data, x.data, {1, 1, 1, 1, 12}); }) ==
          "2: heads of 12 channels: on a GPU attention in bf16 takes multiples of 8 up to 256: choose --channels and "
          "--num-heads so that channels / heads is one, or give --dtype fp32 or --device cpu");
    CHECK(error_of([&] { attention_backward(cuda, x.data, x.data, x.data, y.data, x.data, {1, 1, 1, 1, 264}); }) ==
          "2: heads of 264 channels: on a GPU attention in bf16 takes multiples of 8 up to 256: choose --channels and "
          "--num-heads so that channels / heads is one");
    CHECK(error_of([&] { attention_backward(cuda, y.data, y.data, y.data, y.data, y.data, {1, 1, 1, 1, 6}); }) ==
          "2: heads of 6 channels: on a GPU attention in fp32 takes multiples of 4 up to 256: choose --channels and "
          "--num-heads so that channels / heads is one, or give --device cpu");
    CHECK(error_of([&] { attention_forward(cuda, y.data, y.data, y.data, {1, 1, 3, 2, 8}); }) ==
          "2: attention: 3 query heads over 2 key heads: expected a multiple");
    CHECK(contains(error_of([&] { attention_forward(cuda, y.data + 1, y.data, y.data, {1, 1, 1, 1, 8}); }), "% 16"));
}
