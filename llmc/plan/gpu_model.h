/*
Predicts how long a recorded step takes on a GPU that is only described: each launch gets a time from its shape, and the
order of streams and events is simulated. There are three cases of the same model, because its constants were not
measured on this engine, and a single number would hide that.

  const StepTime time = step_time(trace, gpu, kMid, world_size);

A kernel       its bytes at the bandwidth of a copy, as far as its threads keep enough of them in flight (Little's law,
               with the registers of doc/results/registers.txt), or its FLOPs; and a start
A GEMM         whole waves of tiles over the SMs, the best of several tile sizes and splits of k; short dot products pay
               for their beginning and end, and none is faster than a large one. Fitted to NVIDIA's own model of its
               GEMMs at the shapes of six models, within 4 % on average, on an A100 of five, within 2.4 %
Attention      a rate by head size and length: published ones of cuDNN and FlashAttention-3 on Hopper, of
               FlashAttention-2 where there is only mma.sync; our backward pass on Hopper by its tiles
A collective   NCCL's ring, or its tree: (W - 1) / W of all bytes, once or twice, and the latency of each hop, of which
               a ring has W - 1
A copy         between the host and the GPU, in a stream of its own: its bytes at what PCIe has in each direction
Between two    a gap; and the host needs time for each launch, which bounds small models; a CUDA graph is one launch.
*/
#pragma once
#include <map>
#include <string>
#include <vector>
#include "llmc/plan/gpus.h"        // Gpu
#include "llmc/plan/step_trace.h"  // StepTrace

// The time of a kernel before its first blocks compute and after its last: assumed.
inline constexpr double kKernelStart = 2e-6;
// The gap between launches in a graph, relative to that in a stream: kernels of 2.9 us take 3.8 us each in a stream and
// 3.4 us in a graph (NVIDIA, "Getting Started with CUDA Graphs", 2019).
inline constexpr double kGraphGap = 0.55;

// The uncertain constants: factors for the rates of the middle case, and times.
struct ModelCase {
    const char* name;
    double gemm, attention, memory, wire;
    double gap_s;       // between two launches in a stream
    double host_s;      // the host's time for one launch
    double contention;  // rate of kernels beside a collective, which takes SMs and bandwidth
    // Assumed to follow from the others; benchmarks measure them (calibration.h).
    double start_s = kKernelStart;
    double graph_gap_s = kGraphGap * gap_s;
    double host_gemm_s = host_s;  // for a GEMM by cuBLASLt
    double latency = 1;           // factor for the beginning and the hops of a collective
};
inline constexpr ModelCase kLow = {"low", 0.93, 0.88, 0.93, 0.75, 1.2e-6, 6e-6, 0.85};
inline constexpr ModelCase kMid = {"mid", 1, 1, 1, 1, 0.8e-6, 4e-6, 0.93};
inline constexpr ModelCase kHigh = {"high", 1.06, 1.1, 1.05, 1.1, 0.5e-6, 3e-6, 0.97};
inline constexpr const ModelCase* kCases[] = {&kLow, &kMid, &kHigh};

// Benchmarks of a card that replace the constants of gpu_model.cpp (calibration.h). What was not measured is not in
// here, and stays as in the model.
struct MeasuredRates {
    double streaming = 0;                   // share of a copy's rate that kernels reach (median); 0: not measured
    std::map<std::string, double> shares;   // the same per op: "layernorm_forward"
    std::map<std::string, double> factors;  // for the model's rate: "GEMM", "FP8 GEMM", attention_factor_name()

    double factor(const std::string& name) const {
        const auto found = factors.find(name);
        return found == factors.end() ? 1 : found->second;
    }
    // If this head size was not measured, the factor of another.
    double attention_factor(const std::string& kernel, int64_t head_size) const;
};
inline std::string attention_factor_name(const std::string& kernel, int64_t head_size) {
    return kernel + (head_size <= 64 ? ", HS 64" : ", HS 128");
}
// Which attention kernel it is, a library's or ours: "cudnn_attention_forward", "flash_forward_hopper"; "": none.
std::string attention_kernel(const TracedWork& work);

struct WorkTime {
    double seconds = 0;
    const char* bound = "";  // "memory", "tensor cores", "FP32 units", "latency", "wire", "PCIe"
    // limit_s: at the rate of a large copy, a large GEMM or the wire, whichever takes longest. why: what takes most of
    // the rest.
    double limit_s = 0;
    const char* why = "";
};
WorkTime time_of(const TracedWork& work, const Gpu& gpu, const ModelCase& assumed, int world_size);

// The shares of the limit that are goals in doc/performance.md; attention is compared with a GEMM's limit.
inline constexpr double kMemoryShareAsked = 0.85, kNormBackwardShareAsked = 0.75, kTensorShareAsked = 0.88;
double share_asked(const TracedWork& work);

// A kernel's registers per thread and static shared bytes, from the committed table: the maximum over its instances.
struct KernelResources {
    int registers = 0, static_bytes = 0;  // 0 registers: not in the table
};
KernelResources kernel_resources(const TracedWork& work, int compute_capability);
// The number of blocks that fit on an SM.
int resident_blocks(const TracedWork& work, const Gpu& gpu);

struct StepTime {
    double step_s = 0;
    double alone_s = 0;                                     // the same step, if collectives took no time
    double busy_s = 0;                                      // of the device's stream: the sum of its launches
    double gaps_s = 0;                                      // between these launches
    double exposed_s = 0;                                   // waiting for collectives
    double wire_s = 0;                                      // in collectives, hidden or not
    double exposed_copies_s = 0;                            // waiting for copies from and to the host
    double copies_s = 0;                                    // in these copies, hidden or not, of both directions
    double host_s = 0;                                      // the host's time to enqueue all of it
    int64_t launches = 0;                                   // per step, collectives included
    int64_t host_launches = 0;                              // by the host: all those of a graph are one
    double efficiency() const { return alone_s / step_s; }  // parallel: 1 if all communication is hidden
    bool host_bound() const { return host_s > step_s - 1e-12 && host_s > busy_s + gaps_s + waited_s(); }
    double waited_s() const { return exposed_s + exposed_copies_s; }

    // When each launch of the second recorded step begins, and how long it takes.
    struct Slice {
        size_t work;
        double begin_s, seconds;
        const char* bound;
        double limit_s;
        const char* why;  // as in WorkTime
    };
    std::vector<Slice> slices;
};
StepTime step_time(const StepTrace& trace, const Gpu& gpu, const ModelCase& assumed, int world_size);

// Seconds of a collective that sends (W - 1) / W of `bytes` `passes` times: once for a reduce-scatter or an all-gather,
// twice for an all-reduce.
double collective_seconds(double bytes, int passes, const Gpu& gpu, const ModelCase& assumed, int world_size);
// The same among `ranks` of different servers, each with its own network card, while their neighbors do the same.
double collective_seconds_between(double bytes, int passes, const Gpu& gpu, const ModelCase& assumed, int ranks);
// Seconds of an all-to-all, in which each rank sends every other its part of `bytes`. Between servers a rank has only
// its own network card, whereas a ring of all ranks uses those of the whole server.
double all_to_all_seconds(double bytes, const Gpu& gpu, const ModelCase& assumed, int world_size);
// Bytes per second that a rank sends, inside a server or over the network.
double wire_bytes_per_s(const Gpu& gpu, int world_size);
