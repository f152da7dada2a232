// The model of a GPU against values worked out by hand, and simulated streams against small made-up traces.
#include "llmc/plan/gpu_model.h"
#include <cmath>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include "llmc/plan/trace_report.h"  // launch_table, predicted_chrome_trace
#include "test/testing.h"

namespace {

const Gpu& gpu_named(const std::string& name) {
    const Gpu* const gpu = find_gpu(name);
    REQUIRE(gpu);
    return *gpu;
}

TracedWork gemm_of(const MatmulCall& call) {
    TracedWork work;
    work.kind = TracedWork::Kind::gemm, work.gemm = call;
    work.cost.flops = 2. * double(call.m) * double(call.n) * double(call.k);
    return work;
}
TracedWork kernel_of(const std::string& kernel, unsigned blocks, unsigned threads, double bytes) {
    TracedWork work;
    work.name = work.kernel = kernel, work.is_bf16 = true;
    work.grid[0] = blocks, work.block[0] = threads, work.cost.bytes = bytes;
    return work;
}
TracedWork attention_of(int64_t keys, int64_t HS, bool is_backward, bool deterministic) {
    TracedWork work;
    work.kind = TracedWork::Kind::attention;
    work.cost = {.flops = 1e12, .keys = keys, .head_size = HS};
    work.is_backward = is_backward, work.deterministic = deterministic;
    return work;
}
double tflops(const TracedWork& work, const Gpu& gpu) {
    return work.cost.flops / time_of(work, gpu, kMid, 1).seconds * 1e-12;
}

// A trace by hand.
struct Script {
    StepTrace trace;

    int64_t add(int stream, double bytes, int64_t micro_batch = -1) {
        TracedWork work = kernel_of("gelu_forward_kernel", 100000, 256, bytes);
        work.stream = stream, work.micro_batch = micro_batch;
        if (stream == 1) work.kind = TracedWork::Kind::collective, work.name = "all_gather", work.passes = 1;
        trace.items.push_back({TraceItem::Kind::work, stream, int64_t(trace.work.size())});
        trace.work.push_back(work);
        return int64_t(trace.work.size()) - 1;
    }
    void record(int stream, int64_t event) { trace.items.push_back({TraceItem::Kind::record, stream, event}); }
    void wait(int stream, int64_t event) { trace.items.push_back({TraceItem::Kind::wait, stream, event}); }
    void begin_second() { trace.second_work = trace.work.size(), trace.second_item = trace.items.size(); }
};

}  // namespace

// Microseconds by NVIDIA's model of its GEMMs (nvidia-matmul-heuristics 0.1.0.27: CUTLASS3, H200_SXM), at full clock.
struct NvidiaGemm {
    int64_t m, n, k;
    DType operands, out;
    double us;
};
TEST_CASE("GEMMs take as long as NVIDIA's model of them says, lengthened for power", "[gpu_model]") {
    using enum DType;
    const std::vector<NvidiaGemm> gemms = {
        {32768, 2304, 768, bf16, bf16, 183.7},   {32768, 768, 3072, bf16, bf16, 179.6},
        {768, 3072, 32768, bf16, f32, 213.8},    {16384, 50304, 768, bf16, bf16, 1866.4},
        {16384, 768, 50304, bf16, bf16, 1239.8}, {50304, 768, 16384, bf16, f32, 1260.3},
        {32768, 4800, 1600, bf16, bf16, 615.6},  {32768, 6400, 1600, bf16, bf16, 812.0},
        {32768, 1600, 6400, bf16, bf16, 727.1},  {1600, 6400, 32768, bf16, f32, 762.0},
        {4800, 1600, 32768, bf16, f32, 553.4},   {16384, 4096, 16384, bf16, bf16, 2183.4},
        {32768, 1536, 6144, bf16, bf16, 647.1},  {8192, 8192, 8192, bf16, bf16, 1124.3},
        {32768, 4800, 1600, e4m3, bf16, 385.9},  {32768, 1600, 6400, e4m3, bf16, 390.9},
        {1600, 6400, 32768, e4m3, f32, 400.3},   {4800, 1600, 32768, e4m3, f32, 288.6},
        {8192, 8192, 8192, e4m3, bf16, 594.7},
    };
    const Gpu& h200 = gpu_named("H200");
    double sum_bf16 = 0, sum_fp8 = 0;
    for (const NvidiaGemm& one : gemms) {
        const bool fp8 = one.operands == e4m3;
        INFO(one.m << " x " << one.n << " x " << one.k << (fp8 ? " in FP8" : ""));
        const MatmulCall call{.m = one.m, .n = one.n, .k = one.k, .a = one.operands, .b = one.operands, .out = one.out};
        // What it says of 8192^3 over what is held of it.
        const double power = fp8 ? 1849 / (0.9 * 0.803 * 1979) : 978 / (0.803 * 989);
        const double off = std::log(time_of(gemm_of(call), h200, kMid, 1).seconds * 1e6 / (power * one.us));
        CHECK(std::abs(off) < 0.13);
        (fp8 ? sum_fp8 : sum_bf16) += off;
    }
    CHECK(std::abs(sum_bf16 / 14) < 0.03);
    CHECK(std::abs(sum_fp8 / 5) < 0.06);
}

