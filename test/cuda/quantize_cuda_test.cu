// Quantization to FP8 on a GPU has the CPU's bits.
#include "llmc/cuda/quantize.cuh"
#include <bit>
#include "llmc/cpu/quantize.h"
#include "test/cuda/mx_testing.h"  // HostMx, DeviceMx
#include "test/cuda_testing.h"

namespace {

Floats bits_of(const auto& codes) {
    Floats bits;
    for (const auto code : codes) bits.push_back(code.bits);
    return bits;
}

template <class Fp8, class T>
void check_against_cpu(int64_t rows, int64_t cols, bool with_transposed, const Floats& inp) {
    INFO(rows << " x " << cols << (with_transposed ? " with a transposed copy" : ""));
    const size_t n = inp.size();
    Cpu cpu;
    Floats amax(1), inverse(1), sums = randn(size_t(cols), 2);
    const Floats start = sums;
    std::vector<Fp8> out(n), transposed(n);
    absmax(cpu, amax.data(), inp.data(), int64_t(n));
    quantize(cpu, out.data(), transposed.data(), inverse.data(), inp.data(), amax.data(), rows, cols, sums.data());
    Cuda cuda;
    const OnDevice<T> d_inp(cuda, inp);
    OnDevice<Fp8> d_out(cuda, n), d_transposed(cuda, n);
    OnDevice<float> d_amax(cuda, 1), d_inverse(cuda, 1);
    absmax(cuda, d_amax.data, d_inp.data, int64_t(n));
    quantize(cuda, d_out.data, with_transposed ? d_transposed.data : nullptr, d_inverse.data, d_inp.data, d_amax.data,
             rows, cols);
    CHECK(same_bits(d_amax.get(), amax));
    CHECK(same_bits(d_inverse.get(), inverse));
    check_equal("out", bits_of(d_out.values()), bits_of(out));
    if (with_transposed) check_equal("out_transposed", bits_of(d_transposed.values()), bits_of(transposed));
    if constexpr (std::is_same_v<Fp8, e4m3>) {
        if (rows % 16) return;
        OnDevice<e4m3> alone(cuda, n);
        transpose_codes(cuda, alone.data, d_out.data, rows, cols);
        check_equal("transpose_codes", bits_of(alone.values()), bits_of(transposed));
        return;  // sums are of gradients
    }

    const auto again = twice_the_same([&] {
        OnDevice<Fp8> other(cuda, n), other_transposed(cuda, n);
        OnDevice<float> d_sums(cuda, start);
        quantize(cuda, other.data, with_transposed ? other_transposed.data : nullptr, d_inverse.data, d_inp.data,
                 d_amax.data, rows, cols, d_sums.data);
        check_equal("out beside sums", bits_of(other.values()), bits_of(out));
        return std::vector<Floats>{d_sums.get()};
    });
    // Sums of `rows` terms in f32 on both sides, in other orders: half a unit each.
    check_close("column_sums", again[0], sums, (double(rows) / 2 + 4) * kEpsF32);
}

}  // namespace

TEMPLATE_TEST_CASE("quantize on a GPU gives the CPU's codes", "[quantize]" ON_DEVICE, float, bf16) {
    using T = TestType;
    const auto [rows, cols] = GENERATE(table<int, int>(
        {{16, 16}, {16, 128}, {128, 16}, {128, 128}, {112, 144}, {144, 112}, {272, 400}, {1, 16}, {3, 2064}}));
    const bool with_transposed = rows % 16 == 0 ? GENERATE(true, false) : false;
    const Floats inp = rounded<T>(randn(size_t(rows * cols), 1));
    check_against_cpu<e4m3, T>(rows, cols, with_transposed, inp);
    check_against_cpu<e5m2, T>(rows, cols, with_transposed, inp);
}

TEMPLATE_TEST_CASE("absmax on a GPU finds the largest magnitude wherever it lies", "[quantize]" ON_DEVICE, float,
                   bf16) {
    using T = TestType;
    Cuda cuda;
    // One block, several, and more than the grid has, so that blocks come round again; ends within a pack.
    const size_t around = size_t(cuda.num_sms) * kAbsmaxBlocksPerSm * kAbsmaxThreads * Pack<T>::size;
    for (const size_t n : {size_t(1), size_t(3), size_t(4096), size_t(20001), around + 777})
        for (const size_t at : {size_t(0), n / 2, n - 1}) {
            INFO(at << " of " << n);
            Floats inp(n, 0.5f);
            inp[at] = -9;
            const OnDevice<T> d_inp(cuda, inp);
            OnDevice<float> amax(cuda, 1);
            absmax(cuda, amax.data, d_inp.data, int64_t(n));
            CHECK(amax.get()[0] == 9);
        }
}

