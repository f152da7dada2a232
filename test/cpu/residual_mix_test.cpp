// The residual mix and its backward against PyTorch, and its fused form against the separate ops.
#include "llmc/cpu/residual_mix.h"
#include "test/fixture.h"     // Fixture
#include "test/op_testing.h"  // on_any_threads, check_equal, check_within, plus, whole_numbers
#include "test/testing.h"

// Of a sum of products: a chunk's lane adds kMixChunk / 16 of them, a tree the 16 lanes, and what lay there before
// comes last; each rounds by half a unit. The reference has half a unit as well, and `want` another one for its
// `start`.
static double sum_bound(const Floats& x, const Floats& y, float want) {
    double products = 0;
    for (size_t i = 0; i < x.size(); i++) products += std::fabs(double(x[i]) * y[i]);
    const double lane = double(std::min<int64_t>(kMixChunk, int64_t(x.size()))) / 16;
    return kEpsF32 / 2 * ((lane + 4 + 1 + 2) * products + 2 * std::fabs(want));
}

TEST_CASE("residual_mix agrees with PyTorch", "[residual_mix]") {
    const Fixture f("residual_mix");
    const auto [N, C, sign, has_a] = GENERATE(table<int, int, int, bool>(
        {{1, 1, 1, true}, {3, 7, -1, false}, {2, 33, 1, true}, {17, 48, -1, true}, {1, 1536, 1, false}}));
    const std::string name = format("%dx%d.", N, C), want = "want." + name;
    INFO(name);
    const int64_t n = N * C;
    const Floats inp = f.floats(name + "inp"), inp0 = f.floats(name + "inp0"), dout = f.floats(name + "dout");
    const Floats b = f.floats(name + "b"), a = has_a ? f.floats(name + "a") : Floats{1};
    const float* a_or_null = has_a ? a.data() : nullptr;
    const Floats start = randn(size_t(n), 1);
    const float da_start = 0.75f, db_start = -1.5f;
    const auto got = on_any_threads([&](Cpu& cpu) {
        Guarded out(inp.size()), dinp(inp.size()), dinp0(inp.size()), added(start), da(1, da_start), db(1, db_start);
        Guarded in_place(inp), dout_in_place(dout), da2(1, da_start), db2(1, db_start);
        residual_mix_forward<float>(cpu, out, inp.data(), inp0.data(), a_or_null, b.data(), float(sign), n);
        residual_mix_forward<float>(cpu, in_place, in_place, inp0.data(), a_or_null, b.data(), float(sign), n);
        residual_mix_backward<float>(cpu, dinp, dinp0, has_a ? da.data() : nullptr, db, dout.data(),
                                     has_a ? inp.data() : nullptr, inp0.data(), a_or_null, b.data(), float(sign), false,
                                     n);
        residual_mix_backward<float>(cpu, dout_in_place, added, has_a ? da2.data() : nullptr, db2, dout_in_place,
                                     has_a ? inp.data() : nullptr, inp0.data(), a_or_null, b.data(), float(sign), true,
                                     n);
        check_equal("out in place", in_place.get(), out.get());
        check_equal("dinp in place", dout_in_place.get(), dinp.get());
        check_equal("da again", da2.get(), da.get());
        check_equal("db again", db2.get(), db.get());
        return std::vector{out.get(), dinp.get(), dinp0.get(), added.get(), da.get(), db.get()};
    });
    const Floats out = f.floats(want + "out"), dinp = f.floats(want + "dinp"), dinp0 = f.floats(want + "dinp0");
    // a inp is rounded, their sum is, and the reference is: half a unit each
    std::vector<double> out_bounds, added_bounds;
    for (size_t i = 0; i < out.size(); i++)
        out_bounds.push_back(kEpsF32 * (std::fabs(double(a[0]) * inp[i]) / 2 + std::fabs(out[i])));
    check_within("out", got[0], out, out_bounds);
    // one product, rounded once on each side: half a unit of either
    check_relative("dinp", got[1], dinp, kEpsF32);
    check_relative("dinp0", got[2], dinp0, kEpsF32);
    const Floats sum = plus(start, dinp0);
    for (size_t i = 0; i < sum.size(); i++)
        added_bounds.push_back(kEpsF32 * (std::fabs(sum[i]) + std::fabs(dinp0[i]) / 2));
    check_within("dinp0 added to", got[3], sum, added_bounds);
    const Floats da = has_a ? plus({da_start}, f.floats(want + "da")) : Floats{da_start};
    const Floats db = plus({db_start}, f.floats(want + "db"));
    check_within("da", got[4], da, {has_a ? sum_bound(dout, inp, da[0]) : 0});
    check_within("db", got[5], db, {sum_bound(dout, inp0, db[0])});
}

TEST_CASE("residual_mix_backward: long sums of whole numbers are exact", "[residual_mix]") {
    const int64_t n = 3 * kMixChunk + 5;
    const Floats inp = whole_numbers(n, 1, 3), inp0 = whole_numbers(n, 2, 3), dout = whole_numbers(n, 3, 3);
    const float a = 2, b = 3;
    double da = 100, db = 200;
    for (size_t i = 0; i < inp.size(); i++) da += dout[i] * inp[i], db -= dout[i] * inp0[i];
    const auto got = on_any_threads([&](Cpu& cpu) {
        Guarded dinp(inp.size()), dinp0(inp.size()), got_da(1, 100), got_db(1, 200);
        residual_mix_backward<float>(cpu, dinp, dinp0, got_da, got_db, dout.data(), inp.data(), inp0.data(), &a, &b, -1,
                                     false, n);
        return std::vector{got_da.get(), got_db.get(), dinp.get(), dinp0.get()};
    });
    check_equal("da", got[0], {float(da)});
    check_equal("db", got[1], {float(db)});
    Floats dinp = dout, dinp0 = dout;
    for (float& x : dinp) x *= 2;
    for (float& x : dinp0) x *= -3;
    check_equal("dinp", got[2], dinp);
    check_equal("dinp0", got[3], dinp0);
}

