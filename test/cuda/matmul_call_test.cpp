// Translation from row-major to column-major: the translated GEMM, computed by a naive column-major library, is the
// caller's.
#include "llmc/cuda/matmul_call.h"
#include "test/op_testing.h"  // whole_numbers, check_equal
#include "test/testing.h"

// What a column-major library does, straight from its definition. bias: a value for each of its rows, or null.
static void column_major_product(const ColumnMajorCall& c, int64_t batch, float alpha, float beta, float* d,
                                 const float* first, const float* second, const float* addend, const float* bias) {
    const auto at = [](const ColumnMajorMatrix& m, int64_t row, int64_t col) {
        return m.transpose ? col + row * m.ld : row + col * m.ld;
    };
    for (int64_t i = 0; i < batch; i++)
        for (int64_t col = 0; col < c.d.cols; col++)
            for (int64_t row = 0; row < c.d.rows; row++) {
                double sum = 0;
                for (int64_t k = 0; k < c.k; k++)
                    sum += double(first[i * c.first.stride + at(c.first, row, k)]) *
                           double(second[i * c.second.stride + at(c.second, k, col)]);
                const int64_t to = i * c.d.stride + row + col * c.d.ld;
                d[to] = float(double(alpha) * sum + double(beta) * double(addend[to]) + double(bias ? bias[row] : 0));
            }
}

// Stored (rows, cols) with row stride ld: element (i, j) of op() of it.
static float element(const Floats& x, int64_t offset, int64_t ld, bool transpose, int64_t i, int64_t j) {
    return x[size_t(offset + (transpose ? j * ld + i : i * ld + j))];
}

TEST_CASE("matmul_call: the column-major product is the row-major one", "[matmul_call]") {
    const auto [m, n, k] = GENERATE(table<int64_t, int64_t, int64_t>({{3, 4, 5}, {1, 6, 2}, {7, 1, 3}, {4, 4, 4}}));
    const bool transpose_a = GENERATE(false, true), transpose_b = GENERATE(false, true);
    const int64_t padding = GENERATE(0, 3), batch = GENERATE(1, 3), gap = GENERATE(0, 11);
    const bool accumulate = GENERATE(false, true);
    const int64_t rows_a = transpose_a ? k : m, cols_a = transpose_a ? m : k;
    const int64_t rows_b = transpose_b ? n : k, cols_b = transpose_b ? k : n;
    MatmulCall call{.m = m, .n = n, .k = k, .transpose_a = transpose_a, .transpose_b = transpose_b, .batch = batch};
    call.accumulate = accumulate;
    call.epilogue = accumulate ? Epilogue::none : Epilogue::bias;
    const int64_t lda = cols_a + padding, ldb = cols_b + padding, ldo = n + padding;
    const int64_t stride_a = rows_a * lda + gap, stride_b = rows_b * ldb + gap, stride_out = m * ldo + gap;
    if (padding > 0) call.lda = lda, call.ldb = ldb, call.ldo = ldo;
    if (gap > 0) call.stride_a = stride_a, call.stride_b = stride_b, call.stride_out = stride_out;
    INFO(text_of(call));
    const Floats a = whole_numbers(batch * stride_a, 1, 9), b = whole_numbers(batch * stride_b, 2, 9);
    const Floats bias = whole_numbers(n, 3, 9), start = whole_numbers(batch * stride_out, 4, 9);

    Floats want = start;  // what is between the rows stays
    for (int64_t i = 0; i < batch; i++)
        for (int64_t row = 0; row < m; row++)
            for (int64_t col = 0; col < n; col++) {
                float sum = 0;
                for (int64_t j = 0; j < k; j++)
                    sum += element(a, i * stride_a, lda, transpose_a, row, j) *
                           element(b, i * stride_b, ldb, transpose_b, j, col);
                float& out = want[size_t(i * stride_out + row * ldo + col)];
                out = accumulate ? out + sum : sum + bias[size_t(col)];
            }

    Floats got = start;
    const ColumnMajorCall c = column_major(call);
    column_major_product(c, batch, call.alpha, accumulate ? call.beta : 0, got.data(), b.data(), a.data(), start.data(),
                         has_bias(call.epilogue) ? bias.data() : nullptr);
    check_equal("out", got, want);
}