// The same tool for an A100 (CUTLASS, A100_SXM_80GB): 299.5 TFLOP/s at 8192^3, of which 271.2 are held.
TEST_CASE("GEMMs by mma.sync take as long as NVIDIA's model says", "[gpu_model]") {
    using enum DType;
    const std::vector<NvidiaGemm> gemms = {
        {2304, 32768, 768, bf16, bf16, 530.6},   {768, 32768, 768, bf16, bf16, 194.3},
        {768, 32768, 3072, bf16, bf16, 590.7},   {768, 3072, 32768, bf16, bf16, 566.5},
        {4096, 32768, 1024, bf16, bf16, 1150.8}, {1024, 32768, 4096, bf16, bf16, 957.5},
        {1024, 1024, 32768, bf16, bf16, 279.9},  {3840, 16384, 1280, bf16, bf16, 655},
        {1280, 5120, 16384, bf16, bf16, 767.3},  {3584, 8192, 896, bf16, bf16, 240.6},
        {896, 8192, 3584, bf16, bf16, 245.7},    {6144, 4096, 1536, bf16, bf16, 326.7},
        {1536, 4096, 6144, bf16, bf16, 302.5},   {8192, 8192, 8192, bf16, bf16, 3671.2},
    };
    const Gpu& a100 = gpu_named("A100");
    double sum = 0;
    for (const NvidiaGemm& one : gemms) {
        INFO(one.m << " x " << one.n << " x " << one.k);
        const MatmulCall call{.m = one.m, .n = one.n, .k = one.k, .a = bf16, .b = bf16, .out = one.out};
        const double off = std::log(time_of(gemm_of(call), a100, kMid, 1).seconds * 1e6 / (299.5 / 271.2 * one.us));
        CHECK(std::abs(off) < 0.09);
        sum += off;
    }
    CHECK(std::abs(sum / double(gemms.size())) < 0.02);
    // A tile's ends take microseconds: on a GeForce, whose SMs are slower, fewer terms.
    const auto share = [](const char* gpu, int64_t k) {
        const Gpu& one = gpu_named(gpu);
        const MatmulCall call{.m = 256 * 128 * 8, .n = 128 * one.num_sms, .k = k, .a = bf16, .b = bf16, .out = bf16};
        return tflops(gemm_of(call), one) / (one.tflops * one.sustained);
    };
    CHECK(share("A100", 896) == Approx(1.02 / (1 + 325. / 896)).epsilon(0.01));
    CHECK(share("4090", 896) == Approx(1.02 / (1 + 325. / 896 * (165.2 / 128) / (312. / 108))).epsilon(0.01));
    CHECK(share("5090", 896) > share("PRO 6000", 896));
}

