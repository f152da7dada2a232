// Quantization to FP8: PyTorch's maximum, scale and values, all of them exactly.
#include "llmc/cpu/quantize.h"
#include "test/cpu/fp8_testing.h"  // HostMx
#include "test/fixture.h"          // Fixture
#include "test/op_testing.h"       // on_any_threads, check_equal
#include "test/testing.h"

static constexpr float kNanF = std::numeric_limits<float>::quiet_NaN();

// amax, the inverse scale, the codes and the transposed ones, as numbers, with a mark after each.
template <class Fp8, class T>
__attribute__((noinline)) static std::vector<Floats> quantized(Cpu& cpu, const std::vector<T>& inp, int64_t rows,
                                                               int64_t cols) {
    constexpr Fp8 kMark{0xA5};
    std::vector<Fp8> out(inp.size() + 1, kMark), alone = out, transposed = out;
    Guarded amax(1), inverse(1);
    absmax(cpu, amax.data(), inp.data(), int64_t(inp.size()));
    quantize(cpu, out.data(), transposed.data(), inverse.data(), inp.data(), amax.data(), rows, cols);
    quantize<Fp8>(cpu, alone.data(), nullptr, inverse.data(), inp.data(), amax.data(), rows, cols);
    std::vector<Floats> results;
    results.push_back(amax.get());
    results.push_back(inverse.get());
    for (const std::vector<Fp8>* codes : {&out, &transposed, &alone}) {
        Floats bits;
        for (const Fp8 code : *codes) bits.push_back(code.bits);
        REQUIRE(bits.back() == float(kMark.bits));
        bits.pop_back();
        results.push_back(bits);
    }
    return results;
}

template <class Fp8>
static std::string name() {
    return std::is_same_v<Fp8, e4m3> ? "e4m3." : "e5m2.";
}

TEMPLATE_TEST_CASE("quantize agrees with PyTorch in every bit", "[quantize]", e4m3, e5m2) {
    const Fixture f("quantize");
    const auto [rows, cols] = GENERATE(table<int, int>({{1, 1}, {3, 7}, {5, 33}, {16, 48}, {17, 16}, {40, 20}}));
    const std::string shape = format("%dx%d.", rows, cols), want = "want." + shape + name<TestType>();
    INFO(shape);
    const Floats inp = f.floats(shape + "inp");
    const auto got = on_any_threads([&](Cpu& cpu) { return quantized<TestType>(cpu, inp, rows, cols); });
    check_equal("amax", got[0], f.floats(want + "amax"));
    check_equal("inverse_scale", got[1], f.floats(want + "inverse_scale"));
    Floats codes, transposed(inp.size());
    for (const int32_t code : f.ints(want + "codes")) codes.push_back(float(code));
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < cols; c++) transposed[size_t(c * rows + r)] = codes[size_t(r * cols + c)];
    check_equal("out", got[2], codes);
    check_equal("out_transposed", got[3], transposed);
    check_equal("out alone", got[4], codes);
    if (!std::is_same_v<TestType, e4m3>) return;
    const auto again = on_any_threads([&](Cpu& cpu) {
        std::vector<e4m3> from, to(inp.size());
        for (const float code : codes) from.push_back({uint8_t(code)});
        transpose_codes(cpu, to.data(), from.data(), rows, cols);
        Floats bits;
        for (const e4m3 code : to) bits.push_back(code.bits);
        return std::vector<Floats>{bits};
    });
    check_equal("transpose_codes", again[0], transposed);
}

TEST_CASE("absmax finds the largest magnitude wherever it lies", "[quantize]") {
    const int64_t n = 50001;  // several chunks, and a part of one
    Floats inp = randn(size_t(n), 1);
    for (const int64_t at : {int64_t(0), int64_t(16383), int64_t(16384), int64_t(40000), n - 1}) {
        Floats one = inp;
        one[size_t(at)] = -9;
        const auto got = on_any_threads([&](Cpu& cpu) {
            Guarded amax(1);
            absmax(cpu, amax.data(), one.data(), n);
            return std::vector<Floats>{amax.get()};
        });
        CHECK(got[0][0] == 9);
    }
}