TEMPLATE_TEST_CASE("quantizing an activation on a GPU has the bits of the activation quantized", "[quantize]" ON_DEVICE,
                   float, bf16) {
    using T = TestType;
    const int64_t rows = 144, cols = 272, n = rows * cols;
    for (const Activation activation : {Activation::gelu, Activation::relu_squared, Activation::swiglu}) {
        INFO("activation " << int(activation));
        Cuda cuda;
        Floats values = randn(size_t(2 * n), 1);  // SwiGLU reads all of it; its largest number is the last one
        values[size_t(2 * n - cols) - 1] = values[size_t(2 * n) - 1] = 5;
        const OnDevice<T> inp(cuda, rounded<T>(values));
        OnDevice<T> stored(cuda, size_t(n));
        if (activation == Activation::gelu)
            gelu_forward(cuda, stored.data, inp.data, n);
        else if (activation == Activation::swiglu)
            swiglu_forward(cuda, stored.data, inp.data, rows, cols);
        else
            relu_squared_forward(cuda, stored.data, inp.data, n);
        const auto codes_of = [&](const T* from, Activation how) {
            OnDevice<e4m3> out(cuda, size_t(n)), transposed(cuda, size_t(n));
            OnDevice<float> amax(cuda, 1), inverse(cuda, 1);
            absmax(cuda, amax.data, from, n, how, cols);
            quantize(cuda, out.data, transposed.data, inverse.data, from, amax.data, rows, cols, nullptr, how);
            std::vector results{amax.get(), inverse.get(), bits_of(out.values()), bits_of(transposed.values())};
            const OnDevice<float> delayed(cuda, Floats{1.25f});
            OnDevice<float> noted(cuda, Floats{0});
            quantize<e4m3, T>(cuda, out.data, transposed.data, inverse.data, from, delayed.data, rows, cols, nullptr,
                              how, nullptr, {noted.data});
            for (const Floats& more : {noted.get(), bits_of(out.values()), bits_of(transposed.values())})
                results.push_back(more);
            return results;
        };
        const auto fused = codes_of(inp.data, activation), separate = codes_of(stored.data, Activation::none);
        for (size_t i = 0; i < fused.size(); i++) check_equal("result", fused[i], separate[i]);
    }
}

// With notes: of inp as it is, of an activation, and of an activation's gradient with column sums.
TEMPLATE_TEST_CASE("with a delayed scale quantize on a GPU gives the CPU's codes and notes", "[quantize]" ON_DEVICE,
                   float, bf16) {
    using T = TestType;
    const auto [rows, cols] = GENERATE(table<int, int>({{16, 16}, {144, 272}, {256, 128}}));
    const int64_t n = int64_t(rows) * cols;
    Floats inp = rounded<T>(randn(size_t(n), 1));
    inp[size_t(n) / 2] = -3, inp[size_t(n) - 1] = std::numeric_limits<float>::infinity();
    const Floats amax{1.25f};
    for (const bool notes_more : {false, true}) {
        Cpu cpu;
        Floats inverse(1), noted{notes_more ? 1e30f : 0.f};
        uint64_t saturated = 3;
        std::vector<e4m3> out(inp.size()), transposed(inp.size());
        quantize<e4m3, float>(cpu, out.data(), transposed.data(), inverse.data(), inp.data(), amax.data(), rows, cols,
                              nullptr, Activation::none, nullptr, {noted.data(), &saturated});
        Cuda cuda;
        const OnDevice<T> d_inp(cuda, inp);
        OnDevice<e4m3> d_out(cuda, inp.size()), d_transposed(cuda, inp.size());
        OnDevice<float> d_inverse(cuda, 1), d_amax(cuda, amax), d_noted(cuda, Floats{notes_more ? 1e30f : 0.f});
        OnDevice<uint64_t> d_saturated(cuda, std::vector<uint64_t>{3});
        quantize<e4m3, T>(cuda, d_out.data, d_transposed.data, d_inverse.data, d_inp.data, d_amax.data, rows, cols,
                          nullptr, Activation::none, nullptr, {d_noted.data, d_saturated.data});
        check_equal("out", bits_of(d_out.values()), bits_of(out));
        check_equal("out_transposed", bits_of(d_transposed.values()), bits_of(transposed));
        CHECK(same_bits(d_noted.get(), noted));
        CHECK(d_saturated.values()[0] == saturated);
        CHECK(same_bits(d_inverse.get(), inverse));
    }
}

