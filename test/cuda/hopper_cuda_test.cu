/*
The wrappers of llmc/cuda/hopper.cuh against their definitions, on the emulator and on a GPU of compute capability 9.0:
see conformance_cuda_test.cu. Products are of small integers, so that every sum is exact in any order.
*/
#include "llmc/cuda/hopper.cuh"
#include "llmc/base/rng.h"      // Rng
#include "test/cuda_testing.h"  // OnDevice

// Named, because nvcc cannot tell an unnamed namespace from those of TEST_CASE inside it.
namespace hopper {

// Elsewhere there is nothing to hold against anything.
bool is_hopper() {
    const Cuda cuda;
    if (takes_hopper_kernels(cuda)) return true;
    WARN("no GPU of compute capability 9.0, or not built for it: nothing is tested");
    return false;
}

Floats small_integers(size_t n, uint64_t seed) {
    Rng rng(seed, Stream::tests);
    Floats x(n);
    for (float& value : x) value = float(int(rng.next() % 15) - 7);
    return x;
}

// ---- TMA ------------------------------------------------------------------------------------------------------------
struct Corner {
    int c[4];
};
constexpr int kRows = 16;  // of a box, in all

// Shared memory as a load leaves it, chunk by chunk.
__global__ void dump_box(bf16* out, const __grid_constant__ TensorMap map, Corner at) {
    SMEM_DYNAMIC(unsigned char, shared);
    Mbarrier* const full = reinterpret_cast<Mbarrier*>(shared + 1024 + kRows * 128);
    if (threadIdx.x == 0) {
        mbarrier_init(full, 1);
        mbarrier_fence_init();
        mbarrier_arrive_expect(full, kRows * 128);
        tma_load(shared + 1024, map, full, at.c[0], at.c[1], at.c[2], at.c[3]);
    }
    __syncthreads();
    mbarrier_wait(full, 0);
    for (int i = int(threadIdx.x); i < kRows * 8; i += int(blockDim.x))
        store16(out + i * 8, load16(reinterpret_cast<const bf16*>(shared + 1024) + i * 8));
}

TEST_CASE("TMA brings a box, swizzled, with zeros around the tensor", "[hopper]" ON_DEVICE) {
    if (!is_hopper()) return;
    Cuda cuda;
    constexpr int64_t kDims[4] = {72, 3, 10, 2}, kStrides[4] = {1, 80, 248, 2504};  // with gaps
    Floats values(size_t(kStrides[3] * kDims[3]), std::nanf(""));  // what lies in a gap is never brought
    for (int64_t b = 0; b < kDims[3]; b++)
        for (int64_t t = 0; t < kDims[2]; t++)
            for (int64_t h = 0; h < kDims[1]; h++)
                for (int64_t c = 0; c < kDims[0]; c++)
                    values[size_t(b * kStrides[3] + t * kStrides[2] + h * kStrides[1] + c)] =
                        float((b * 128 + t * 8 + h) % 251 + 1) * (c % 2 ? 1 : -1) + float(c % 64) / 256;
    values = rounded<bf16>(values);
    const OnDevice<bf16> inp(cuda, values);
    const auto [box, at] = GENERATE(table<std::vector<int>, std::vector<int>>({{{64, 1, 16, 1}, {0, 1, 0, 1}},
                                                                               {{64, 1, 16, 1}, {0, 2, -3, 0}},
                                                                               {{64, 1, 16, 1}, {64, 0, 5, 1}},
                                                                               {{64, 1, 16, 1}, {-8, 1, 9, 1}},
                                                                               {{64, 1, 16, 1}, {0, 3, 0, 0}},
                                                                               {{64, 2, 4, 2}, {8, 2, 8, 1}},
                                                                               {{64, 4, 2, 2}, {16, -1, 3, 0}}}));
    TensorLayout layout{{kDims[0], kDims[1], kDims[2], kDims[3]}, {kStrides[1], kStrides[2], kStrides[3]}, {}};
    std::copy_n(box.begin(), 4, layout.box);
    Corner corner;
    std::copy_n(at.begin(), 4, corner.c);
    OnDevice<bf16> out(cuda, size_t(kRows * kTmaColumns));
    launch(cuda, "conformance", dump_box, 1, 64, 1024 + kRows * 128 + sizeof(Mbarrier), out.data,
           tensor_map(inp.data, layout), corner);

    Floats want(out.n);
    size_t row = 0;
    for (int b = at[3]; b < at[3] + box[3]; b++)
        for (int t = at[2]; t < at[2] + box[2]; t++)
            for (int h = at[1]; h < at[1] + box[1]; h++, row++)
                for (int c = at[0]; c < at[0] + 64; c++) {
                    const int64_t place[4] = {c, h, t, b};
                    bool inside = true;
                    int64_t from = 0;
                    for (int k = 0; k < 4; k++) {
                        inside &= place[k] >= 0 && place[k] < kDims[k];
                        from += place[k] * kStrides[k];
                    }
                    const size_t column = size_t(c - at[0]);
                    const size_t to = row * 64 + ((column / 8) ^ (row % 8)) * 8 + column % 8;
                    want[to] = inside ? values[size_t(from)] : 0;
                }
    INFO("box of " << box[1] << " x " << box[2] << " x " << box[3] << " at " << at[0] << ", " << at[1] << ", " << at[2]
                   << ", " << at[3]);
    check_equal("box", out.get(), want);
}

// Bytes as they are, beside a box, for one phase after the other. What lies around them stays.
constexpr int kAround = 64, kMostBytes = 8192, kPhases = 3;
constexpr int kDumped = kRows * 128 + kAround + kMostBytes + kPhases * 16 + kAround;  // bytes, a box first
__global__ void dump_bytes(uint32_t* out, const uint32_t* inp, const __grid_constant__ TensorMap map, int bytes) {
    SMEM_DYNAMIC(unsigned char, shared);
    Mbarrier* const full = reinterpret_cast<Mbarrier*>(shared + kDumped);
    const auto words = [&](int i) { return reinterpret_cast<uint32_t*>(shared) + computed_here(i) * 4; };
    if (threadIdx.x == 0) {
        mbarrier_init(full, 1);
        mbarrier_fence_init();
    }
    for (int phase = 0; phase < kPhases; phase++, out += kDumped / 4) {
        for (int i = int(threadIdx.x); i < kDumped / 16; i += int(blockDim.x))
            store16(words(i), Pack<uint32_t>{1, 2, 3, uint32_t(i)});
        fence_async();
        __syncthreads();
        if (threadIdx.x == 0) {
            mbarrier_arrive_expect(full, kRows * 128 + bytes);
            tma_load(shared, map, full, 0, 0, phase * kRows, 0);
            bulk_load(shared + kRows * 128 + kAround + phase * 16, inp + phase * 4, bytes, full);
        }
        mbarrier_wait(full, phase % 2);
        for (int i = int(threadIdx.x); i < kDumped / 16; i += int(blockDim.x)) store16(out + i * 4, load16(words(i)));
        fence_async();
        __syncthreads();
    }
}

TEST_CASE("bytes come as they are, beside a box", "[hopper]" ON_DEVICE) {
    if (!is_hopper()) return;
    Cuda cuda;
    Rng rng(5, Stream::tests);
    std::vector<uint32_t> values(kMostBytes / 4 + kPhases * 4);
    for (uint32_t& value : values) value = uint32_t(rng.next());
    const OnDevice<uint32_t> inp(cuda, values);
    const Floats rows = small_integers(size_t(kPhases * kRows * 64), 6);
    const OnDevice<bf16> boxes(cuda, rows);
    const TensorMap map =
        tensor_map(boxes.data, {{64, 1, kPhases * kRows, 1}, {64, 64, kPhases * kRows * 64}, {64, 1, kRows, 1}});
    for (const int bytes : {16, 32, 48, 240, 768, 1024, 4112, kMostBytes}) {
        OnDevice<uint32_t> out(cuda, size_t(kPhases * kDumped / 4));
        launch(cuda, "conformance", dump_bytes, 1, 64, kDumped + sizeof(Mbarrier), out.data, inp.data, map, bytes);
        std::vector<uint32_t> want(out.n);
        for (size_t phase = 0; phase < kPhases; phase++) {
            uint32_t* const to = want.data() + phase * kDumped / 4;
            for (uint32_t i = 0; i < kDumped / 16; i++)
                for (uint32_t k = 0; k < 4; k++) to[i * 4 + k] = k < 3 ? k + 1 : i;
            for (size_t row = 0; row < kRows; row++)
                for (size_t column = 0; column < 64; column += 2) {
                    const float* const pair = rows.data() + (phase * kRows + row) * 64 + column;
                    to[row * 32 + ((column / 8) ^ (row % 8)) * 4 + column % 8 / 2] =
                        uint32_t(to_bf16(pair[0]).bits) | uint32_t(to_bf16(pair[1]).bits) << 16;
                }
            std::copy_n(values.data() + phase * 4, size_t(bytes / 4), to + (kRows * 128 + kAround) / 4 + phase * 4);
        }
        const std::vector<uint32_t> got = out.values();
        INFO(bytes << " bytes, first difference at word "
                   << std::mismatch(got.begin(), got.end(), want.begin()).first - got.begin());
        CHECK(got == want);
    }
}

// ---- mbarrier, named barriers, registers
// ------------------------------------------------------------------------------ Two warps hand a number to each other,
// phase by phase; what lies between two phases is added up.
__global__ void pass_on(uint32_t* out, uint32_t rounds) {
    SMEM_DYNAMIC(Mbarrier, barriers);  // one for each direction
    SMEM_STATIC(uint32_t, number, [1]);
    if (threadIdx.x == 0) {
        mbarrier_init(barriers, 32);
        mbarrier_init(barriers + 1, 2);
        mbarrier_fence_init();
        number[0] = 0;
    }
    __syncthreads();
    uint32_t sum = 0;
    for (uint32_t i = 0; i < rounds; i++)
        if (threadIdx.x < 32) {
            mbarrier_wait(barriers + 1, int(i % 2 ^ 1));  // the first time at once
            if (threadIdx.x == 0) number[0] += i + 1;
            sum += i;
            mbarrier_arrive(barriers);
        } else {
            mbarrier_wait(barriers, int(i % 2));
            sum += number[0];
            __syncwarp();
            if (threadIdx.x % 32 < 2) mbarrier_arrive(barriers + 1);
        }
    out[threadIdx.x] = sum;
}
// The same with barriers of the block that have numbers: the second warp waits at 2 for what the first brings, which
// does not wait there; and the other way around at 3.
__global__ void pass_on_by_number(uint32_t* out, uint32_t rounds) {
    SMEM_STATIC(uint32_t, number, [1]);
    uint32_t sum = 0;
    for (uint32_t i = 0; i < rounds; i++)
        if (threadIdx.x < 32) {
            if (i > 0) barrier_sync(3, 64);
            if (threadIdx.x == 0) number[0] = (i + 1) * (i + 2) / 2;
            sum += i;
            __syncwarp();
            barrier_arrive(2, 64);
        } else {
            barrier_sync(2, 64);
            sum += number[0];
            if (i + 1 < rounds) barrier_arrive(3, 64);
        }
    out[threadIdx.x] = sum;
}
__global__ void __launch_bounds__(384, 1) hand_registers_over(uint32_t* out, uint32_t n) {
    if (__shfl_sync(kAllLanes, int(threadIdx.x) / kWarpgroup, 0) == 0) {
        give_registers<24>();
        out[threadIdx.x] = n;
    } else {
        take_registers<240>();
        uint32_t x[200];
#pragma unroll
        for (int i = 0; i < 200; i++) x[i] = threadIdx.x * n + uint32_t(i);
        __syncwarp();
        uint32_t sum = 0;
#pragma unroll
        for (int i = 199; i >= 0; i--) sum = sum * 3 + x[i];
        out[threadIdx.x] = sum;
    }
}

TEST_CASE("barriers hand over, phase by phase", "[hopper]" ON_DEVICE) {
    if (!is_hopper()) return;
    Cuda cuda;
    OnDevice<uint32_t> out(cuda, 64);
    [[maybe_unused]] const auto check = [&](uint32_t rounds) {
        uint32_t sum = 0;
        for (uint32_t i = 0; i < rounds; i++) sum += (i + 1) * (i + 2) / 2;
        const std::vector<uint32_t> got = out.values();
        for (size_t i = 0; i < 64; i++) CHECK(got[i] == (i < 32 ? rounds * (rounds - 1) / 2 : sum));
    };
#ifndef ANVIL_RACE  // the checker knows these barriers not: hopper.h
    for (const uint32_t rounds : {1u, 2u, 7u}) {
        launch(cuda, "conformance", pass_on, 1, 64, 2 * sizeof(Mbarrier), out.data, rounds);
        check(rounds);
        launch(cuda, "conformance", pass_on_by_number, 1, 64, 0, out.data, rounds);
        check(rounds);
    }
#endif
    OnDevice<uint32_t> numbers(cuda, 384);
    launch(cuda, "conformance", hand_registers_over, 1, 384, 0, numbers.data, 5u);
    const std::vector<uint32_t> got = numbers.values();
    for (uint32_t thread = 0; thread < 384; thread++) {
        uint32_t sum = 0;
        for (uint32_t i = 200; i-- > 0;) sum = sum * 3 + thread * 5 + i;
        CHECK(got[thread] == (thread < 128 ? 5 : sum));
    }
}

// ---- wgmma
// -----------------------------------------------------------------------------------------------------------
enum class Left { tile, transposed, registers };
enum class Filled { by_tma, by_stores };
constexpr int kProductRows = 64 + 128, kPartBytes = 64 * 128;  // of the input; of 64 rows of 64 columns

// d (64, N) = a b + d: a is rows 0..63 and columns 0..63 of the input (192, 128), with k along a row or, transposed, a
// column; b its rows from 64 on, N of them with k along a row, or, transposed, 64 of them, k, with N columns. d begins
// as row - column if `add`.
template <int N, bool transposed, Left left, Filled filled>
__global__ void products(float* out, const bf16* inp, const __grid_constant__ TensorMap map, int add) {
    SMEM_DYNAMIC(unsigned char, shared);  // a, then two parts of b
    Mbarrier* const full = reinterpret_cast<Mbarrier*>(shared + 3 * kPartBytes);
    const int parts = N / 64;
    const auto column_at = [](int part) { return transposed && part > 0 ? 64 * part - 64 : 0; };
    const auto row_at = [](int part) { return transposed && part > 0 ? 64 : 64 * part; };
    if (threadIdx.x == 0) {
        mbarrier_init(full, 1);
        mbarrier_fence_init();
        if (filled == Filled::by_tma) {
            mbarrier_arrive_expect(full, (1 + parts) * kPartBytes);
            for (int part = 0; part <= parts; part++)
                tma_load(shared + part * kPartBytes, map, full, column_at(part), 0, row_at(part), 0);
        }
    }
    if (filled == Filled::by_stores) {
        for (int i = int(threadIdx.x); i < (1 + parts) * 512; i += kWarpgroup) {
            const int part = i / 512, row = i / 8 % 64, chunk = i % 8;
            store16(reinterpret_cast<bf16*>(shared + part * kPartBytes + row * 128 + ((chunk ^ row % 8) << 4)),
                    load16(inp + (row_at(part) + row) * 128 + column_at(part) + chunk * 8));
        }
        fence_async();
    }
    __syncthreads();
    if (filled == Filled::by_tma) mbarrier_wait(full, 0);

    const int warp = int(threadIdx.x) / kWarp, lane = int(threadIdx.x) % kWarp, g = lane / 4, c = lane % 4 * 2;
    const auto row_of = [&](int i) { return 16 * warp + g + i / 2 % 2 * 8; };
    const auto column_of = [&](int i) { return i / 4 * 8 + c + i % 2; };
    float d[N / 2];
    if (add)
#pragma unroll
        for (int i = 0; i < N / 2; i++) d[i] = float(row_of(i) - column_of(i));
    uint32_t a[4][4];
    if (left == Left::registers)
#pragma unroll
        for (int k = 0; k < 4; k++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int row = 16 * warp + g + i % 2 * 8, column = 16 * k + c + i / 2 * 8;
                a[k][i] = *reinterpret_cast<const uint32_t*>(shared + row * 128 + ((column / 8 ^ row % 8) << 4) +
                                                             column % 8 * 2);
            }
    const uint64_t a_tile = wgmma_tile(shared), b_tile = wgmma_tile(shared + kPartBytes, kPartBytes);
    wgmma_pin(d);
    wgmma_pin(a);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < 4; k++) {
        const uint64_t b = b_tile + uint64_t(k) * (transposed ? 128 : 2);
        if constexpr (left == Left::registers)
            wgmma<N, transposed>(d, a[k], b, add || k > 0);
        else if constexpr (left == Left::transposed)
            wgmma<N, transposed, true>(d, a_tile + uint64_t(k) * 128, b, add || k > 0);
        else
            wgmma<N, transposed>(d, a_tile + uint64_t(k) * 2, b, add || k > 0);
    }
    wgmma_commit();
    wgmma_wait<0>();
    wgmma_pin(d);
#pragma unroll
    for (int i = 0; i < N / 2; i++) out[row_of(i) * N + column_of(i)] = d[i];
}

