// The linear layer's entry point on a GPU: exact on whole numbers, and its epilogues against the CPU's functions.
#include "llmc/cuda/matmul.cuh"
#include "llmc/cpu/matmul.h"
#include "test/cuda_testing.h"  // OnDevice, rounded, twice_the_same

// On the emulated GPU a second time without the library's epilogues, as on a GPU whose library has none for a shape.
#ifdef ANVIL_EMULATED
struct Epilogues {
    explicit Epilogues(bool has_them) {
        if (!has_them) setenv("ANVIL_EMULATOR_NO_EPILOGUES", "1", 1);
    }
    ~Epilogues() { unsetenv("ANVIL_EMULATOR_NO_EPILOGUES"); }
};
#define EPILOGUES                                     \
    const bool has_epilogues = GENERATE(true, false); \
    const Epilogues epilogues(has_epilogues);         \
    INFO((has_epilogues ? "with epilogues" : "without epilogues"))
#else
#define EPILOGUES
#endif

// Small whole numbers: every product and sum is exact in f32, so the order of additions does not matter and only the
// last rounding, to T, is left, which is the same everywhere.
TEMPLATE_TEST_CASE("matmul on a GPU is exact on whole numbers", "[matmul]" ON_DEVICE, float, bf16) {
    using T = TestType;
    const auto [N, C, OC] = GENERATE(table<int, int, int>({{1, 8, 8}, {3, 16, 40}, {64, 64, 192}, {77, 128, 8}}));
    const bool with_bias = GENERATE(true, false);
    EPILOGUES;
    INFO(N << " x " << C << " x " << OC << (with_bias ? " with bias" : ""));
    const Floats inp = whole_numbers(N * C, 1, 4), weight = whole_numbers(OC * C, 2, 4);
    const Floats bias = whole_numbers(OC, 3, 100), dout = whole_numbers(N * OC, 4, 4);
    const Floats dweight = whole_numbers(OC * C, 5, 100), dbias = whole_numbers(OC, 6, 100);

    Cpu cpu;
    Floats out(dout.size()), dinp(inp.size()), want_dweight = dweight, want_dbias = dbias;
    matmul_forward(cpu, out.data(), inp.data(), weight.data(), with_bias ? bias.data() : nullptr, N, C, OC);
    matmul_backward(cpu, dinp.data(), want_dweight.data(), with_bias ? want_dbias.data() : nullptr, dout.data(),
                    inp.data(), weight.data(), N, C, OC);

    Cuda cuda;
    const OnDevice<T> d_inp(cuda, inp), d_weight(cuda, weight), d_bias(cuda, bias), d_dout(cuda, dout);
    const auto got = twice_the_same([&] {
        OnDevice<T> d_out(cuda, out.size()), d_dinp(cuda, inp.size());
        OnDevice<float> d_dweight(cuda, dweight), d_dbias(cuda, dbias);
        matmul_forward(cuda, d_out.data, d_inp.data, d_weight.data, with_bias ? d_bias.data : nullptr, N, C, OC);
        matmul_backward(cuda, d_dinp.data, d_dweight.data, with_bias ? d_dbias.data : nullptr, d_dout.data, d_inp.data,
                        d_weight.data, N, C, OC);
        // Gradients of parameters alone, as in the first layer
        matmul_backward<T>(cuda, nullptr, d_dweight.data, nullptr, d_dout.data, d_inp.data, d_weight.data, N, C, OC);
        return std::vector{d_out.get(), d_dinp.get(), d_dweight.get(), d_dbias.get()};
    });
    check_equal("out", got[0], rounded<T>(out));
    check_equal("dinp", got[1], rounded<T>(dinp));
    for (size_t i = 0; i < dweight.size(); i++) want_dweight[i] += want_dweight[i] - dweight[i];
    check_equal("dweight", got[2], want_dweight);
    check_equal("dbias", got[3], want_dbias);
}