TEMPLATE_TEST_CASE("quantizing an activation's gradient on a GPU has the bits of the gradient quantized",
                   "[quantize]" ON_DEVICE, float, bf16) {
    using T = TestType;
    for (const Activation activation : {Activation::gelu, Activation::relu_squared, Activation::swiglu}) {
        INFO("activation " << int(activation));
        const bool has_sums = activation != Activation::swiglu;
        const int64_t rows = 144, cols = has_sums ? 272 : 288, n = rows * cols;  // of SwiGLU two halves of 144
        Cuda cuda;
        Floats values = randn(size_t(n), 2);
        // The largest number of all in one half of SwiGLU's gradient or the other: by a gate among the ups, by an up
        // among the gates.
        if (!has_sums) values[std::is_same_v<T, float> ? 20 : 20 + size_t(cols / 2)] = 1000;
        const OnDevice<T> dout(cuda, rounded<T>(randn(size_t(n), 1))), hidden(cuda, rounded<T>(values));
        OnDevice<T> gradient(cuda, size_t(n));
        if (activation == Activation::gelu)
            gelu_backward(cuda, gradient.data, dout.data, hidden.data, n);
        else if (activation == Activation::swiglu)
            swiglu_backward(cuda, gradient.data, dout.data, hidden.data, rows, cols / 2);
        else
            relu_squared_backward(cuda, gradient.data, dout.data, hidden.data, n);
        const OnDevice<float> amax(cuda, Floats{2});
        const auto results = [&](const T* from, Activation how, const T* of, bool with_sums) {
            OnDevice<e5m2> out(cuda, size_t(n)), transposed(cuda, size_t(n));
            OnDevice<float> inverse(cuda, 1), noted(cuda, Floats{0}), sums(cuda, randn(size_t(cols), 3));
            OnDevice<uint64_t> saturated(cuda, std::vector<uint64_t>{0});
            quantize<e5m2, T>(cuda, out.data, transposed.data, inverse.data, from, amax.data, rows, cols,
                              with_sums ? sums.data : nullptr, how, of, {noted.data, saturated.data});
            CHECK(saturated.values()[0] > 0);
            return std::vector{bits_of(out.values()), bits_of(transposed.values()), noted.get(), sums.get(),
                               Floats{float(saturated.values()[0])}};
        };
        for (const bool with_sums : {true, false}) {
            if (with_sums && !has_sums) continue;
            const auto fused = results(dout.data, activation, hidden.data, with_sums),
                       separate = results(gradient.data, Activation::none, nullptr, with_sums);
            for (size_t i = 0; i < fused.size(); i++) check_equal("result", fused[i], separate[i]);
        }
    }
}

TEST_CASE("a history on a GPU is the CPU's", "[quantize]" ON_DEVICE) {
    constexpr int64_t kTensors = 1030, kLength = 3, kRanks = 2;  // more tensors than threads
    Cpu cpu;
    Cuda cuda;
    Floats want(size_t(AmaxState::size_of(kTensors, kLength)), 0);
    OnDevice<float> state(cuda, want);
    for (int step = 0; step < 5; step++) {
        Floats seen = randn(size_t(kRanks * kTensors), uint64_t(step));
        for (float& x : seen) x = std::fabs(x);
        seen[size_t(step)] = std::numeric_limits<float>::quiet_NaN();
        for (int64_t r = 0; r < kRanks; r++) seen[size_t((r + 1) * kTensors - 1)] = 0;
        const OnDevice<float> d_seen(cuda, seen);
        update_amax(cpu, {want.data(), kTensors, kLength}, seen.data(), kRanks);
        update_amax(cuda, {state.data, kTensors, kLength}, d_seen.data, kRanks);
        check_equal("state", state.get(), want);
    }
    CHECK(want[2 + kTensors - 1] == kNoAmax);
}

// The emulator's kernel is compiled without the instruction, which has a rule of its own for what is not finite.
TEMPLATE_TEST_CASE("quantize on a GPU passes on what is not finite", "[quantize]" ON_DEVICE, e4m3, e5m2) {
    for (const float strange : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
        Floats inp = randn(16 * 32, 1);
        inp[77] = strange;
        Cuda cuda;
        const OnDevice<float> d_inp(cuda, inp);
        OnDevice<TestType> out(cuda, inp.size()), transposed(cuda, inp.size());
        OnDevice<float> amax(cuda, 1), inverse(cuda, 1);
        absmax(cuda, amax.data, d_inp.data, int64_t(inp.size()));
        quantize(cuda, out.data, transposed.data, inverse.data, d_inp.data, amax.data, 16, 32);
        CHECK(!std::isfinite(inverse.get()[0]));
        for (const float x : out.get()) CHECK(!std::isfinite(x * inverse.get()[0]));
    }
}

