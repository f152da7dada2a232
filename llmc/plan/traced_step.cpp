// See traced_step.h. All code that launches kernels is compiled here once more, in its own namespace, for a runtime
// that records launches: llmc/plan/include comes before the toolkit's headers.
#include "llmc/plan/traced_step.h"
#include <algorithm>
#include <array>
#include <bit>
#include <cctype>
#include <cfloat>
#include <chrono>
#include <climits>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <initializer_list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>
#include "llmc/base/bf16.h"
#include "llmc/base/check.h"
#include "llmc/base/fp8.h"
#include "llmc/base/head_rows.h"
#include "llmc/base/host_limits.h"
#include "llmc/base/profile.h"
#include "llmc/base/rng.h"
#include "llmc/comm/comm.h"
#include "llmc/cuda/attention/attention_plans.h"
#include "llmc/cuda/matmul_call.h"
#include "llmc/cuda/matmul_plans.h"
#include "llmc/model/gpt.h"
#include "llmc/ops/op_cost.h"
#include "llmc/ops/ops.h"
#include "llmc/optim/optimizer.h"
#include "llmc/plan/gpus.h"
#include "llmc/plan/recorder.h"
#include "llmc/train/attention_shapes.h"
#include "llmc/train/step.h"

namespace traced {

#include "llmc/comm/gpu/cuda_comm.cpp"
#include "llmc/cuda/attention/table_attention.cu"
#include "llmc/cuda/table_elementwise.cu"
#include "llmc/cuda/table_matmul.cu"
#include "llmc/cuda/table_rows.cu"
#include "llmc/cuda/table_optimizers.cu"
#include "llmc/cuda/cuda_device.cpp"
#include "llmc/cuda/cuda_kernels.cpp"
#include "llmc/cuda/run_setup.cu"
#include "llmc/cuda/sum_ranks.cu"

std::unique_ptr<OpObserver> nvtx_ranges() { return nullptr; }

// ---- libraries ---------------------------------------------------------------------------------------------------
struct CublasLt::Library {};
CublasLt::CublasLt(Cuda&, const std::string&) {}
CublasLt::~CublasLt() = default;
void CublasLt::begin_step() {}
void CublasLt::end_step() {}
bool CublasLt::supports(Cuda&, const MatmulCall&) { return true; }
bool CublasLt::prefers(Cuda&, const MatmulCall&, const MatmulCall&, double) { return true; }
void CublasLt::run(Cuda& cuda, const MatmulCall& call, void*, const void*, const void*, const void*, void*, const void*,
                   const OperandScales&) {
    const ColumnMajorCall c = column_major(call);
    cuda.workspace(kWorkspaceBytes);
    StepRecorder* const recorder = StepRecorder::current();
    if (!recorder) return;
    TracedWork& one = recorder->add(TracedWork::Kind::gemm, "cublaslt", cuda.stream);
    one.gemm = call;
    const auto bytes_of = [&](const ColumnMajorMatrix& m) {
        const double scales = call.block_scales && is_fp8(m.dtype) ? 1. / kMxBlock : 0;
        return double(m.rows * m.cols) * (double(size_of(m.dtype)) + scales);
    };
    const double out = bytes_of(c.d);
    one.cost.bytes = double(call.batch) * (bytes_of(c.first) + bytes_of(c.second) +
                                           out * (1 + int(call.accumulate) + int(has_aux_matrix(call.epilogue))));
    one.cost.flops = 2. * double(call.batch) * double(call.m) * double(call.n) * double(call.k);
}

struct CudnnAttention::Library {
    static constexpr size_t kVersion = 91900;
    int compute_capability;
    bool deterministic;
};
CudnnAttention::CudnnAttention(Cuda& cuda, bool deterministic)
    : library_(new Library{cuda.compute_capability, deterministic}) {}
CudnnAttention::~CudnnAttention() = default;
std::string CudnnAttention::refuses(const AttentionShape& shape) const {
    return why_not_cudnn(shape, library_->compute_capability, Library::kVersion, library_->deterministic);
}
bool CudnnAttention::supports(const AttentionShape& shape, bool, std::string* why) {
    const std::string why_not = refuses(shape);
    if (why && !why_not.empty()) *why = why_not;
    return why_not.empty();
}
size_t CudnnAttention::workspace_bytes(const AttentionShape& shape, bool learns) {
    return most_workspace_bytes(shape, learns);
}
size_t CudnnAttention::most_workspace_bytes(const AttentionShape& shape, bool learns) const {
    return most_cudnn_workspace(shape, library_->compute_capability, library_->deterministic, learns);
}
std::string CudnnAttention::name() const { return "cuDNN 9.19.0"; }
bool CudnnAttention::deterministic() const { return library_->deterministic; }

static void note_attention(Cuda& cuda, bool is_backward, bool deterministic) {
    StepRecorder* const recorder = StepRecorder::current();
    if (!recorder) return;
    TracedWork& one = recorder->add(TracedWork::Kind::attention,
                                    is_backward ? "cudnn_attention_backward" : "cudnn_attention_forward", cuda.stream);
    one.is_backward = is_backward, one.deterministic = deterministic;
    one.cost = recorder->take_op_cost();
}
void CudnnAttention::forward(Cuda& cuda, bf16*, float*, const bf16*, const AttentionShape&) {
    note_attention(cuda, false, library_->deterministic);
}
void CudnnAttention::backward(Cuda& cuda, bf16*, const bf16*, const bf16*, const float*, const bf16*,
                              const AttentionShape& shape) {
    cuda.workspace(workspace_bytes(shape, true));
    note_attention(cuda, true, library_->deterministic);
}

// ---- collectives, as NCCL's are ordered ----------------------------------------------------------------------------
class TracedComm : public CudaComm {
public:
    TracedComm(Cuda& cuda, int of_rank, int of) : CudaComm(cuda, Order::overlapped) { rank = of_rank, world_size = of; }
    std::string describe() const override { return "traced"; }
    Work broadcast(void*, size_t bytes, int) override { return note("broadcast", 1, double(bytes)); }
    Work reduce_scatter(float*, int64_t shard) override { return reduce_scatter_of(double(shard) * 4); }
    Work reduce_scatter(bf16*, int64_t shard) override { return reduce_scatter_of(double(shard) * 2); }
    Work all_to_all_sum(float* data, int64_t shard, float* scratch) override {
        return all_to_all_sum_of(data, data, scratch, shard, shard);
    }
    Work all_to_all_sum(float* data, const bf16* terms, int64_t shard) override {
        return all_to_all_sum_of(data, terms, reinterpret_cast<bf16*>(data), 2 * shard, shard);
    }
    Work all_gather(void*, size_t shard_bytes) override {
        return note("all_gather", 1, double(shard_bytes) * shards(), shards());
    }
    Work all_reduce(float*, int64_t n) override { return note("all_reduce", 2, double(n) * 4); }
    Work all_reduce(uint64_t*, int64_t n) override { return note("all_reduce", 2, double(n) * 8); }
    bool sums_in_order() const override { return world_size <= kGpusPerServer; }
    void* allocate(size_t bytes) override { return cuda_.allocate(bytes); }
    void release(void* data, size_t bytes) override { cuda_.release(data, bytes); }

private:
    // As NcclComm does it.
    Work reduce_scatter_of(double shard_bytes) {
        const Work work = note("reduce_scatter", 1, shard_bytes * shards(), shards());
        return is_split() ? note("all_reduce", 2, shard_bytes, world_size / shards(), true) : work;
    }
    Work note(const char* name, int passes, double bytes, int ranks = 0, bool between = false) {
        return start(name, passes, bytes, [&] { record_one(name, passes, bytes, false, ranks, between); }, ranks);
    }
    void record_one(const char* name, int passes, double bytes, bool by_messages, int ranks = 0, bool between = false) {
        StepRecorder* const recorder = StepRecorder::current();
        if (!recorder) return;
        TracedWork& one = recorder->add(TracedWork::Kind::collective, name, stream_);
        one.cost.bytes = bytes, one.passes = passes, one.by_messages = by_messages;
        one.ranks = ranks, one.between = between;
    }
    template <class T>
    Work all_to_all_sum_of(float* data, const T* terms, T* arrived, int64_t stride, int64_t shard) {
        const double bytes = double(shard) * world_size * sizeof(T);
        return start("all_to_all", 1, bytes, [&] {
            record_one("all_to_all", 1, bytes, true);
            const OnStream on(cuda_, stream_);
            sum_terms(cuda_, data + rank * shard, terms + rank * shard, arrived, stride, rank, world_size, shard);
        });
    }
};

static void describe_device(const DescribedGpu& gpu) {
    cudaDeviceProp& properties = described_device().properties;
    properties = {};
    std::snprintf(properties.name, sizeof properties.name, "%s", gpu.name.c_str());
    properties.totalGlobalMem = gpu.memory_bytes;
    properties.major = gpu.compute_capability / 10, properties.minor = gpu.compute_capability % 10;
    properties.multiProcessorCount = gpu.num_sms;
    properties.l2CacheSize = int(gpu.l2_bytes);
}
static CudaOptions options_of(const TracedRun& run) {
    return {.tune_path = "", .attention = attention_kernels(run.attention), .deterministic = run.deterministic};
}
static size_t ops_workspace(Cuda& cuda, const TracedRun& run) {
    const GptShape& s = run.parameters.model;
    const int64_t widest = std::max({s.hidden_rows(), s.qkv_rows(), s.channels});
    size_t most = 0;
    for (const AttentionShape& shape : attention_shapes(s, run.step.B, run.step.T, run.has_documents))
        most = std::max(most, training_workspace<bf16>(cuda, run.step.B * run.step.T, s.channels, widest, shape, true));
    return most;
}

}  // namespace traced

