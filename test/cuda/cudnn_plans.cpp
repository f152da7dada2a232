// That cuDNN has a plan for every shape that is not refused, on the GPUs it matters for, without having one: a program
// of its own, run by `make cudnn-plans` with test/cuda/no_driver.c as the driver. What the plans compute, only a GPU
// can tell.
#include <cstdio>
#include <cstdlib>
#include "llmc/cuda/attention/cudnn_attention.h"
#include "test/testing.h"

struct Gpu {
    const char* name;
    int compute_capability, num_sms, shared_kib, sm_mhz, memory_mhz, bus_bits, l2_mib, memory_gib;
};

static const Gpu kA100 = {"A100", 80, 108, 163, 1410, 1593, 5120, 40, 80};
static const Gpu kH200 = {"H200", 90, 132, 227, 1980, 3201, 6144, 50, 141};
static const Gpu kB200 = {"B200", 100, 148, 227, 1965, 3996, 8192, 126, 180};

// cuDNN's own form, which is not documented: all keys must be there.
static std::string json_of(const Gpu& gpu) {
    return format(
        R"({"deviceName": "NVIDIA %s", "deviceVer": %d, "driverVer": 13000, "cudaDeviceId": 0, "pciDeviceId": 0,
        "multiProcessorCount": %d, "warpSize": 32, "maxGridSize": [2147483647, 65535, 65535],
        "maxBlockSize": [1024, 1024, 64], "maxThreadsPerBlock": 1024, "maxThreadsPerSM": 2048, "maxCtasPerSM": 32,
        "regsPerBlock": 65536, "maxRegistersPerSM": 65536, "maxSharedMemoryPerBlock": 49152,
        "maxSharedMemoryPerBlockOptin": %d, "reservedSharedMemoryPerBlock": 1024, "isTccDriver": 0,
        "supportCoopLaunch": 1, "smClockRateKHz": %d, "memClockRateKHz": %d, "memoryBusWidth": %d, "l2CacheSize": %d,
        "totalGlobalMem": %lld})",
        gpu.name, gpu.compute_capability * 10, gpu.num_sms, gpu.shared_kib << 10, gpu.sm_mhz * 1000,
        gpu.memory_mhz * 1000, gpu.bus_bits, gpu.l2_mib << 20, (long long)gpu.memory_gib << 30);
}

static size_t workspace_on(const Gpu& gpu, const AttentionShape& shape, bool is_backward, bool deterministic = true) {
    return cudnn_workspace_on(json_of(gpu), gpu.compute_capability, deterministic, shape, is_backward);
}

// A table of what was planned, and every plan that is not there as a failure.
static void check_plans(const Gpu& gpu, const AttentionShape& shape) {
    const std::string why = why_not_cudnn(shape, gpu.compute_capability, cudnn_version(), true);
    INFO(gpu.name << " B " << shape.B << " T " << shape.T << " NH " << shape.NH << " NKV " << shape.NKV << " HS "
                  << shape.HS << " window " << shape.window << " refused: " << why);
    CHECK(why == "");
    double mib[3] = {};
    CHECK_NOTHROW(mib[0] = double(workspace_on(gpu, shape, false)) / (1 << 20));
    CHECK_NOTHROW(mib[1] = double(workspace_on(gpu, shape, true)) / (1 << 20));
    CHECK_NOTHROW(mib[2] = double(workspace_on(gpu, shape, true, false)) / (1 << 20));
    std::printf(
        "%s B %2d T %5d NH %2d NKV %2d HS %3d window %5d: workspace forward %.1f, backward %.1f, not "
        "deterministic %.1f MiB\n",
        gpu.name, int(shape.B), int(shape.T), int(shape.NH), int(shape.NKV), int(shape.HS), int(shape.window), mib[0],
        mib[1], mib[2]);
}

TEST_CASE("cudnn plans: lengths, head sizes, groups and windows", "[cudnn]") {
    const Gpu gpu = GENERATE(kA100, kH200, kB200);
    const char* one = std::getenv("ANVIL_PLANS");  // the name of the only one to plan for: a minute instead of three
    if (one && std::string(one) != gpu.name) return;
    check_plans(gpu, {16, 1024, 12, 12, 64});
    check_plans(gpu, {16, 1024, 12, 4, 64, 255});
    check_plans(gpu, {16, 1024, 12, 12, 128, 255});
    check_plans(gpu, {16, 1024, 12, 4, 128});
    for (const int64_t T : {2, 65, 1000, 4096}) check_plans(gpu, {2, T, 6, 6, 64});
    for (const int64_t window : {0, 127, 998}) check_plans(gpu, {2, 1000, 6, 2, 64, window});
    check_plans(gpu, {1, 300, 4, 1, 128, 100});
    for (const int64_t HS : {8, 96}) check_plans(gpu, {2, 256, 6, 6, HS});
    if (gpu.compute_capability == 90) check_plans(gpu, {2, 256, 6, 6, 256});
}

