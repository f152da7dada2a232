// See gpu_model.h. Each constant has its source beside it or is marked as assumed.
#include "llmc/plan/gpu_model.h"
#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <span>
#include <string_view>
#include "llmc/base/tensor.h"  // is_fp8, size_of

namespace {

// Made by the Makefile from doc/results/registers.txt: the kernel, then its registers and static shared bytes on each
// chip.
struct RegisterRow {
    std::string_view kernel;
    struct {
        int registers, static_bytes;
    } sm_80, sm_90, sm_100;
};
constexpr RegisterRow kRegisters[] = {
#include <registers.inc>
};
static_assert(std::ranges::is_sorted(kRegisters, {}, &RegisterRow::kernel));  // kernel_resources() searches by halves

constexpr double kMemoryLatency = 0.5e-6;  // of a load with many in flight; microbenchmarks of Hopper: 0.5 to 0.7 us
constexpr double kBytesPerThread = 32;     // in flight per thread: two loads of 16 bytes

// Fraction of a copy's bandwidth. QuACK's norms reach 0.9 of the data sheet on an H100, cuDNN's 0.77 to 0.8 on an H200.
constexpr double kStreaming = 0.84;
// Kernels that do not stream: they read, wait for a block's sums, then write. cuDNN's RMSNorm backward on an H200: 0.71
// to 0.79 of the data sheet, 0.79 to 0.88 of a copy.
struct SlowerKernel {
    const char* beginning;
    double share;
};
constexpr SlowerKernel kSlower[] = {
    {"layernorm_backward", 0.78}, {"rmsnorm_backward", 0.78}, {"layernorm_codes", 0.78}, {"rmsnorm_codes", 0.78}};

constexpr const char* kWhyStart = "small: a launch's own beginning and end";

// The fraction of a copy's bandwidth that a kernel with enough threads reaches. has_waits: it is in the table of slower
// kernels.
struct MemoryShare {
    double share;
    bool has_waits;
};
MemoryShare memory_share(const TracedWork& work, const Gpu& gpu) {
    MemoryShare result = {kStreaming, false};
    for (const SlowerKernel& slower : kSlower)
        if (work.name.starts_with(slower.beginning)) result = {slower.share, true};
    if (!gpu.measured) return result;
    if (gpu.measured->streaming > 0) result.share *= gpu.measured->streaming / kStreaming;
    // A launch with the whole cost of an op is as fast as the op.
    const auto& shares = gpu.measured->shares;
    auto found = work.has_op_cost ? shares.find(work.op) : shares.end();
    if (found == shares.end()) found = shares.find(work.name);
    if (found != shares.end()) result.share = found->second;
    return result;
}
double measured_factor(const Gpu& gpu, const char* name) { return gpu.measured ? gpu.measured->factor(name) : 1; }

// ---- GEMM ----------------------------------------------------------------------------------------------------------

// Fitted to NVIDIA's own model of its GEMMs (nvidia-matmul-heuristics 0.1.0.27 for an H200 at full clock). All its
// times are scaled by one factor to account for the power limit: its prediction for 8192^3 over the sustained rate, 978
// over 794 TFLOP/s, in FP8 1849 TFLOP/s over two thirds of the peak. For 141 shapes of six models, forward and
// backward, the mean error is 4 %, in FP8 5 %.
constexpr double kBestGemm = 1.08;  // of a tile without its ends; power limits every GEMM to the rate of a large one
constexpr double kShortK = 450;     // the time of a tile's beginning and end, in terms of the dot product
constexpr double kSplitParts = 5;   // cost of a part of a split sum, as a multiple of the time for its bytes
// Row sums of an operand beside a GEMM: assumed, there are no published figures. The blocks of one row of tiles read
// that operand from shared memory once more, 256 of 1024 clocks per tile and step, while the tensor cores are busy.
constexpr double kRowSums = 1.05;
struct Tile {
    int m, n;
    double rate;  // relative to the best tile: smaller ones reuse less from shared memory
};
constexpr Tile kTiles[] = {{256, 128, 1}, {128, 256, 1}, {128, 128, 0.8}, {128, 64, 0.6}, {64, 64, 0.4}};
// SMs with mma.sync alone compute more slowly beside the same shared memory, so smaller tiles keep them busy. Fitted in
// the same way for an A100: 299.5 TFLOP/s at 8192^3 over the sustained 271.2; for 35 shapes of five models, 124M to
// 1.5B, the mean error is 2.4 %, where the constants above have 6.6 %. A tile's ends take microseconds, whatever an SM
// multiplies in them: on a slower SM they are fewer terms, on a 4090 145.
constexpr double kMmaSyncBestGemm = 1.02, kMmaSyncShortK = 325, kA100SmTflops = 312. / 108;
constexpr Tile kMmaSyncTiles[] = {{256, 128, 1}, {128, 256, 1}, {128, 128, 1}, {128, 64, 0.65}, {64, 64, 0.5}};

// A factor by which a launch takes longer. The largest one is reported as the reason.
struct Reason {
    double factor;
    const char* text;
};
const char* largest(std::initializer_list<Reason> reasons) {
    return std::max(reasons, [](const Reason& a, const Reason& b) { return a.factor < b.factor; }).text;
}

WorkTime gemm_time(const TracedWork& work, const Gpu& gpu, const ModelCase& assumed) {
    const MatmulCall& call = work.gemm;
    const bool fp8 = is_fp8(call.a), fp32 = call.a == DType::f32;
    const bool mma_sync = gpu.has_mma_sync_only();
    // In FP8 a term takes half the time, but the ends of a tile do not. Two thirds of FP8's peak are sustained: MAMF's
    // tables have 0.71 to 0.734 of the peak, 0.9 of the fraction for bf16. On a 5090 mma.sync has 496 of 419, and in
    // bf16 253 of 209.5 (kekzl/imp, pull request 606): 0.98 of the fraction.
    const double fp8_peak = (mma_sync ? 0.98 : 0.9) * gpu.fp8_tflops;
    const double peak = 1e12 * gpu.sustained * (fp32 ? gpu.fp32_tflops : fp8 ? fp8_peak : gpu.tflops);
    const double short_k = mma_sync ? kMmaSyncShortK * gpu.tflops / gpu.num_sms / kA100SmTflops : kShortK;
    const double k_ends = fp8 ? 2 * short_k : short_k, best_gemm = mma_sync ? kMmaSyncBestGemm : kBestGemm;
    const double rate = peak * assumed.gemm * measured_factor(gpu, fp8 ? "FP8 GEMM" : fp32 ? "FP32 GEMM" : "GEMM");
    const double flops = 2. * double(call.m * call.n * call.batch) * double(call.k);
    // Parts of a split sum are written and read in fp32.
    const double out_bytes = double(call.m) * double(call.n) * 4;
    double best = 1e30;
    const char* why = "";
    for (const Tile& tile : mma_sync ? kMmaSyncTiles : kTiles)
        for (int split = 1; split <= 16; split++) {
            const double k = double(call.k) / split;
            if (split > 1 && k < 1024) break;
            const double blocks =
                std::ceil(double(call.m) / tile.m) * std::ceil(double(call.n) / tile.n) * split * double(call.batch);
            const double padded = blocks * tile.m * tile.n * k * 2;
            const double waves = std::ceil(blocks / gpu.num_sms) * gpu.num_sms / blocks;
            const double ends = (1 + k_ends / k) / best_gemm;
            const double tiles_s = std::max(flops, padded * waves * ends / tile.rate) / rate;
            const double parts_s = split > 1 ? kSplitParts * split * out_bytes / gpu.copy_bytes_per_s() : 0;
            if (tiles_s + parts_s >= best) continue;
            best = tiles_s + parts_s;
            why = largest({{1, "none: as fast as a large GEMM"},
                           {ends, "few terms: the beginning and end of each tile"},
                           {waves * padded / flops, "a last wave of tiles that is not full"},
                           {1 / tile.rate, "few outputs: small tiles"},
                           {1 + parts_s / tiles_s, "few outputs: parts of a split sum in memory"}});
        }
    if (call.epilogue == Epilogue::row_sums) best *= kRowSums;
    // An epilogue reads or writes as many bytes as the output while no tile is multiplied; this is partly hidden.
    if (has_aux_matrix(call.epilogue)) best += 0.4 * out_bytes / 4 * double(size_of(call.out)) / gpu.copy_bytes_per_s();
    const double memory = work.cost.bytes / (gpu.copy_bytes_per_s() * 0.9 * assumed.memory);
    const double limit = std::max(flops / peak, work.cost.bytes / gpu.copy_bytes_per_s());
    if (assumed.start_s > 0.15 * std::max(best, memory)) why = kWhyStart;
    return best > memory ? WorkTime{assumed.start_s + best, "tensor cores", limit, why}
                         : WorkTime{assumed.start_s + memory, "memory", limit, why};
}

// ---- attention -----------------------------------------------------------------------------------------------------

// TFLOP/s, causal, bf16, by length, on an H100 whose GEMMs sustain 794 TFLOP/s. Forward: the FlashAttention-3 paper's
// figures for cuDNN (Shah et al., 2024, fig. 5). Backward: cuDNN 9.19 on an H200 (NVIDIA's cudnn-frontend benchmarks,
// HS 128); for HS 64 in proportion to the forward pass at 2048.
struct AttentionRate {
    double T, forward_64, backward_64, forward_128, backward_128;
};
constexpr AttentionRate kAttentionRates[] = {
    {512, 225, 180, 315, 235},  {1024, 288, 240, 410, 310}, {2048, 334, 270, 484, 370},
    {4096, 363, 330, 560, 474}, {8192, 379, 375, 610, 541}, {16384, 388, 400, 640, 579},
};
constexpr double kRatedGemm = 794e12;
// With mma.sync alone: FlashAttention-2 forward and backward together on an A100, TFLOP/s, causal, by length and head
// size (its repository, assets/flash2_a100_fwd_bwd_benchmark.png). Of cuDNN nothing is published there: assumed equal.
struct MmaSyncRate {
    double T, both_64, both_128;
};
constexpr MmaSyncRate kMmaSyncRates[] = {{512, 88, 99},    {1024, 119, 133}, {2048, 140, 155},
                                         {4096, 156, 173}, {8192, 165, 182}, {16384, 171, 189}};
constexpr double kMmaSyncRatedGemm = 271.2e12;
// FlashAttention-2 on a 4090 at 2048, causal, TFLOP/s (TileLang's flash_perf.md), forward and backward by head size.
// They divide the figures above, and say how near to its GEMMs' rate a GeForce comes, with tensor cores at half speed.
constexpr double kForward4090_64 = 142.2, kBackward4090_64 = 96.5, kForward4090_128 = 151.2, kBackward4090_128 = 99.2;
constexpr double kRatedGemm4090 = 165.2e12;
// cuDNN's deterministic backward, relative to its fastest. Except on Blackwell it writes all scores to memory, 2 bytes
// each (most_cudnn_workspace()): as many per FLOP at any length, at HS 64 twice as many as at HS 128.
// HS 128: the same benchmarks on an H200 have the deterministic backward at head sizes of 192 and 128 only, at 2048,
// 4096 and 8192: 0.674, 0.674 and 0.687 of the forward pass's rate, where at HS 128 the fastest backward has 0.764,
// 0.802 and 0.840. Assumed: these would be the same at both head sizes; on GB200 and GB300 they are within 2 % at 2048,
// but 8 to 11 % lower at 192 and 128 at 8192. There HS 128 was measured in both modes, with another algorithm: 0.90 to
// 0.92, 0.89 to 0.90, 0.87 to 0.89. Constant outside these lengths.
// HS 64: assumed. Published are only a GB200 and GB300 with a window of 128 keys: 0.76 to 0.79 at any length.
struct DeterministicShare {
    double T, share_64, share_128;
};
constexpr DeterministicShare kDeterministic[] = {{2048, 0.8, 0.88}, {4096, 0.8, 0.84}, {8192, 0.8, 0.82}};
// Anvil's kernels with mma.sync, relative to cuDNN. Forward: as FlashAttention-2, 205 versus 288 TFLOP/s. Backward: 175
// versus 240 TFLOP/s, each counting its own FLOPs: 14 per score and channel, cuDNN's 10. Before Hopper there is only
// mma.sync.
constexpr double kOwnForward = 0.71, kOwnBackward = 0.73, kOwnBeforeHopper = 0.9;
// Anvil's kernels with wgmma, never measured. FlashAttention-3 reaches 0.92 (HS 64) and 1.03 (HS 128) of cuDNN's rate
// at 1024. Anvil's forward has the same schedule, but one block per tile of queries, of 128 queries also at HS 64:
// assumed 0.85 of FlashAttention-3.
constexpr double kOwnHopper = 0.82;
// Its backward on Hopper, never measured either: hopper_backward_time() below.

// A column of a table by length: linear in the logarithm of the length, constant outside the table.
template <typename Row, size_t N>
double by_length(const Row (&rows)[N], double length, double Row::*column) {
    if (length <= rows[0].T) return rows[0].*column;
    const Row* below = rows;
    while (below + 2 < rows + N && below[1].T < length) below++;
    const double part = std::min(1., std::log2(length / below->T) / std::log2(below[1].T / below->T));
    return below->*column + part * (below[1].*column - below->*column);
}
double mma_sync_attention_rate(const Gpu& gpu, double length, int64_t HS, bool is_backward) {
    const auto column = HS <= 64 ? &MmaSyncRate::both_64 : &MmaSyncRate::both_128;
    const double forward = HS <= 64 ? kForward4090_64 : kForward4090_128;
    const double backward = HS <= 64 ? kBackward4090_64 : kBackward4090_128;
    // 2 of 7 FLOPs are forward. Other lengths: in proportion to the A100's.
    const double both_4090 = 3.5 / (1 / forward + 2.5 / backward);
    const double both = by_length(kMmaSyncRates, length, column) * std::min(1., length / kMmaSyncRates[0].T);
    const double part = (is_backward ? backward : forward) / both_4090;
    const double at_2048 = gpu.has_half_rate() ? both_4090 / by_length(kMmaSyncRates, 2048, column) : 1;
    const double share = both * part * at_2048 * 1e12 / (gpu.has_half_rate() ? kRatedGemm4090 : kMmaSyncRatedGemm);
    return std::min(1., share) * gpu.tflops * 1e12 * gpu.sustained;
}
double attention_rate(const Gpu& gpu, double length, int64_t HS, bool is_backward) {
    if (gpu.has_mma_sync_only()) return mma_sync_attention_rate(gpu, length, HS, is_backward);
    const auto column = HS <= 64 ? (is_backward ? &AttentionRate::backward_64 : &AttentionRate::forward_64)
                                 : (is_backward ? &AttentionRate::backward_128 : &AttentionRate::forward_128);
    const double rate = by_length(kAttentionRates, length, column) * std::min(1., length / kAttentionRates[0].T);
    return rate * 1e12 * gpu.tflops * 1e12 * gpu.sustained / kRatedGemm;
}
double deterministic_share(const TracedWork& work) {
    if (!work.is_backward || !work.deterministic) return 1;
    return by_length(kDeterministic, double(work.cost.keys),
                     work.cost.head_size <= 64 ? &DeterministicShare::share_64 : &DeterministicShare::share_128);
}
double measured_attention(const TracedWork& work, const Gpu& gpu) {
    return gpu.measured ? gpu.measured->attention_factor(attention_kernel(work), work.cost.head_size) : 1;
}
WorkTime attention_time(const TracedWork& work, const Gpu& gpu, const ModelCase& assumed) {
    const double rate = attention_rate(gpu, double(work.cost.keys), work.cost.head_size, work.is_backward) *
                        assumed.attention * deterministic_share(work) * measured_attention(work, gpu);
    const double launches = work.is_backward ? 3 : 1;  // the number of kernels
    const char* const why = work.is_backward && work.deterministic
                                ? "the library's published rate, 12 to 20 % less in a fixed order: --no-deterministic"
                                : "the library's published rate at this length and head size";
    return {launches * assumed.start_s + work.cost.flops / rate, "tensor cores",
            work.cost.flops / (1e12 * gpu.tflops * gpu.sustained), why};
}

// Anvil's backward with wgmma. Its schedule for a tile of 128 queries and 128 keys is FlashAttention-3's, whose figures
// (Shah et al., 2024, fig. 6: an H100, not causal, batches of 16k tokens with 2048 channels, TFLOP/s) are
//
//   T             512   1024  2048  4096  8192  16384
//   HS 64         272   363   422   453   472   474
//   HS 128        316   424   501   542   559   561
//
// Two numbers per head size give all of these within 3 %: the rate of tiles, and the time in which a block with 128
// keys begins and ends. In addition there is the memory traffic of the kernels before and after it (14 bytes per token
// and channel, 185 us in all), and there are 32 or 16 whole waves of blocks.
// Assumed: Anvil's tiles reach 0.85 of that rate, as in the forward pass, and a piece of work takes as long as such a
// block, although it is loaded while the one before is computed. There is no kernel after it, and the one before is a
// launch of its own. An SM takes the next piece as it becomes free: at the end half of a longest one is waited for.
constexpr double kTileRate_64 = 512e12, kTileRate_128 = 610e12, kPiece_64 = 2.7e-6, kPiece_128 = 3.5e-6;
constexpr double kOwnTiles = 0.85, kTileSide = 128;

WorkTime hopper_backward_time(const TracedWork& work, const Gpu& gpu, const ModelCase& assumed) {
    const double HS = double(work.cost.head_size), side = kTileSide, keys = double(work.cost.keys);
    const bool is_64 = work.cost.head_size <= 64;
    const double speed = gpu.tflops * 1e12 * gpu.sustained / kRatedGemm * assumed.attention *
                         measured_attention(work, gpu);  // relative to the H100 of the figures
    const double scores = work.cost.flops / (10 * HS);
    // On the border of the mask half of a tile is hidden: one tile in T / 128 + 1.
    const double tiles = scores / (side * side) * (1 + side / keys);
    const double pieces = scores / (keys / 2 * side);  // with a window there are fewer
    const double tile_s = 10 * side * side * (is_64 ? 64 : 128) * gpu.num_sms / (is_64 ? kTileRate_64 : kTileRate_128) /
                          kOwnTiles / speed;
    const double piece_s = (is_64 ? kPiece_64 : kPiece_128) / speed;
    const double longest = keys / side * tile_s + piece_s;
    const double seconds = std::max((tiles * tile_s + pieces * piece_s) / gpu.num_sms + longest / 2, longest);
    return {assumed.start_s + seconds, "tensor cores", work.cost.flops / (1e12 * gpu.tflops * gpu.sustained),
            "our own attention's assumed share of FlashAttention-3's"};
}

// ---- kernels -------------------------------------------------------------------------------------------------------

// The rate of Anvil's kernels that use tensor cores; 0: another kernel.
double tensor_rate(const TracedWork& work, const Gpu& gpu, const ModelCase& assumed) {
    const bool mma_sync = gpu.has_mma_sync_only();
    if (work.kernel.starts_with("flash_")) {
        const bool is_backward = work.kernel.starts_with("flash_backward");
        const bool is_hopper = work.kernel.find("_hopper_") != std::string::npos;
        const double beside = is_hopper     ? kOwnHopper
                              : mma_sync    ? kOwnBeforeHopper
                              : is_backward ? kOwnBackward
                                            : kOwnForward;
        return attention_rate(gpu, double(work.cost.keys), work.cost.head_size, is_backward) * beside *
               assumed.attention * measured_attention(work, gpu);
    }
    // About half of the rate of wgmma, and most of that of mma.sync.
    if (work.kernel.starts_with("symmetric_matmul"))
        return gpu.tflops * 1e12 * gpu.sustained * (mma_sync ? 0.75 : 0.48) * assumed.gemm;
    return 0;
}

WorkTime kernel_time(const TracedWork& work, const Gpu& gpu, const ModelCase& assumed) {
    if (work.kernel == "flash_backward_hopper_kernel") return hopper_backward_time(work, gpu, assumed);
    const double blocks = double(work.num_blocks());
    const double room = double(gpu.num_sms) * std::max(1, resident_blocks(work, gpu));
    if (const double rate = tensor_rate(work, gpu, assumed); rate > 0) {
        // The last wave takes as long as any other; the rate is that of many waves.
        const double waves = blocks / room, tail = waves < 8 ? std::ceil(waves) / waves : 1;
        const double limit = work.cost.flops / (1e12 * gpu.tflops * gpu.sustained);
        const char* const why = tail > 1.5 ? "few blocks: a last wave that is not full"
                                : work.kernel.starts_with("flash_")
                                    ? "our own attention's assumed share of the library's"
                                    : "mma.sync: half of what wgmma reaches";
        return {assumed.start_s + work.cost.flops / rate * std::min(tail, 4.), "tensor cores", limit, why};
    }
    const auto [share, has_waits] = memory_share(work, gpu);
    const double under_way = std::min(blocks, room) * double(work.num_threads()) * kBytesPerThread;
    const double reached = std::min(gpu.copy_bytes_per_s() * share * assumed.memory, under_way / kMemoryLatency);
    const double memory = work.cost.bytes / reached;
    const double units = work.cost.flops / (gpu.fp32_tflops * 1e12 * 0.5 * std::min(1., blocks / gpu.num_sms));
    const double limit = std::max(work.cost.bytes / gpu.copy_bytes_per_s(), work.cost.flops / (gpu.fp32_tflops * 1e12));
    if (std::max(memory, units) < assumed.start_s)
        return {assumed.start_s + std::max(memory, units), "latency", limit, kWhyStart};
    if (memory < units)
        return {assumed.start_s + units, "FP32 units", limit,
                blocks < gpu.num_sms ? "fewer blocks than SMs" : "half of the FP32 units' peak"};
    const char* const why = reached < gpu.copy_bytes_per_s() * share * assumed.memory
                                ? "too few threads: less under way than memory's latency needs"
                            : assumed.start_s > (1 / share - 1) * memory ? kWhyStart
                            : has_waits                                  ? "reads, waits for a row's sums, then writes"
                                                                         : "what streaming kernels reach beside a copy";
    return {assumed.start_s + memory, "memory", limit, why};
}

}  // namespace