TEMPLATE_TEST_CASE("quantize uses the whole range, of bf16 as of float", "[quantize]", e4m3, e5m2) {
    std::vector<bf16> inp;
    Floats wide;
    for (const float x : {3.f, -1.5f, 0.f, 0.75f, -3.f, 1e-6f})
        inp.push_back(to_bf16(x)), wide.push_back(to_float(inp.back()));
    Cpu cpu(1);
    const auto got = quantized<TestType>(cpu, inp, 2, 3), same = quantized<TestType>(cpu, wide, 2, 3);
    for (size_t i = 0; i < got.size(); i++) check_equal("output", got[i], same[i]);
    CHECK(to_float(TestType{uint8_t(got[2][0])}) == TestType::kMax);
    CHECK(to_float(TestType{uint8_t(got[2][1])}) == -TestType::kMax / 2);
    CHECK(to_float(TestType{uint8_t(got[2][4])}) == -TestType::kMax);
}

TEST_CASE("quantize adds up columns before it rounds them", "[quantize]") {
    const auto [rows, cols] = GENERATE(table<int, int>({{1, 16}, {33, 48}, {100, 16}}));
    const Floats inp = randn(size_t(rows * cols), 1), start = randn(size_t(cols), 2);
    const auto got = on_any_threads([&](Cpu& cpu) {
        std::vector<e5m2> out(inp.size());
        Guarded amax(1), inverse(1), sums(start), want(start);
        absmax(cpu, amax.data(), inp.data(), int64_t(inp.size()));
        quantize<e5m2>(cpu, out.data(), nullptr, inverse.data(), inp.data(), amax.data(), rows, cols, sums.data());
        add_column_sums<float>(cpu, want.data(), inp.data(), rows, cols);
        return std::vector{sums.get(), want.get()};
    });
    check_equal("column_sums", got[0], got[1]);
}

TEMPLATE_TEST_CASE("quantizing an activation has the bits of the activation quantized", "[quantize]", float, bf16) {
    using T = TestType;
    const auto [rows, cols] = GENERATE(table<int, int>({{1, 16}, {33, 144}, {70, 1008}}));
    const auto n = int64_t(rows) * cols;
    std::vector<T> inp, stored(static_cast<size_t>(n));
    for (const float x : randn(2 * stored.size(), 1)) inp.push_back(rounded_value<T>(x));  // SwiGLU reads all of it
    for (const Activation activation : {Activation::gelu, Activation::relu_squared, Activation::swiglu}) {
        INFO(rows << " x " << cols << ", activation " << int(activation));
        const auto got = on_any_threads([&](Cpu& cpu) {
            std::vector<Floats> results;
            for (const bool fused : {true, false}) {
                if (activation == Activation::gelu)
                    gelu_forward(cpu, stored.data(), inp.data(), n);
                else if (activation == Activation::swiglu)
                    swiglu_forward(cpu, stored.data(), inp.data(), rows, cols);
                else
                    relu_squared_forward(cpu, stored.data(), inp.data(), n);
                const T* const from = fused ? inp.data() : stored.data();
                const Activation how = fused ? activation : Activation::none;
                std::vector<e4m3> out(stored.size()), transposed(stored.size());
                Guarded amax(1), inverse(1), noted(Floats{0});
                absmax(cpu, amax.data(), from, n, how, cols);
                Floats all{amax.get()[0]};
                for (const bool notes : {true, false}) {
                    quantize<e4m3, T>(cpu, out.data(), transposed.data(), inverse.data(), from, amax.data(), rows, cols,
                                      nullptr, how, nullptr, {notes ? noted.data() : nullptr});
                    all.push_back(notes ? noted.get()[0] : inverse.get()[0]);
                }
                for (const auto* codes : {&out, &transposed})
                    for (const e4m3 code : *codes) all.push_back(float(code.bits));
                results.push_back(all);
            }
            return results;
        });
        check_equal("codes", got[0], got[1]);
    }
}

