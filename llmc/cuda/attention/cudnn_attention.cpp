// See cudnn_attention.h. The only file that includes cuDNN's headers.
#include "llmc/cuda/attention/cudnn_attention.h"
#include <cudnn.h>
#include <algorithm>
#include <array>
#include <utility>
#include "llmc/base/build_id.h"                   // check_library_version, library_text, nvidia_package
#include "llmc/base/check.h"                      // require, ensure, format
#include "llmc/cuda/attention/attention_graph.h"  // build_attention_forward
#include "llmc/cuda/attention/attention_plans.h"  // AttentionPlans
#include "llmc/cuda/cuda_device.h"                // Cuda

namespace {

constexpr size_t kAlignment = 256;  // bytes, of the parts of the workspace

std::string version_text() { return library_text("cuDNN", CUDNN_VERSION, cudnnGetVersion()); }

std::string text_of(const AttentionShape& s, bool is_backward) {
    return format("attention_%s B %ld T %ld NH %ld NKV %ld HS %ld window %ld", is_backward ? "backward" : "forward",
                  s.B, s.T, s.NH, s.NKV, s.HS, s.window);
}

// `subject`: the op and its shape. Exit code 2 if another library or driver would help, else 1.
void check(cudnnStatus_t status, const char* action, const std::string& subject) {
    if (status == CUDNN_STATUS_SUCCESS) [[likely]]
        return;
    char last[1024] = "";
    cudnnGetLastErrorString(last, sizeof last);
    const int category = int(status) / 1000;  // thousands: 1 not initialized, 2 bad parameter, 3 unsupported, ...
    throw Error(category == 1 || category == 3 ? kExitUsage : kExitInternal,
                format("%s: %s: %s: %s: %s", version_text().c_str(), subject.c_str(), action,
                       cudnnGetErrorString(status), last));
}

// A descriptor of cuDNN: created, given its attributes, finalized, and destroyed with its owner.
class Descriptor {
public:
    Descriptor(cudnnBackendDescriptorType_t type, const char* name, const std::string& subject)
        : name_(name), subject_(subject) {
        check(cudnnBackendCreateDescriptor(type, &descriptor_), name, subject);
    }
    ~Descriptor() {
        if (descriptor_) cudnnBackendDestroyDescriptor(descriptor_);
    }
    Descriptor(Descriptor&& other) noexcept
        : descriptor_(std::exchange(other.descriptor_, nullptr)), name_(other.name_), subject_(other.subject_) {}
    Descriptor& operator=(Descriptor&&) = delete;

    Descriptor& set(cudnnBackendAttributeName_t attribute, cudnnBackendAttributeType_t type, int64_t count,
                    const void* values) {
        check(cudnnBackendSetAttribute(descriptor_, attribute, type, count, values), name_, subject_);
        return *this;
    }
    template <class T>
    Descriptor& set(cudnnBackendAttributeName_t attribute, cudnnBackendAttributeType_t type, const T& value) {
        return set(attribute, type, 1, &value);
    }
    Descriptor& set(cudnnBackendAttributeName_t attribute, cudnnBackendDescriptor_t value) {
        return set(attribute, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &value);
    }
    cudnnBackendDescriptor_t finalize() {
        check(cudnnBackendFinalize(descriptor_), name_, subject_);
        return descriptor_;
    }
    cudnnBackendDescriptor_t get() const { return descriptor_; }

private:
    cudnnBackendDescriptor_t descriptor_ = nullptr;
    const char* name_;
    std::string subject_;
};

// What a plan is made for: an existing GPU or one that is described.
struct Target {
    int compute_capability;
    bool deterministic;
    cudnnHandle_t handle = nullptr;
    cudnnBackendDescriptor_t device_properties = nullptr;
};

constexpr int64_t kFirstLocalUid = 100;

cudnnDataType_t type_of(GraphType type) {
    switch (type) {
        case GraphType::f32:
            return CUDNN_DATA_FLOAT;
        case GraphType::bf16:
            return CUDNN_DATA_BFLOAT16;
        case GraphType::i32:
            return CUDNN_DATA_INT32;
        case GraphType::boolean:
            return CUDNN_DATA_BOOLEAN;
    }
    return CUDNN_DATA_FLOAT;
}

cudnnPointwiseMode_t mode_of(Pointwise op) {
    switch (op) {
        case Pointwise::add:
            return CUDNN_POINTWISE_ADD;
        case Pointwise::sub:
            return CUDNN_POINTWISE_SUB;
        case Pointwise::mul:
            return CUDNN_POINTWISE_MUL;
        case Pointwise::div:
            return CUDNN_POINTWISE_DIV;
        case Pointwise::exp:
            return CUDNN_POINTWISE_EXP;
        case Pointwise::log:
            return CUDNN_POINTWISE_LOG;
        case Pointwise::identity:
            return CUDNN_POINTWISE_IDENTITY;
        case Pointwise::greater:
            return CUDNN_POINTWISE_CMP_GT;
        case Pointwise::greater_equal:
            return CUDNN_POINTWISE_CMP_GE;
    }
    return CUDNN_POINTWISE_IDENTITY;
}

// Implements the builder of attention_graph.h with cuDNN. Operations are in the order of their creation.
class Graph {
public:
    using Tensor = cudnnBackendDescriptor_t;

