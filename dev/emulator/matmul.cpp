// GEMMs on the emulated GPU: the functions of llmc/cuda/cublaslt.h without cuBLASLt, as plain loops in double.
#include "llmc/cuda/cublaslt.h"
#include <cmath>
#include <cstdlib>
#include <numeric>
#include <vector>
#include "dev/emulator/emulator.h"
#include "llmc/base/bf16.h"          // bf16, to_float, to_bf16
#include "llmc/base/fp8.h"           // e4m3, e5m2
#include "llmc/cuda/cuda_device.h"   // Cuda
#include "llmc/cuda/matmul_plans.h"  // MatmulPlans

namespace emulator {
void submit(cudaStream_t stream, std::function<void()> work);
}

namespace {

float load(const void* data, DType dtype, int64_t i) {
    if (dtype == DType::f32) return static_cast<const float*>(data)[i];
    if (dtype == DType::e4m3) return to_float(static_cast<const e4m3*>(data)[i]);
    if (dtype == DType::e5m2) return to_float(static_cast<const e5m2*>(data)[i]);
    return to_float(static_cast<const bf16*>(data)[i]);
}
void store(void* data, DType dtype, int64_t i, double x) {
    if (dtype == DType::f32)
        static_cast<float*>(data)[i] = float(x);
    else
        static_cast<bf16*>(data)[i] = to_bf16(float(x));
}

// By an instruction that is right in 11 bits (PTX ISA, tanh.approx.f32); cuBLASLt 13.1 is off as much on an H100.
double gelu_tanh(double x) { return (1 - 0x1p-11) * std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)); }
double gelu(double x) { return 0.5 * x * (1 + gelu_tanh(x)); }
double gelu_derivative(double x) {
    const double t = gelu_tanh(x);
    return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * std::sqrt(2 / M_PI) * (1 + 3 * 0.044715 * x * x);
}

using Columns = double __attribute__((vector_size(32)));

// (rows, cols) in double; rows are padded with zeros to a multiple of four columns. Every element is loaded once.
std::vector<Columns> matrix_of(const void* data, DType dtype, int64_t rows, int64_t cols, bool transposed, int64_t ld,
                               int64_t first) {
    const int64_t width = (cols + 3) / 4;
    std::vector<Columns> matrix(static_cast<size_t>(rows * width));
    for (int64_t row = 0; row < rows; row++)
        for (int64_t col = 0; col < cols; col++)
            matrix[size_t(row * width + col / 4)][col % 4] =
                double(load(data, dtype, first + (transposed ? col * ld + row : row * ld + col)));
    return matrix;
}

// Scales in UE8M0 of 32 elements each, for rows of K, by cuBLAS's documentation ("1D Block Scaling Factors Layout") and
// not by llmc/base/fp8.h: tiles of 128 rows by 4 scales follow each other along a row of tiles; in a tile 32 groups of
// 16 bytes, in a group the four scales of row r, of r + 32, r + 64 and r + 96.
class BlockScales {
public:
    BlockScales(const void* scales, int64_t K)
        : tiles_(static_cast<const Tile*>(scales)), tiles_in_row_((K / 32 + 3) / 4) {}
    double at(int64_t row, int64_t k) const {
        const int64_t block = k / 32;
        const uint8_t exponent = tiles_[row / 128 * tiles_in_row_ + block / 4].group[row % 32][row / 32 % 4][block % 4];
        return exponent == 255 ? std::nan("") : std::ldexp(1., exponent - 127);
    }

private:
    struct Tile {
        uint8_t group[32][4][4];
    };
    const Tile* tiles_;
    int64_t tiles_in_row_;
};

// sums (width) = row (K) b (K, width), summed in the order of k. Emulated models spend most of their time here.
EMULATOR_UNBOUNDED void multiply_row(Columns* sums, const double* row, const Columns* b, int64_t K, int64_t width) {
    for (int64_t j = 0; j < width; j++) sums[j] = Columns{};
    for (int64_t k = 0; k < K; k++)
        for (int64_t j = 0; j < width; j++) sums[j] += row[k] * b[k * width + j];
}