std::string attention_kernel(const TracedWork& work) {
    if (work.kind == TracedWork::Kind::attention)
        return !work.is_backward    ? "cudnn_attention_forward"
               : work.deterministic ? "cudnn_attention_backward"
                                    : "cudnn_attention_backward, not deterministic";
    const bool is_hopper = work.kernel.find("_hopper_") != std::string::npos;
    for (const char* kernel : {"flash_forward", "flash_backward"})
        if (work.kernel.starts_with(kernel)) return kernel + std::string(is_hopper ? "_hopper" : "");
    return "";
}
double MeasuredRates::attention_factor(const std::string& kernel, int64_t head_size) const {
    const auto found = factors.find(attention_factor_name(kernel, head_size));
    return found != factors.end() ? found->second : factor(attention_factor_name(kernel, head_size <= 64 ? 128 : 64));
}

double share_asked(const TracedWork& work) {
    const bool on_tensor_cores = work.kind == TracedWork::Kind::gemm || work.kind == TracedWork::Kind::attention ||
                                 work.kernel.starts_with("flash_") || work.kernel.starts_with("symmetric_matmul");
    if (on_tensor_cores) return kTensorShareAsked;
    for (const SlowerKernel& slower : kSlower)
        if (work.name.starts_with(slower.beginning)) return kNormBackwardShareAsked;
    return kMemoryShareAsked;
}