    explicit Graph(std::string subject) : subject_(std::move(subject)) {}

    Tensor real(Uid uid, GraphType type, const Form& form) { return tensor(uid, type, form, false, false); }
    Tensor local(GraphType type, const Form& form) { return tensor(next_uid_++, type, form, true, false); }
    Tensor scalar(Uid uid) { return tensor(uid, GraphType::f32, Form::contiguous(1, 1, 1, 1), false, true); }

    Tensor pointwise(Pointwise op, Tensor x, Tensor b, Tensor y) {
        const bool compares = op == Pointwise::greater || op == Pointwise::greater_equal;
        return pointwise(mode_of(op), compares ? CUDNN_DATA_BOOLEAN : CUDNN_DATA_FLOAT, x, b, nullptr, y);
    }
    Tensor pointwise(Pointwise op, Tensor x, Tensor y) { return pointwise(op, x, nullptr, y); }
    Tensor select(Tensor t, Tensor x, Tensor b, Tensor y) {
        return pointwise(CUDNN_POINTWISE_BINARY_SELECT, CUDNN_DATA_FLOAT, x, b, t, y);
    }
    Tensor index(Tensor x, int64_t axis, Tensor y) {
        return pointwise(CUDNN_POINTWISE_GEN_INDEX, CUDNN_DATA_INT32, x, nullptr, nullptr, y, axis);
    }

    Tensor matmul(Tensor a, Tensor b, Tensor c) {
        Descriptor& kind = add(CUDNN_BACKEND_MATMUL_DESCRIPTOR, "a product");
        kind.set(CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT);
        const cudnnBackendDescriptor_t finalized = kind.finalize();
        Descriptor& operation = add(CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR, "a product");
        operation.set(CUDNN_ATTR_OPERATION_MATMUL_ADESC, a);
        operation.set(CUDNN_ATTR_OPERATION_MATMUL_BDESC, b);
        operation.set(CUDNN_ATTR_OPERATION_MATMUL_CDESC, c);
        operation.set(CUDNN_ATTR_OPERATION_MATMUL_DESC, finalized);
        operations_.push_back(operation.finalize());
        return c;
    }

    Tensor reduce(Reduction op, Tensor x, Tensor y) {
        const cudnnReduceTensorOp_t how = op == Reduction::max ? CUDNN_REDUCE_TENSOR_MAX : CUDNN_REDUCE_TENSOR_ADD;
        Descriptor& kind = add(CUDNN_BACKEND_REDUCTION_DESCRIPTOR, "a reduction");
        kind.set(CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, how);
        kind.set(CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT);
        const cudnnBackendDescriptor_t finalized = kind.finalize();
        Descriptor& operation = add(CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR, "a reduction");
        operation.set(CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x);
        operation.set(CUDNN_ATTR_OPERATION_REDUCTION_YDESC, y);
        operation.set(CUDNN_ATTR_OPERATION_REDUCTION_DESC, finalized);
        operations_.push_back(operation.finalize());
        return y;
    }