TEMPLATE_TEST_CASE("quantize passes on what is not finite", "[quantize]", e4m3, e5m2) {
    Floats inp = randn(64, 1);
    Cpu cpu(2);
    inp[40] = kNanF;
    inp[50] = std::numeric_limits<float>::infinity();
    auto got = quantized<TestType>(cpu, inp, 4, 16);
    CHECK(std::isnan(got[0][0]));
    CHECK(std::isnan(got[1][0]));
    for (const float code : got[2]) CHECK(std::isnan(to_float(TestType{uint8_t(code)})));
    inp[40] = 0;
    got = quantized<TestType>(cpu, inp, 4, 16);
    CHECK(std::isinf(got[1][0]));
    for (const float code : got[2]) CHECK(!std::isfinite(to_float(TestType{uint8_t(code)}) * got[1][0]));
}

// The codes are those of the numbers held within the range that amax gives, by rounding one at a time.
TEMPLATE_TEST_CASE("with a delayed scale quantize keeps to its range, counts what is beyond and notes the largest",
                   "[quantize]", e4m3, e5m2) {
    const int64_t rows = 33, cols = 1040, n = rows * cols;  // three chunks
    Floats inp = randn(size_t(n), 1);
    const float amax = 1.5f, most = 7.25f, scale = TestType::kMax / amax;
    inp[20000] = -most, inp[5] = amax, inp[6] = -amax, inp[7] = std::nextafter(amax, 2.f), inp[8] = -0.f;
    uint64_t beyond = 0;
    Floats want;
    for (const float x : inp) {
        beyond += std::fabs(x) > amax;
        want.push_back(to_fp8<TestType>(std::clamp(x, -amax, amax) * scale).bits);
    }
    REQUIRE((beyond > 1000 && beyond < 10000));
    const auto got = on_any_threads([&](Cpu& cpu) {
        std::vector<TestType> out(inp.size()), transposed(inp.size());
        Guarded inverse(1), noted(Floats{most / 2}), kept(Floats{2 * most});
        uint64_t saturated = 7;
        const auto run = [&](TestType* copy, const QuantizeNotes& notes) {
            quantize<TestType, float>(cpu, out.data(), copy, inverse.data(), inp.data(), &amax, rows, cols, nullptr,
                                      Activation::none, nullptr, notes);
        };
        run(nullptr, {kept.data()});
        run(transposed.data(), {noted.data(), &saturated});
        Floats codes, by_rows;
        for (const TestType x : out) codes.push_back(x.bits);
        for (int64_t r = 0; r < rows; r++)
            for (int64_t c = 0; c < cols; c++) by_rows.push_back(transposed[size_t(c * rows + r)].bits);
        return std::vector<Floats>{codes, by_rows, noted.get(), kept.get(), inverse.get(), {float(saturated)}};
    });
    check_equal("out", got[0], want);
    check_equal("out_transposed", got[1], want);
    CHECK(got[2][0] == most);
    CHECK(got[3][0] == 2 * most);
    CHECK(got[4][0] == 1 / scale);
    CHECK(got[5][0] == float(7 + beyond));
}

// Otherwise an infinity would become a number, and a run would go on that must not.
TEMPLATE_TEST_CASE("with a delayed scale what is not finite is NaN, and noted as it is", "[quantize]", e4m3, e5m2) {
    Cpu cpu(2);
    for (const float strange : {kNanF, std::numeric_limits<float>::infinity()}) {
        Floats inp = randn(64, 1);
        inp[40] = -strange;
        const float amax = 100;
        Guarded inverse(1), noted(Floats{0});
        std::vector<TestType> out(64);
        quantize<TestType, float>(cpu, out.data(), nullptr, inverse.data(), inp.data(), &amax, 4, 16, nullptr,
                                  Activation::none, nullptr, {noted.data()});
        for (size_t i = 0; i < out.size(); i++) CHECK(std::isnan(to_float(out[i])) == (i == 40));
        CHECK(same_bits(noted.get(), Floats{std::fabs(strange)}));
    }
}

