// Matrix products on the emulated GPU: the functions of llmc/cuda/cublaslt.h without cuBLASLt. Plain loops, in double.
#include "llmc/cuda/cublaslt.h"
#include <cmath>
#include "dev/emulator/emulator.h"
#include "llmc/base/bf16.h"         // bf16, to_float, to_bf16
#include "llmc/cuda/cuda_device.h"  // Cuda

namespace emulator {
void submit(cudaStream_t stream, std::function<void()> work);
}

namespace {

float load(const void* data, DType dtype, int64_t i) {
    if (dtype == DType::f32) return static_cast<const float*>(data)[i];
    return to_float(static_cast<const bf16*>(data)[i]);
}
void store(void* data, DType dtype, int64_t i, double x) {
    if (dtype == DType::f32)
        static_cast<float*>(data)[i] = float(x);
    else
        static_cast<bf16*>(data)[i] = to_bf16(float(x));
}

double gelu(double x) { return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x))); }
double gelu_derivative(double x) {
    const double t = std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x));
    return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * std::sqrt(2 / M_PI) * (1 + 3 * 0.044715 * x * x);
}

void multiply(const MatmulCall& call, void* out, const void* a, const void* b, const void* bias, void* aux,
              const void* addend) {
    const int64_t lda = call.lda ? call.lda : call.transpose_a ? call.m : call.k;
    const int64_t ldb = call.ldb ? call.ldb : call.transpose_b ? call.k : call.n;
    const int64_t ldo = call.ldo ? call.ldo : call.n, ld_aux = call.ld_aux ? call.ld_aux : call.n;
    const int64_t stride_a = call.stride_a ? call.stride_a : (call.transpose_a ? call.k : call.m) * lda;
    const int64_t stride_b = call.stride_b ? call.stride_b : (call.transpose_b ? call.n : call.k) * ldb;
    const int64_t stride_out = call.stride_out ? call.stride_out : call.m * ldo;
    for (int64_t batch = 0; batch < call.batch; batch++)
#pragma omp parallel for
        for (int64_t i = 0; i < call.m; i++)
            for (int64_t j = 0; j < call.n; j++) {
                double sum = 0;
                for (int64_t k = 0; k < call.k; k++)
                    sum += double(load(a, call.a, batch * stride_a + (call.transpose_a ? k * lda + i : i * lda + k))) *
                           double(load(b, call.b, batch * stride_b + (call.transpose_b ? j * ldb + k : k * ldb + j)));
                const int64_t at = batch * stride_out + i * ldo + j, at_aux = i * ld_aux + j;
                double x = double(call.alpha) * sum;
                if (call.accumulate) x += double(call.beta) * double(load(addend ? addend : out, call.out, at));
                if (has_bias(call.epilogue)) x += double(load(bias, call.out, j));
                if (call.epilogue == Epilogue::gelu_aux || call.epilogue == Epilogue::gelu_aux_bias) {
                    store(aux, call.out, at_aux, x);
                    x = gelu(x);
                }
                if (call.epilogue == Epilogue::dgelu) x *= gelu_derivative(double(load(aux, call.out, at_aux)));
                store(out, call.out, at, x);
            }
}

}  // namespace

struct CublasLt::Library {};

CublasLt::CublasLt(Cuda&, const std::string&) {}
CublasLt::~CublasLt() = default;

void CublasLt::run(Cuda& cuda, const MatmulCall& call, void* out, const void* a, const void* b, const void* bias,
                   void* aux, const void* addend) {
    column_major(call);  // the same checks as the real one's
    for (const void* pointer : {static_cast<const void*>(out), a, b, static_cast<const void*>(aux), addend})
        ensure(reinterpret_cast<uintptr_t>(pointer) % 16 == 0);
    emulator::submit(cuda.stream, [=] { multiply(call, out, a, b, bias, aux, addend); });
}

bool CublasLt::supports(Cuda&, const MatmulCall&) { return true; }
