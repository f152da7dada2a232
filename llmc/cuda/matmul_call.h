/*
A GEMM as its caller sees it, in row-major memory, and as a column-major library sees it. No CUDA in here: the
translation is tested without a GPU (test/cuda/matmul_call_test.cpp).

  out (m, n) = op(a) op(b)        op(a) (m, k), op(b) (k, n); with transpose_a, a is stored as (k, m), and so on

A row-major (rows, cols) matrix is a column-major (cols, rows) one in the same bytes, so the library is asked for
out^T = op(b)^T op(a)^T: the operands change places, and each keeps its `transpose`. A bias runs along the library's
rows, which are out's columns: one value per column, as a linear layer needs it.

A linear layer, inp (N, C), weight (OC, C), out (N, OC):
  out = inp weight^T         {.m = N, .n = OC, .k = C, .transpose_b = true}
  dinp = dout weight         {.m = N, .n = C, .k = OC}
  dweight += dout^T inp      {.m = OC, .n = C, .k = N, .transpose_a = true, .out = DType::f32, .accumulate = true}
  dweight = dout^T inp       the same without .accumulate

FP8 operands both have rows along k (transpose_b and not transpose_a), as tensor cores before Blackwell require, and a
scale each; the product is multiplied by both scales before a bias is added. In MX each has a scale for 32 elements
along k (llmc/base/fp8.h).
*/
#pragma once
#include <compare>
#include <cstdint>
#include <string>
#include "llmc/base/check.h"   // ensure, format
#include "llmc/base/fp8.h"     // kMxBlock
#include "llmc/base/tensor.h"  // DType

// What is done to the product before it is stored, or computed along with it. gelu is the tanh form; aux has the type
// of out and is (m, n), but for row_sums (m).
enum class Epilogue {
    none,
    bias,           // + bias (n)
    gelu_aux,       // aux = product, out = gelu(aux)
    gelu_aux_bias,  // aux = product + bias, out = gelu(aux)
    dgelu,          // out = product * gelu'(aux)
    row_sums,       // aux = sums of op(a)'s rows: where a is dout^T, the gradient of a bias; also with accumulate
};

inline bool has_bias(Epilogue epilogue) { return epilogue == Epilogue::bias || epilogue == Epilogue::gelu_aux_bias; }
inline bool has_aux(Epilogue epilogue) { return epilogue != Epilogue::none && epilogue != Epilogue::bias; }
inline bool has_aux_matrix(Epilogue epilogue) { return has_aux(epilogue) && epilogue != Epilogue::row_sums; }

struct MatmulCall {
    int64_t m, n, k;
    bool transpose_a = false, transpose_b = false;
    // f32 or bf16, a and b alike; or e4m3 and e5m2, not both e5m2
    DType a = DType::bf16, b = DType::bf16, out = DType::bf16;
    bool accumulate = false;             // out = alpha * product + beta * addend
    Epilogue epilogue = Epilogue::none;  // with accumulate none or row_sums
    // Leading dimensions: elements from one stored row to the next; 0: contiguous.
    int64_t lda = 0, ldb = 0, ldo = 0, ld_aux = 0;
    // A batch of GEMMs of one shape; strides in elements; 0: contiguous.
    int64_t batch = 1, stride_a = 0, stride_b = 0, stride_out = 0;
    float alpha = 1, beta = 1;
    bool block_scales = false;     // MX: a and b in e4m3, with scales of blocks instead of one each
    bool fast_accumulate = false;  // FP8: sums inside the tensor cores, with fewer bits than f32

    auto operator<=>(const MatmulCall&) const = default;
};
// dweight, as above, of operands of this type.
inline MatmulCall weight_gradient_call(DType dtype, int64_t N, int64_t C, int64_t OC, bool adds, Epilogue epilogue) {
    MatmulCall call{.m = OC, .n = C, .k = N, .transpose_a = true, .a = dtype, .b = dtype, .out = DType::f32};
    call.accumulate = adds, call.epilogue = epilogue;
    return call;
}

// A matrix as it is described to a column-major library.
struct ColumnMajorMatrix {
    DType dtype;
    int64_t rows, cols, ld, stride;  // stride: from one of a batch to the next
    bool transpose;
};

// d (rows, cols) = op(first) op(second), all column-major, summed over k: `first` is the caller's b, `second` its a, d
// its out.
struct ColumnMajorCall {
    ColumnMajorMatrix first, second, d;
    int64_t k, ld_aux;
};