TEMPLATE_TEST_CASE("quantizing an activation's gradient has the bits of the gradient quantized", "[quantize]", float,
                   bf16) {
    using T = TestType;
    const int64_t rows = 70, cols = 272, n = rows * cols;
    const auto values = [](const Floats& from) {
        std::vector<T> all;
        for (const float x : from) all.push_back(rounded_value<T>(x));
        return all;
    };
    const std::vector<T> dout = values(randn(size_t(n), 1)), hidden = values(randn(size_t(n), 2));
    const Floats start = randn(size_t(cols), 3);
    const float amax = 2;
    for (const Activation activation : {Activation::gelu, Activation::relu_squared, Activation::swiglu}) {
        INFO("activation " << int(activation));
        const auto got = on_any_threads([&](Cpu& cpu) {
            std::vector<T> gradient(dout.size());
            const bool has_sums = activation != Activation::swiglu;
            if (activation == Activation::gelu)
                gelu_backward(cpu, gradient.data(), dout.data(), hidden.data(), n);
            else if (activation == Activation::swiglu)
                swiglu_backward(cpu, gradient.data(), dout.data(), hidden.data(), rows, cols / 2);
            else
                relu_squared_backward(cpu, gradient.data(), dout.data(), hidden.data(), n);
            std::vector<Floats> results;
            for (const bool fused : {true, false}) {
                std::vector<e5m2> out(dout.size()), transposed(dout.size());
                Guarded inverse(1), sums(start), noted(Floats{0});
                uint64_t saturated = 0;
                quantize<e5m2, T>(cpu, out.data(), transposed.data(), inverse.data(), (fused ? dout : gradient).data(),
                                  &amax, rows, cols, has_sums ? sums.data() : nullptr,
                                  fused ? activation : Activation::none, fused ? hidden.data() : nullptr,
                                  {noted.data(), &saturated});
                Floats all{noted.get()[0], float(saturated)};
                for (const auto* codes : {&out, &transposed})
                    for (const e5m2 code : *codes) all.push_back(float(code.bits));
                for (const float sum : sums.get()) all.push_back(sum);
                results.push_back(all);
            }
            return results;
        });
        check_equal("codes, sums and notes", got[0], got[1]);
        CHECK(got[0][1] > 0);
    }
}

TEST_CASE("a history keeps the largest magnitudes of so many steps, of all ranks", "[quantize]") {
    constexpr int64_t kTensors = 2, kLength = 3, kRanks = 2;
    const float infinity = std::numeric_limits<float>::infinity();
    struct Step {
        Floats seen;  // (ranks, tensors)
        Floats amax;  // wanted
    };
    const std::vector<Step> steps = {{{5, 0, 1, 0}, {5, kNoAmax}},     {{1, 0, 3, 2}, {5, 2}},
                                     {{2, 1, 2, 0.5f}, {5, 2}},        {{1, 0, 0, 0}, {3, 2}},
                                     {{0, 0, 1, 0}, {2, 1}},           {{kNanF, 4, 1, infinity}, {1, kNoAmax}},
                                     {{0, 3, 0, kNanF}, {1, kNoAmax}}, {{0, 7, 0, 0}, {kNoAmax, 7}}};
    Cpu cpu;
    Guarded memory(Floats(size_t(AmaxState::size_of(kTensors, kLength)), 0));
    const AmaxState state{memory.data(), kTensors, kLength};
    for (size_t i = 0; i < steps.size(); i++) {
        INFO("step " << i);
        Guarded seen(steps[i].seen);
        update_amax(cpu, state, seen.data(), kRanks);
        CHECK(Floats(state.amax(), state.amax() + kTensors) == steps[i].amax);
        CHECK(state.data[0] == float((i + 1) % kLength));
        CHECK(state.data[1] == float(std::min<size_t>(i + 1, kLength)));
        memory.get();
    }
}