TEST_CASE("cudnn plans: the workspace grows with the shape as documented", "[cudnn]") {
    const int64_t B = 4, T = 1024, NH = 12, HS = 64;
    const AttentionShape shape = {B, T, NH, NH, HS};
    const size_t all_scores = size_t(2 * B * NH * T * T), dq_sums = size_t(4 * B * NH * T * HS),
                 row_sums = size_t(4 * B * NH * T), little = 64 << 10;
    for (const Gpu& gpu : {kA100, kH200, kB200}) {
        INFO(gpu.name);
        CHECK(workspace_on(gpu, shape, false) <= little);
        const size_t deterministic = workspace_on(gpu, shape, true), fast = workspace_on(gpu, shape, true, false);
        CHECK(deterministic >= row_sums + (is_blackwell(gpu.compute_capability) ? 0 : all_scores));
        CHECK(deterministic <= row_sums + (is_blackwell(gpu.compute_capability) ? 0 : all_scores) + little);
        CHECK(fast >= row_sums + dq_sums);
        CHECK(fast <= row_sums + 2 * dq_sums + little);  // the A100's has another of its own
        // What the memory plan says before there is one.
        const int capability = gpu.compute_capability;
        CHECK(workspace_on(gpu, shape, false) <= most_cudnn_workspace(shape, capability, true, false));
        CHECK(deterministic <= most_cudnn_workspace(shape, capability, true, true));
        CHECK(fast <= most_cudnn_workspace(shape, capability, false, true));
        CHECK(most_cudnn_workspace(shape, capability, true, true) <= deterministic + 2 * little);
    }
}

// Any engine of cuDNN's would train. This one is why it is asked: Hopper's own matrix instructions, in one kernel.
TEST_CASE("cudnn plans: what trains on an H200 is one fused kernel of Hopper's own", "[cudnn][engines]") {
    const AttentionShape gpt2_124M = {32, 1024, 12, 12, 64}, gpt2_1558M = {16, 1024, 25, 25, 64},
                         d12 = {32, 2048, 6, 6, 128, 1024}, d24 = {8, 2048, 12, 12, 128};
    for (const AttentionShape& shape : {gpt2_124M, gpt2_1558M, d12, d24})
        for (const bool is_backward : {false, true}) {
            const std::string plan = cudnn_plan_on(json_of(kH200), kH200.compute_capability, true, shape, is_backward);
            const auto begin = plan.find("\"kernelName\":");
            INFO("B " << shape.B << " T " << shape.T << " NH " << shape.NH << " HS " << shape.HS << " window "
                      << shape.window << ": "
                      << (begin == std::string::npos ? "no kernel is named" : plan.substr(begin, 140)));
            CHECK(contains(plan, is_backward ? "\"finalizeMode\":\"SDPA_BWD\"" : "\"finalizeMode\":\"SDPA_FWD\""));
            CHECK(contains(plan, is_backward ? "sdpa_sm90_flash_bprop_wgmma" : "sdpa_sm90_flash_fprop_wgmma"));
        }
}

TEST_CASE("cudnn plans: what cuDNN refuses is an error with the op, its shape and cuDNN's words", "[cudnn]") {
    const AttentionShape odd = {2, 256, 6, 6, 63};
    const std::string error = error_of([&] { workspace_on(kH200, odd, true); });
    INFO(error);
    CHECK(contains(error, "2: cuDNN "));
    CHECK(contains(error, "attention_backward B 2 T 256 NH 6 NKV 6 HS 63 window -1: cuDNN has no engine for it"));
    const std::string no_gpu = error_of([&] { cudnn_workspace_on("{}", 90, true, {2, 256, 6, 6, 64}, false); });
    INFO(no_gpu);
    CHECK(contains(no_gpu, "attention_forward B 2 T 256 NH 6 NKV 6 HS 64 window -1: the description of a GPU"));
    CHECK(contains(no_gpu, "CUDNN_STATUS_BAD_PARAM: "));
}