template <int N, bool transposed, Left left, Filled filled>
void check_products() {
    Cuda cuda;
    const Floats values = small_integers(kProductRows * 128, N);
    const OnDevice<bf16> inp(cuda, values);
    const TensorMap map =
        tensor_map(inp.data, {{128, 1, kProductRows, 1}, {128, 128, kProductRows * 128}, {64, 1, 64, 1}});
    for (const int add : {0, 1}) {
        INFO("N=" << N << " transposed=" << transposed << " left=" << int(left) << " stores=" << int(filled)
                  << " add=" << add);
        OnDevice<float> out(cuda, size_t(64 * N));
        launch(cuda, "conformance", products<N, transposed, left, filled>, 1, kWarpgroup,
               3 * kPartBytes + sizeof(Mbarrier), out.data, inp.data, map, add);
        Floats want(out.n);
        for (int row = 0; row < 64; row++)
            for (int column = 0; column < N; column++) {
                float sum = add ? float(row - column) : 0;
                for (int k = 0; k < 64; k++)
                    sum += values[size_t(left == Left::transposed ? k * 128 + row : row * 128 + k)] *
                           values[size_t(transposed ? (64 + k) * 128 + column : (64 + column) * 128 + k)];
                want[size_t(row * N + column)] = sum;
            }
        check_equal("d", out.get(), want);
    }
}

