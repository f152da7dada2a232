// llmc/cuda/cublaslt.cpp against a cuBLASLt and a CUDA runtime made here, which compute on the CPU and have a clock of
// their own: are products described as they are meant, and is the fastest algorithm found, kept and found again? A
// program of its own, run by `make cublaslt-calls`: it needs cuBLASLt's headers, no library and no GPU.
#include <cublasLt.h>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include "llmc/base/bf16.h"                       // to_bf16, to_float
#include "llmc/base/build_id.h"                   // library_version_text
#include "llmc/base/file.h"                       // read_file
#include "llmc/base/fp8.h"                        // e4m3, e5m2
#include "llmc/cuda/attention/cudnn_attention.h"  // Cuda has one
#include "llmc/cuda/cublaslt.h"
#include "llmc/cuda/cuda_device.h"
#include "test/op_testing.h"  // whole_numbers, check_equal
#include "test/testing.h"

// ---- the library and the runtime -----------------------------------------------------------------------------------
static struct Fake {
    double clock_us = 0;
    int launches = 0, rankings = 0, live = 0;  // live: descriptors and memory that were not given back
    bool out_of_memory = false, refuses_kept_algorithms = false;
    // The library's ranking: what each algorithm takes, negative if it will not run. Empty: it has none.
    std::vector<double> algorithms_us = {10};
    std::map<int, std::vector<unsigned char>> preferences;
    uint64_t last_algorithm = 0;
    // Of the last product
    int8_t fast_accumulation = 0;
    std::pair<const float*, const float*> scales;
    int64_t not_finite = 0;  // operands' numbers, of all GEMMs in FP8
    int memory_khz = 0, memory_bits = 0;
    double sums_us = 0;  // that row sums take besides
} fake;

// Every descriptor is a table of attributes.
struct Attributes {
    std::map<int, std::vector<unsigned char>> bytes;
    template <class T>
    T get(int attribute, T otherwise) const {
        const auto found = bytes.find(attribute);
        if (found == bytes.end()) return otherwise;
        REQUIRE(found->second.size() == sizeof(T));
        T value;
        std::memcpy(&value, found->second.data(), sizeof value);
        return value;
    }
    void set(int attribute, const void* from, size_t size) {
        const auto* begin = static_cast<const unsigned char*>(from);
        bytes[attribute].assign(begin, begin + size);
    }
};

template <class Opaque>
static Attributes& attributes_of(Opaque* descriptor) {
    return *reinterpret_cast<Attributes*>(descriptor);
}
template <class Opaque>
static cublasStatus_t create(Opaque** descriptor) {
    *descriptor = reinterpret_cast<Opaque*>(new Attributes);
    fake.live++;
    return CUBLAS_STATUS_SUCCESS;
}
template <class Opaque>
static cublasStatus_t destroy(Opaque* descriptor) {
    delete &attributes_of(descriptor);
    fake.live--;
    return CUBLAS_STATUS_SUCCESS;
}
template <class Opaque>
static cublasStatus_t set(Opaque* descriptor, int attribute, const void* value, size_t size) {
    attributes_of(descriptor).set(attribute, value, size);
    return CUBLAS_STATUS_SUCCESS;
}

// Of a layout, beside its attributes.
enum { kType = -1, kRows = -2, kCols = -3, kLd = -4 };

struct Matrix {
    cudaDataType_t type;
    uint64_t rows, cols;
    int64_t ld, batch, stride;

    explicit Matrix(cublasLtMatrixLayout_t layout) {
        const Attributes& a = attributes_of(layout);
        type = a.get(kType, CUDA_R_32F), rows = a.get<uint64_t>(kRows, 0), cols = a.get<uint64_t>(kCols, 0);
        ld = a.get<int64_t>(kLd, 0), batch = a.get<int32_t>(CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, 1);
        stride = a.get<int64_t>(CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, 0);
    }
    float load(const void* data, int64_t at) const {
        switch (type) {
            case CUDA_R_32F:
                return static_cast<const float*>(data)[at];
            case CUDA_R_8F_E4M3:
                return to_float(static_cast<const e4m3*>(data)[at]);
            case CUDA_R_8F_E5M2:
                return to_float(static_cast<const e5m2*>(data)[at]);
            default:
                if (type != CUDA_R_16BF) FAIL("a matrix of type " << type);
                return to_float(static_cast<const bf16*>(data)[at]);
        }
    }
    bool is_fp8() const { return type == CUDA_R_8F_E4M3 || type == CUDA_R_8F_E5M2; }
    void store(void* data, int64_t at, float value) const {
        if (type == CUDA_R_32F)
            static_cast<float*>(data)[at] = value;
        else
            static_cast<bf16*>(data)[at] = to_bf16(value);
    }
};

static float gelu(float x) { return x + 1; }  // not GELU: whole numbers stay whole
static float dgelu(float x) { return 2 * x; }

extern "C" {
cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
    *handle = reinterpret_cast<cublasLtHandle_t>(&fake);
    fake.live++;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t) { return fake.live--, CUBLAS_STATUS_SUCCESS; }