TEST_CASE("quantize_mx agrees with PyTorch in every bit, and in where its scales lie", "[quantize]") {
    const Fixture f("quantize");
    const auto [rows, cols] = GENERATE(table<int, int>({{32, 160}, {160, 32}, {32, 32}}));
    const std::string shape = format("mx.%dx%d.", rows, cols), want = "want." + shape;
    INFO(shape);
    const Floats inp = f.floats(shape + "inp");
    const auto got = on_any_threads([&](Cpu& cpu) { return HostMx(cpu, inp, rows, cols).bits(); });
    const auto floats = [&](const std::string& name) {
        const Ints from = f.ints(want + name);
        return Floats(from.begin(), from.end());
    };
    check_equal("out", got[0], floats("codes"));
    check_equal("scales", got[1], floats("scales"));
    check_equal("out_transposed", got[2], floats("codes_transposed"));
    check_equal("transposed_scales", got[3], floats("scales_transposed"));
}

TEST_CASE("quantize_mx of an activation has the bits of the activation quantized, and sums columns", "[quantize]") {
    const int64_t rows = 64, cols = 96, n = rows * cols;
    Cpu cpu(2);
    std::vector<bf16> inp, stored(static_cast<size_t>(n));
    for (const float x : randn(size_t(2 * n), 1)) inp.push_back(to_bf16(x));
    for (const Activation activation : {Activation::gelu, Activation::relu_squared, Activation::swiglu}) {
        INFO("activation " << int(activation));
        if (activation == Activation::gelu)
            gelu_forward(cpu, stored.data(), inp.data(), n);
        else if (activation == Activation::swiglu)
            swiglu_forward(cpu, stored.data(), inp.data(), rows, cols);
        else
            relu_squared_forward(cpu, stored.data(), inp.data(), n);
        HostMx fused(rows, cols);
        quantize_mx(cpu, fused.view(), inp.data(), nullptr, activation);
        CHECK(fused.bits() == HostMx(cpu, stored, rows, cols).bits());
    }
    const Floats start = randn(size_t(cols), 2);
    Guarded sums(start), want(start);
    HostMx again(rows, cols);
    quantize_mx(cpu, again.view(), stored.data(), sums.data());
    add_column_sums(cpu, want.data(), stored.data(), rows, cols);
    CHECK(same_bits(sums.get(), want.get()));
}

TEST_CASE("in MX what is not finite makes NaN of its blocks, and only of them", "[quantize]") {
    Cpu cpu(1);
    for (const float strange : {kNanF, -std::numeric_limits<float>::infinity()}) {
        Floats inp = randn(64 * 64, 1);
        inp[40 * 64 + 7] = strange;
        HostMx x(cpu, inp, 64, 64);
        for (int64_t r = 0; r < 64; r++)
            for (int64_t c = 0; c < 64; c++) {
                const auto value = [&](const auto& codes, const auto& scales, int64_t row, int64_t col) {
                    return to_float(codes[size_t(row * 64 + col)]) *
                           to_float(scales[size_t(mx_scale_at(row, col, 64))]);
                };
                CHECK(std::isnan(value(x.data, x.scales, r, c)) == (r == 40 && c < 32));
                CHECK(std::isnan(value(x.transposed, x.transposed_scales, c, r)) == (c == 7 && r >= 32));
            }
    }
}

TEST_CASE("quantize_mx refuses parts of blocks", "[quantize]") {
    Cpu cpu(1);
    const Floats inp(48 * 64);
    for (const auto& [rows, cols] : {std::pair{48, 64}, {64, 48}})
        CHECK(error_of([&] { HostMx(cpu, inp, rows, cols); }) ==
              format("2: quantize_mx of (%d, %d): in MX tokens and channels must be multiples of 32", rows, cols));
}