TEST_CASE("attention by mma.sync has FlashAttention-2's rates on an A100 and on a 4090", "[gpu_model]") {
    const auto both = [](const char* gpu, int64_t keys, int64_t HS) {  // 2 of 7 FLOPs are forward
        return 3.5 / (1 / tflops(attention_of(keys, HS, false, false), gpu_named(gpu)) +
                      2.5 / tflops(attention_of(keys, HS, true, false), gpu_named(gpu)));
    };
    for (const auto& [keys, hs_64, hs_128] : {std::tuple{1024, 119., 133.}, {2048, 140., 155.}, {8192, 165., 182.}}) {
        CHECK(both("A100", keys, 64) == Approx(hs_64).epsilon(0.01));
        CHECK(both("A100", keys, 128) == Approx(hs_128).epsilon(0.01));
    }
    const auto on_4090 = [](int64_t HS, bool is_backward) {
        return tflops(attention_of(2048, HS, is_backward, false), gpu_named("4090"));
    };
    CHECK(on_4090(64, false) == Approx(142.2).epsilon(0.01));
    CHECK(on_4090(64, true) == Approx(96.5).epsilon(0.01));
    CHECK(on_4090(128, false) == Approx(151.2).epsilon(0.01));
    CHECK(on_4090(128, true) == Approx(99.2).epsilon(0.01));
    // Never faster than a GEMM; a 5090 as near to its own GEMMs' rate as a 4090, an L40S as an A100.
    const auto share = [](const char* gpu, int64_t keys) {
        return tflops(attention_of(keys, 64, false, false), gpu_named(gpu)) /
               (gpu_named(gpu).tflops * gpu_named(gpu).sustained);
    };
    CHECK(share("4090", 1 << 14) == Approx(1).epsilon(0.001));
    CHECK(share("5090", 1024) == Approx(share("4090", 1024)).epsilon(0.001));
    CHECK(share("L40S", 1024) == Approx(share("A100", 1024)).epsilon(0.001));
    CHECK(share("B200", 1024) == Approx(share("H100", 1024)).epsilon(0.001));
}

TEST_CASE("what a GEMM loses by its shape", "[gpu_model]") {
    const Gpu& h200 = gpu_named("H200");
    const double large = h200.tflops * h200.sustained;
    constexpr int64_t N = 32768, C = 768;
    const auto share = [&](const MatmulCall& call) { return tflops(gemm_of(call), h200) / large; };
    // However many terms, no faster than what a large one holds at full power.
    CHECK(share({.m = N, .n = 32768, .k = 1 << 20}) == Approx(1).margin(0.001));
    CHECK(share({.m = N, .n = 32768, .k = 512}) < 0.65);
    // 18 tiles for 132 SMs: only parts of the sum fill them.
    CHECK(share({.m = C, .n = C, .k = N, .transpose_a = true, .out = DType::f32}) > 0.6);
    CHECK(share({.m = C, .n = C, .k = 1000}) < 0.25);
    // One tile more than the SMs have room for is another wave.
    const double full = time_of(gemm_of({.m = 132 * 256, .n = 128, .k = 8192}), h200, kMid, 1).seconds;
    const double more = time_of(gemm_of({.m = 133 * 256, .n = 128, .k = 8192}), h200, kMid, 1).seconds;
    CHECK(more > 1.1 * full);
    // In FP8 twice the peak, of which less is held.
    MatmulCall fp8{.m = N, .n = 4 * C, .k = 8192, .transpose_b = true};
    const double bf16_rate = tflops(gemm_of(fp8), h200);
    fp8.a = fp8.b = DType::e4m3;
    CHECK(tflops(gemm_of(fp8), h200) / bf16_rate == Approx(1.8).margin(0.1));
    CHECK(std::string(time_of(gemm_of(fp8), h200, kMid, 1).bound) == "tensor cores");
    // Bytes count where they take longer.
    TracedWork thin = gemm_of({.m = N, .n = 4 * C, .k = 16, .transpose_b = true});
    CHECK(std::string(time_of(thin, h200, kMid, 1).bound) == "tensor cores");
    thin.cost.bytes = 1e9;
    CHECK(std::string(time_of(thin, h200, kMid, 1).bound) == "memory");
    // A GELU in the epilogue is not free.
    MatmulCall gelu{.m = N, .n = 4 * C, .k = C, .transpose_b = true};
    const double plain_s = time_of(gemm_of(gelu), h200, kMid, 1).seconds;
    gelu.epilogue = Epilogue::gelu_aux_bias;
    CHECK(time_of(gemm_of(gelu), h200, kMid, 1).seconds == Approx(plain_s + 0.4 * 2 * N * 4 * C / 4.3008e12));
    // Nor are sums of rows, which are no matrix.
    MatmulCall sums{.m = 4 * C, .n = C, .k = N, .transpose_a = true, .out = DType::f32, .accumulate = true};
    const double without_s = time_of(gemm_of(sums), h200, kMid, 1).seconds;
    sums.epilogue = Epilogue::row_sums;
    CHECK(time_of(gemm_of(sums), h200, kMid, 1).seconds == Approx(1.05 * without_s).epsilon(0.01));
}