KernelResources kernel_resources(const TracedWork& work, int compute_capability) {
    const std::string name = (work.kernel.empty() ? work.name + "_kernel" : work.kernel) + "<";
    const std::string typed = name + (work.is_bf16 ? "bf16" : "float");
    const auto most = [&](const std::string& beginning) {
        KernelResources result;
        const auto* const first = std::ranges::lower_bound(kRegisters, beginning, {}, &RegisterRow::kernel);
        for (const RegisterRow& row : std::span(first, std::end(kRegisters))) {
            if (!row.kernel.starts_with(beginning)) break;
            const auto& own = compute_capability >= 100 ? row.sm_100 : compute_capability >= 90 ? row.sm_90 : row.sm_80;
            result.registers = std::max(result.registers, own.registers);
            result.static_bytes = std::max(result.static_bytes, own.static_bytes);
        }
        return result;
    };
    const KernelResources own = most(typed);
    return own.registers > 0 ? own : most(name);
}

// As in NVIDIA's occupancy calculator: a warp's registers are allocated in units of 256 from one of four partitions,
// and each block takes 1 KiB of shared memory in addition to its own.
int resident_blocks(const TracedWork& work, const Gpu& gpu) {
    const KernelResources resources = kernel_resources(work, gpu.compute_capability);
    const int64_t warps = (work.num_threads() + 31) / 32;
    const int64_t of_warp = (std::max(32, resources.registers) * 32 + 255) / 256 * 256;
    const int64_t shared = (resources.static_bytes + work.shared_bytes + 127) / 128 * 128;
    return int(std::min({4 * (65536 / 4 / of_warp) / warps, int64_t(gpu.blocks_per_sm),
                         int64_t(gpu.threads_per_sm) / 32 / warps, int64_t(gpu.shared_kb) * 1024 / (shared + 1024)}));
}

