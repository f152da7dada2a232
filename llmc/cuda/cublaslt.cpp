// See cublaslt.h. The only file that includes cuBLASLt's header.
#include "llmc/cuda/cublaslt.h"
#include <cublasLt.h>
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>
#include "llmc/base/build_id.h"      // check_library_version, library_text, nvidia_package
#include "llmc/base/bf16.h"          // to_bf16
#include "llmc/base/fp8.h"           // to_fp8, mx_scale_bytes
#include "llmc/base/rng.h"           // mix64
#include "llmc/cuda/cuda_device.h"   // Cuda, cuda_check
#include "llmc/cuda/matmul_cache.h"  // MatmulCache
#include "llmc/cuda/matmul_plans.h"  // MatmulPlans

namespace {

constexpr uint32_t kAlignment = 16;

// Exit code 2 if another library, driver or less memory in use would help, else 1.
void check(cublasStatus_t status, const char* action, const std::string& subject) {
    if (status == CUBLAS_STATUS_SUCCESS) [[likely]]
        return;
    const bool recoverable = status == CUBLAS_STATUS_NOT_INITIALIZED || status == CUBLAS_STATUS_ALLOC_FAILED ||
                             status == CUBLAS_STATUS_ARCH_MISMATCH;
    throw Error(recoverable ? kExitUsage : kExitInternal,
                format("cuBLASLt %zu: %s for %s: %s", cublasLtGetVersion(), action, subject.c_str(),
                       cublasLtGetStatusString(status)));
}

cudaDataType_t type_of(DType dtype) {
    if (dtype == DType::e4m3) return CUDA_R_8F_E4M3;
    if (dtype == DType::e5m2) return CUDA_R_8F_E5M2;
    return dtype == DType::f32 ? CUDA_R_32F : CUDA_R_16BF;
}

cublasLtEpilogue_t epilogue_of(Epilogue epilogue) {
    switch (epilogue) {
        case Epilogue::none:
            return CUBLASLT_EPILOGUE_DEFAULT;
        case Epilogue::bias:
            return CUBLASLT_EPILOGUE_BIAS;
        case Epilogue::gelu_aux:
            return CUBLASLT_EPILOGUE_GELU_AUX;
        case Epilogue::gelu_aux_bias:
            return CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
        case Epilogue::dgelu:
            return CUBLASLT_EPILOGUE_DGELU;
        case Epilogue::row_sums:
            return CUBLASLT_EPILOGUE_BGRADB;  // the library's B is our a
    }
    return CUBLASLT_EPILOGUE_DEFAULT;
}

bool is_aligned(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer) % kAlignment == 0; }

// Descriptors, released with their owner.
template <auto destroy>
struct Destroy {
    template <class T>
    void operator()(T* descriptor) const {
        destroy(descriptor);
    }
};
template <class T, auto destroy>
using Owned = std::unique_ptr<std::remove_pointer_t<T>, Destroy<destroy>>;
using Operation = Owned<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy>;
using Layout = Owned<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;
using Preference = Owned<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy>;

struct Plan {
    std::string text;  // describes the call in messages
    Operation operation;
    Layout first, second, d;
    cublasLtMatmulAlgo_t algorithm;
    bool exists = false;  // whether an algorithm was found
    double us = 0;        // measured time; 0: not timed
};

template <class T>
void set(const Plan& plan, cublasLtMatmulDescAttributes_t attribute, const T& value) {
    check(cublasLtMatmulDescSetAttribute(plan.operation.get(), attribute, &value, sizeof value),
          "describing the operation", plan.text);
}

Layout layout_of(const ColumnMajorMatrix& m, int64_t batch, const std::string& text) {
    cublasLtMatrixLayout_t layout;
    check(cublasLtMatrixLayoutCreate(&layout, type_of(m.dtype), uint64_t(m.rows), uint64_t(m.cols), m.ld),
          "describing a matrix", text);
    Layout owned(layout);
    if (batch > 1) {
        const int32_t count = int32_t(batch);
        ensure(count == batch);
        check(cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof count),
              "describing a batch", text);
        check(cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &m.stride,
                                               sizeof m.stride),
              "describing a batch", text);
    }
    return owned;
}

