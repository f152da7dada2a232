/*
FP8 layers for tests: tensors quantized with the CPU op, and a layer of whole numbers with exact products.
*/
#pragma once
#include <algorithm>
#include <cmath>
#include <vector>
#include "llmc/base/fp8.h"
#include "llmc/cpu/quantize.h"
#include "llmc/cpu/transpose.h"
#include "test/op_testing.h"  // whole_numbers

template <class Fp8>
struct HostQuantized {
    std::vector<Fp8> data, transposed;
    float inverse_scale;
    int64_t rows, cols;

    HostQuantized(const Floats& x, int64_t rows, int64_t cols) : HostQuantized(rows, cols) {
        Cpu cpu(1);
        float amax;
        absmax(cpu, &amax, x.data(), rows * cols);
        quantize(cpu, data.data(), transposed.data(), &inverse_scale, x.data(), &amax, rows, cols);
    }
    // Numbers that the type represents exactly, and any inverse scale.
    HostQuantized(const Floats& x, int64_t rows, int64_t cols, float scale) : HostQuantized(rows, cols) {
        for (size_t i = 0; i < x.size(); i++) data[i] = to_fp8<Fp8>(x[i]);
        Cpu cpu(1);
        transpose(cpu, transposed.data(), data.data(), rows, cols);
        inverse_scale = scale;
    }
    Quantized<Fp8> view() const { return {data.data(), transposed.data(), &inverse_scale, rows, cols}; }

private:
    HostQuantized(int64_t rows, int64_t cols)
        : data(size_t(rows * cols)), transposed(size_t(rows * cols)), rows(rows), cols(cols) {}
};

// The memory of a tensor in MX, full of a mark that no scale has and that no op may leave.
struct HostMx {
    static constexpr uint8_t kMark = 0xA5;
    std::vector<e4m3> data, transposed;
    std::vector<e8m0> scales, transposed_scales;
    int64_t rows, cols;

    HostMx(int64_t rows, int64_t cols)
        : data(size_t(rows * cols), e4m3{kMark}),
          transposed(data),
          scales(size_t(mx_scale_bytes(rows, cols)), e8m0{kMark}),
          transposed_scales(size_t(mx_scale_bytes(cols, rows)), e8m0{kMark}),
          rows(rows),
          cols(cols) {}
    template <class T>
    HostMx(Cpu& cpu, const std::vector<T>& x, int64_t rows, int64_t cols) : HostMx(rows, cols) {
        quantize_mx(cpu, view(), x.data());
    }
    MxTensor view() { return {data.data(), scales.data(), transposed.data(), transposed_scales.data(), rows, cols}; }
    // Codes, scales, and both of the transposed copy, as numbers.
    std::vector<Floats> bits() const {
        const auto floats = [](const auto& from) {
            Floats bits;
            for (const auto x : from) bits.push_back(x.bits);
            return bits;
        };
        return {floats(data), floats(scales), floats(transposed), floats(transposed_scales)};
    }
};

struct Fp8Layer {
    HostQuantized<e4m3> inp, weight;
    HostQuantized<e5m2> dout;
};

// Whole numbers up to 4, which e5m2 represents exactly, and scales that are powers of two. Hopper's tensor cores keep
// 14 bits of the sum of FP8 products, so integer sums are exact up to 2^13, in any order: 512 products of up to 16.
struct WholeFp8Layer {
    static constexpr int64_t kLongestSum = 512;
    static constexpr float kInpScale = 0.5f, kWeightScale = 0.0625f, kDoutScale = 4;
    Fp8Layer layer;
    Floats bias, out, dinp, dweight_start, dweight;

    // cuBLASLt's FP8 GEMMs take a bias only in bf16, so some tests use no bias.
    WholeFp8Layer(int64_t N, int64_t C, int64_t OC, bool has_bias)
        : layer{{whole_numbers(N * C, 1, 4), N, C, kInpScale},
                {whole_numbers(OC * C, 2, 4), OC, C, kWeightScale},
                {whole_numbers(N * OC, 3, 4), N, OC, kDoutScale}},
          bias(has_bias ? whole_numbers(OC, 5, 100) : Floats(size_t(OC))),
          out(size_t(N * OC)),
          dinp(size_t(N * C)),
          dweight_start(whole_numbers(OC * C, 4, 100)),
          dweight(dweight_start) {
        REQUIRE(std::max({N, C, OC}) <= kLongestSum);
        for (int64_t n = 0; n < N; n++)
            for (int64_t o = 0; o < OC; o++) {
                out[size_t(n * OC + o)] = bias[size_t(o)];
                for (int64_t c = 0; c < C; c++) {
                    const float x = to_float(layer.inp.data[size_t(n * C + c)]);
                    const float w = to_float(layer.weight.data[size_t(o * C + c)]);
                    const float d = to_float(layer.dout.data[size_t(n * OC + o)]);
                    out[size_t(n * OC + o)] += x * w * kInpScale * kWeightScale;
                    dinp[size_t(n * C + c)] += d * w * kDoutScale * kWeightScale;
                    dweight[size_t(o * C + c)] += d * x * kDoutScale * kInpScale;
                }
            }
    }
};

// A layer in MX, of operands whose magnitudes differ from block to block.
struct MxLayer {
    HostMx inp, weight, dout;

    MxLayer(Cpu& cpu, int64_t N, int64_t C, int64_t OC)
        : inp(cpu, uneven(N, C, 1, 1), N, C),
          weight(cpu, uneven(OC, C, 2, 0.02f), OC, C),
          dout(cpu, uneven(N, OC, 3, 1e-5f), N, OC) {}

private:
    static Floats uneven(int64_t rows, int64_t cols, uint64_t seed, float scale) {
        Floats x = randn(size_t(rows * cols), seed, scale);
        for (int64_t r = 0; r < rows; r++)
            for (int64_t c = 0; c < cols; c++)
                x[size_t(r * cols + c)] *= std::ldexp(1.f, int(r * 5 % 7 + r / 32 % 3 + c / 32 * 3 % 5));
        return x;
    }
};