double wire_bytes_per_s(const Gpu& gpu, int world_size) {
    return 1e9 *
           (world_size <= kGpusPerServer ? gpu.collective : std::min(gpu.collective, kGpusPerServer * gpu.network));
}

// ---- collectives ---------------------------------------------------------------------------------------------------

namespace {

// The cost model of NCCL 2.30 (src/graph/tuning.cc), by which it selects a protocol: us for the beginning of a
// collective and for a hop, for its protocols LL, LL128 and Simple.
struct HopLatencies {
    double begin[3], nvlink[3], pcie[3], network[3];
};
constexpr HopLatencies kRing = {{6.6, 14, 8.4}, {0.6, 1.9, 3.4}, {1, 2.5, 5.7}, {2.7, 4, 14}};
constexpr HopLatencies kTree = {{6.8, 14, 8.4}, {0.6, 1.25, 4}, {1, 1.9, 4}, {5, 8.5, 14}};
// The minimum time of a hop if the ring spans servers, in us.
constexpr double kNetworkOverhead[3] = {1, 1, 3};
// Fraction of the bandwidth: LL sends a flag with every word, LL128 one with every 15 words.
constexpr double kProtocolShare[3] = {0.5, 0.92, 1};
// The maximum GB/s of LL on Hopper: in one server, on two, on more.
constexpr double kMostOfLL[3] = {141, 45, 35};

}  // namespace

