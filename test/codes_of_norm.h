// Checks that a norm fused with FP8 quantization yields the same bits as the norm followed by quantize().
#pragma once
#include "llmc/cuda/quantize.cuh"  // quantize
#include "test/cuda_testing.h"     // OnDevice

// forward(residual, out, mean, rstd) runs the norm on (N, C). It ignores the arguments that its norm lacks.
template <class T, class Forward>
void check_codes_of_norm(Cuda& cuda, int64_t N, int64_t C, Forward forward) {
    const auto n = size_t(N * C), rows = size_t(N);
    const OnDevice<float> amax(cuda, Floats{1.25f});
    const auto results = [&](bool fused, bool with_notes) {
        OnDevice<T> residual(cuda, Floats(n, 0)), out(cuda, n);
        OnDevice<float> mean(cuda, Floats(rows, 0)), rstd(cuda, rows), inverse(cuda, 1), noted(cuda, Floats{0.5f});
        OnDevice<uint64_t> saturated(cuda, std::vector<uint64_t>{3});
        OnDevice<e4m3> codes(cuda, n), transposed(cuda, n);
        const QuantizeNotes notes =
            with_notes ? QuantizeNotes{noted.data, saturated.data} : QuantizeNotes{noted.data, nullptr};
        const DelayedCodes to{codes.data, transposed.data, inverse.data, amax.data, notes};
        forward(residual.data, GemmInput<T>{out.data, nullptr, nullptr, fused ? to : DelayedCodes{}}, mean.data,
                rstd.data);
        if (!fused)
            quantize<e4m3, T>(cuda, codes.data, transposed.data, inverse.data, out.data, amax.data, N, C, nullptr,
                              Activation::none, nullptr, notes);
        if (with_notes) CHECK(saturated.values()[0] > 3 + n / 16);
        return std::vector{
            codes.get(),    transposed.get(), inverse.get(), noted.get(), Floats{float(saturated.values()[0])},
            residual.get(), mean.get(),       rstd.get()};
    };
    for (const bool with_notes : {true, false}) {
        const auto fused = results(true, with_notes), separate = results(false, with_notes);
        for (size_t i = 0; i < fused.size(); i++) {
            INFO("result " << i);
            CHECK(same_bits(fused[i], separate[i]));
        }
    }
}