    Tensor transpose(Tensor x, Tensor y) {
        Descriptor& operation = add(CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR, "a transpose");
        operation.set(CUDNN_ATTR_OPERATION_RESHAPE_XDESC, x);
        operation.set(CUDNN_ATTR_OPERATION_RESHAPE_YDESC, y);
        operations_.push_back(operation.finalize());
        return y;
    }

    // Returns the finalized graph. Its descriptors must outlive all objects made from it.
    cudnnBackendDescriptor_t finalize(cudnnHandle_t handle) {
        Descriptor& graph = add(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, "the graph");
        graph.set(CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, int64_t(operations_.size()),
                  operations_.data());
        if (handle) graph.set(CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, handle);
        return graph.finalize();
    }

    const std::string& subject() const { return subject_; }

private:
    Descriptor& add(cudnnBackendDescriptorType_t type, const char* name) {
        descriptors_.push_back(std::make_unique<Descriptor>(type, name, subject_));
        return *descriptors_.back();
    }

    Tensor pointwise(cudnnPointwiseMode_t mode, cudnnDataType_t precision, Tensor x, Tensor b, Tensor t, Tensor y,
                     int64_t axis = -1) {
        Descriptor& kind = add(CUDNN_BACKEND_POINTWISE_DESCRIPTOR, "a pointwise operation");
        kind.set(CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, mode);
        kind.set(CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, precision);
        if (axis >= 0) kind.set(CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, axis);
        const cudnnBackendDescriptor_t finalized = kind.finalize();
        Descriptor& operation = add(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, "a pointwise operation");
        operation.set(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, finalized);
        operation.set(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x);
        if (b) operation.set(CUDNN_ATTR_OPERATION_POINTWISE_BDESC, b);
        if (t) operation.set(CUDNN_ATTR_OPERATION_POINTWISE_TDESC, t);
        operation.set(CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y);
        operations_.push_back(operation.finalize());
        return y;
    }

    Tensor tensor(int64_t uid, GraphType type, const Form& form, bool is_virtual, bool is_by_value) {
        Descriptor& tensor = add(CUDNN_BACKEND_TENSOR_DESCRIPTOR, "a tensor");
        tensor.set(CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, uid);
        tensor.set(CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, type_of(type));
        tensor.set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, int64_t(16));
        tensor.set(CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, form.sizes.data());
        tensor.set(CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, form.strides.data());
        tensor.set(CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, is_virtual);
        if (is_by_value) tensor.set(CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, is_by_value);
        return tensor.finalize();
    }

    std::string subject_;
    std::vector<std::unique_ptr<Descriptor>> descriptors_;
    std::vector<cudnnBackendDescriptor_t> operations_;
    int64_t next_uid_ = kFirstLocalUid;
};

// The workspace consists of the library's own workspace, the row sums and the sums of dQ.
struct Plan {
    std::unique_ptr<Graph> graph;
    std::vector<std::unique_ptr<Descriptor>> others;  // other descriptors that the plan uses
    std::unique_ptr<Descriptor> plan;
    size_t library_bytes = 0, row_sums_bytes = 0, dq_sums_bytes = 0;

    size_t workspace_bytes() const { return library_bytes + row_sums_bytes + dq_sums_bytes; }
};