TEMPLATE_TEST_CASE("a linear layer fused with GELU agrees with the two ops", "[matmul]" ON_DEVICE, float, bf16) {
    using T = TestType;
    const int64_t N = 40, C = 64, OC = 96;
    const bool with_bias = GENERATE(true, false);
    EPILOGUES;
    INFO((with_bias ? "with bias" : "without bias"));
    const Floats inp = rounded<T>(randn(N * C, 1)), weight = rounded<T>(randn(OC * C, 2, 0.125f));
    const Floats bias = rounded<T>(randn(OC, 3)), dout = rounded<T>(randn(N * OC, 4));
    const Floats back = rounded<T>(randn(C * OC, 5, 0.125f)), zeros(size_t(C * OC), 0);

    Cuda cuda;
    const OnDevice<T> d_inp(cuda, inp), d_weight(cuda, weight), d_bias(cuda, bias), d_dout(cuda, dout),
        d_back(cuda, back);
    const auto got = twice_the_same([&] {
        OnDevice<T> d_out(cuda, size_t(N * OC)), d_hidden(cuda, size_t(N * OC)), d_dhidden(cuda, size_t(N * C));
        OnDevice<float> d_dweight(cuda, zeros), d_dbias(cuda, Floats(size_t(OC), 0));
        matmul_gelu_forward(cuda, d_out.data, d_hidden.data, d_inp.data, d_weight.data,
                            with_bias ? d_bias.data : nullptr, N, C, OC);
        // A second layer (N, C) -> (N, OC) whose input is gelu of some hidden values: inp plays both parts.
        matmul_gelu_backward(cuda, d_dhidden.data, d_dweight.data, with_bias ? d_dbias.data : nullptr, d_dout.data,
                             d_inp.data, d_inp.data, d_back.data, N, C, OC);
        return std::vector{d_out.get(), d_hidden.get(), d_dhidden.get(), d_dweight.get(), d_dbias.get()};
    });
    Cpu cpu;
    Floats out(size_t(N * OC)), hidden(size_t(N * OC)), dhidden(size_t(N * C)), dweight = zeros, dbias(size_t(OC), 0);
    matmul_gelu_forward(cpu, out.data(), hidden.data(), inp.data(), weight.data(), with_bias ? bias.data() : nullptr, N,
                        C, OC);
    matmul_gelu_backward(cpu, dhidden.data(), dweight.data(), with_bias ? dbias.data() : nullptr, dout.data(),
                         inp.data(), inp.data(), back.data(), N, C, OC);
    // Products of C (or OC) terms in other orders on both sides, and one rounding to T; unfused, gelu sees the rounded
    // hidden value, whose half unit it passes on with a slope of up to 1.13.
    const double products = (2 + std::sqrt(double(OC))) * kEpsF32;
    const double stored = std::is_same_v<T, bf16> ? kEpsBf16 : 0;
    check_close("hidden", got[1], hidden, products + stored);
    check_close("out", got[0], out, products + 1.5 * stored + 4 * kEpsF32);
    check_close("dhidden", got[2], dhidden, products + 1.5 * stored + 16 * kEpsF32);
    check_close("dweight", got[3], dweight, products);
    check_close("dbias", got[4], dbias, products);
}

#ifdef ANVIL_EMULATED
// Of a dout that no sum of fp32 in another order gives: the emulator's library adds in double.
TEST_CASE("the gradient of a bias comes from the product if the library has that", "[matmul][emulated]") {
    const int64_t N = 300, C = 16, OC = 24;
    const Floats inp = randn(N * C, 1), dout = randn(N * OC, 2), weight = randn(OC * C, 3), dbias = randn(OC, 4);
    for (const bool has_epilogues : {true, false}) {
        const Epilogues epilogues(has_epilogues);
        Cuda cuda;
        const OnDevice<float> d_inp(cuda, inp), d_dout(cuda, dout), d_weight(cuda, weight);
        OnDevice<float> dweight(cuda, size_t(C * OC)), d_dbias(cuda, dbias);
        matmul_backward<float>(cuda, nullptr, dweight.data, d_dbias.data, d_dout.data, d_inp.data, d_weight.data, N, C,
                               OC, Write::set);
        const Floats got = d_dbias.get();
        int64_t exact = 0;
        for (int64_t c = 0; c < OC; c++) {
            double sum = 0;
            for (int64_t n = 0; n < N; n++) sum += double(dout[size_t(n * OC + c)]);
            exact += got[size_t(c)] == dbias[size_t(c)] + float(sum);
        }
        CHECK((exact == OC) == has_epilogues);
        CHECK(cuda.workspace_bytes() >= (has_epilogues ? weight_gradient_workspace(OC) : 0));
    }
}
#endif