TEST_CASE("matmul_call: the three products of a linear layer", "[matmul_call]") {
    const int64_t N = 5, C = 3, OC = 4;
    const ColumnMajorCall forward = column_major({.m = N, .n = OC, .k = C, .transpose_b = true});
    CHECK((forward.first.rows == C && forward.first.cols == OC && forward.first.transpose));
    CHECK((forward.second.rows == C && forward.second.cols == N && !forward.second.transpose));
    CHECK((forward.d.rows == OC && forward.d.cols == N && forward.d.ld == OC && forward.k == C));
    const ColumnMajorCall dinp = column_major({.m = N, .n = C, .k = OC});
    CHECK((dinp.first.rows == C && dinp.first.cols == OC && !dinp.first.transpose));
    CHECK((dinp.second.rows == OC && dinp.second.cols == N && !dinp.second.transpose));
    const ColumnMajorCall dweight =
        column_major({.m = OC, .n = C, .k = N, .transpose_a = true, .out = DType::f32, .accumulate = true});
    CHECK((dweight.first.rows == C && dweight.first.cols == N && !dweight.first.transpose));
    CHECK((dweight.second.rows == OC && dweight.second.cols == N && dweight.second.transpose));
    CHECK((dweight.d.dtype == DType::f32 && dweight.second.dtype == DType::bf16));
}

TEST_CASE("matmul_call: distinct calls have distinct texts, none with the file's separator", "[matmul_call]") {
    const MatmulCall base{.m = 16, .n = 8, .k = 24};
    std::vector<MatmulCall> calls(20, base);
    size_t i = 1;
    calls[i++].m = 17, calls[i++].n = 9, calls[i++].k = 25;
    calls[i++].transpose_a = true, calls[i++].transpose_b = true;
    calls[i].a = DType::f32, calls[i++].b = DType::f32;
    calls[i++].out = DType::f32, calls[i++].accumulate = true;
    calls[i].accumulate = true, calls[i++].beta = 0.5f;
    using enum Epilogue;
    for (const Epilogue e : {bias, gelu_aux, gelu_aux_bias, dgelu, row_sums}) calls[i++].epilogue = e;
    calls[i].epilogue = Epilogue::dgelu, calls[i++].ld_aux = 16;
    calls[i++].lda = 32, calls[i++].ldb = 32, calls[i++].ldo = 32, calls[i++].alpha = 0.1f;
    REQUIRE(i == calls.size());
    for (const int64_t batch : {2, 3}) {
        MatmulCall call = base;
        call.batch = batch;
        calls.push_back(call);
        for (int64_t MatmulCall::*stride : {&MatmulCall::stride_a, &MatmulCall::stride_b, &MatmulCall::stride_out}) {
            calls.push_back(call);
            calls.back().*stride = 1024;
        }
    }
    const MatmulCall fp8{.m = 16, .n = 16, .k = 32, .transpose_b = true, .a = DType::e4m3, .b = DType::e4m3};
    calls.insert(calls.end(), 5, fp8);
    calls.end()[-4].a = DType::e5m2, calls.end()[-3].b = DType::e5m2, calls.end()[-2].block_scales = true;
    calls.end()[-1].fast_accumulate = true;
    for (size_t x = 0; x < calls.size(); x++) {
        CHECK(!contains(text_of(calls[x]), "|"));
        for (size_t y = 0; y < x; y++) {
            INFO(text_of(calls[x]));
            CHECK(calls[x] != calls[y]);
            CHECK(text_of(calls[x]) != text_of(calls[y]));
        }
    }
    CHECK(text_of({.m = 16, .n = 8, .k = 24, .transpose_b = true, .epilogue = Epilogue::bias}) ==
          "BF16 (16, 24) ld 24 x BF16 (8, 24)^T ld 24 -> BF16 (16, 8) ld 8, bias");
    CHECK(text_of(calls.back()) ==
          "F8_E4M3 (16, 32) ld 32 x F8_E4M3 (16, 32)^T ld 32 -> BF16 (16, 16) ld 16, fast accumulation");
}