size_t aligned(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

// An engine selected by its number and settings instead of by cuDNN's heuristic.
struct ChosenEngine {
    int64_t index;
    std::vector<std::pair<cudnnBackendKnobType_t, int64_t>> settings;
};

// On Blackwell the only deterministic backward engine is not in the heuristic's list. Number and settings are those in
// NVIDIA's frontend (github.com/NVIDIA/cudnn-frontend, override_heuristics_query of the attention's backward).
ChosenEngine deterministic_blackwell_engine(int compute_capability) {
    ChosenEngine engine = {compute_capability > 103 ? 17 : 5, {{CUDNN_KNOB_TYPE_STAGES, 2}}};
    if (cudnnGetVersion() < 92300)
        engine.settings.push_back({CUDNN_KNOB_TYPE_KERNEL_CFG, 31});
    else
        engine.settings.insert(engine.settings.end(), {{CUDNN_KNOB_TYPE_TILE_M, 3},
                                                       {CUDNN_KNOB_TYPE_TILE_N, 2},
                                                       {CUDNN_KNOB_TYPE_KERNEL_CFG, 2},
                                                       {CUDNN_KNOB_TYPE_STREAM_K, 0},
                                                       {CUDNN_KNOB_TYPE_TILE_CGA_M, 0}});
    return engine;
}

// Builds plans for a graph until one is accepted.
class Planner {
public:
    Planner(const Target& target, const AttentionShape& shape, bool is_backward)
        : target_(target), subject_(text_of(shape, is_backward)) {
        plan_.graph = std::make_unique<Graph>(subject_);
        if (is_backward)
            build_attention_backward(*plan_.graph, shape, target.deterministic);
        else
            build_attention_forward(*plan_.graph, shape);
        const cudnnBackendDescriptor_t graph = plan_.graph->finalize(target.handle);
        const bool is_chosen = is_backward && target.deterministic && is_blackwell(target.compute_capability);
        const bool is_found = is_chosen ? try_chosen(graph) : try_ranked(graph);
        require(is_found, "%s: %s: cuDNN has no engine for it%s", version_text().c_str(), subject_.c_str(),
                refusals_.c_str());
        if (!is_backward) return;
        const size_t rows = size_t(shape.B * shape.NH * shape.T);
        plan_.row_sums_bytes = aligned(rows * sizeof(float));
        if (!target.deterministic) plan_.dq_sums_bytes = aligned(rows * size_t(shape.HS) * sizeof(float));
    }

    Plan take() { return std::move(plan_); }

private:
    bool try_ranked(cudnnBackendDescriptor_t graph) {
        for (const cudnnBackendHeurMode_t mode : {CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_FALLBACK}) {
            Descriptor& ranking = add(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, "the ranking of engines");
            ranking.set(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph);
            ranking.set(CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, mode);
            if (target_.device_properties) ranking.set(CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, target_.device_properties);
            int64_t count = 0;
            const auto results = [&](std::vector<cudnnBackendDescriptor_t>& into) {
                check(
                    cudnnBackendGetAttribute(ranking.get(), CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                             CUDNN_TYPE_BACKEND_DESCRIPTOR, int64_t(into.size()), &count, into.data()),
                    "ranking engines", subject_);
            };
            ranking.finalize();
            std::vector<cudnnBackendDescriptor_t> found;
            results(found);
            for (int64_t i = 0; i < count; i++)
                found.push_back(add(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, "an engine").get());
            if (!found.empty()) results(found);
            for (int64_t i = 0; i < count; i++)
                if (accept(found[size_t(i)], format("%d.%ld", int(mode), i))) return true;
        }
        return false;
    }

    bool try_chosen(cudnnBackendDescriptor_t graph) {
        const ChosenEngine chosen = deterministic_blackwell_engine(target_.compute_capability);
        Descriptor& engine = add(CUDNN_BACKEND_ENGINE_DESCRIPTOR, "the deterministic engine");
        engine.set(CUDNN_ATTR_ENGINE_OPERATION_GRAPH, graph);
        engine.set(CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, chosen.index);
        if (target_.device_properties) engine.set(CUDNN_ATTR_ENGINE_DEVICEPROP, target_.device_properties);
        const cudnnBackendDescriptor_t finalized = engine.finalize();
        std::vector<cudnnBackendDescriptor_t> settings;
        for (const auto& [type, value] : chosen.settings) {
            Descriptor& setting = add(CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR, "a setting of the deterministic engine");
            setting.set(CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, CUDNN_TYPE_KNOB_TYPE, type);
            setting.set(CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, CUDNN_TYPE_INT64, value);
            settings.push_back(setting.finalize());
        }
        Descriptor& configuration = add(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, "the deterministic engine");
        configuration.set(CUDNN_ATTR_ENGINECFG_ENGINE, finalized);
        configuration.set(CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, CUDNN_TYPE_BACKEND_DESCRIPTOR, int64_t(settings.size()),
                          settings.data());
        return accept(configuration.finalize(), "the deterministic engine");
    }

    // An engine may reject a configuration that the heuristic proposed; then the next one is tried.
    bool accept(cudnnBackendDescriptor_t configuration, const std::string& name) {
        auto plan = std::make_unique<Descriptor>(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, "the plan", subject_);
        if (target_.handle) plan->set(CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, target_.handle);
        plan->set(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, configuration);
        if (target_.device_properties) plan->set(CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, target_.device_properties);
        if (const cudnnStatus_t status = cudnnBackendFinalize(plan->get()); status != CUDNN_STATUS_SUCCESS) {
            char last[256] = "";
            cudnnGetLastErrorString(last, sizeof last);
            refusals_ += format("; %s: %s: %s", name.c_str(), cudnnGetErrorString(status), last);
            return false;
        }
        int64_t count = 0, bytes = 0;
        check(cudnnBackendGetAttribute(plan->get(), CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1,
                                       &count, &bytes),
              "asking for the workspace", subject_);
        plan_.library_bytes = aligned(size_t(bytes));
        plan_.plan = std::move(plan);
        return true;
    }

    Descriptor& add(cudnnBackendDescriptorType_t type, const char* name) {
        plan_.others.push_back(std::make_unique<Descriptor>(type, name, subject_));
        return *plan_.others.back();
    }

    const Target& target_;
    std::string subject_, refusals_;
    Plan plan_;
};

// The tensors and numbers of one call.
class Arguments {
public:
    Arguments(const AttentionShape& shape, bool is_backward) : numbers_(graph_numbers(shape, is_backward)) {
        for (auto& [uid, value] : numbers_) put(uid, &value);
    }
    template <class T>
    void add(Uid uid, const T* pointer) {
        ensure(reinterpret_cast<uintptr_t>(pointer) % 16 == 0);
        put(uid, const_cast<T*>(pointer));
    }
    void execute(cudnnHandle_t handle, const Plan& plan, void* workspace) {
        Descriptor pack(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, "its arguments", plan.graph->subject());
        const int64_t count = int64_t(uids_.size());
        pack.set(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, count, uids_.data());
        pack.set(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, count, pointers_.data());
        pack.set(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, workspace);
        pack.finalize();
        check(cudnnBackendExecute(handle, plan.plan->get(), pack.get()), "computing", plan.graph->subject());
    }

private:
    void put(Uid uid, void* pointer) {
        uids_.push_back(uid);
        pointers_.push_back(pointer);
    }

    std::vector<int64_t> uids_;
    std::vector<void*> pointers_;
    std::vector<std::pair<Uid, float>> numbers_;  // cuDNN reads them in execute()
};

}  // namespace