void multiply(const MatmulCall& call, void* out, const void* a, const void* b, const void* bias, void* aux,
              const void* addend, const OperandScales& scales) {
    const int64_t lda = call.lda ? call.lda : call.transpose_a ? call.m : call.k;
    const int64_t ldb = call.ldb ? call.ldb : call.transpose_b ? call.k : call.n;
    const int64_t ldo = call.ldo ? call.ldo : call.n, ld_aux = call.ld_aux ? call.ld_aux : call.n;
    const int64_t stride_a = call.stride_a ? call.stride_a : (call.transpose_a ? call.k : call.m) * lda;
    const int64_t stride_b = call.stride_b ? call.stride_b : (call.transpose_b ? call.n : call.k) * ldb;
    const int64_t stride_out = call.stride_out ? call.stride_out : call.m * ldo;
    const double scale = scales.a && !call.block_scales ? double(*static_cast<const float*>(scales.a)) *
                                                              double(*static_cast<const float*>(scales.b))
                                                        : 1;
    const int64_t width = (call.n + 3) / 4, width_a = (call.k + 3) / 4;
    std::vector<Columns> sums(static_cast<size_t>(width));
    for (int64_t batch = 0; batch < call.batch; batch++) {
        std::vector<Columns> all_a = matrix_of(a, call.a, call.m, call.k, call.transpose_a, lda, batch * stride_a);
        std::vector<Columns> all_b = matrix_of(b, call.b, call.k, call.n, call.transpose_b, ldb, batch * stride_b);
        if (call.block_scales) {
            const BlockScales of_a(scales.a, call.k), of_b(scales.b, call.k);
            for (int64_t k = 0; k < call.k; k++) {
                for (int64_t i = 0; i < call.m; i++) all_a[size_t(i * width_a + k / 4)][k % 4] *= of_a.at(i, k);
                for (int64_t j = 0; j < call.n; j++) all_b[size_t(k * width + j / 4)][j % 4] *= of_b.at(j, k);
            }
        }
        for (int64_t i = 0; i < call.m; i++) {
            const auto* const row = reinterpret_cast<const double*>(all_a.data() + i * width_a);
            multiply_row(sums.data(), row, all_b.data(), call.k, width);
            if (call.epilogue == Epilogue::row_sums) store(aux, call.out, i, std::accumulate(row, row + call.k, 0.));
            for (int64_t j = 0; j < call.n; j++) {
                const int64_t at = batch * stride_out + i * ldo + j, at_aux = i * ld_aux + j;
                double x = double(call.alpha) * scale * sums[size_t(j / 4)][j % 4];
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
    }
}

}  // namespace

// Counts and caches plans as the real library does, but times no algorithms: the first one is taken.
struct CublasLt::Library {
    struct Plan {};
    MatmulPlans<Plan> plans;

    void plan(const MatmulCall& call) {
        plans.plan_for(call, [&](bool may_time) {
            const bool is_known = plans.has_cache && plans.cache.find(text_of(call));
            if (may_time && !is_known) plans.cache.add(text_of(call), {{}, 1});
            return MatmulPlans<Plan>::Made{{}, is_known};
        });
    }
};

CublasLt::CublasLt(Cuda& cuda, const std::string& tune_path) : library_(std::make_unique<Library>()) {
    if (tune_path.empty()) return;
    library_->plans.has_cache = true;
    library_->plans.cache = MatmulCache(tune_path, cuda.name);
}
CublasLt::~CublasLt() = default;

void CublasLt::begin_step() { library_->plans.begin_step(); }
void CublasLt::end_step() { library_->plans.end_step(); }
std::string CublasLt::text() const { return "emulated, " + library_->plans.text(); }
int64_t CublasLt::plans_made() const { return library_->plans.made(); }
int64_t CublasLt::timed() const { return library_->plans.cache.num_added(); }

void CublasLt::run(Cuda& cuda, const MatmulCall& call, void* out, const void* a, const void* b, const void* bias,
                   void* aux, const void* addend, const OperandScales& scales) {
    column_major(call);  // the same checks as the real one's
    for (const void* pointer : {static_cast<const void*>(out), a, b, static_cast<const void*>(aux), addend})
        ensure(reinterpret_cast<uintptr_t>(pointer) % 16 == 0);
    ensure(out != a && out != b);  // in place would work here, but not on a GPU
    ensure(has_bias(call.epilogue) == (bias != nullptr) && has_aux(call.epilogue) == (aux != nullptr));
    ensure(call.accumulate || addend == nullptr);
    ensure(is_fp8(call.a) == (scales.a != nullptr) && is_fp8(call.a) == (scales.b != nullptr));
    const KernelScope kernel(cuda, "cublaslt");
    library_->plan(call);
    emulator::submit(cuda.stream, [=] { multiply(call, out, a, b, bias, aux, addend, scales); });
}

bool CublasLt::supports(Cuda&, const MatmulCall& call) {
    library_->plan(call);
    const bool is_plain = call.epilogue == Epilogue::none || call.epilogue == Epilogue::bias;
    return is_plain || !std::getenv("ANVIL_EMULATOR_NO_EPILOGUES");
}
bool CublasLt::prefers(Cuda& cuda, const MatmulCall& fused, const MatmulCall&, double) { return supports(cuda, fused); }