// A data source with batches of zeros.
struct NoData {
    Batch batch;
    const Batch& next() { return batch; }
};

StepTrace trace_step(const TracedRun& run) {
    using namespace traced;
    describe_device(run.gpu);
    Cuda cuda(0, options_of(run));
    std::unique_ptr<Comm<Cuda>> comm;
    if (run.step.world_size > 1)
        comm = std::make_unique<TracedComm>(cuda, run.rank, int(run.step.world_size));
    else
        comm = std::make_unique<NoComm<Cuda>>(cuda);
    if (run.sharding.shards < run.step.world_size) comm->split(run.sharding.shards);
    plan_attention<bf16>(cuda, attention_shapes(run.parameters.model, run.step.B, run.step.T, run.has_documents), true);
    Gpt<Cuda, bf16> model(
        cuda, run.parameters, run.step.B, run.step.T, run.passes, *comm,
        gradient_list(run.parameters, run.sharding, gradient_layout(run.sharding, run.step.shards_gradients())));
    if (run.has_documents) model.document_token = 0;
    Optimizer<Cuda, bf16> optimizer(cuda, model.parameters, run.sharding, run.rank, run.rules);

    StepConfig step = run.step;
    const bool is_short = step.accumulation <= 3 || step.tree_sum;
    if (!is_short) step.accumulation = 3;
    StepRecorder recorder;
    recorder.stream_number(cuda.stream);
    cuda.observer = &recorder;
    Stepper<Cuda, bf16> stepper(model, optimizer, *comm, step, 0);
    model.linear.set_amax_steps(run.passes.amax_history);  // as in later steps, when the history is full
    const std::vector<int32_t> zeros(size_t(step.B * step.T));
    NoData data{{zeros, zeros}};

    // With --graph, the third step captures the graph, which issues each launch once.
    if (step.graph) stepper.start(data, run.rates), stepper.finish();
    recorder.trace = {};
    stepper.start(data, run.rates);
    recorder.begin_second_step();
    stepper.start(data, run.rates);
    cuda.observer = nullptr;
    StepTrace trace = std::move(recorder.trace);
    trace.traced_micro_batches = step.accumulation;
    trace.middle_repeats = is_short ? 1 : run.step.accumulation - 2;
    // Waiting for the end of both steps is not part of a step.
    stepper.finish(), stepper.finish();
    return trace;
}

TracedWorkspace::TracedWorkspace(const TracedRun& run) : run_(run) {
    using namespace traced;
    describe_device(run.gpu);
    Cuda cuda(0, options_of(run));
    optimizer_bytes_ =
        Optimizer<Cuda, bf16>::workspace_bytes(cuda, StateLayout(run.parameters, run.sharding, run.rank, run.rules));
}

size_t TracedWorkspace::bytes(int64_t B, int64_t seq_len) const {
    using namespace traced;
    describe_device(run_.gpu);
    Cuda cuda(0, options_of(run_));
    TracedRun run = run_;
    run.step.B = B, run.step.T = seq_len;
    return std::max(ops_workspace(cuda, run), optimizer_bytes_);
}