// Over what was NaN. Whole numbers: the library may add in another order when it sets.
TEMPLATE_TEST_CASE("matmul_backward on a GPU sets a gradient to what one is that is added to zeros",
                   "[matmul]" ON_DEVICE, float, bf16) {
    using T = TestType;
    const auto [N, C, OC] = GENERATE(table<int, int, int>({{1, 8, 8}, {77, 128, 40}}));
    INFO(N << " x " << C << " x " << OC);
    const Floats dbias = whole_numbers(OC, 4, 100), zeros(size_t(C * OC), 0);
    Cuda cuda;
    const OnDevice<T> inp(cuda, whole_numbers(N * C, 1, 4)), weight(cuda, whole_numbers(OC * C, 2, 4));
    const OnDevice<T> dout(cuda, whole_numbers(N * OC, 3, 4)), hidden(cuda, randn(N * C, 5));
    const auto backward = [&](Write write) {
        std::vector<Floats> results;
        const auto with = [&](auto&& op) {
            OnDevice<T> dinp(cuda, size_t(N * C));
            OnDevice<float> dweight(cuda, size_t(C * OC)), d_dbias(cuda, dbias);  // NaN at first
            if (write == Write::add) dweight.set(zeros);
            op(dinp.data, dweight.data, d_dbias.data);
            for (const Floats& result : {dinp.get(), dweight.get(), d_dbias.get()}) results.push_back(result);
        };
        with([&](T* dinp, float* dweight, float* dbias) {
            matmul_backward(cuda, dinp, dweight, dbias, dout.data, inp.data, weight.data, N, C, OC, write);
        });
        with([&](T* dinp, float* dweight, float* dbias) {
            matmul_gelu_backward(cuda, dinp, dweight, dbias, dout.data, inp.data, hidden.data, weight.data, N, C, OC,
                                 write);
        });
        return results;
    };
    const auto got = backward(Write::set), want = backward(Write::add);
    for (size_t i = 0; i < want.size(); i++) check_equal("output " + std::to_string(i), got[i], want[i]);
}

TEST_CASE("matmul on a GPU refuses rows that are not a multiple of 16 bytes", "[matmul]" ON_DEVICE) {
    Cuda cuda;
    OnDevice<bf16> x(cuda, 96);
    CHECK(error_of([&] { matmul_forward<bf16>(cuda, x.data, x.data, x.data, nullptr, 1, 12, 8); }) ==
          "2: matmul_forward of (1, 12) by (8, 12): the channels must be multiples of 8, 16 bytes");
}

// Up to 2^8, so that bf16 holds every number; the gradients are float.
TEMPLATE_TEST_CASE("a low-rank adapter on a GPU is exact on whole numbers", "[matmul]" ON_DEVICE, float, bf16) {
    using T = TestType;
    const bool adds = GENERATE(true, false);
    const Write write = adds ? Write::add : Write::set;
    const LowRankShape s{.N = 20, .C = 16, .rank = 8, .scale = 2, .parts = 3, .rows = {32, 8, 16}};
    const int64_t N = s.N, C = s.C, W = s.width(), OC = s.OC();
    Floats inp(size_t(N * C), 0), a(size_t(W * C), 0), b(size_t(OC * s.rank), 0), dout(size_t(N * OC), 0);
    for (Floats* sparse : {&inp, &a, &b, &dout})  // three of each row of eight
        for (size_t i = 0; i < sparse->size(); i++) (*sparse)[i] = i % 8 % 3 == 0 ? float(int(i / 8 % 3) - 1) : 0;
    const Floats out_start = whole_numbers(N * OC, 5, 9), dinp_start = whole_numbers(N * C, 6, 9);
    const Floats da_start = whole_numbers(W * C, 7, 9), db_start = whole_numbers(OC * s.rank, 8, 9);

    Cpu cpu;
    Floats out = out_start, dinp = dinp_start, da = da_start, db = db_start, low(size_t(N * W)), dlow(size_t(N * W));
    low_rank_forward(cpu, out.data(), low.data(), inp.data(), a.data(), b.data(), s);
    low_rank_backward(cpu, dinp.data(), da.data(), db.data(), low.data(), dlow.data(), dout.data(), inp.data(),
                      a.data(), b.data(), s, write, write);
    check_equal("a number of bf16", rounded<bf16>(low), low);
    check_equal("a number of bf16", rounded<bf16>(dlow), dlow);

    Cuda cuda;
    const OnDevice<T> d_inp(cuda, inp), d_a(cuda, a), d_b(cuda, b), d_dout(cuda, dout);
    const auto got = twice_the_same([&] {
        OnDevice<T> d_out(cuda, out_start), d_dinp(cuda, dinp_start), d_low(cuda, low.size()), d_dlow(cuda, low.size());
        OnDevice<float> d_da(cuda, da_start), d_db(cuda, db_start);
        low_rank_forward(cuda, d_out.data, d_low.data, d_inp.data, d_a.data, d_b.data, s);
        low_rank_backward(cuda, d_dinp.data, d_da.data, d_db.data, d_low.data, d_dlow.data, d_dout.data, d_inp.data,
                          d_a.data, d_b.data, s, write, write);
        return std::vector{d_out.get(), d_dinp.get(), d_da.get(), d_db.get()};
    });
    check_equal("out", got[0], rounded<T>(out));
    check_equal("dinp", got[1], rounded<T>(dinp));
    check_equal("da", got[2], da);
    check_equal("db", got[3], db);
}