size_t cublasLtGetVersion() { return CUBLAS_VERSION; }
const char* cublasLtGetStatusString(cublasStatus_t) { return "refused"; }
cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* desc, cublasComputeType_t compute, cudaDataType_t scale) {
    CHECK(compute == CUBLAS_COMPUTE_32F);
    CHECK(scale == CUDA_R_32F);
    return create(desc);
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc) { return destroy(desc); }
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, size_t size) {
    return set(desc, attribute, value, size);
}
cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType type, uint64_t rows,
                                          uint64_t cols, int64_t ld) {
    create(layout);
    attributes_of(*layout).set(kType, &type, sizeof type);
    attributes_of(*layout).set(kRows, &rows, sizeof rows);
    attributes_of(*layout).set(kCols, &cols, sizeof cols);
    attributes_of(*layout).set(kLd, &ld, sizeof ld);
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) { return destroy(layout); }
cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                cublasLtMatrixLayoutAttribute_t attribute, const void* value,
                                                size_t size) {
    return set(layout, attribute, value, size);
}
cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) { return create(preference); }
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) { return destroy(preference); }
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute, const void* value,
                                                    size_t size) {
    return set(preference, attribute, value, size);
}
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t operation, cublasLtMatrixLayout_t,
                                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t c,
                                              cublasLtMatrixLayout_t d, cublasLtMatmulPreference_t preference,
                                              int count, cublasLtMatmulHeuristicResult_t* results, int* found) {
    CHECK(c == d);
    // It would read the alignment of these off their values.
    for (const int pointer : {CUBLASLT_MATMUL_DESC_BIAS_POINTER, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER,
                              CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER})
        CHECK(attributes_of(operation).get<uintptr_t>(pointer, 16) == 16);
    fake.rankings++;
    fake.preferences = attributes_of(preference).bytes;
    *found = std::min(count, int(fake.algorithms_us.size()));
    for (int i = 0; i < *found; i++) {
        results[i] = {};
        results[i].algo.data[0] = uint64_t(i);
        results[i].algo.data[7] = 77;
        results[i].workspaceSize = CublasLt::kWorkspaceBytes;
    }
    return *found > 0 ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}
cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t, cublasLtMatmulDesc_t, cublasLtMatrixLayout_t,
                                       cublasLtMatrixLayout_t, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                       const cublasLtMatmulAlgo_t*, cublasLtMatmulHeuristicResult_t* result) {
    result->workspaceSize = CublasLt::kWorkspaceBytes;
    return fake.refuses_kept_algorithms ? CUBLAS_STATUS_NOT_SUPPORTED : CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t operation, const void* alpha, const void* a,
                              cublasLtMatrixLayout_t a_layout, const void* b, cublasLtMatrixLayout_t b_layout,
                              const void* beta, const void* c, cublasLtMatrixLayout_t c_layout, void* d,
                              cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t* algorithm, void* workspace,
                              size_t workspace_bytes, cudaStream_t) {
    CHECK(c_layout == d_layout);
    CHECK(workspace != nullptr);
    CHECK(workspace_bytes == CublasLt::kWorkspaceBytes);
    CHECK(algorithm->data[7] == 77);
    const double us = fake.algorithms_us.at(algorithm->data[0]);
    if (us < 0) return CUBLAS_STATUS_NOT_SUPPORTED;
    const int epilogue = attributes_of(operation).get(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_DEFAULT);
    fake.clock_us += us + (epilogue == CUBLASLT_EPILOGUE_BGRADB ? fake.sums_us : 0);
    fake.launches++;
    fake.last_algorithm = algorithm->data[0];
    const Matrix ma(a_layout), mb(b_layout), md(d_layout);
    const Attributes& op = attributes_of(operation);
    const bool ta = op.get(CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_N) == CUBLAS_OP_T,
               tb = op.get(CUBLASLT_MATMUL_DESC_TRANSB, CUBLAS_OP_N) == CUBLAS_OP_T;
    const uint64_t k = ta ? ma.rows : ma.cols;
    REQUIRE((ta ? ma.cols : ma.rows) == md.rows);
    REQUIRE((tb ? mb.rows : mb.cols) == md.cols);
    REQUIRE((tb ? mb.cols : mb.rows) == k);
    REQUIRE((ma.batch == md.batch && mb.batch == md.batch));
    const void* bias = op.get<const void*>(CUBLASLT_MATMUL_DESC_BIAS_POINTER, nullptr);
    void* aux = op.get<void*>(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, nullptr);
    const int64_t ld_aux = op.get<int64_t>(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, 0);
    const auto* a_scale = op.get<const float*>(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, nullptr);
    const auto* b_scale = op.get<const float*>(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, nullptr);
    const bool is_mx = op.get<int32_t>(CUBLASLT_MATMUL_DESC_A_SCALE_MODE, 0) != 0;
    if (is_mx) {
        for (const int mode : {CUBLASLT_MATMUL_DESC_A_SCALE_MODE, CUBLASLT_MATMUL_DESC_B_SCALE_MODE})
            REQUIRE(op.get<int32_t>(mode, 0) == CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0);
        REQUIRE((ma.type == CUDA_R_8F_E4M3 && mb.type == CUDA_R_8F_E4M3 && k % 32 == 0));
    }
    // The scale of an element of a row of A^T or of B: tiles of 128 x 4, in them 32 x 4 x 4.
    const auto block_scale = [&](const float* scales, int64_t row, int64_t j) {
        if (!is_mx) return 1.f;
        const int64_t tiles = (int64_t(k) + 127) / 128, at = (row / 128 * tiles + j / 128) * 512 + row % 32 * 16;
        const int exponent = reinterpret_cast<const uint8_t*>(scales)[at + row % 128 / 32 * 4 + j % 128 / 32];
        return std::ldexp(1.f, exponent - 127);
    };
    fake.fast_accumulation = op.get<int8_t>(CUBLASLT_MATMUL_DESC_FAST_ACCUM, 0);
    fake.scales = {a_scale, b_scale};
    // What the library requires of FP8 before Blackwell, and of other types: no scales.
    REQUIRE(ma.is_fp8() == mb.is_fp8());
    REQUIRE((ma.is_fp8() == (a_scale != nullptr) && ma.is_fp8() == (b_scale != nullptr)));
    if (ma.is_fp8()) {
        REQUIRE((ta && !tb && !md.is_fp8()));
        REQUIRE(!(ma.type == CUDA_R_8F_E5M2 && mb.type == CUDA_R_8F_E5M2));
        for (const int64_t size : {int64_t(k), int64_t(md.rows), int64_t(md.cols), ma.ld, mb.ld, md.ld})
            REQUIRE(size % 16 == 0);
        for (int64_t i = 0; i < int64_t(ma.cols) * ma.ld; i++) fake.not_finite += !std::isfinite(ma.load(a, i));
        for (int64_t i = 0; i < int64_t(mb.cols) * mb.ld; i++) fake.not_finite += !std::isfinite(mb.load(b, i));
        for (int64_t row = 0; is_mx && row < int64_t(ma.cols); row++)
            fake.not_finite += block_scale(a_scale, row, 0) > 8;
        if (!is_mx) fake.not_finite += !std::isfinite(*a_scale) + !std::isfinite(*b_scale);
    }
    // As its header says: of the length of D's columns, reduced over k, stored in D's type.
    if (epilogue == CUBLASLT_EPILOGUE_BGRADB)
        for (int64_t col = 0; col < int64_t(md.cols); col++) {
            float sum = 0;
            for (int64_t j = 0; j < int64_t(k); j++) sum += mb.load(b, tb ? col + j * mb.ld : j + col * mb.ld);
            md.store(const_cast<void*>(bias), col, sum);
        }
    for (int64_t i = 0; i < md.batch; i++)
        for (int64_t col = 0; col < int64_t(md.cols); col++)
            for (int64_t row = 0; row < int64_t(md.rows); row++) {
                float sum = 0;
                for (int64_t j = 0; j < int64_t(k); j++)
                    sum += ma.load(a, i * ma.stride + (ta ? j + row * ma.ld : row + j * ma.ld)) *
                           block_scale(a_scale, row, j) *
                           mb.load(b, i * mb.stride + (tb ? col + j * mb.ld : j + col * mb.ld)) *
                           block_scale(b_scale, col, j);
                const int64_t at = i * md.stride + row + col * md.ld;
                float value = *static_cast<const float*>(alpha) * sum;
                if (a_scale && !is_mx) value *= *a_scale * *b_scale;
                // As the library promises: C is not read when beta is 0, so that NaN there does no harm.
                if (*static_cast<const float*>(beta) != 0) value += *static_cast<const float*>(beta) * md.load(c, at);
                if (epilogue & CUBLASLT_EPILOGUE_BIAS) value += md.load(bias, row);
                if (epilogue == CUBLASLT_EPILOGUE_DGELU) value *= dgelu(md.load(aux, row + col * ld_aux));
                if (epilogue & CUBLASLT_EPILOGUE_GELU) {
                    md.store(aux, row + col * ld_aux, value);
                    value = gelu(value);
                }
                md.store(d, at, value);
            }
    return CUBLAS_STATUS_SUCCESS;
}