double collective_seconds(double bytes, int passes, const Gpu& gpu, const ModelCase& assumed, int world_size) {
    if (world_size == 1) return 0;
    const double W = world_size, servers = std::ceil(W / kGpusPerServer);
    const double wire = wire_bytes_per_s(gpu, world_size) * assumed.wire;
    const double most_of_ll = 1e9 * kMostOfLL[servers < 2 ? 0 : servers < 3 ? 1 : 2];
    double best = 1e30;
    for (int p = 0; p < 3; p++) {
        const double rate = p == 0 ? std::min(wire * kProtocolShare[p], most_of_ll) : wire * kProtocolShare[p];
        const auto hop = [&](const HopLatencies& hops) { return gpu.has_nvlink() ? hops.nvlink[p] : hops.pcie[p]; };
        // The data goes around the ring once or twice and leaves each server once per pass.
        const double inside = servers > 1 ? std::max(hop(kRing), kNetworkOverhead[p]) : hop(kRing);
        const double leaving = servers - 1, staying = W - 1 - leaving;
        const double ring = kRing.begin[p] + passes * (staying * inside + leaving * kRing.network[p]);
        best = std::min(best, 1e-6 * assumed.latency * ring + passes * (W - 1) / W * bytes / rate);
        if (passes < 2) continue;
        // An all-reduce may instead go up and down a tree over the servers.
        const double in_server = std::min(W, double(kGpusPerServer)) - 1;
        const double tree = kTree.begin[p] + 2 * (in_server * hop(kTree) + std::log2(servers) * kTree.network[p]);
        best = std::min(best, 1e-6 * assumed.latency * tree + 2 * bytes / rate);
    }
    return best;
}