TEST_CASE("attention has the published rates, by length and head size", "[gpu_model]") {
    const Gpu& h200 = gpu_named("H200");
    const double scale = h200.tflops * h200.sustained / 794;
    CHECK(tflops(attention_of(1024, 64, false, true), h200) == Approx(288 * scale).epsilon(0.01));
    CHECK(tflops(attention_of(2048, 128, false, true), h200) == Approx(484 * scale).epsilon(0.01));
    CHECK(tflops(attention_of(1024, 64, true, false), h200) == Approx(240 * scale).epsilon(0.01));
    CHECK(tflops(attention_of(1024, 64, true, true), h200) == Approx(0.8 * 240 * scale).epsilon(0.01));
    // In a fixed order, by length: between 4096 and 8192 in the middle of both, beyond them constant.
    const auto share = [&](int64_t keys, int64_t HS) {
        return tflops(attention_of(keys, HS, true, true), h200) / tflops(attention_of(keys, HS, true, false), h200);
    };
    for (const int64_t keys : {300, 1024, 2048}) CHECK(share(keys, 128) == Approx(0.88).epsilon(0.002));
    CHECK(share(4096, 128) == Approx(0.84).epsilon(0.002));
    CHECK(share(5793, 128) == Approx(0.83).epsilon(0.002));
    for (const int64_t keys : {8192, 16384, 32768}) CHECK(share(keys, 128) == Approx(0.82).epsilon(0.002));
    for (const int64_t keys : {1024, 4096, 16384}) CHECK(share(keys, 64) == Approx(0.8).epsilon(0.002));
    double before = 0;
    for (const int64_t keys : {128, 300, 512, 700, 1024, 1500, 2048, 8192, 16384, 32768}) {
        const double rate = tflops(attention_of(keys, 64, false, true), h200);
        INFO(keys);
        CHECK(rate >= before);
        before = rate;
    }
    CHECK(before == Approx(388 * scale).epsilon(0.01));
    // Another chip: in proportion to what its GEMMs hold.
    const Gpu& b200 = gpu_named("B200");
    CHECK(tflops(attention_of(1024, 64, false, true), b200) ==
          Approx(288 * b200.tflops * b200.sustained / 794).epsilon(0.01));
}

// Many waves of blocks, so that the last one counts nothing.
TEST_CASE("our own attention has a share of the published rates, on Hopper a larger one with wgmma", "[gpu_model]") {
    const Gpu &h200 = gpu_named("H200"), &a100 = gpu_named("A100");
    const auto rate = [](const char* kernel, unsigned threads, const Gpu& gpu, int64_t keys = 1024, int64_t HS = 64) {
        TracedWork work = kernel_of(kernel, 100000, threads, 0);
        work.cost = {.flops = 1e13, .keys = keys, .head_size = HS};
        return tflops(work, gpu);
    };
    const double h200_scale = h200.tflops * h200.sustained / 794;
    CHECK(rate("flash_forward_hopper_kernel", 384, h200) == Approx(0.82 * 288 * h200_scale).epsilon(0.01));
    CHECK(rate("flash_forward_kernel", 128, h200) == Approx(0.71 * 288 * h200_scale).epsilon(0.01));
    // FlashAttention-2's 119 there, of which the forward pass has 159.
    CHECK(rate("flash_forward_kernel", 128, a100) == Approx(0.9 * 159.2).epsilon(0.01));
    CHECK(rate("flash_backward_keys_kernel", 128, h200) == Approx(0.73 * 240 * h200_scale).epsilon(0.01));
    // A causal head of 1024 keys is 36 tiles of 3.18 or 5.34 us and 8 pieces of 2.7 or 3.5 us on one of 132 SMs.
    const char* const backward = "flash_backward_hopper_kernel";
    const double head = 1024 * 512. * 10;
    CHECK(rate(backward, 384, h200) ==
          Approx(132 * head * 64 / (36 * 3.18 + 8 * 2.7) * 1e-6 * h200_scale).epsilon(0.01));
    CHECK(rate(backward, 384, h200, 1024, 128) ==
          Approx(132 * head * 128 / (36 * 5.34 + 8 * 3.5) * 1e-6 * h200_scale).epsilon(0.01));
    // Long sequences are little else than tiles.
    CHECK(rate(backward, 384, h200, 1 << 14) == Approx(0.85 * 512 * h200_scale).epsilon(0.04));
    // One head is 8 pieces at the same time, of which that with the first keys has 8 tiles of queries.
    TracedWork one = kernel_of(backward, 8, 384, 0);
    one.cost = {.flops = head * 64, .keys = 1024, .head_size = 64};
    CHECK(time_of(one, h200, kMid, 1).seconds ==
          Approx(kKernelStart + (8 * 3.18 + 2.7) * 1e-6 / h200_scale).epsilon(0.01));
}