// Events are moments on the fake's clock.
cudaError_t cudaEventCreate(cudaEvent_t* event) {
    *event = reinterpret_cast<cudaEvent_t>(new double(0));
    fake.live++;
    return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
    delete reinterpret_cast<double*>(event);
    fake.live--;
    return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t) {
    *reinterpret_cast<double*>(event) = fake.clock_us;
    return cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t begin, cudaEvent_t end) {
    *ms = float((*reinterpret_cast<double*>(end) - *reinterpret_cast<double*>(begin)) / 1000);
    return cudaSuccess;
}
cudaError_t cudaMalloc(void** data, size_t bytes) {
    if (fake.out_of_memory) return cudaErrorMemoryAllocation;
    // NaN, and some more after it: what is read but was not filled shows.
    const size_t rounded = (bytes + 255) / 256 * 256 + 256;
    *data = std::aligned_alloc(256, rounded);
    std::memset(*data, 0xFF, rounded);
    fake.live++;
    return cudaSuccess;
}
cudaError_t cudaFree(void* data) {
    if (data) fake.live--;
    std::free(data);
    return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind, cudaStream_t) {
    std::memcpy(to, from, bytes);
    return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t) {
    std::memset(to, value, bytes);
    fake.clock_us += 1000;  // must not be counted
    return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaGetLastError() { return cudaSuccess; }
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
    *value = attribute == cudaDevAttrMemoryClockRate ? fake.memory_khz : fake.memory_bits;
    return fake.memory_khz > 0 ? cudaSuccess : cudaErrorInvalidValue;
}
cudaError_t cudaDriverGetVersion(int* version) { return *version = 13000, cudaSuccess; }
}

void throw_cuda_error(cudaError_t, const std::string& what) { throw Error(kExitInternal, what); }
Cuda::Cuda(int ordinal, const CudaOptions& options) : ordinal(ordinal), attention(options.attention) {
    name = "Fake | GPU";
    l2_bytes = 4096;
    cublaslt_ = std::make_unique<CublasLt>(*this, options.tune_path);
}
Cuda::~Cuda() { std::free(workspace_); }
void* Cuda::workspace(size_t bytes) {
    if (!workspace_) workspace_ = std::malloc(bytes);
    return workspace_;
}

// ---- the tests -----------------------------------------------------------------------------------------------------
// A matrix on the "device", of any type, in rows of ld with marks between them.
struct OnDevice {
    static constexpr float kMark = 99;
    DType dtype;
    std::unique_ptr<unsigned char, decltype(&std::free)> memory;
    size_t n;

    OnDevice(DType dtype, const Floats& values)
        : dtype(dtype),
          memory(static_cast<unsigned char*>(std::aligned_alloc(64, (values.size() * 4 + 63) / 64 * 64)), &std::free),
          n(values.size()) {
        for (size_t i = 0; i < n; i++) visit([&](auto* data) { put(data[i], values[i]); });
    }
    void* data() { return memory.get(); }
    Floats get() const {
        Floats values(n);
        for (size_t i = 0; i < n; i++) visit([&](const auto* data) { values[i] = to_float(data[i]); });
        return values;
    }

private:
    template <class F>
    void visit(F f) const {
        if (dtype == DType::f32) f(reinterpret_cast<float*>(memory.get()));
        if (dtype == DType::bf16) f(reinterpret_cast<bf16*>(memory.get()));
        if (dtype == DType::e4m3) f(reinterpret_cast<e4m3*>(memory.get()));
        if (dtype == DType::e5m2) f(reinterpret_cast<e5m2*>(memory.get()));
    }
    static void put(float& to, float x) { to = x; }
    static void put(bf16& to, float x) { to = to_bf16(x); }
    static void put(e4m3& to, float x) { to = to_fp8<e4m3>(x); }
    static void put(e5m2& to, float x) { to = to_fp8<e5m2>(x); }
};