// Sets the pointers that are attributes of the operation instead of arguments of the library's call.
void set_pointers(const Plan& plan, const MatmulCall& call, const void* bias, const void* aux, const void* scale_a,
                  const void* scale_b) {
    if (has_bias(call.epilogue)) set(plan, CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
    if (call.epilogue == Epilogue::row_sums)
        set(plan, CUBLASLT_MATMUL_DESC_BIAS_POINTER, static_cast<const void*>(aux));
    if (has_aux_matrix(call.epilogue)) set(plan, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, aux);
    if (!is_fp8(call.a)) return;
    // The library's A is our b.
    set(plan, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, scale_b);
    set(plan, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, scale_a);
}

Plan describe(const MatmulCall& call) {
    const ColumnMajorCall c = column_major(call);
    Plan plan;
    plan.text = text_of(call);
    cublasLtMatmulDesc_t operation;
    check(cublasLtMatmulDescCreate(&operation, CUBLAS_COMPUTE_32F, CUDA_R_32F), "describing the operation", plan.text);
    plan.operation.reset(operation);
    const auto transpose = [](const ColumnMajorMatrix& m) { return m.transpose ? CUBLAS_OP_T : CUBLAS_OP_N; };
    set(plan, CUBLASLT_MATMUL_DESC_TRANSA, transpose(c.first));
    set(plan, CUBLASLT_MATMUL_DESC_TRANSB, transpose(c.second));
    set(plan, CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue_of(call.epilogue));
    if (call.fast_accumulate) set(plan, CUBLASLT_MATMUL_DESC_FAST_ACCUM, int8_t(1));
    if (call.block_scales) {
#if CUBLAS_VERSION >= 120800
        for (const auto mode : {CUBLASLT_MATMUL_DESC_A_SCALE_MODE, CUBLASLT_MATMUL_DESC_B_SCALE_MODE})
            set(plan, mode, int32_t(CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0));
#else
        throw Error(kExitUsage,
                    "products in MX begin with cuBLASLt 12.8, and this program was built with an older one: "
                    "build with CUDA 12.8 or newer, or choose another --fp8-scaling");
#endif
    }
    // bias and aux have the type of `out` unless another one is set.
    if (has_aux_matrix(call.epilogue)) {
        ensure(c.ld_aux % 8 == 0);
        set(plan, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, c.ld_aux);
    }
    // The heuristic only reads the alignment of these pointers.
    void* const aligned = reinterpret_cast<void*>(uintptr_t(kAlignment));
    set_pointers(plan, call, aligned, aligned, aligned, aligned);
    plan.first = layout_of(c.first, call.batch, plan.text);
    plan.second = layout_of(c.second, call.batch, plan.text);
    plan.d = layout_of(c.d, call.batch, plan.text);
    return plan;
}

// Candidates from the library's heuristic, best first, restricted to the allowed algorithms.
std::vector<cublasLtMatmulHeuristicResult_t> candidates_for(cublasLtHandle_t handle, const Plan& plan, int count) {
    cublasLtMatmulPreference_t created;
    check(cublasLtMatmulPreferenceCreate(&created), "choosing an algorithm", plan.text);
    const Preference preference(created);
    const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
        check(cublasLtMatmulPreferenceSetAttribute(created, attribute, &value, sizeof value), "choosing an algorithm",
              plan.text);
    };
    prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t(CublasLt::kWorkspaceBytes));
    // Parts of a dot product may be added in a separate step, in fp32; not in the type of `out`, where bf16 would round
    // each.
    prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, uint32_t(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
    for (const auto attribute :
         {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
          CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
        prefer(attribute, kAlignment);

    std::vector<cublasLtMatmulHeuristicResult_t> found(static_cast<size_t>(count));
    int num_found = 0;
    const cublasStatus_t status =
        cublasLtMatmulAlgoGetHeuristic(handle, plan.operation.get(), plan.first.get(), plan.second.get(), plan.d.get(),
                                       plan.d.get(), created, count, found.data(), &num_found);
    if (status != CUBLAS_STATUS_NOT_SUPPORTED) check(status, "choosing an algorithm", plan.text);
    found.resize(size_t(status == CUBLAS_STATUS_SUCCESS ? num_found : 0));
    std::erase_if(found, [](const auto& one) {
        return one.state != CUBLAS_STATUS_SUCCESS || one.workspaceSize > CublasLt::kWorkspaceBytes;
    });
    return found;
}

// Memory on the GPU while one product is tuned; null if there is not enough.
struct Scratch {
    void* data = nullptr;
    explicit Scratch(size_t bytes) {
        if (cudaMalloc(&data, bytes) != cudaSuccess) {
            cudaGetLastError();  // otherwise the next check would report it
            data = nullptr;
        }
    }
    ~Scratch() { cudaFree(data); }
    Scratch(const Scratch&) = delete;
};

// Uniform in [-1, 1]: zeros would draw less power and run at a higher clock, so every candidate would seem faster.
template <class T>
std::vector<T> noise() {
    std::vector<T> values(1 << 20);
    uint64_t word = 1;
    for (T& value : values) {
        word = mix64(word + 0x9E3779B97F4A7C15ull);
        const float x = float(int32_t(word >> 32)) * 0x1p-31f;
        if constexpr (std::is_same_v<T, float>)
            value = x;
        else if constexpr (std::is_same_v<T, bf16>)
            value = to_bf16(x);
        else
            value = to_fp8<T>(x);
    }
    return values;
}

void fill_with_noise(Cuda& cuda, void* to, size_t bytes, DType dtype) {
    static const std::vector<float> floats = noise<float>();
    static const std::vector<bf16> halves = noise<bf16>();
    static const std::vector<e4m3> e4m3s = noise<e4m3>();
    static const std::vector<e5m2> e5m2s = noise<e5m2>();
    const void* from = dtype == DType::f32    ? static_cast<const void*>(floats.data())
                       : dtype == DType::bf16 ? static_cast<const void*>(halves.data())
                       : dtype == DType::e4m3 ? static_cast<const void*>(e4m3s.data())
                                              : e5m2s.data();
    const size_t piece = floats.size() * size_of(dtype);
    for (size_t done = 0; done < bytes; done += piece)
        cuda_check(cudaMemcpyAsync(static_cast<char*>(to) + done, from, std::min(piece, bytes - done),
                                   cudaMemcpyHostToDevice, cuda.stream),
                   "filling %zu bytes to time matrix products", bytes);
}

struct Event {
    cudaEvent_t event;
    Event() { cuda_check(cudaEventCreate(&event), "creating a timer"); }
    ~Event() { cudaEventDestroy(event); }
    Event(const Event&) = delete;
};

// The bandwidth of a pass over tensors: three quarters of the peak from the memory's clock and bus width. 0: the driver
// does not know it.
double memory_bytes_per_us(int ordinal) {
    int khz = 0, bits = 0;
    if (cudaDeviceGetAttribute(&khz, cudaDevAttrMemoryClockRate, ordinal) != cudaSuccess ||
        cudaDeviceGetAttribute(&bits, cudaDevAttrGlobalMemoryBusWidth, ordinal) != cudaSuccess) {
        cudaGetLastError();  // otherwise the next check would report it
        return 0;
    }
    return 0.75 * 2 * khz * 1e-3 * bits / 8;
}

// Identifies the GPU and the software; the driver's version is that of the CUDA version it supports.
std::string machine_of(const Cuda& cuda) {
    int driver = 0;
    cuda_check(cudaDriverGetVersion(&driver), "asking for the driver's version");
    std::string machine = format("%s, driver %d, cuBLASLt %zu", cuda.name.c_str(), driver, cublasLtGetVersion());
    std::replace(machine.begin(), machine.end(), '|', '/');
    return machine;
}

}  // namespace

struct CublasLt::Library {
    cublasLtHandle_t handle = nullptr;
    MatmulPlans<Plan> plans;
    double memory_bytes_per_us = 0;  // asked once: the driver takes 0.3 ms to answer

    ~Library() {
        try {
            plans.cache.save();  // the destructor runs after an error in a step, too
        } catch (const Error& error) {
            std::fprintf(stderr, "warning: %s\n", error.what());
        }
        plans.clear();
        if (handle) cublasLtDestroy(handle);
    }

    cublasStatus_t launch(Cuda& cuda, const Plan& plan, const MatmulCall& call, const cublasLtMatmulAlgo_t& algorithm,
                          void* out, const void* a, const void* b, const void* addend) const {
        const float alpha = call.alpha, beta = call.accumulate ? call.beta : 0;
        return cublasLtMatmul(handle, plan.operation.get(), &alpha, b, plan.first.get(), a, plan.second.get(), &beta,
                              addend, plan.d.get(), out, plan.d.get(), &algorithm, cuda.workspace(kWorkspaceBytes),
                              kWorkspaceBytes, cuda.stream);
    }

    const Plan& plan_for(Cuda& cuda, const MatmulCall& call) {
        return plans.plan_for(call, [&](bool may_time) {
            MatmulPlans<Plan>::Made made{describe(call), false};
            made.is_final = plans.has_cache && from_cache(made.plan);
            made.plan.exists = made.is_final || choose(cuda, made.plan, call, may_time);
            return made;
        });
    }

    bool choose(Cuda& cuda, Plan& plan, const MatmulCall& call, bool may_time) {
        const auto candidates = candidates_for(handle, plan, may_time ? kCandidates : 1);
        if (candidates.empty()) return false;
        plan.algorithm = candidates[0].algo;
        if (may_time) tune(cuda, plan, call, candidates);
        return true;
    }

    bool from_cache(Plan& plan) const {
        const MatmulAlgorithm* known = plans.cache.find(plan.text);
        if (!known) return false;
        static_assert(sizeof known->words == sizeof plan.algorithm.data);
        std::memcpy(plan.algorithm.data, known->words.data(), sizeof plan.algorithm.data);
        plan.us = known->us;
        cublasLtMatmulHeuristicResult_t result = {};
        const cublasStatus_t status =
            cublasLtMatmulAlgoCheck(handle, plan.operation.get(), plan.first.get(), plan.second.get(), plan.d.get(),
                                    plan.d.get(), &plan.algorithm, &result);
        if (status == CUBLAS_STATUS_SUCCESS && result.workspaceSize <= kWorkspaceBytes) return true;
        std::fprintf(stderr, "warning: %s: the algorithm for %s cannot be used (%s): timing again\n",
                     plans.cache.path().c_str(), plan.text.c_str(), cublasLtGetStatusString(status));
        return false;
    }

    // Times the candidates on matrices of noise and keeps the fastest. Without memory for the matrices it keeps the
    // first.
    void tune(Cuda& cuda, Plan& plan, const MatmulCall& call,
              const std::vector<cublasLtMatmulHeuristicResult_t>& candidates) {
        const ColumnMajorCall c = column_major(call);
        const auto bytes_of = [&](const ColumnMajorMatrix& m) {
            return size_t((call.batch - 1) * m.stride + m.ld * m.cols) * size_of(m.dtype);
        };
        const size_t bias_bytes = has_bias(call.epilogue) ? size_t(call.n) * size_of(call.out) : 0;
        const int64_t aux_size = !has_aux(call.epilogue)         ? 0
                                 : has_aux_matrix(call.epilogue) ? c.ld_aux * call.m
                                                                 : call.m;
        const size_t aux_bytes = size_t(aux_size) * size_of(call.out);
        const size_t scale_bytes = call.block_scales ? size_t(mx_scale_bytes(std::max(call.m, call.n), call.k))
                                   : is_fp8(call.a)  ? sizeof(float)
                                                     : 0;
        const struct {
            size_t bytes;
            DType dtype;
        } needs[] = {{bytes_of(c.first), call.b}, {bytes_of(c.second), call.a}, {bytes_of(c.d), call.out},
                     {bias_bytes, call.out},      {aux_bytes, call.out},        {scale_bytes, DType::f32}};
        size_t total = 0;
        for (const auto& need : needs) total += (need.bytes + 255) / 256 * 256;
        // Writing twice the size of the L2 cache before each measurement evicts the operands.
        const size_t flush_bytes = 2 * cuda.l2_bytes;
        const Scratch memory(total), flush(flush_bytes);
        if (!memory.data || !flush.data) {
            std::fprintf(stderr, "warning: no memory to time %s on (%.1f MiB): not tuned\n", plan.text.c_str(),
                         double(total + flush_bytes) / (1 << 20));
            return;
        }
        void* at[std::size(needs)];
        size_t used = 0;
        for (size_t i = 0; i < std::size(needs); i++) {
            at[i] = static_cast<char*>(memory.data) + used;
            used += (needs[i].bytes + 255) / 256 * 256;
            fill_with_noise(cuda, at[i], needs[i].bytes, needs[i].dtype);
        }
        if (call.block_scales)  // of one
            cuda_check(cudaMemsetAsync(at[5], 127, scale_bytes, cuda.stream), "filling scales");
        set_pointers(plan, call, at[3], at[4], at[5], at[5]);

        constexpr int kWarmUps = 2, kMeasurements = 7;
        std::array<Event, 2 * kMeasurements> events;
        double best_us = 0;
        for (const auto& candidate : candidates) {
            cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
            for (int i = -kWarmUps; i < kMeasurements && status == CUBLAS_STATUS_SUCCESS; i++) {
                cuda_check(cudaMemsetAsync(flush.data, i & 1, flush_bytes, cuda.stream), "emptying the cache");
                if (i >= 0) cuda_check(cudaEventRecord(events[size_t(2 * i)].event, cuda.stream), "timing");
                status = launch(cuda, plan, call, candidate.algo, at[2], at[1], at[0], at[2]);
                if (i >= 0) cuda_check(cudaEventRecord(events[size_t(2 * i + 1)].event, cuda.stream), "timing");
            }
            cuda_check(cudaStreamSynchronize(cuda.stream), "timing %s", plan.text.c_str());
            if (status != CUBLAS_STATUS_SUCCESS) continue;  // a candidate may still be rejected and is then skipped
            std::array<float, kMeasurements> ms;
            for (size_t i = 0; i < kMeasurements; i++)
                cuda_check(cudaEventElapsedTime(&ms[i], events[2 * i].event, events[2 * i + 1].event), "timing");
            std::nth_element(ms.begin(), ms.begin() + kMeasurements / 2, ms.end());
            const double us = 1000 * double(ms[kMeasurements / 2]);
            // Within 1 %, the accuracy of the measurement, the heuristic's order decides.
            if (best_us > 0 && us > 0.99 * best_us) continue;
            best_us = us;
            plan.algorithm = candidate.algo;
        }
        if (best_us == 0) return;
        plan.us = best_us;
        MatmulAlgorithm found = {{}, best_us};
        std::memcpy(found.words.data(), plan.algorithm.data, sizeof plan.algorithm.data);
        plans.cache.add(plan.text, found);
    }
};

CublasLt::CublasLt(Cuda& cuda, const std::string& tune_path) : library_(std::make_unique<Library>()) {
    check_library_version("cuBLASLt", CUBLAS_VERSION, cublasLtGetVersion(), nvidia_package("cublas"));
    check(cublasLtCreate(&library_->handle), "starting", cuda.name);
    const char* variable = std::getenv("ANVIL_MATMUL_CACHE");
    const std::string path = !tune_path.empty() ? tune_path : variable ? variable : "";
    if (path.empty()) return;
    library_->plans.has_cache = true;
    library_->memory_bytes_per_us = memory_bytes_per_us(cuda.ordinal);
    library_->plans.cache = MatmulCache(path, machine_of(cuda));
    for (const std::string& line : library_->plans.cache.warnings())
        std::fprintf(stderr, "warning: %s\n", line.c_str());
}

CublasLt::~CublasLt() = default;

void CublasLt::run(Cuda& cuda, const MatmulCall& call, void* out, const void* a, const void* b, const void* bias,
                   void* aux, const void* addend, const OperandScales& scales) {
    ensure(is_aligned(out) && is_aligned(a) && is_aligned(b) && is_aligned(bias) && is_aligned(aux) &&
           is_aligned(addend));
    ensure(has_bias(call.epilogue) == (bias != nullptr) && has_aux(call.epilogue) == (aux != nullptr));
    ensure(call.accumulate || addend == nullptr);
    ensure(is_fp8(call.a) == (scales.a != nullptr) && is_fp8(call.a) == (scales.b != nullptr));
    const Plan& plan = library_->plan_for(cuda, call);
    require(
        plan.exists,
        "cuBLASLt %zu has no algorithm for %s on %s: use a model whose sizes are multiples of 8, or another version",
        cublasLtGetVersion(), plan.text.c_str(), cuda.name.c_str());
    set_pointers(plan, call, bias, aux, scales.a, scales.b);
    const KernelScope kernel(cuda, "cublaslt");
    check(library_->launch(cuda, plan, call, plan.algorithm, out, a, b, addend ? addend : out), "computing", plan.text);
}

bool CublasLt::supports(Cuda& cuda, const MatmulCall& call) { return library_->plan_for(cuda, call).exists; }

bool CublasLt::prefers(Cuda& cuda, const MatmulCall& fused, const MatmulCall& plain, double pass_bytes) {
    const Plan& with = library_->plan_for(cuda, fused);
    if (!with.exists || with.us == 0) return with.exists;
    const double plain_us = library_->plan_for(cuda, plain).us, rate = library_->memory_bytes_per_us;
    return plain_us == 0 || rate == 0 || with.us <= plain_us + pass_bytes / rate;
}

void CublasLt::begin_step() { library_->plans.begin_step(); }
void CublasLt::end_step() { library_->plans.end_step(); }

std::string CublasLt::text() const {
    return library_text("cuBLASLt", CUBLAS_VERSION, cublasLtGetVersion()) + ", " + library_->plans.text();
}
int64_t CublasLt::plans_made() const { return library_->plans.made(); }
int64_t CublasLt::timed() const { return library_->plans.cache.num_added(); }