double collective_seconds_between(double bytes, int passes, const Gpu& gpu, const ModelCase& assumed, int ranks) {
    if (ranks == 1) return 0;
    const double W = ranks, wire = 1e9 * std::min(gpu.network, gpu.collective) * assumed.wire;
    double best = 1e30;
    for (int p = 0; p < 3; p++) {
        const double rate = wire * kProtocolShare[p];
        const double ring = kRing.begin[p] + passes * (W - 1) * kRing.network[p];
        best = std::min(best, 1e-6 * assumed.latency * ring + passes * (W - 1) / W * bytes / rate);
        if (passes < 2) continue;
        const double tree = kTree.begin[p] + 2 * std::log2(W) * kTree.network[p];
        best = std::min(best, 1e-6 * assumed.latency * tree + 2 * bytes / rate);
    }
    return best;
}

double all_to_all_seconds(double bytes, const Gpu& gpu, const ModelCase& assumed, int world_size) {
    if (world_size == 1) return 0;
    constexpr int kSimple = 2;         // the protocol of messages
    constexpr double kMessage = 1e-6;  // additional time per message, sequential within a rank: assumed
    const double W = world_size, here = std::min(W, double(kGpusPerServer));
    const bool leaves = W > kGpusPerServer;
    const double inside = (here - 1) / W * bytes / (1e9 * gpu.collective * assumed.wire);
    const double outside = (W - here) / W * bytes / (1e9 * gpu.network * assumed.wire);
    const double hop = leaves ? kRing.network[kSimple] : gpu.has_nvlink() ? kRing.nvlink[kSimple] : kRing.pcie[kSimple];
    return 1e-6 * assumed.latency * (kRing.begin[kSimple] + hop) + (W - 1) * kMessage + std::max(inside, outside);
}