TEST_CASE("cublaslt calls: every kind of product is the one that was asked for", "[cublaslt]") {
    fake = {};
    const bool transpose_a = GENERATE(false, true), transpose_b = GENERATE(false, true);
    const auto [operands, result] = GENERATE(
        table<DType, DType>({{DType::bf16, DType::bf16}, {DType::bf16, DType::f32}, {DType::f32, DType::f32}}));
    const Epilogue epilogue = GENERATE(Epilogue::none, Epilogue::bias, Epilogue::gelu_aux, Epilogue::gelu_aux_bias,
                                       Epilogue::dgelu, Epilogue::row_sums);
    const bool has_sums = epilogue == Epilogue::row_sums;
    const bool accumulate = epilogue == Epilogue::none || has_sums ? GENERATE(false, true) : false;
    const bool is_padded = GENERATE(false, true), has_addend = accumulate ? GENERATE(false, true) : false;
    const int64_t m = 3, n = 8, k = 2, batch = has_aux(epilogue) ? 1 : GENERATE(1, 2), padding = is_padded ? 8 : 0;
    // Values small enough that bf16 has them exactly.
    const int64_t lda = (transpose_a ? m : k) + padding, ldb = (transpose_b ? k : n) + padding, ldo = n + padding;
    const int64_t rows_a = transpose_a ? k : m, rows_b = transpose_b ? n : k;
    MatmulCall call = {.m = m, .n = n, .k = k};
    call.transpose_a = transpose_a, call.transpose_b = transpose_b;
    call.a = operands, call.b = operands, call.out = result;
    call.epilogue = epilogue, call.accumulate = accumulate, call.batch = batch;
    if (is_padded) call.lda = lda, call.ldb = ldb, call.ldo = ldo, call.ld_aux = ldo, call.alpha = 2, call.beta = 3;
    INFO(text_of(call));
    const Floats a = whole_numbers(batch * rows_a * lda, 1, 2), b = whole_numbers(batch * rows_b * ldb, 2, 2);
    const Floats bias = whole_numbers(n, 3, 3), aux = whole_numbers(m * ldo, 4, 2);
    const Floats start =
        accumulate ? whole_numbers(batch * m * ldo, 5, 3) : Floats(size_t(batch * m * ldo), std::nanf(""));
    const Floats addend = whole_numbers(batch * m * ldo, 6, 3);

    Floats want = start, want_aux = aux;
    if (has_sums)
        for (int64_t row = 0; row < m; row++) {
            want_aux[size_t(row)] = 0;
            for (int64_t j = 0; j < k; j++)
                want_aux[size_t(row)] += a[size_t(transpose_a ? j * lda + row : row * lda + j)];
        }
    for (int64_t i = 0; i < batch; i++)
        for (int64_t row = 0; row < m; row++)
            for (int64_t col = 0; col < n; col++) {
                float sum = 0;
                for (int64_t j = 0; j < k; j++)
                    sum += a[size_t(i * rows_a * lda + (transpose_a ? j * lda + row : row * lda + j))] *
                           b[size_t(i * rows_b * ldb + (transpose_b ? col * ldb + j : j * ldb + col))];
                const size_t at = size_t((i * m + row) * ldo + col);
                float value = call.alpha * sum;
                if (accumulate) value += call.beta * (has_addend ? addend[at] : start[at]);
                if (has_bias(epilogue)) value += bias[size_t(col)];
                if (epilogue == Epilogue::dgelu) value *= dgelu(aux[at]);
                if (epilogue == Epilogue::gelu_aux || epilogue == Epilogue::gelu_aux_bias) {
                    want_aux[at] = value;
                    value = gelu(value);
                }
                want[at] = value;
            }

    Cuda cuda;
    OnDevice out(result, start), d_a(operands, a), d_b(operands, b), d_bias(result, bias), d_aux(result, aux),
        d_addend(result, addend);
    const auto run = [&] {
        cuda.cublaslt().run(cuda, call, out.data(), d_a.data(), d_b.data(),
                            has_bias(epilogue) ? d_bias.data() : nullptr, has_aux(epilogue) ? d_aux.data() : nullptr,
                            has_addend ? d_addend.data() : nullptr);
    };
    const auto check_same = [](const std::string& name, const Floats& got, const Floats& expected) {
        INFO(name);
        size_t wrong = 0;
        for (size_t i = 0; i < got.size(); i++)
            wrong += !(got[i] == expected[i] || (std::isnan(got[i]) && std::isnan(expected[i])));
        CHECK(wrong == 0);
    };
    run();
    check_same("out", out.get(), want);
    check_same("aux", d_aux.get(), want_aux);
    CHECK(fake.launches == 1);
    // The second time nothing is asked or described again.
    const int live = fake.live;
    run();
    CHECK(fake.rankings == 1);
    CHECK(fake.live == live);
}

TEST_CASE("cublaslt calls: GEMMs in MX", "[cublaslt]") {
    fake = {};
    const bool accumulate = GENERATE(false, true);
    const DType result = accumulate ? DType::f32 : DType::bf16;
    const int64_t m = 144, n = 32, k = 160;  // two tiles of a's rows, two along k
    MatmulCall call = {.m = m, .n = n, .k = k, .transpose_b = true, .a = DType::e4m3, .b = DType::e4m3};
    call.out = result, call.accumulate = accumulate, call.block_scales = true;
    const Floats a = whole_numbers(m * k, 1, 1), b = whole_numbers(n * k, 2, 1), start = whole_numbers(m * n, 3, 3);
    const auto exponent = [](int64_t row, int64_t j) { return int(row / 32 + row % 3 + j / 32) % 4 - 1; };
    const auto scales_of = [&](int64_t rows) {
        std::vector<uint8_t> scales(size_t(mx_scale_bytes(rows, k)));
        for (int64_t row = 0; row < rows; row++)
            for (int64_t j = 0; j < k; j += 32)
                scales[size_t(mx_scale_at(row, j, k))] = uint8_t(127 + exponent(row, j));
        return scales;
    };
    Floats want = start;
    for (int64_t row = 0; row < m; row++)
        for (int64_t col = 0; col < n; col++) {
            float sum = accumulate ? start[size_t(row * n + col)] : 0;
            for (int64_t j = 0; j < k; j++)
                sum += std::ldexp(a[size_t(row * k + j)] * b[size_t(col * k + j)], exponent(row, j) + exponent(col, j));
            want[size_t(row * n + col)] = result == DType::bf16 ? to_float(to_bf16(sum)) : sum;
        }
    const std::vector<uint8_t> a_scales = scales_of(m), b_scales = scales_of(n);
    {
        Cuda cuda;
        OnDevice out(result, start), d_a(DType::e4m3, a), d_b(DType::e4m3, b);
        cuda.cublaslt().run(cuda, call, out.data(), d_a.data(), d_b.data(), nullptr, nullptr, nullptr,
                            {a_scales.data(), b_scales.data()});
        check_equal("out", out.get(), want);
    }
    CHECK(fake.live == 0);
}