TEST_CASE("an SM has room for as many blocks as the occupancy table says", "[gpu_model]") {
    std::ifstream file("doc/results/occupancy.txt");
    REQUIRE(file);
    // Of a kernel's instances in bf16 the model takes the one with the most registers: room for the fewest blocks.
    struct Rows {
        std::set<std::pair<long, long>> launches;  // threads, shared
        long sm_80 = 99, sm_89 = 99, sm_90 = 99;
    };
    std::map<std::string, Rows> kernels;
    for (std::string line; std::getline(file, line);) {
        const size_t begin = line.find("_kernel<bf16"), end = line.find('>');
        if (begin == std::string::npos || end == std::string::npos) continue;
        std::istringstream numbers(line.substr(end + 1));
        long threads = 0, shared = 0, assumed = 0, sm_80 = 0, sm_86 = 0, sm_89 = 0, sm_90 = 0;
        REQUIRE(numbers >> threads >> shared >> assumed >> sm_80 >> sm_86 >> sm_89 >> sm_90);
        Rows& rows = kernels[line.substr(0, begin) + "_kernel"];
        rows.launches.emplace(threads, shared);
        rows.sm_80 = std::min(rows.sm_80, sm_80);
        rows.sm_89 = std::min(rows.sm_89, sm_89);
        rows.sm_90 = std::min(rows.sm_90, sm_90);
    }
    int checked = 0;
    for (const auto& [kernel, rows] : kernels) {
        if (rows.launches.size() > 1) continue;  // instances of several sizes, which the model does not tell apart
        const auto [threads, shared] = *rows.launches.begin();
        TracedWork work = kernel_of(kernel, 1, unsigned(threads), 0);
        work.shared_bytes = shared;
        INFO(kernel);
        CHECK(resident_blocks(work, gpu_named("A100")) == rows.sm_80);
        CHECK(resident_blocks(work, gpu_named("4090")) == rows.sm_89);
        CHECK(resident_blocks(work, gpu_named("H200")) == rows.sm_90);
        checked++;
    }
    CHECK(checked >= 5);
}

TEST_CASE("kernels move bytes as fast as their threads ask for them", "[gpu_model]") {
    const Gpu& h200 = gpu_named("H200");
    const WorkTime large = time_of(kernel_of("gelu_forward_kernel", 100000, 256, 4e9), h200, kMid, 1);
    CHECK(large.seconds == Approx(2e-6 + 4e9 / (4.8e12 * 0.896 * 0.84)));
    CHECK(std::string(large.bound) == "memory");
    // One block has 256 x 32 bytes under way, for half a microsecond each.
    CHECK(time_of(kernel_of("gelu_forward_kernel", 1, 256, 4e6), h200, kMid, 1).seconds ==
          Approx(2e-6 + 4e6 / (256 * 32 / 0.5e-6)));
    CHECK(std::string(time_of(kernel_of("gelu_forward_kernel", 1, 256, 100), h200, kMid, 1).bound) == "latency");
    // What waits for a block's sums is slower.
    TracedWork norm = kernel_of("layernorm_backward_kernel", 2000, 96, 4e9);
    norm.name = "layernorm_backward";
    CHECK(time_of(norm, h200, kMid, 1).seconds > 1.05 * large.seconds);
    TracedWork sums = kernel_of("gelu_forward_kernel", 100000, 256, 8);
    sums.cost.flops = 67e12 / 2;
    CHECK(time_of(sums, h200, kMid, 1).seconds == Approx(1 + 2e-6));
}