WorkTime time_of(const TracedWork& work, const Gpu& gpu, const ModelCase& assumed, int world_size) {
    switch (work.kind) {
        case TracedWork::Kind::gemm:
            return gemm_time(work, gpu, assumed);
        case TracedWork::Kind::attention:
            return attention_time(work, gpu, assumed);
        case TracedWork::Kind::collective: {
            const int ranks = work.ranks > 0 ? work.ranks : world_size;
            const double seconds = work.by_messages ? all_to_all_seconds(work.cost.bytes, gpu, assumed, world_size)
                                   : work.between
                                       ? collective_seconds_between(work.cost.bytes, work.passes, gpu, assumed, ranks)
                                       : collective_seconds(work.cost.bytes, work.passes, gpu, assumed, ranks);
            const double sent = (work.by_messages ? 1 : work.passes) * (ranks - 1.) / ranks * work.cost.bytes;
            return {seconds, "wire", sent / wire_bytes_per_s(gpu, work.between ? world_size : ranks),
                    "the latency of a ring's or tree's hops"};
        }
        case TracedWork::Kind::copy:
        case TracedWork::Kind::clear: {
            // Between host and GPU: 25 GB/s of PCIe for what goes one way, in the device's stream.
            const double rate = work.name == "copy_on_device" || work.kind == TracedWork::Kind::clear
                                    ? gpu.copy_bytes_per_s() * 0.95 * assumed.memory
                                : work.is_beside() ? gpu.host * 1e9 * assumed.wire
                                                   : 25e9;
            const double seconds = work.cost.bytes / rate;
            if (work.is_beside()) return {assumed.start_s + seconds, "PCIe", seconds, kWhyStart};
            return {assumed.start_s + seconds, seconds < assumed.start_s ? "latency" : "memory", seconds, kWhyStart};
        }
        case TracedWork::Kind::kernel:
            break;
    }
    return kernel_time(work, gpu, assumed);
}