// m x n x k with a (m, k) and b (n, k), both by rows.
TEST_CASE("cublaslt calls: GEMMs in FP8", "[cublaslt]") {
    fake = {};
    const auto [a_type, b_type, result] =
        GENERATE(table<DType, DType, DType>({{DType::e4m3, DType::e4m3, DType::bf16},
                                             {DType::e5m2, DType::e4m3, DType::bf16},
                                             {DType::e4m3, DType::e5m2, DType::f32},
                                             {DType::e5m2, DType::e4m3, DType::f32}}));
    const bool fast = GENERATE(false, true), accumulate = result == DType::f32;
    const bool biased = accumulate ? false : GENERATE(false, true);
    const int64_t m = 16, n = 48, k = 32;
    MatmulCall call = {.m = m, .n = n, .k = k, .transpose_b = true};
    call.a = a_type, call.b = b_type, call.out = result, call.accumulate = accumulate, call.fast_accumulate = fast;
    if (biased) call.epilogue = Epilogue::bias;
    INFO(text_of(call));
    const Floats a = whole_numbers(m * k, 1, 1), b = whole_numbers(n * k, 2, 1), start = whole_numbers(m * n, 3, 3),
                 bias = whole_numbers(n, 4, 3);
    Floats want = start;
    for (int64_t row = 0; row < m; row++)
        for (int64_t col = 0; col < n; col++) {
            float sum = 0;
            for (int64_t j = 0; j < k; j++) sum += a[size_t(row * k + j)] * b[size_t(col * k + j)];
            float& out = want[size_t(row * n + col)];
            out = (accumulate ? out : 0) + sum * 0.5f * 8 + (biased ? bias[size_t(col)] : 0);
        }
    {
        Cuda cuda;
        OnDevice out(result, start), d_a(a_type, a), d_b(b_type, b), d_bias(result, bias);
        const OperandScales none;
        const float scale_a = 0.5f, scale_b = 8;
        const auto run = [&](const OperandScales& scales) {
            cuda.cublaslt().run(cuda, call, out.data(), d_a.data(), d_b.data(), biased ? d_bias.data() : nullptr,
                                nullptr, nullptr, scales);
        };
        run({&scale_a, &scale_b});
        check_equal("out", out.get(), want);
        CHECK(fake.fast_accumulation == (fast ? 1 : 0));
        CHECK(fake.scales == std::pair(&scale_b, &scale_a));  // the library's A is our b
        // Scales are those of each call.
        run({&scale_b, &scale_b});
        CHECK(fake.scales == std::pair(&scale_b, &scale_b));
        for (const OperandScales& scales : {none, {&scale_a, nullptr}, {nullptr, &scale_b}})
            CHECK(contains(error_of([&] { run(scales); }), "1: internal"));
        CHECK(contains(error_of([&] {
                           cuda.cublaslt().run(cuda, {.m = 8, .n = 8, .k = 8}, out.data(), d_a.data(), d_b.data(),
                                               nullptr, nullptr, nullptr, {&scale_a, &scale_b});
                       }),
                       "1: internal"));
    }
    CHECK(fake.live == 0);
}

TEST_CASE("cublaslt calls: bias and aux are those of each call", "[cublaslt]") {
    fake = {};
    {
        Cuda cuda;
        const MatmulCall call = {.m = 1, .n = 8, .k = 1, .epilogue = Epilogue::gelu_aux_bias};
        OnDevice a(DType::bf16, {1}), b(DType::bf16, Floats(8, 0)), out(DType::bf16, Floats(8, 0));
        for (const float value : {3.f, 5.f}) {
            OnDevice bias(DType::bf16, Floats(8, value)), aux(DType::bf16, Floats(8, 0));
            cuda.cublaslt().run(cuda, call, out.data(), a.data(), b.data(), bias.data(), aux.data());
            check_equal("aux", aux.get(), Floats(8, value));
            check_equal("out", out.get(), Floats(8, gelu(value)));
        }
    }
    CHECK(fake.live == 0);
}

TEST_CASE("cublaslt calls: only algorithms with the same bits each time are asked for", "[cublaslt]") {
    fake = {};
    Cuda cuda;
    CHECK(cuda.cublaslt().supports(cuda, {.m = 8, .n = 8, .k = 8}));
    const Attributes preferences{fake.preferences};
    CHECK(preferences.get<uint32_t>(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, 7) ==
          CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE);
    CHECK(preferences.get<uint64_t>(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, 0) == CublasLt::kWorkspaceBytes);
    for (int i = CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES; i <= CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES; i++)
        CHECK(preferences.get<uint32_t>(i, 256) == 16);
}