TEST_CASE("a ring sends (W - 1) / W of the bytes, over the slower of NVLink and the network", "[gpu_model]") {
    const Gpu& h100 = gpu_named("H100");
    CHECK(wire_bytes_per_s(h100, 8) == 350e9);
    CHECK(wire_bytes_per_s(h100, 16) == 350e9);  // eight cards of 45 GB/s
    Gpu slow = h100;
    slow.network = 1;
    CHECK(wire_bytes_per_s(slow, 16) == 8e9);
    CHECK(wire_bytes_per_s(slow, 8) == 350e9);
    CHECK(collective_seconds(8e9, 1, h100, kMid, 1) == 0);
    // Large: the protocol Simple, once around the ring or twice.
    CHECK(collective_seconds(8e9, 1, h100, kMid, 8) == Approx(7e9 / 350e9 + 8.4e-6 + 7 * 3.4e-6));
    CHECK(collective_seconds(8e9, 2, h100, kMid, 2) == Approx(2 * (4e9 / 350e9 + 3.4e-6) + 8.4e-6));
    CHECK(collective_seconds(8e9, 1, h100, kLow, 8) > collective_seconds(8e9, 1, h100, kHigh, 8));
    // Of a megabyte LL128 has the least.
    CHECK(collective_seconds(1e6, 1, h100, kMid, 8) ==
          Approx(std::min(7e6 / 8 / 350e9 / 0.92 + 14e-6 + 7 * 1.9e-6, 7e6 / 8 / 141e9 + 6.6e-6 + 7 * 0.6e-6)));
}

TEST_CASE("a ring's latency grows with its ranks, a tree's with the logarithm of the servers", "[gpu_model]") {
    const Gpu& h100 = gpu_named("H100");
    // LL: 56 hops inside servers, each the network's overhead, and 7 between them.
    CHECK(collective_seconds(0, 1, h100, kMid, 64) == Approx(6.6e-6 + 56e-6 + 7 * 2.7e-6));
    CHECK(collective_seconds(0, 2, h100, kMid, 64) == Approx(6.8e-6 + 2 * (7 * 0.6e-6 + 3 * 5e-6)));
    CHECK(collective_seconds(1e9, 1, h100, kMid, 1024) > collective_seconds(1e9, 1, h100, kMid, 8) + 1e-3);
    // Without NVLink a hop goes through the host.
    CHECK(collective_seconds(0, 1, gpu_named("4090"), kMid, 8) == Approx(6.6e-6 + 7e-6));
}

TEST_CASE("streams wait for each other where events say so, and what is beside a collective is slower", "[gpu_model]") {
    const Gpu& h200 = gpu_named("H200");
    Script script;
    script.add(0, 1e6), script.begin_second();
    const int64_t a = script.add(0, 3e9);
    script.record(0, 1), script.wait(1, 1);
    const int64_t sum = script.add(1, 7e8);
    script.record(1, 2);
    const int64_t b = script.add(0, 1e9);
    script.wait(0, 2);
    const int64_t c = script.add(0, 1e9);
    const auto seconds = [&](int64_t work) { return time_of(script.trace.work[size_t(work)], h200, kMid, 8).seconds; };
    REQUIRE(seconds(sum) > 2 * seconds(b));
    const StepTime time = step_time(script.trace, h200, kMid, 8);
    const double gap = kMid.gap_s, slower = seconds(b) / kMid.contention;
    CHECK(time.launches == 4);
    CHECK(time.wire_s == Approx(seconds(sum)));
    CHECK(time.busy_s == Approx(seconds(a) + slower + seconds(c)));
    CHECK(time.exposed_s == Approx(seconds(sum) - gap - slower));
    CHECK(time.step_s == Approx(seconds(a) + seconds(sum) + seconds(c) + 2 * gap));
    REQUIRE(time.slices.size() == 4);
    CHECK(time.slices[0].begin_s == Approx(gap));
    CHECK(time.slices[1].begin_s == Approx(gap + seconds(a)));
    CHECK(time.slices[3].begin_s == Approx(2 * gap + seconds(a) + seconds(sum)));
    // Better assumptions, shorter steps.
    CHECK(step_time(script.trace, h200, kLow, 8).step_s > time.step_s);
    CHECK(step_time(script.trace, h200, kHigh, 8).step_s < time.step_s);
}