TEST_CASE("quantize on a GPU refuses rows that are not a multiple of 16 bytes", "[quantize]" ON_DEVICE) {
    Cuda cuda;
    OnDevice<e4m3> out(cuda, 16 * 24), transposed(cuda, 16 * 24);
    OnDevice<float> inp(cuda, 16 * 24), amax(cuda, 1), inverse(cuda, 1);
    CHECK(error_of([&] { quantize<e4m3>(cuda, out.data, nullptr, inverse.data, inp.data, amax.data, 16, 24); }) ==
          "2: quantize of (16, 24): fp8 needs multiples of 16");
    CHECK(error_of([&] { quantize(cuda, out.data, transposed.data, inverse.data, inp.data, amax.data, 24, 16); }) ==
          "2: quantize of (24, 16): fp8 needs multiples of 16");
    CHECK(error_of([&] {
              quantize<e4m3, float>(cuda, out.data, nullptr, inverse.data, inp.data, amax.data, 4, 48, nullptr,
                                    Activation::swiglu, inp.data, {amax.data});
          }) == "2: quantize of (4, 24): fp8 needs multiples of 16");
}

TEMPLATE_TEST_CASE("quantize_mx on a GPU gives the CPU's codes and scales", "[quantize]" ON_DEVICE, float, bf16) {
    using T = TestType;
    const auto [rows, cols] = GENERATE(table<int, int>({{32, 32}, {128, 128}, {96, 160}, {288, 32}, {160, 416}}));
    INFO(rows << " x " << cols);
    const size_t n = size_t(rows * cols);
    Floats inp = rounded<T>(randn(n, 1));
    for (size_t i = 0; i < 32; i++) inp[i] = 0;
    inp[n / 2] = 1e30f, inp[n - 1] = std::numeric_limits<float>::infinity(),
            inp[n / 3] = std::numeric_limits<float>::quiet_NaN();
    Cpu cpu;
    Cuda cuda;
    HostMx want(rows, cols);
    const Floats start = randn(size_t(cols), 2);
    quantize_mx(cpu, want.view(), inp.data());
    const OnDevice<T> d_inp(cuda, inp);
    for (const bool with_sums : {false, true}) {
        DeviceMx got(cuda, HostMx(rows, cols));
        OnDevice<float> sums(cuda, start);
        quantize_mx(cuda, got.view(), d_inp.data, with_sums ? sums.data : nullptr);
        const std::vector<Floats> bits = got.bits(), want_bits = want.bits();
        for (size_t i = 0; i < bits.size(); i++) check_equal("output " + std::to_string(i), bits[i], want_bits[i]);
    }
    inp[n / 2] = inp[n - 1] = inp[n / 3] = 0;
    const OnDevice<T> finite(cuda, inp);
    Floats want_sums = start;
    quantize_mx(cpu, want.view(), inp.data(), want_sums.data());
    const auto got_sums = twice_the_same([&] {
        DeviceMx got(cuda, HostMx(rows, cols));
        OnDevice<float> sums(cuda, start);
        quantize_mx(cuda, got.view(), finite.data, sums.data);
        return std::vector<Floats>{sums.get()};
    });
    // As above: `rows` terms in f32 on both sides, in other orders.
    check_close("column_sums", got_sums[0], want_sums, (double(rows) / 2 + 4) * kEpsF32);
}

TEMPLATE_TEST_CASE("quantize_mx of an activation on a GPU has the bits of the activation quantized",
                   "[quantize]" ON_DEVICE, float, bf16) {
    using T = TestType;
    const int64_t rows = 160, cols = 288, n = rows * cols;
    Cuda cuda;
    const OnDevice<T> inp(cuda, rounded<T>(randn(size_t(2 * n), 1)));
    OnDevice<T> stored(cuda, size_t(n));
    for (const Activation activation : {Activation::gelu, Activation::relu_squared, Activation::swiglu}) {
        INFO("activation " << int(activation));
        if (activation == Activation::gelu)
            gelu_forward(cuda, stored.data, inp.data, n);
        else if (activation == Activation::swiglu)
            swiglu_forward(cuda, stored.data, inp.data, rows, cols);
        else
            relu_squared_forward(cuda, stored.data, inp.data, n);
        DeviceMx fused(cuda, HostMx(rows, cols)), separate(cuda, HostMx(rows, cols));
        quantize_mx(cuda, fused.view(), inp.data, nullptr, activation);
        quantize_mx(cuda, separate.view(), stored.data);
        CHECK(fused.bits() == separate.bits());
    }
}
