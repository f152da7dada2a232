/*
The building blocks of kernels against their definitions: the wrappers of llmc/cuda/device.cuh and the parts of the CUDA
language that dev/emulator/include implements. The same source runs on the emulator and on a GPU. If it passes on both,
a kernel that is correct on the emulator is correct on a GPU. The remaining differences are described here: the order of
additions in matrix instructions, and the last bits of approximate functions.
*/
#include <bit>
#include <cmath>
#include "llmc/base/rng.h"      // Rng
#include "test/cuda_testing.h"  // OnDevice

// Named, because nvcc cannot tell an unnamed namespace from those of TEST_CASE inside it.
namespace conformance {

using Words = std::vector<uint32_t>;
using std::bit_cast;

Words random_words(size_t n, uint64_t seed) {
    Rng rng(seed, Stream::tests);
    Words words(n);
    for (uint32_t& word : words) word = uint32_t(rng.next());
    return words;
}

void check_words(const std::string& name, const Words& got, const Words& want) {
    REQUIRE(got.size() == want.size());
    const size_t i = size_t(std::mismatch(got.begin(), got.end(), want.begin()).first - got.begin());
    INFO(name << ": first difference at " << i << " of " << got.size() << ": got " << std::hex
              << (i < got.size() ? got[i] : 0) << ", want " << (i < got.size() ? want[i] : 0));
    CHECK(i == got.size());
}

// One launch over n inputs, with n outputs and `threads` a block; a kernel takes (out, inp).
template <class Out, class In>
std::vector<Out> map(void (*kernel)(Out*, const In*), const std::vector<In>& inp, size_t num_out, unsigned blocks,
                     unsigned threads, size_t shared_bytes = 0) {
    Cuda cuda;
    OnDevice<In> d_inp(cuda, inp);
    OnDevice<Out> d_out(cuda, num_out);
    launch(cuda, "conformance", kernel, blocks, threads, shared_bytes, d_out.data, d_inp.data);
    return d_out.values();
}

bool is_nan(bf16 x) { return (x.bits & 0x7FFF) > 0x7F80; }

// ---- sixteen bytes ------------------------------------------------------------------------------------------------
enum class Way { plain, streaming, uncached };
template <class T, Way way>
__global__ void reverse_packs(uint32_t* out, const uint32_t* inp) {
    const unsigned i = (blockIdx.x * blockDim.x + threadIdx.x) * 4;
    const T* from = reinterpret_cast<const T*>(inp + i);
    const Pack<T> x = way == Way::streaming  ? load16_streaming(from)
                      : way == Way::uncached ? load16_uncached(from)
                                             : load16(from);
    Pack<T> y;
    for (int k = 0; k < x.size; k++) y[k] = x[x.size - 1 - k];
    T* to = reinterpret_cast<T*>(out + i);
    way == Way::streaming ? store16_streaming(to, y) : store16(to, y);
}

TEST_CASE("load16 and store16 move bits", "[conformance]" ON_DEVICE) {
    const Words inp = random_words(3 * 64 * 4, 1);  // any bits: NaN with their payloads too
    Words floats(inp.size()), halves(inp.size());
    for (size_t i = 0; i < inp.size(); i++) {
        floats[i] = inp[i / 4 * 4 + 3 - i % 4];
        halves[i] = std::rotl(floats[i], 16);
    }
    check_words("float", map(reverse_packs<float, Way::plain>, inp, inp.size(), 3, 64), floats);
    check_words("float, streaming", map(reverse_packs<float, Way::streaming>, inp, inp.size(), 3, 64), floats);
    check_words("float, uncached", map(reverse_packs<float, Way::uncached>, inp, inp.size(), 3, 64), floats);
    check_words("bf16", map(reverse_packs<bf16, Way::plain>, inp, inp.size(), 3, 64), halves);
    check_words("bf16, streaming", map(reverse_packs<bf16, Way::streaming>, inp, inp.size(), 3, 64), halves);
    check_words("bf16, uncached", map(reverse_packs<bf16, Way::uncached>, inp, inp.size(), 3, 64), halves);
}

// ---- bf16 ---------------------------------------------------------------------------------------------------------
constexpr int kEach = 16;  // inputs a thread

__global__ void convert(uint32_t* out, const uint32_t* inp) {
    const unsigned first = (blockIdx.x * blockDim.x + threadIdx.x) * kEach;
    for (unsigned i = first; i < first + kEach; i++) {
        const float x = __uint_as_float(inp[i]);
        out[2 * i] = bf16x2(x, 1) | uint32_t(from_float<bf16>(x).bits ^ (bf16x2(1, x) >> 16)) << 16;
        out[2 * i + 1] = __float_as_uint(to_float(bf16{uint16_t(inp[i] >> 16)}));
    }
}
__global__ void convert_to_float(uint32_t* out, const uint32_t* inp) {
    out[threadIdx.x] = __float_as_uint(from_float<float>(__uint_as_float(inp[threadIdx.x])));
}

// The nearest of the two neighbors toward and away from zero; of two as near the one whose last bit is 0.
uint16_t nearest_bf16(uint32_t bits) {
    const uint32_t toward_zero = bits >> 16, rest = bits & 0xFFFF;
    const bool away = rest > 0x8000 || (rest == 0x8000 && toward_zero % 2 == 1);
    return uint16_t(toward_zero + away);  // past the largest number lies infinity
}

TEST_CASE("floats are rounded to the nearest bf16, ties to even", "[conformance]" ON_DEVICE) {
    // Every bf16, both zeros, denormals, infinities and NaN among them, and what lies between it and the next.
    Words inp;
    for (uint32_t upper = 0; upper < 0x10000; upper++)
        for (const uint32_t lower : {0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF, 0x1234, 0xABCD})
            inp.push_back(upper << 16 | lower);
    const Words got = map(convert, inp, 2 * inp.size(), unsigned(inp.size() / kEach / 256), 256);
    size_t wrong = 0, first = 0;
    for (size_t i = inp.size(); i-- > 0;) {
        // bf16x2(x, 1) in the lower half; from_float's result and the upper half of bf16x2(1, x) cancel in the upper,
        // where the 1 is left.
        const uint16_t low = uint16_t(got[2 * i]), upper = uint16_t(got[2 * i] >> 16);
        const bool same = std::isnan(bit_cast<float>(inp[i])) ? is_nan(bf16{low}) : low == nearest_bf16(inp[i]);
        const bool exact = got[2 * i + 1] == (inp[i] & 0xFFFF0000);
        if (!same || upper != 0x3F80 || !exact) wrong++, first = i;
    }
    INFO("first of " << wrong << ": " << std::hex << inp[first] << " gives " << got[2 * first] << ", back "
                     << got[2 * first + 1]);
    CHECK(wrong == 0);

    const Words bits = random_words(1024, 2);
    check_words("from_float<float>", map(convert_to_float, bits, 1024, 1, 1024), bits);
}

// ---- FP8 numbers ---------------------------------------------------------------------------------------------------
template <class Fp8>
__global__ void convert_to_fp8(uint16_t* out, const uint32_t* inp) {
    const unsigned first = (blockIdx.x * blockDim.x + threadIdx.x) * kEach;
    for (unsigned i = first; i < first + kEach; i++) {
        const float x = __uint_as_float(inp[i]);
        // The other half is a number of its own: 1, so that halves that change places show.
        out[2 * i] = fp8x2<Fp8>(x, 1);
        out[2 * i + 1] = fp8x2<Fp8>(1, x);
    }
}

// test/base/fp8_test.cpp holds to_fp8 against the definition; here: is the instruction the same?
TEMPLATE_TEST_CASE("floats are rounded to the nearest FP8 number in range", "[conformance]" ON_DEVICE, e4m3, e5m2) {
    // Every exponent with every upper part of a mantissa, and what lies beside the borders between codes.
    Words inp;
    for (uint32_t upper = 0; upper < 0x1000; upper++)
        for (const uint32_t lower : {0, 1, 0x3FFFF, 0x40000, 0x7FFFF, 0x80000, 0x80001, 0xFFFFF})
            inp.push_back(upper << 20 | lower);
    const std::vector<uint16_t> got =
        map(convert_to_fp8<TestType>, inp, 2 * inp.size(), unsigned(inp.size() / kEach / 256), 256);
    const uint32_t one = uint32_t(TestType::kBias) << TestType::kMantissaBits;
    size_t wrong = 0, first = 0;
    for (size_t i = inp.size(); i-- > 0;) {
        const TestType want = to_fp8<TestType>(bit_cast<float>(inp[i])), low{uint8_t(got[2 * i])},
                       high{uint8_t(got[2 * i + 1] >> 8)};
        const bool is_nan = std::isnan(bit_cast<float>(inp[i]));
        const bool same = is_nan ? std::isnan(to_float(low)) && std::isnan(to_float(high))
                                 : low.bits == want.bits && high.bits == want.bits;
        if (!same || got[2 * i] >> 8 != one || (got[2 * i + 1] & 0xFF) != one) wrong++, first = i;
    }
    INFO("first of " << wrong << ": " << std::hex << inp[first] << " gives " << got[2 * first] << " and "
                     << got[2 * first + 1]);
    CHECK(wrong == 0);
}

// ---- approximate functions ------------------------------------------------------------------------------------------
template <class F>
__global__ void apply(float* out, const float* inp) {
    const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    out[i] = F{}(inp[i]);
}
template <class F>
Floats applied(F, const Floats& inp) {
    REQUIRE(inp.size() % 64 == 0);
    return map(apply<F>, inp, inp.size(), unsigned(inp.size() / 64), 64);
}
// What `function` may be off by: `units` in the last place of the right result.
template <class F, class Want>
void check_units(const std::string& name, F function, const Floats& inp, Want want, double units) {
    const Floats got = applied(function, inp);
    size_t outside = 0, worst = 0;
    double most = 0;
    for (size_t i = 0; i < inp.size(); i++) {
        const double right = want(double(inp[i]));
        const double unit = std::ldexp(1.0, std::max(-126, std::ilogb(right)) - 23);
        const double off = std::fabs(got[i] - right) / unit;
        if (!(off <= units)) outside++;
        if (!(off <= most)) most = off, worst = i;
    }
    INFO(name << ": " << outside << " outside; worst at " << inp[worst] << ": " << got[worst] << ", off by " << most
              << " units");
    CHECK(outside == 0);
}
Floats uniform(size_t n, uint64_t seed, double low, double high) {
    Rng rng(seed, Stream::tests);
    Floats x(n);
    for (float& value : x) value = float(low + (high - low) * rng.uniform());
    return x;
}

struct FastExp2 {
    DEVICE float operator()(float x) const { return fast_exp2(x); }
};
struct Rsqrt {
    DEVICE float operator()(float x) const { return rsqrtf(x); }
};
struct Exp {
    DEVICE float operator()(float x) const { return __expf(x); }
};
struct Log {
    DEVICE float operator()(float x) const { return __logf(x); }
};
struct Divide {
    DEVICE float operator()(float x) const { return __fdividef(3, x); }
};
struct Reciprocal {
    DEVICE float operator()(float x) const { return __frcp_rn(x); }
};
struct Sqrt {
    DEVICE float operator()(float x) const { return __fsqrt_rn(x); }
};
struct DivideRounded {
    DEVICE float operator()(float x) const { return __fdiv_rn(3, x); }
};
struct Fma {
    DEVICE float operator()(float x) const { return fmaf(x, x, -1); }
};

TEST_CASE("fast_exp2 is right to two units", "[conformance]" ON_DEVICE) {
    Floats inp = uniform(4096 - 254 - 2, 3, -125.9, 127.9);
    for (int i = -126; i < 128; i++) inp.push_back(float(i));
    inp.push_back(0x1p-30f), inp.push_back(-0x1p-30f);
    check_units("fast_exp2", FastExp2(), inp, [](double x) { return std::exp2(x); }, 2);

    const float infinity = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
    const Floats special = {-infinity, infinity, nan, 128, 1000, -127, -149, -1000, 0, -0.f, 0x1p-149f, -0x1p-140f};
    const Floats want = {0, infinity, nan, infinity, infinity, 0, 0, 0, 1, 1, 1, 1};
    Floats padded = special;
    padded.resize(64, 0);
    Floats got = applied(FastExp2(), padded);
    got.resize(special.size());
    check_close("special values", got, want, 2 * kEpsF32);
    for (const int i : {0, 5, 6, 7}) CHECK(bit_cast<uint32_t>(got[size_t(i)]) == 0);  // and not -0 or a denormal
}

// Units as the CUDA C++ Programming Guide gives them ("Mathematical Functions": intrinsic functions).
TEST_CASE("approximate functions are as near as CUDA promises", "[conformance]" ON_DEVICE) {
    const Floats positive = uniform(1024, 4, 0.01, 1000);
    check_units("rsqrtf", Rsqrt(), positive, [](double x) { return 1 / std::sqrt(x); }, 2);
    check_units("__expf", Exp(), uniform(1024, 5, -80, 80), [](double x) { return std::exp(x); }, 2 + 1.173 * 80);
    check_units("__expf near 0", Exp(), uniform(1024, 6, -0.8, 0.8), [](double x) { return std::exp(x); }, 2);
    check_units("__logf", Log(), uniform(1024, 7, 2.1, 1e6), [](double x) { return std::log(x); }, 3);
    check_units("__fdividef", Divide(), positive, [](double x) { return 3 / x; }, 2);
    // Half a unit is what rounding to nearest leaves.
    check_units("__frcp_rn", Reciprocal(), positive, [](double x) { return 1 / x; }, 0.5);
    check_units("__fsqrt_rn", Sqrt(), positive, [](double x) { return std::sqrt(x); }, 0.5);
    check_units("__fdiv_rn", DivideRounded(), positive, [](double x) { return 3 / x; }, 0.5);
    check_units("fmaf", Fma(), uniform(1024, 8, 0.999, 1.001), [](double x) { return std::fma(x, x, -1); }, 0.5);
}

// ---- tensor cores
// ----------------------------------------------------------------------------------------------------- A warp a tile:
// a (16, 16) and b (16, 8) bf16 as floats, c (16, 8); row-major, one after the other.
constexpr int kTile = 16 * 16 + 16 * 8 + 16 * 8;

__global__ void multiply_tiles(float* out, const float* inp) {
    const int warp = int(blockIdx.x * blockDim.x + threadIdx.x) / kWarp, lane = threadIdx.x % kWarp;
    const float *a = inp + warp * kTile, *b = a + 16 * 16, *c = b + 16 * 8;
    const int row = lane / 4, col = lane % 4 * 2;
    const auto pair_of_a = [&](int i, int k) { return bf16x2(a[i * 16 + k], a[i * 16 + k + 1]); };
    const auto pair_of_b = [&](int k, int j) { return bf16x2(b[k * 8 + j], b[(k + 1) * 8 + j]); };
    const uint32_t a_fragment[4] = {pair_of_a(row, col), pair_of_a(row + 8, col), pair_of_a(row, col + 8),
                                    pair_of_a(row + 8, col + 8)};
    const uint32_t b_fragment[2] = {pair_of_b(col, row), pair_of_b(col + 8, row)};
    float d[4];
    for (int i = 0; i < 4; i++) d[i] = c[(row + i / 2 * 8) * 8 + col + i % 2];
    mma_m16n8k16(d, a_fragment, b_fragment);
    for (int i = 0; i < 4; i++) out[warp * 128 + (row + i / 2 * 8) * 8 + col + i % 2] = d[i];
}

struct Products {
    Floats want;
    std::vector<double> sizes;  // the sum of what is added, without signs
};
Products multiplied(const Floats& inp) {
    Products products;
    for (size_t tile = 0; tile < inp.size(); tile += kTile)
        for (size_t i = 0; i < 16; i++)
            for (size_t j = 0; j < 8; j++) {
                const float *a = &inp[tile + i * 16], *b = &inp[tile + 256 + j], *c = &inp[tile + 384 + i * 8 + j];
                double sum = *c, size = std::fabs(*c);
                for (size_t k = 0; k < 16; k++) {
                    sum += double(a[k]) * b[k * 8];
                    size += std::fabs(double(a[k]) * b[k * 8]);
                }
                products.want.push_back(float(sum)), products.sizes.push_back(size);
            }
    return products;
}

TEST_CASE("mma_m16n8k16 multiplies and adds", "[conformance]" ON_DEVICE) {
    const size_t tiles = 24;
    // Whole numbers: no sum is beyond 2^24, so nothing is rounded in any order, and every element has its place.
    const Floats whole = whole_numbers(int64_t(tiles * kTile), 9, 100);
    check_equal("whole numbers", map(multiply_tiles, whole, tiles * 128, 6, 128), multiplied(whole).want);

    // Products of bf16 are exact in f32. Order and manner of their 16 additions are not specified, and GPUs are known
    // to cut off bits where they bring addends to one exponent: so an addition may be off by a unit, 2 half ones, of
    // the sum of sizes. `want` itself is rounded to half of one more.
    const Floats any = rounded<bf16>(randn(tiles * kTile, 10));
    const Products products = multiplied(any);
    std::vector<double> bounds;
    for (const double size : products.sizes) bounds.push_back(17 * kEpsF32 * size);
    check_within("any numbers", map(multiply_tiles, any, tiles * 128, 6, 128), products.want, bounds);
}

template <bool kTransposed>
__global__ void load_matrices(uint32_t* out, const uint32_t* inp) {
    // Rows of 8 elements at a stride of 24 elements, in an order that is not theirs; each warp its own.
    SMEM_STATIC(uint32_t, rows, [4][kWarp][12]);
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, place = (lane * 5 + 3) % kWarp;
    for (int i = 0; i < 12; i++) rows[warp][place][i] = i < 4 ? inp[threadIdx.x * 4 + i] : 0xDEADBEEF;
    __syncwarp();
    uint32_t r[4];
    if constexpr (kTransposed)
        ldmatrix_x4_transposed(r, rows[warp][place]);
    else
        ldmatrix_x4(r, rows[warp][place]);
    for (int i = 0; i < 4; i++) out[threadIdx.x * 4 + i] = r[i];
}

TEST_CASE("ldmatrix hands out rows and columns", "[conformance]" ON_DEVICE) {
    const Words inp = random_words(128 * 4, 11);
    Words straight(inp.size()), transposed(inp.size());
    for (size_t thread = 0; thread < 128; thread++)
        for (size_t matrix = 0; matrix < 4; matrix++) {
            const auto element = [&](size_t row, size_t col) {
                const uint32_t pair = inp[(thread / 32 * 32 + matrix * 8 + row) * 4 + col / 2];
                return col % 2 ? pair >> 16 : pair & 0xFFFF;
            };
            const size_t row = thread % 32 / 4, col = thread % 4 * 2;
            straight[thread * 4 + matrix] = element(row, col) | element(row, col + 1) << 16;
            transposed[thread * 4 + matrix] = element(col, row) | element(col + 1, row) << 16;
        }
    check_words("ldmatrix_x4", map(load_matrices<false>, inp, inp.size(), 1, 128), straight);
    check_words("ldmatrix_x4_transposed", map(load_matrices<true>, inp, inp.size(), 1, 128), transposed);
}

// ---- copies under way
// -------------------------------------------------------------------------------------------------
constexpr int kStages = 3, kChunks = 7;
// Chunks of 16 bytes per thread through a ring of kStages, the next two under way while one is read by other threads
// than copied it. Threads whose number is a multiple of 3 copy nothing: zeros.
__global__ void pipeline(uint32_t* out, const uint32_t* inp) {
    SMEM_STATIC(uint32_t, ring, [kStages][64][4]);
    const int thread = threadIdx.x;
    const auto copy = [&](int chunk) {
        if (chunk < kChunks)
            cp_async16(ring[chunk % kStages][thread], inp + (chunk * 64 + thread) * 4, thread % 3 != 0);
        cp_async_commit();
    };
    copy(0), copy(1);
    for (int chunk = 0; chunk < kChunks; chunk++) {
        copy(chunk + 2);
        cp_async_wait<2>();
        __syncthreads();
        for (int i = 0; i < 4; i++) out[(chunk * 64 + thread) * 4 + i] = ring[chunk % kStages][63 - thread][i];
        __syncthreads();
    }
    cp_async_wait<0>();
}
// A thread sees its own copies without a barrier. Both copies of a group are waited for together.
__global__ void own_copies(uint32_t* out, const uint32_t* inp) {
    SMEM_STATIC(uint32_t, cells, [32][3][4]);
    auto& own = cells[threadIdx.x];
    inp += threadIdx.x * 12, out += threadIdx.x * 12;
    cp_async16(own[0], inp, true);
    cp_async16(own[1], inp + 4, true);
    cp_async_commit();
    cp_async16(own[2], inp + 8, true);
    cp_async_commit();
    cp_async_wait<1>();
    for (int i = 0; i < 8; i++) out[i] = own[i / 4][i % 4];
    cp_async_wait<0>();
    for (int i = 8; i < 12; i++) out[i] = own[2][i % 4];
}

TEST_CASE("cp_async16 copies by groups, and zeros where not valid", "[conformance]" ON_DEVICE) {
    const Words inp = random_words(kChunks * 64 * 4, 12);
    Words want(inp.size());
    for (size_t i = 0; i < inp.size(); i++) {
        const size_t chunk = i / 256, thread = 63 - i / 4 % 64;
        want[i] = thread % 3 ? inp[(chunk * 64 + thread) * 4 + i % 4] : 0;
    }
    check_words("a pipeline", map(pipeline, inp, inp.size(), 1, 64), want);
    const Words few = random_words(32 * 12, 13);
    check_words("own copies", map(own_copies, few, few.size(), 1, 32), few);
}

// ---- sums and maxima
// --------------------------------------------------------------------------------------------------
__global__ void reduce_warps(float* out, const float* inp) {
    const float x = inp[threadIdx.x];
    out[2 * threadIdx.x] = warp_sum(x);
    out[2 * threadIdx.x + 1] = warp_max(x);
}
// Twice with the same array, at once.
__global__ void reduce_blocks(float* out, const float* inp) {
    SMEM_STATIC(float, shared, [kWarp]);
    const float x = inp[blockIdx.x * blockDim.x + threadIdx.x];
    const float sum = block_sum(x, shared), most = block_max(x, shared), again = block_sum(2 * x, shared);
    float* to = out + (blockIdx.x * blockDim.x + threadIdx.x) * 3;
    to[0] = sum, to[1] = most, to[2] = again;
}

// In the order that device.cuh states: halves onto each other. IEEE additions, so the bits are known.
float sum_of_halves(Floats x) {
    for (size_t n = x.size() / 2; n > 0; n /= 2)
        for (size_t i = 0; i < n; i++) x[i] += x[i + n];
    return x[0];
}
float most_of(const Floats& x) { return *std::max_element(x.begin(), x.end()); }

TEST_CASE("sums and maxima reach every lane, in one order", "[conformance]" ON_DEVICE) {
    Floats inp = randn(128, 14);
    std::fill_n(inp.begin() + 64, 32, -std::numeric_limits<float>::infinity());
    for (size_t i = 96; i < 128; i++) inp[i] = -std::fabs(inp[i]) - 1;
    Floats want;
    for (size_t thread = 0; thread < 128; thread++) {
        const Floats warp(inp.begin() + ptrdiff_t(thread / 32 * 32), inp.begin() + ptrdiff_t(thread / 32 * 32 + 32));
        want.push_back(sum_of_halves(warp));
        want.push_back(most_of(warp));
    }
    check_equal("warps", map(reduce_warps, inp, 256, 1, 128), want);

    for (const size_t threads : {32, 64, 96, 256, 1024}) {
        INFO("blocks of " << threads);
        const Floats values = randn(2 * threads, 15);
        Floats block_want;
        for (size_t i = 0; i < 2 * threads; i++) {
            const auto begin = values.begin() + ptrdiff_t(i / threads * threads);
            const auto order = [&](float factor) {
                Floats sums(32, 0);
                for (size_t warp = 0; warp < threads / 32; warp++) {
                    Floats lanes(begin + ptrdiff_t(warp * 32), begin + ptrdiff_t(warp * 32 + 32));
                    for (float& x : lanes) x *= factor;
                    sums[warp] = sum_of_halves(lanes);
                }
                return sum_of_halves(sums);
            };
            block_want.push_back(order(1));
            block_want.push_back(most_of(Floats(begin, begin + ptrdiff_t(threads))));
            block_want.push_back(order(2));
        }
        check_equal("blocks", map(reduce_blocks, values, 6 * threads, 2, unsigned(threads)), block_want);
        const Floats below(threads, -3);  // where a maximum that begins at 0 shows
        CHECK(map(reduce_blocks, below, 3 * threads, 1, unsigned(threads))[1] == -3);
    }
}

// ---- warps and blocks
// -------------------------------------------------------------------------------------------------
constexpr int kShuffles = 13;
__global__ void shuffle(uint32_t* out, const uint32_t* inp) {
    const uint32_t x = inp[threadIdx.x];
    const int lane = threadIdx.x % kWarp;
    out += threadIdx.x * kShuffles;
    out[0] = __shfl_sync(kAllLanes, x, 5);
    out[1] = __shfl_sync(kAllLanes, x, lane + 3, 8);
    out[2] = __shfl_xor_sync(kAllLanes, x, 9);
    out[3] = __shfl_xor_sync(kAllLanes, x, 3, 4);
    out[4] = __shfl_down_sync(kAllLanes, x, 7);
    out[5] = __shfl_down_sync(kAllLanes, x, 3, 16);
    out[6] = __shfl_up_sync(kAllLanes, x, 7);
    out[7] = __shfl_up_sync(kAllLanes, x, 3, 16);
    out[8] = __ballot_sync(kAllLanes, x & 1);
    out[9] = uint32_t(__any_sync(kAllLanes, x % 32 == 0)) + 2 * uint32_t(__all_sync(kAllLanes, x != 0));
    out[10] = uint32_t(__syncthreads_count(x & 2)) + 1000 * uint32_t(__syncthreads_or(threadIdx.x == 77) != 0) +
              2000 * uint32_t(__syncthreads_or(threadIdx.x > 5000) != 0);
    out[11] = uint32_t(__syncthreads_and(threadIdx.x < 128) != 0) + 2 * uint32_t(__syncthreads_and(x != inp[77]) != 0);
    out[12] = __reduce_add_sync(kAllLanes, x);
}
__global__ void count_bits(uint32_t* out, const uint32_t* inp) {
    const uint32_t x = inp[threadIdx.x] >> threadIdx.x % 32;
    out[threadIdx.x] = uint32_t(__popc(x) + 100 * __clz(int(x)) + 10000 * __ffs(int(x)));
}

TEST_CASE("shuffles and votes", "[conformance]" ON_DEVICE) {
    const Words inp = random_words(128, 16);
    Words want;
    uint32_t seconds = 0;
    for (const uint32_t x : inp) seconds += x >> 1 & 1;
    for (size_t thread = 0; thread < 128; thread++) {
        const int lane = int(thread % 32);
        const auto lane_of_warp = [&](int from) { return inp[thread / 32 * 32 + size_t(from)]; };
        uint32_t ballot = 0, sum = 0;
        bool any = false;
        for (int i = 0; i < 32; i++) {
            ballot |= (lane_of_warp(i) & 1) << i;
            any |= lane_of_warp(i) % 32 == 0;
            sum += lane_of_warp(i);
        }
        want.insert(want.end(),
                    {lane_of_warp(5), lane_of_warp(lane / 8 * 8 + (lane + 3) % 8), lane_of_warp(lane ^ 9),
                     lane_of_warp(lane ^ 3), lane_of_warp(lane + 7 < 32 ? lane + 7 : lane),
                     lane_of_warp(lane % 16 + 3 < 16 ? lane + 3 : lane), lane_of_warp(lane < 7 ? lane : lane - 7),
                     lane_of_warp(lane % 16 < 3 ? lane : lane - 3), ballot, uint32_t(any) + 2, seconds + 1000, 1, sum});
    }
    check_words("shuffles", map(shuffle, inp, want.size(), 1, 128), want);

    Words bits;
    Words numbers = inp;
    numbers[3] = 0;
    for (size_t i = 0; i < 128; i++) {
        const uint32_t x = numbers[i] >> i % 32;
        const int first = x ? std::countr_zero(x) + 1 : 0;
        bits.push_back(uint32_t(std::popcount(x) + 100 * std::countl_zero(x) + 10000 * first));
    }
    check_words("bits", map(count_bits, numbers, 128, 1, 128), bits);
}

__global__ void count(uint32_t* out, const uint32_t* inp) {
    const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    atomicAdd(out, inp[i]);
    atomicMax(reinterpret_cast<int*>(out) + 1, int(inp[i]));
    const uint32_t before = atomicInc(out + 2, 9);
    atomicAdd(out + 4 + before, 1u);
    atomicAdd(reinterpret_cast<float*>(out) + 3, 0.5f);
    atomic_add(reinterpret_cast<uint64_t*>(out + 14), uint64_t(inp[i]) << 20);
}

TEST_CASE("atomics lose nothing", "[conformance]" ON_DEVICE) {
    Cuda cuda;
    const Words inp = random_words(5 * 96, 17);
    OnDevice<uint32_t> d_inp(cuda, inp), out(cuda, Words(16, 0));
    launch(cuda, "count", count, 5, 96, 0, out.data, d_inp.data);
    Words want(16, 48);  // tickets 0 to 9, each drawn 48 times
    want[0] = want[1] = want[2] = 0;
    uint64_t sum = 0;
    for (const uint32_t x : inp) {
        want[0] += x;
        sum += uint64_t(x) << 20;
        want[1] = uint32_t(std::max(int(want[1]), int(x)));
    }
    want[3] = bit_cast<uint32_t>(240.f);
    want[14] = uint32_t(sum), want[15] = uint32_t(sum >> 32);
    check_words("counters", out.values(), want);
}

// ---- from block to block
// -----------------------------------------------------------------------------------------------
constexpr int kChains = 64;  // threads of a block
// Blocks take tickets, up to `most` each. The holder of a ticket computes the next four sums of every chain from those
// that the ticket before it has left. Each thread waits for and hands on its own chain; or, by_one, thread 0 does so
// for its block, and each chain moves to another thread with every ticket.
template <bool by_one>
__global__ void pass_sums(uint32_t* sums, int* counters, int* next_ticket, const uint32_t* inp, int most) {
    SMEM_STATIC(int, ticket, [1]);
    const int thread = int(threadIdx.x);
    for (int i = 0; i < most; i++) {
        __syncthreads();
        if (thread == 0) ticket[0] = atomicAdd(next_ticket, 1);
        __syncthreads();
        const int now = ticket[0], chain = by_one ? (thread + now) % kChains : thread;
        if (!by_one || thread == 0) wait_until(counters + thread, now);
        if (by_one) __syncthreads();
        Pack<uint32_t> x = load16_uncached(sums + chain * 4);
        for (int k = 0; k < x.size; k++) x[k] = x[k] * 3 + inp[now] + uint32_t(chain * 4 + k);
        store16(sums + chain * 4, x);
        if (by_one) __syncthreads();
        if (!by_one || thread == 0) publish(counters + thread, now + 1);
    }
}
// One thread's value, in global and in shared memory, as the others see it.
__global__ void publish_to_all(uint32_t* out, const uint32_t* inp) {
    SMEM_STATIC(int, counter, [1]);
    int* const in_global = reinterpret_cast<int*>(out) + 2 * kChains;
    for (int i = 0; i < 5; i++) {
        const int value = int(inp[i]);
        if (threadIdx.x == 7) publish(counter, value), publish(in_global, value);
        __syncthreads();
        wait_until(counter, value);
        wait_until(in_global, value);
        out[2 * threadIdx.x] = uint32_t(published(counter));
        out[2 * threadIdx.x + 1] = uint32_t(published(in_global));
        __syncthreads();
    }
}

TEST_CASE("blocks hand sums on, in the order of their tickets", "[conformance]" ON_DEVICE) {
    Cuda cuda;
    for (const int blocks : {1, 40, 500}) {
        const int most = blocks == 500 ? 2 : 5;
        INFO(blocks << " blocks");
        const Words inp = random_words(size_t(blocks * most), 19);
        Words want(kChains * 4, 0);
        for (const uint32_t added : inp)
            for (size_t i = 0; i < want.size(); i++) want[i] = want[i] * 3 + added + uint32_t(i);
        const OnDevice<uint32_t> d_inp(cuda, inp);
        for (const bool by_one : {false, true}) {
            OnDevice<uint32_t> sums(cuda, Words(want.size(), 0));
            OnDevice<int32_t> counters(cuda, std::vector<int32_t>(kChains, 0)), next(cuda, std::vector<int32_t>(1, 0));
            launch(cuda, "conformance", by_one ? pass_sums<true> : pass_sums<false>, unsigned(blocks), kChains, 0,
                   sums.data, counters.data, next.data, d_inp.data, most);
            check_words(by_one ? "by one thread of each block" : "thread by thread", sums.values(), want);
            CHECK(counters.values()[0] == blocks * most);
        }
    }
    const Words values = {1, 7, uint32_t(-1), 0x80000000, 0};
    check_words("values", map(publish_to_all, values, 2 * kChains + 1, 1, kChains), Words(2 * kChains + 1, 0));
}

// ---- shared memory, launches
// ------------------------------------------------------------------------------------------- Every array is the
// block's own, keeps its distance from the others and its alignment.
__global__ void fill_arrays(uint32_t* out, const uint32_t* inp) {
    SMEM_STATIC(uint32_t, square, [8][8]);
    SMEM_STATIC(bf16, row, [65]);
    SMEM_STATIC(double, number, [1]);
    SMEM_DYNAMIC(uint32_t, large);
    const unsigned i = threadIdx.x, last = 100 * 1024 / 4 - 64;
    square[i / 8][i % 8] = inp[i];
    row[i].bits = uint16_t(~inp[i]);
    large[i] = 0;
    large[last + i] = inp[i] + blockIdx.x;
    if (i == 0) number[0] = 0.25;
    __syncthreads();
    const auto misaligned = [](const void* pointer, uintptr_t bytes) {
        return uint32_t(reinterpret_cast<uintptr_t>(pointer) % bytes);
    };
    out += (blockIdx.x * 64 + i) * 4;
    out[0] = square[i % 8][i / 8];
    out[1] = row[63 - i].bits;
    out[2] = large[last + 63 - i];
    out[3] = misaligned(large, 1024) + misaligned(number, 8) + misaligned(square, 4) + (number[0] != 0.25) + large[i];
}

TEST_CASE("shared arrays are apart, aligned, and one for each block", "[conformance]" ON_DEVICE) {
    const Words inp = random_words(64, 18);
    Words want;
    for (uint32_t block = 0; block < 3; block++)
        for (size_t i = 0; i < 64; i++)
            want.insert(want.end(), {inp[i % 8 * 8 + i / 8], uint16_t(~inp[63 - i]), inp[63 - i] + block, 0});
    check_words("arrays", map(fill_arrays, inp, want.size(), 3, 64, 100 * 1024), want);
}

__global__ void indices(uint32_t* out, const uint32_t*) {
    const unsigned block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
    const unsigned thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
    const unsigned i = block * blockDim.x * blockDim.y * blockDim.z + thread;
    // Lanes are numbered in the order of x, then y, then z.
    out[i] = i + 1000 * (__shfl_sync(kAllLanes, thread, 3) == thread / 32 * 32 + 3);
}

TEST_CASE("launches number their threads, and report what cannot be launched", "[conformance]" ON_DEVICE) {
    Cuda cuda;
    OnDevice<uint32_t> inp(cuda, 1), out(cuda, 12 * 64);
    const auto error = [&](dim3 grid, dim3 block, size_t shared_bytes = 0) {
        return error_of([&] { launch(cuda, "some_op", indices, grid, block, shared_bytes, out.data, inp.data); });
    };
    for (const std::string& text : {error(1, 1025), error(1, 0), error(0, 32), error(1, dim3(1, 1, 65)),
                                    error(dim3(1, 65536), 32), error(1, 32, 512 << 10)}) {
        INFO(text);
        CHECK(text.substr(0, 3) == "1: ");
        CHECK(contains(text, "some_op"));
    }
    // and the device goes on
    CHECK(error(dim3(2, 3, 2), dim3(8, 4, 2)) == "");
    Words want(12 * 64);
    for (size_t i = 0; i < want.size(); i++) want[i] = uint32_t(i + 1000);
    check_words("indices", out.values(), want);
}

}  // namespace conformance