TEST_CASE("middle micro-batches count as often as the step has them", "[gpu_model]") {
    const Gpu& h200 = gpu_named("H200");
    Script script;
    script.begin_second();
    for (int64_t micro = 0; micro < 3; micro++) script.add(0, 4e9, micro);
    const double three = step_time(script.trace, h200, kMid, 1).step_s;
    script.trace.middle_repeats = 14;
    const StepTime time = step_time(script.trace, h200, kMid, 1);
    CHECK(time.launches == 16);
    CHECK(time.step_s == Approx(three * 16 / 3));
    CHECK(time.busy_s + time.gaps_s == Approx(time.step_s));
    CHECK_FALSE(time.host_bound());
}

TEST_CASE("the host needs its time for each launch", "[gpu_model]") {
    Script script;
    script.begin_second();
    for (int i = 0; i < 100; i++) script.add(0, 100);
    const StepTime time = step_time(script.trace, gpu_named("B200"), kMid, 1);
    CHECK(time.step_s == Approx(100 * kMid.host_s));
    CHECK(time.host_bound());
}

TEST_CASE("a launch has a limit, and a reason for what it takes longer", "[gpu_model]") {
    const Gpu& h200 = gpu_named("H200");
    const double large = 1e12 * h200.tflops * h200.sustained, copy = h200.copy_bytes_per_s();
    const auto timed = [&](const TracedWork& work) { return time_of(work, h200, kMid, 8); };
    constexpr int64_t N = 32768, C = 768;

    // 2 m n k at the rate of a large GEMM, whatever the tiles are. The reason is the largest of its losses.
    const auto gemm = [&](const MatmulCall& call) { return timed(gemm_of(call)); };
    const WorkTime few_terms = gemm({.m = N, .n = 4 * C, .k = C});
    CHECK(few_terms.limit_s == Approx(2. * N * 4 * C * C / large));
    CHECK(contains(few_terms.why, "few terms"));
    CHECK(contains(gemm({.m = 132 * 256, .n = 8192, .k = 16384}).why, "none: as fast"));
    CHECK(contains(gemm({.m = 133 * 256, .n = 128, .k = 16384}).why, "last wave"));
    CHECK(contains(gemm({.m = 128, .n = 128, .k = 512}).why, "small"));
    // What moves bytes has those as its limit.
    TracedWork thin = gemm_of({.m = N, .n = 4 * C, .k = 16});
    thin.cost.bytes = 2. * N * 4 * C;
    CHECK(timed(thin).limit_s == Approx(2. * N * 4 * C / copy));

    CHECK(timed(attention_of(1024, 64, true, true)).limit_s == Approx(1e12 / large));
    CHECK(contains(timed(attention_of(1024, 64, true, true)).why, "--no-deterministic"));
    CHECK_FALSE(contains(timed(attention_of(1024, 64, true, false)).why, "--no-deterministic"));

    const auto kernel = [&](const char* name, unsigned blocks, double bytes) {
        return timed(kernel_of(name, blocks, 256, bytes));
    };
    CHECK(kernel("gelu_forward_kernel", 100000, 1e9).limit_s == Approx(1e9 / copy));
    CHECK(contains(kernel("gelu_forward_kernel", 100000, 1e9).why, "streaming"));
    CHECK(contains(kernel("gelu_forward_kernel", 100000, 1e5).why, "small"));
    CHECK(contains(kernel("gelu_forward_kernel", 20, 1e9).why, "too few threads"));
    CHECK(contains(kernel("layernorm_backward_kernel", 100000, 1e9).why, "waits"));
    TracedWork counting = kernel_of("gelu_forward_kernel", 100000, 256, 1e6);
    counting.cost.flops = 1e12;
    CHECK(contains(timed(counting).why, "FP32"));
    CHECK(timed(counting).limit_s == Approx(1e12 / (h200.fp32_tflops * 1e12)));

    // 7/8 of it over the wire, once.
    TracedWork gather;
    gather.kind = TracedWork::Kind::collective, gather.passes = 1, gather.cost.bytes = 8e9;
    CHECK(timed(gather).limit_s == Approx(7e9 / 350e9));

    CHECK(share_asked(gemm_of({.m = 1, .n = 1, .k = 1})) == 0.88);
    CHECK(share_asked(kernel_of("flash_forward_kernel", 1, 1, 0)) == 0.88);
    CHECK(share_asked(kernel_of("layernorm_backward_kernel", 1, 1, 0)) == 0.75);
    CHECK(share_asked(kernel_of("layernorm_forward_kernel", 1, 1, 0)) == 0.85);
}