TEST_CASE("cublaslt calls: what has no algorithm, or is called wrongly", "[cublaslt]") {
    fake = {};
    fake.algorithms_us = {};
    Cuda cuda;
    OnDevice x(DType::bf16, Floats(64, 0));
    const MatmulCall call = {.m = 8, .n = 8, .k = 8};
    CHECK(!cuda.cublaslt().supports(cuda, call));
    const auto error = [&](MatmulCall c, size_t shift, const void* bias, void* aux, const void* addend = nullptr) {
        return error_of([&] {
            cuda.cublaslt().run(cuda, c, static_cast<char*>(x.data()) + shift, x.data(), x.data(), bias, aux, addend);
        });
    };
    CHECK(contains(error(call, 0, nullptr, nullptr),
                   "2: cuBLASLt " + std::to_string(CUBLAS_VERSION) + " has no algorithm for BF16 (8, 8) ld 8 x "));
    fake.algorithms_us = {1};
    MatmulCall with_bias = call, with_aux = call, odd_aux = call;
    with_bias.epilogue = Epilogue::bias, with_aux.epilogue = Epilogue::gelu_aux;
    odd_aux.epilogue = Epilogue::dgelu, odd_aux.ld_aux = 12;
    for (const std::string& message :
         {error(with_bias, 8, x.data(), nullptr), error(with_bias, 0, nullptr, nullptr),
          error(call, 0, x.data(), nullptr), error(with_aux, 0, nullptr, nullptr),
          error(with_bias, 0, x.data(), x.data()), error(call, 0, nullptr, nullptr, x.data()),
          error(odd_aux, 0, nullptr, x.data())})
        CHECK(contains(message, "1: internal"));
    CHECK(error(with_bias, 0, x.data(), nullptr) == "");
}