inline ColumnMajorCall column_major(const MatmulCall& call) {
    const auto matrix = [](DType dtype, int64_t rows, int64_t cols, int64_t ld, int64_t stride, bool transpose) {
        ld = ld == 0 ? cols : ld;
        return ColumnMajorMatrix{dtype, cols, rows, ld, stride == 0 ? rows * ld : stride, transpose};
    };
    ColumnMajorCall result{
        .first = matrix(call.b, call.transpose_b ? call.n : call.k, call.transpose_b ? call.k : call.n, call.ldb,
                        call.stride_b, call.transpose_b),
        .second = matrix(call.a, call.transpose_a ? call.k : call.m, call.transpose_a ? call.m : call.k, call.lda,
                         call.stride_a, call.transpose_a),
        .d = matrix(call.out, call.m, call.n, call.ldo, call.stride_out, false),
        .k = call.k,
        .ld_aux = call.ld_aux == 0 ? call.n : call.ld_aux,
    };
    const auto is_float = [](DType dtype) { return dtype == DType::f32 || dtype == DType::bf16; };
    ensure(call.m > 0 && call.n > 0 && call.k > 0 && call.batch > 0);
    ensure(is_float(call.out));
    if (is_fp8(call.a)) {
        ensure(is_fp8(call.b) && !(call.a == DType::e5m2 && call.b == DType::e5m2));
        ensure(call.transpose_b && !call.transpose_a && call.batch == 1);
        ensure(call.epilogue == Epilogue::none || call.epilogue == Epilogue::bias);
        for (const int64_t size : {call.m, call.n, call.k, result.first.ld, result.second.ld, result.d.ld})
            ensure(size % 16 == 0);
        if (call.block_scales) {
            ensure(call.a == DType::e4m3 && call.b == DType::e4m3 && !call.fast_accumulate);
            ensure(call.k % kMxBlock == 0 && result.first.ld == call.k && result.second.ld == call.k);
        }
    } else {
        ensure(is_float(call.a) && call.a == call.b && !call.fast_accumulate && !call.block_scales);
    }
    ensure(result.first.ld >= result.first.rows && result.second.ld >= result.second.rows);
    ensure(result.d.ld >= result.d.rows && result.ld_aux >= result.d.rows);
    ensure(!has_aux(call.epilogue) || call.batch == 1);
    ensure(!call.accumulate || call.epilogue == Epilogue::none || call.epilogue == Epilogue::row_sums);
    return result;
}

inline const char* name_of(Epilogue epilogue) {
    switch (epilogue) {
        case Epilogue::none:
            return "none";
        case Epilogue::bias:
            return "bias";
        case Epilogue::gelu_aux:
            return "gelu_aux";
        case Epilogue::gelu_aux_bias:
            return "gelu_aux_bias";
        case Epilogue::dgelu:
            return "dgelu";
        case Epilogue::row_sums:
            return "row_sums";
    }
    return "?";
}

// A call as one line without a '|', for messages and as a key in files: "BF16 (16384, 768) ld 768 x
// BF16 (2304, 768)^T ld 768 -> BF16 (16384, 2304) ld 2304, bias"
inline std::string text_of(const MatmulCall& call) {
    const ColumnMajorCall c = column_major(call);
    const auto matrix = [](const ColumnMajorMatrix& m) {
        return format("%s (%ld, %ld)%s ld %ld", name_of(m.dtype), m.cols, m.rows, m.transpose ? "^T" : "", m.ld);
    };
    std::string text = matrix(c.second) + " x " + matrix(c.first) + " -> " + matrix(c.d);
    if (call.epilogue != Epilogue::none) text += format(", %s", name_of(call.epilogue));
    if (has_aux_matrix(call.epilogue)) text += format(" ld %ld", c.ld_aux);
    if (call.alpha != 1) text += format(", alpha %.9g", double(call.alpha));
    if (call.accumulate) text += format(", beta %.9g", double(call.beta));
    if (call.block_scales) text += ", MX";
    if (call.fast_accumulate) text += ", fast accumulation";
    if (call.batch > 1)
        text += format(", batch %ld strides %ld %ld %ld", call.batch, c.second.stride, c.first.stride, c.d.stride);
    return text;
}