TEST_CASE("wgmma multiplies tiles and registers", "[hopper]" ON_DEVICE) {
    if (!is_hopper()) return;
    check_products<64, false, Left::tile, Filled::by_tma>();
    check_products<64, true, Left::tile, Filled::by_tma>();
    check_products<128, false, Left::tile, Filled::by_tma>();
    check_products<128, true, Left::tile, Filled::by_tma>();
    check_products<64, false, Left::transposed, Filled::by_tma>();
    check_products<64, true, Left::transposed, Filled::by_tma>();
    check_products<128, false, Left::transposed, Filled::by_tma>();
    check_products<128, true, Left::transposed, Filled::by_tma>();
    check_products<64, false, Left::registers, Filled::by_tma>();
    check_products<64, true, Left::registers, Filled::by_tma>();
    check_products<128, false, Left::registers, Filled::by_tma>();
    check_products<128, true, Left::registers, Filled::by_tma>();
    check_products<128, false, Left::tile, Filled::by_stores>();
    check_products<128, true, Left::tile, Filled::by_stores>();
    check_products<128, false, Left::transposed, Filled::by_stores>();
    check_products<128, true, Left::transposed, Filled::by_stores>();
}

// Of two groups the first is finished after wait<1>, and the second goes on.
__global__ void two_groups(float* out, const __grid_constant__ TensorMap map) {
    SMEM_DYNAMIC(unsigned char, shared);
    Mbarrier* const full = reinterpret_cast<Mbarrier*>(shared + 2 * kPartBytes);
    if (threadIdx.x == 0) {
        mbarrier_init(full, 1);
        mbarrier_fence_init();
        // The bytes may come before they are expected, as long as the phase cannot end.
        tma_load(shared, map, full, 0, 0, 0, 0);
        tma_load(shared + kPartBytes, map, full, 0, 0, 64, 0);
        mbarrier_arrive_expect(full, 2 * kPartBytes);
    }
    __syncthreads();
    mbarrier_wait(full, 0);
    const uint64_t a = wgmma_tile(shared), b = wgmma_tile(shared + kPartBytes);
    float first[32], second[32];
    wgmma_fence();
    wgmma<64>(first, a, b, false);
    wgmma_commit();
    wgmma<64>(second, a + 2, b + 2, false);
    wgmma_commit();
    wgmma_wait<1>();
    wgmma_pin(first);
#pragma unroll
    for (int i = 0; i < 32; i++) out[threadIdx.x * 64 + i] = first[i];
    wgmma_wait<0>();
    wgmma_pin(second);
#pragma unroll
    for (int i = 0; i < 32; i++) out[threadIdx.x * 64 + 32 + i] = second[i];
}

TEST_CASE("wgmma's groups are finished in their order", "[hopper]" ON_DEVICE) {
    if (!is_hopper()) return;
    Cuda cuda;
    const Floats values = small_integers(128 * 64, 3);
    const OnDevice<bf16> inp(cuda, values);
    OnDevice<float> out(cuda, 128 * 64);
    launch(cuda, "conformance", two_groups, 1, kWarpgroup, 2 * kPartBytes + sizeof(Mbarrier), out.data,
           tensor_map(inp.data, {{64, 1, 128, 1}, {64, 64, 128 * 64}, {64, 1, 64, 1}}));
    Floats want(out.n);
    for (int thread = 0; thread < 128; thread++)
        for (int i = 0; i < 64; i++) {
            const int row = thread / 32 * 16 + thread % 32 / 4 + i / 2 % 2 * 8;
            const int column = i % 32 / 4 * 8 + thread % 4 * 2 + i % 2;
            float sum = 0;
            for (int k = i / 32 * 16; k < i / 32 * 16 + 16; k++)
                sum += values[size_t(row * 64 + k)] * values[size_t((64 + column) * 64 + k)];
            want[size_t(thread * 64 + i)] = sum;
        }
    check_equal("d", out.get(), want);
}

}  // namespace hopper