TEST_CASE("matmul_call: what makes no sense is refused", "[matmul_call]") {
    const auto refused = [](MatmulCall call) { return contains(error_of([&] { column_major(call); }), "1: internal"); };
    CHECK(!refused({.m = 2, .n = 3, .k = 4}));
    CHECK(refused({.m = 0, .n = 3, .k = 4}));
    CHECK(refused({.m = 2, .n = 0, .k = 4}));
    CHECK(refused({.m = 2, .n = 3, .k = 0}));
    CHECK(refused({.m = 2, .n = 3, .k = 4, .batch = 0}));
    CHECK(refused({.m = 2, .n = 3, .k = 4, .a = DType::f32}));
    CHECK(refused({.m = 2, .n = 3, .k = 4, .a = DType::u16, .b = DType::u16}));
    CHECK(refused({.m = 2, .n = 3, .k = 4, .out = DType::i32}));
    CHECK(refused({.m = 2, .n = 3, .k = 4, .lda = 3}));
    CHECK(refused({.m = 2, .n = 3, .k = 4, .ldb = 2}));
    CHECK(refused({.m = 2, .n = 3, .k = 4, .ldo = 2}));
    CHECK(refused({.m = 2, .n = 3, .k = 4, .epilogue = Epilogue::dgelu, .ld_aux = 2}));
    CHECK(refused({.m = 2, .n = 3, .k = 4, .accumulate = true, .epilogue = Epilogue::bias}));
    CHECK(!refused({.m = 2, .n = 3, .k = 4, .accumulate = true, .epilogue = Epilogue::row_sums}));
    CHECK(refused({.m = 2, .n = 3, .k = 4, .epilogue = Epilogue::row_sums, .batch = 2}));
    CHECK(refused({.m = 2, .n = 3, .k = 4, .epilogue = Epilogue::dgelu, .batch = 2}));
    CHECK(refused({.m = 2, .n = 3, .k = 4, .fast_accumulate = true}));
    MatmulCall mx{.m = 16, .n = 48, .k = 32, .transpose_b = true, .a = DType::e4m3, .b = DType::e4m3};
    mx.block_scales = true;
    CHECK(!refused(mx));
    const auto mx_refused_with = [&](auto change) {
        MatmulCall call = mx;
        change(call);
        return refused(call);
    };
    CHECK(mx_refused_with([](MatmulCall& c) { c.a = DType::e5m2; }));
    CHECK(mx_refused_with([](MatmulCall& c) { c.b = DType::e5m2; }));
    CHECK(mx_refused_with([](MatmulCall& c) { c.a = c.b = DType::bf16; }));
    CHECK(mx_refused_with([](MatmulCall& c) { c.k = 48; }));
    CHECK(mx_refused_with([](MatmulCall& c) { c.lda = 64; }));
    CHECK(mx_refused_with([](MatmulCall& c) { c.ldb = 64; }));
    CHECK(mx_refused_with([](MatmulCall& c) { c.fast_accumulate = true; }));
    // FP8: rows along k, sizes of 16, no epilogue but a bias.
    const MatmulCall fp8{.m = 32, .n = 48, .k = 16, .transpose_b = true, .a = DType::e5m2, .b = DType::e4m3};
    CHECK(!refused(fp8));
    const auto refused_with = [&](auto change) {
        MatmulCall call = fp8;
        change(call);
        return refused(call);
    };
    CHECK(!refused_with([](MatmulCall& c) { c.out = DType::f32, c.accumulate = true, c.fast_accumulate = true; }));
    CHECK(refused_with([](MatmulCall& c) { c.b = DType::e5m2; }));
    CHECK(refused_with([](MatmulCall& c) { c.b = DType::bf16; }));
    CHECK(refused_with([](MatmulCall& c) { c.a = DType::bf16; }));
    CHECK(refused_with([](MatmulCall& c) { c.out = DType::e4m3; }));
    CHECK(refused_with([](MatmulCall& c) { c.transpose_b = false; }));
    CHECK(refused_with([](MatmulCall& c) { c.transpose_a = true; }));
    CHECK(!refused_with([](MatmulCall& c) { c.epilogue = Epilogue::bias; }));
    CHECK(refused_with([](MatmulCall& c) { c.epilogue = Epilogue::gelu_aux_bias; }));
    CHECK(refused_with([](MatmulCall& c) { c.epilogue = Epilogue::dgelu; }));
    CHECK(refused_with([](MatmulCall& c) { c.epilogue = Epilogue::row_sums; }));
    CHECK(refused_with([](MatmulCall& c) { c.batch = 2; }));
    CHECK(refused_with([](MatmulCall& c) { c.m = 24; }));
    CHECK(refused_with([](MatmulCall& c) { c.n = 24; }));
    CHECK(refused_with([](MatmulCall& c) { c.k = 24; }));
    CHECK(refused_with([](MatmulCall& c) { c.lda = 24; }));
    CHECK(refused_with([](MatmulCall& c) { c.ldb = 24; }));
    CHECK(refused_with([](MatmulCall& c) { c.ldo = 56; }));
}