TEST_CASE("cublaslt calls: tuning", "[cublaslt]") {
    fake = {};
    const ScratchFolder folder;
    const std::string path = folder / "matmul.txt";
    const MatmulCall call = {.m = 8, .n = 16, .k = 24, .transpose_b = true};
    OnDevice x(DType::bf16, Floats(1024, 1)), bias(DType::bf16, Floats(16, 1));
    const auto chosen = [&](const std::string& tune_path, const MatmulCall& c) {
        Cuda cuda(0, {.tune_path = tune_path});
        cuda.cublaslt().begin_step();
        cuda.cublaslt().run(cuda, c, x.data(), x.data(), x.data(), has_bias(c.epilogue) ? bias.data() : nullptr,
                            has_aux(c.epilogue) ? x.data() : nullptr);
        cuda.cublaslt().end_step();
        return fake.last_algorithm;
    };

    SECTION("off, the first algorithm is taken unseen") {
        fake.algorithms_us = {10, 5};
        CHECK(chosen("", call) == 0);
        CHECK(fake.launches == 1);
    }
    SECTION("the fastest is taken, kept, and found again without timing") {
        fake.algorithms_us = {10, -1, 6, 8};
        CHECK(chosen(path, call) == 2);
        CHECK(contains(read_file(path), "\nFake / GPU, driver 13000, cuBLASLt " + std::to_string(CUBLAS_VERSION) +
                                            " | " + text_of(call) + " | "));
        CHECK(contains(read_file(path), " | 6.00 us | "));
        fake.launches = fake.rankings = 0;
        CHECK(chosen(path, call) == 2);
        CHECK(fake.launches == 1);
        CHECK(fake.rankings == 0);
    }
    SECTION("within a percent the library's order decides") {
        fake.algorithms_us = {10, 9.95, 9.93};
        CHECK(chosen(path, call) == 0);
        fake.algorithms_us = {10, 9.89, 9.85};
        CHECK(chosen(path + "2", call) == 1);
    }
    SECTION("every candidate is timed seven times after two, and no more than there may be") {
        fake.algorithms_us.assign(40, 10);
        fake.algorithms_us[31] = 3, fake.algorithms_us[32] = 1;
        CHECK(chosen(path, call) == 31);
        CHECK(fake.launches == CublasLt::kCandidates * 9 + 1);
    }
    SECTION("products are timed in a training step alone, and the file is written at its end") {
        fake.algorithms_us = {10, 5};
        Cuda cuda(0, {.tune_path = path});
        CublasLt& cublaslt = cuda.cublaslt();
        const auto runs = [&](MatmulCall c) {
            cublaslt.run(cuda, c, x.data(), x.data(), x.data());
            return fake.last_algorithm;
        };
        MatmulCall other = call;
        other.m = 16;
        CHECK(runs(call) == 0);
        CHECK(fake.launches == 1);
        cublaslt.begin_step();
        CHECK(runs(call) == 1);  // planned before, and timed now
        CHECK(runs(call) == 1);
        CHECK(fake.launches == 1 + 2 * 9 + 2);
        CHECK(!std::filesystem::exists(path));
        cublaslt.end_step();
        CHECK(std::filesystem::exists(path));
        CHECK(runs(call) == 1);
        CHECK(runs(other) == 0);
        CHECK(cublaslt.plans_made() == 3);
        CHECK(cublaslt.timed() == 1);
        std::filesystem::remove(path);
        cublaslt.begin_step();
        CHECK(runs(call) == 1);
        cublaslt.end_step();
        CHECK(!std::filesystem::exists(path));  // there was nothing new
        const std::string name = "cuBLASLt " + library_version_text(CUBLAS_VERSION);
        CHECK(cublaslt.text() == name + ", 1 timed algorithms known from " + path +
                                     ", others timed in the first step, which takes longer");
        CHECK(contains(Cuda().cublaslt().text(), name + ", first of its ranking"));
    }
    SECTION("what a step that ends with an error has timed is saved with the end of the program") {
        fake.algorithms_us = {10, 5};
        {
            Cuda cuda(0, {.tune_path = path});
            cuda.cublaslt().begin_step();
            cuda.cublaslt().run(cuda, call, x.data(), x.data(), x.data());
        }
        CHECK(std::filesystem::exists(path));
    }
    SECTION("the environment names the file") {
        fake.algorithms_us = {10, 5};
        setenv("ANVIL_MATMUL_CACHE", path.c_str(), 1);
        CHECK(chosen("", call) == 1);
        CHECK(chosen(path + "2", call) == 1);
        unsetenv("ANVIL_MATMUL_CACHE");
        CHECK(std::filesystem::exists(path));
        CHECK(std::filesystem::exists(path + "2"));
    }
    SECTION("an algorithm that the library no longer takes is timed again") {
        fake.algorithms_us = {10, 5};
        CHECK(chosen(path, call) == 1);
        fake.refuses_kept_algorithms = true;
        fake.algorithms_us = {4, 5};
        CHECK(chosen(path, call) == 0);
    }
    SECTION("without memory to time on, the first is taken and not kept") {
        fake.algorithms_us = {10, 5};
        fake.out_of_memory = true;
        CHECK(chosen(path, call) == 0);
        CHECK(!std::filesystem::exists(path));
    }
    SECTION("epilogues, sums and batches are timed as well") {
        fake.algorithms_us = {10, 5};
        MatmulCall batched = call, sum = call, gelu_bias = call;
        batched.batch = 2, sum.accumulate = true, gelu_bias.epilogue = Epilogue::gelu_aux_bias;
        for (const MatmulCall& c : {batched, sum, gelu_bias}) CHECK(chosen(path, c) == 1);
    }
    SECTION("an epilogue is preferred as long as it takes no longer than the product and a pass") {
        MatmulCall fused = call;
        fused.epilogue = Epilogue::row_sums, fused.m = 16;
        MatmulCall plain = fused;
        plain.epilogue = Epilogue::none;
        const auto prefers = [&](const std::string& tune_path, double sums_us, double bytes) {
            Cuda cuda(0, {.tune_path = tune_path});
            fake.sums_us = sums_us;
            cuda.cublaslt().begin_step();
            const bool result = cuda.cublaslt().prefers(cuda, fused, plain, bytes);
            cuda.cublaslt().end_step();
            return result;
        };
        // 2.5 GHz x 2 x 800 bits: 500 GB/s, of which 375 kB/us count.
        fake.memory_khz = 2'500'000, fake.memory_bits = 800;
        CHECK(prefers("", 1000, 1));  // not timed
        CHECK(prefers(path, 5, 5.1 * 375e3));
        CHECK_FALSE(prefers(path + "2", 5, 4.9 * 375e3));
        fake.launches = 0;
        CHECK_FALSE(prefers(path + "2", 0, 4.9 * 375e3));  // as the file has it, without timing
        CHECK(fake.launches == 0);
        fake.memory_khz = 0;  // a driver that does not tell
        CHECK(prefers(path + "2", 5, 1));
        fake.algorithms_us = {};
        CHECK_FALSE(prefers("", 5, 1e9));  // the library has none
    }
    SECTION("FP8 GEMMs are timed with scales that are there, on numbers in range") {
        fake.algorithms_us = {10, 5};
        MatmulCall fp8 = {.m = 16, .n = 16, .k = 32, .transpose_b = true, .a = DType::e5m2, .b = DType::e4m3};
        fp8.fast_accumulate = true;
        const float one = 1;
        Cuda cuda(0, {.tune_path = path});
        cuda.cublaslt().begin_step();
        cuda.cublaslt().run(cuda, fp8, x.data(), x.data(), x.data(), nullptr, nullptr, nullptr, {&one, &one});
        CHECK(fake.last_algorithm == 1);
        CHECK(fake.scales == std::pair(&one, &one));
        CHECK(fake.not_finite == 0);

        MatmulCall mx = fp8;
        mx.a = DType::e4m3, mx.block_scales = true, mx.fast_accumulate = false;
        const std::vector<uint8_t> scales(size_t(mx_scale_bytes(16, 32)), 127);
        fake.last_algorithm = 0;
        cuda.cublaslt().run(cuda, mx, x.data(), x.data(), x.data(), nullptr, nullptr, nullptr,
                            {scales.data(), scales.data()});
        CHECK(fake.last_algorithm == 1);
        CHECK(fake.not_finite == 0);
    }
    CHECK(fake.live == 0);
}