TEST_CASE("residual_mix_rmsnorm_forward is its three ops, bit for bit", "[residual_mix]") {
    const auto [N, C] = GENERATE(table<int, int>({{1, 1}, {3, 7}, {5, 100}, {2, 1536}}));
    const bool has_a = GENERATE(true, false);
    INFO(N << " x " << C);
    const auto n = size_t(N * C);
    const Floats inp1 = randn(n, 1), inp2 = randn(n, 2), inp0 = randn(n, 3);
    const float a = 1.125f, b = 0.3f, eps = 0x1p-23f;
    const float* a_or_null = has_a ? &a : nullptr;
    const auto got = on_any_threads([&](Cpu& cpu) {
        Guarded residual(n), mixed(n), out(n), rstd{size_t(N)};
        residual_mix_rmsnorm_forward<float>(cpu, residual, mixed, out, rstd, inp1.data(), inp2.data(), inp0.data(),
                                            a_or_null, &b, N, C, eps);
        return std::vector{residual.get(), mixed.get(), out.get(), rstd.get()};
    });
    Cpu cpu(1);
    Floats residual(n);
    for (size_t i = 0; i < n; i++) residual[i] = inp1[i] + inp2[i];
    Guarded mixed(n), out(n), rstd{size_t(N)};
    residual_mix_forward<float>(cpu, mixed, residual.data(), inp0.data(), a_or_null, &b, 1, int64_t(n));
    rmsnorm_forward<float>(cpu, out.data(), rstd, mixed, nullptr, N, C, eps);
    check_equal("residual", got[0], residual);
    check_equal("mixed", got[1], mixed.get());
    check_equal("out", got[2], out.get());
    check_equal("rstd", got[3], rstd.get());
}

TEST_CASE("residual_mix: a NaN spoils what it is part of and nothing else", "[residual_mix]") {
    const int64_t n = 100, at = GENERATE(0, 15, 96, 99);
    Floats inp = randn(size_t(n), 1);
    inp[size_t(at)] = std::nanf("");
    const Floats inp0 = randn(size_t(n), 2), dout = randn(size_t(n), 3);
    const float a = 1, b = 0.5f;
    Cpu cpu(2);
    Guarded out{size_t(n)}, dinp{size_t(n)}, dinp0{size_t(n)}, da(1, 0), db(1, 0);
    residual_mix_forward<float>(cpu, out, inp.data(), inp0.data(), &a, &b, 1, n);
    residual_mix_backward<float>(cpu, dinp, dinp0, da, db, dout.data(), inp.data(), inp0.data(), &a, &b, 1, false, n);
    CHECK(std::isnan(out.get()[size_t(at)]));
    CHECK(count_not_finite(out.get()) == 1);
    CHECK(count_not_finite(dinp.get()) + count_not_finite(dinp0.get()) + count_not_finite(db.get()) == 0);
    CHECK(all_nan(da.get()));
    CHECK(contains(error_of([&] {
                       residual_mix_backward<float>(cpu, dinp, dinp0, nullptr, db, dout.data(), inp.data(), inp0.data(),
                                                    &a, &b, 1, false, n);
                   }),
                   "internal"));
}

TEST_CASE("residual_mix in bf16 rounds each result once", "[residual_mix]") {
    const auto [N, C] = GENERATE(table<int64_t, int64_t>({{1, 1}, {3, 33}, {17, 768}}));
    const bool has_a = GENERATE(true, false), adds = GENERATE(true, false);
    INFO(N << " x " << C);
    check_rounds_once([N = N, C = C, has_a, adds]<class T>(Cpu& cpu) {
        const int64_t count = N * C;
        const size_t n = size_t(count);
        const auto inp = bf16_randn<T>(count, 1), inp0 = bf16_randn<T>(count, 2), dout = bf16_randn<T>(count, 3);
        const auto factors = bf16_randn<T>(2, 4);
        const T *a = has_a ? &factors[0] : nullptr, *b = &factors[1];
        Guarded<T> out(n), dinp(n), dinp0(rounded<bf16>(randn(n, 5))), residual(n), mixed(n), fused(n), unfused(n),
            norm(n);
        Guarded da(Floats{1}), db(Floats{2}), rstd{size_t(N)};
        residual_mix_forward(cpu, out.data(), inp.data(), inp0.data(), a, b, -1.f, count);
        residual_mix_backward(cpu, dinp.data(), dinp0.data(), has_a ? da.data() : nullptr, db, dout.data(), inp.data(),
                              inp0.data(), a, b, -1.f, adds, count);
        residual_mix_rmsnorm_forward(cpu, residual.data(), mixed.data(), fused.data(), rstd, inp.data(), dout.data(),
                                     inp0.data(), a, b, N, C, 1e-5f);
        // Each of the fused op's three results is what the next one sees, rounded as it is.
        residual_mix_forward(cpu, unfused.data(), residual.data(), inp0.data(), a, b, 1.f, count);
        check_equal("mixed", mixed.get(), unfused.get());
        rmsnorm_forward(cpu, norm.data(), rstd, mixed.data(), nullptr, N, C, 1e-5f);
        check_equal("norm", fused.get(), norm.get());
        return std::vector{stored(out), stored(dinp), stored(dinp0), da.get(), db.get(), stored(residual)};
    });
}