TEST_CASE("a step's launches below their share of the limit are named, those that cost most first", "[gpu_model]") {
    const Gpu& h200 = gpu_named("H200");
    Script script;
    script.begin_second();
    script.add(0, 8e9, 0);
    script.trace.work.push_back(kernel_of("layernorm_backward_kernel", 20, 256, 8e9));
    script.trace.items.push_back({TraceItem::Kind::work, 0, 1});
    script.add(1, 1e9);
    for (int i = 0; i < 3; i++) script.add(0, 10, 0);
    script.trace.work[3].name = "clear_a", script.trace.work[4].name = "clear_b";
    const StepTime time = step_time(script.trace, h200, kMid, 8);
    const std::string text = limits_text(script.trace, time);
    INFO(text);
    const double loss = time.slices[1].seconds - 8e9 / h200.copy_bytes_per_s() / 0.75;
    CHECK(contains(text, format("layernorm_backward_kernel %9.3f ms at", loss * 1e3)));
    CHECK(text.find("layernorm_backward") < text.find("gelu_forward"));
    CHECK(contains(text, "too few threads"));
    CHECK(contains(text, "2 others"));
    CHECK_FALSE(contains(text, "all_gather"));  // beside the step
}

TEST_CASE("a graph is one launch to the host, with smaller gaps", "[gpu_model]") {
    const Gpu& h200 = gpu_named("H200");
    Script script;
    script.begin_second();
    for (int i = 0; i < 100; i++) script.trace.work[size_t(script.add(0, 100))].in_graph = i < 98;
    const StepTime time = step_time(script.trace, h200, kMid, 1);
    CHECK(time.launches == 100);
    CHECK(time.host_launches == 3);
    CHECK_FALSE(time.host_bound());
    CHECK(time.gaps_s == Approx((98 * 0.55 + 2) * kMid.gap_s));
    CHECK(time.step_s == Approx(time.busy_s + time.gaps_s));
}

TEST_CASE("a predicted step as a table and as JSON", "[gpu_model]") {
    const Gpu& h200 = gpu_named("H200");
    Script script;
    script.begin_second();
    script.add(0, 3e8, 0), script.add(0, 1e8, 0), script.add(1, 1e9);
    script.trace.work.push_back(gemm_of({.m = 8192, .n = 8192, .k = 8192}));
    script.trace.items.push_back({TraceItem::Kind::work, 0, 3});
    const StepTime time = step_time(script.trace, h200, kMid, 8);
    const std::string all = launch_table(script.trace, time, h200, 0);
    INFO(all);
    CHECK(contains(all, "gelu_forward_kernel"));
    CHECK(contains(all, "BF16 (8192, 8192) ld 8192 x BF16 (8192, 8192) ld 8192 -> BF16 (8192, 8192) ld 8192"));
    CHECK(contains(all, "a step on H200"));
    CHECK_FALSE(contains(all, "others"));
    const std::string one = launch_table(script.trace, time, h200, 1);
    CHECK(contains(one, "1 others"));
    CHECK_FALSE(contains(one, "gelu"));
    CHECK(contains(one, "beside it, on a stream of their own:\nall_gather"));
    const std::string parts = parts_text(script.trace, time);
    CHECK(parts.find("GEMMs") == 0);
    CHECK(contains(parts, "other kernels"));
    const std::string json = predicted_chrome_trace(script.trace, time, h200, "{\"predicted\":true}");
    CHECK(contains(json, "\"blocks an SM\""));
    CHECK(contains(json, "\"share asked\":0.88"));
    CHECK(contains(json, "\"why longer\":\"a last wave"));
    CHECK(contains(json, "\"predicted\":true"));
    CHECK(contains(json, "\"gemm\":\"BF16 (8192, 8192)"));
}