struct CudnnAttention::Library {
    Target target;
    cudaStream_t stream;
    AttentionPlans<Plan> plans;

    ~Library() {
        plans.clear();
        if (target.handle) cudnnDestroy(target.handle);
    }

    std::string refuses(const AttentionShape& s) const {
        return why_not_cudnn(s, target.compute_capability, cudnnGetVersion(), target.deterministic);
    }

    const AttentionPlans<Plan>::Entry& entry_for(const AttentionShape& s, bool is_backward) {
        return plans.entry_for(
            s, is_backward, [&](const AttentionShape& shape) { return refuses(shape); },
            [&](const AttentionShape& shape, bool backward) {
                start();
                return Planner(target, shape, backward).take();
            });
    }

    const Plan& plan_for(const AttentionShape& s, bool is_backward) {
        const auto& entry = entry_for(s, is_backward);
        require(entry.why_not.empty(), "%s by cuDNN: %s", text_of(s, is_backward).c_str(), entry.why_not.c_str());
        return entry.plan;
    }

    // Only on first use: a run with other kernels does not need cuDNN, and works even if cuDNN cannot start.
    void start() {
        if (target.handle) return;
        cudnnHandle_t handle = nullptr;
        check(cudnnCreate(&handle), "starting", "attention");
        const cudnnStatus_t status = cudnnSetStream(handle, stream);
        if (status != CUDNN_STATUS_SUCCESS) cudnnDestroy(handle);
        check(status, "choosing a stream", "attention");
        target.handle = handle;
    }
};

CudnnAttention::CudnnAttention(Cuda& cuda, bool deterministic)
    : library_(new Library{.target = {cuda.compute_capability, deterministic}, .stream = cuda.stream, .plans = {}}) {
    check_library_version("cuDNN", CUDNN_VERSION, cudnnGetVersion(), nvidia_package("cudnn"));
}

CudnnAttention::~CudnnAttention() = default;

std::string CudnnAttention::refuses(const AttentionShape& shape) const { return library_->refuses(shape); }