namespace {

// Simulates the streams. Without the wire, collectives take no time and slow nothing down.
StepTime played(const StepTrace& trace, const Gpu& gpu, const ModelCase& assumed, int world_size, bool with_wire) {
    StepTime result;
    std::vector<double> clocks(1, 0.);
    const auto clock = [&](int stream) -> double& {
        if (size_t(stream) >= clocks.size()) clocks.resize(size_t(stream) + 1, 0.);
        return clocks[size_t(stream)];
    };
    int wire = -1;  // the stream of collectives
    for (const TracedWork& work : trace.work) {
        clock(work.stream);
        if (work.stream != 0 && !work.is_beside()) wire = work.stream;
    }
    struct Event {
        double at = 0;
        int stream = 0;
    };
    std::map<int64_t, Event> events;
    bool has_graph = false;
    int64_t host_gemms = 0;
    double second_begin = 0, middle_begin = -1, middle_end = 0;
    double last_times = 1;  // how often the previous item occurs
    for (size_t i = 0; i < trace.items.size(); i++) {
        const TraceItem& item = trace.items[i];
        const bool counts = i >= trace.second_item;
        if (i == trace.second_item) second_begin = clock(0);
        double& now = clock(item.stream);
        if (item.kind == TraceItem::Kind::record) {
            events[item.index] = {now, item.stream};
            continue;
        }
        if (item.kind == TraceItem::Kind::wait) {
            const Event event = events[item.index];
            const double until = std::max(now, event.at);
            if (counts && item.stream == 0)
                (event.stream == wire ? result.exposed_s : result.exposed_copies_s) += last_times * (until - now);
            now = until;
            continue;
        }
        const TracedWork& work = trace.work[size_t(item.index)];
        WorkTime time = time_of(work, gpu, assumed, world_size);
        if (item.stream == wire && !with_wire) time.seconds = 0;
        const double gap = item.stream == 0 ? (work.in_graph ? assumed.graph_gap_s : assumed.gap_s) : 0;
        // The part that runs beside a collective is slower.
        if (item.stream == 0 && wire > 0) {
            const double beside = std::clamp(clock(wire) - now, 0., time.seconds);
            time.seconds += beside * (1 / assumed.contention - 1);
        }
        const double begin = now + gap;
        now = begin + time.seconds;
        if (!counts) continue;
        const double times = last_times = double(trace.repeats(work));
        result.launches += int64_t(times);
        result.host_launches += work.in_graph ? 0 : int64_t(times);
        if (!work.in_graph && work.kind == TracedWork::Kind::gemm) host_gemms += int64_t(times);
        has_graph |= work.in_graph;
        result.slices.push_back({size_t(item.index), begin, time.seconds, time.bound, time.limit_s, time.why});
        if (item.stream == wire) result.wire_s += times * time.seconds;
        if (work.is_beside()) result.copies_s += times * time.seconds;
        if (item.stream != 0) continue;
        result.busy_s += times * time.seconds, result.gaps_s += times * gap;
        if (work.micro_batch == 1) {
            if (middle_begin < 0) middle_begin = begin - gap;
            middle_end = now;
        }
    }
    for (StepTime::Slice& slice : result.slices) slice.begin_s -= second_begin;
    result.step_s = clocks[0] - second_begin;
    if (trace.middle_repeats > 1) result.step_s += double(trace.middle_repeats - 1) * (middle_end - middle_begin);
    result.host_launches += has_graph;
    result.host_s =
        double(result.host_launches - host_gemms) * assumed.host_s + double(host_gemms) * assumed.host_gemm_s;
    result.step_s = std::max(result.step_s, result.host_s);
    return result;
}

}  // namespace

StepTime step_time(const StepTrace& trace, const Gpu& gpu, const ModelCase& assumed, int world_size) {
    StepTime result = played(trace, gpu, assumed, world_size, true);
    result.alone_s = world_size > 1 ? played(trace, gpu, assumed, world_size, false).step_s : result.step_s;
    return result;
}