bool CudnnAttention::supports(const AttentionShape& shape, bool is_backward, std::string* why) {
    const std::string& why_not = library_->entry_for(shape, is_backward).why_not;
    if (why && !why_not.empty()) *why = why_not;
    return why_not.empty();
}

size_t CudnnAttention::workspace_bytes(const AttentionShape& shape, bool learns) {
    return std::max(library_->plan_for(shape, false).workspace_bytes(),
                    learns ? library_->plan_for(shape, true).workspace_bytes() : 0);
}

size_t CudnnAttention::most_workspace_bytes(const AttentionShape& shape, bool learns) const {
    return most_cudnn_workspace(shape, library_->target.compute_capability, deterministic(), learns);
}

std::string CudnnAttention::name() const { return version_text(); }
bool CudnnAttention::deterministic() const { return library_->target.deterministic; }
int64_t CudnnAttention::plans_made() const { return library_->plans.made(); }

template <class T>
static void add_qkv(Arguments& arguments, const std::array<Uid, 3>& uids, T* qkv, const AttentionShape& shape) {
    for (size_t i = 0; i < uids.size(); i++) arguments.add(uids[i], qkv + qkv_offsets(shape)[i]);
}

void CudnnAttention::forward(Cuda& cuda, bf16* out, float* lse, const bf16* qkv, const AttentionShape& shape) {
    const Plan& plan = library_->plan_for(shape, false);
    Arguments arguments(shape, false);
    add_qkv(arguments, {kQ, kK, kV}, qkv, shape);
    arguments.add(kOut, out);
    arguments.add(kLse, lse);
    const KernelScope kernel(cuda, "cudnn_attention_forward");
    arguments.execute(library_->target.handle, plan, cuda.workspace(plan.workspace_bytes()));
}

void CudnnAttention::backward(Cuda& cuda, bf16* dqkv, const bf16* dout, const bf16* out, const float* lse,
                              const bf16* qkv, const AttentionShape& shape) {
    const Plan& plan = library_->plan_for(shape, true);
    char* workspace = static_cast<char*>(cuda.workspace(plan.workspace_bytes()));
    Arguments arguments(shape, true);
    add_qkv(arguments, {kQ, kK, kV}, qkv, shape);
    add_qkv(arguments, {kDq, kDk, kDv}, dqkv, shape);
    arguments.add(kOut, out);
    arguments.add(kLse, lse);
    arguments.add(kDout, dout);
    arguments.add(kRowSums, workspace + plan.library_bytes);
    if (plan.dq_sums_bytes > 0) arguments.add(kDqSums, workspace + plan.library_bytes + plan.row_sums_bytes);
    const KernelScope kernel(cuda, "cudnn_attention_backward");
    arguments.execute(library_->target.handle, plan, workspace);
}

static Plan plan_on(const std::string& device_json, int compute_capability, bool deterministic,
                    const AttentionShape& shape, bool is_backward) {
    Descriptor device(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, "the description of a GPU", text_of(shape, is_backward));
    device.set(CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR, int64_t(device_json.size()),
               device_json.data());
    const Target target = {compute_capability, deterministic, nullptr, device.finalize()};
    return Planner(target, shape, is_backward).take();
}

size_t cudnn_workspace_on(const std::string& device_json, int compute_capability, bool deterministic,
                          const AttentionShape& shape, bool is_backward) {
    return plan_on(device_json, compute_capability, deterministic, shape, is_backward).workspace_bytes();
}

std::string cudnn_plan_on(const std::string& device_json, int compute_capability, bool deterministic,
                          const AttentionShape& shape, bool is_backward) {
    const Plan plan = plan_on(device_json, compute_capability, deterministic, shape, is_backward);
    const auto read = [&](int64_t size, char* into) {
        int64_t count = 0;
        check(cudnnBackendGetAttribute(plan.plan->get(), CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION, CUDNN_TYPE_CHAR,
                                       size, &count, into),
              "asking for the plan's text", text_of(shape, is_backward));
        return size_t(count);
    };
    std::string json(read(0, nullptr), ' ');
    json.resize(read(int64_t(json.size()), json.data()));
    return json;
}

size_t cudnn_version() { return cudnnGetVersion(); }
