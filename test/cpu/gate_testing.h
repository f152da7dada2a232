/*
Error bounds for ops with gates, element by element, on the CPU and on a GPU: rounding errors of half a unit of float32,
propagated through each formula to first order. They include the half unit of a reference. Two results of Anvil's may
differ by twice the bound, and a result stored in bf16 by half a unit of bf16 more:

  check_within("out", got, want, stored<T>(twice(smear_bounds(...).out), want));
*/
#pragma once
#include <cmath>
#include <type_traits>
#include <vector>
#include "llmc/base/bf16.h"      // bf16
#include "llmc/ops/attention.h"  // AttentionShape
#include "test/op_testing.h"     // Floats, Ints

using Bounds = std::vector<double>;

inline constexpr double kHalfUnit = kEpsF32 / 2;

inline Bounds twice(Bounds bounds) {
    for (double& x : bounds) x *= 2;
    return bounds;
}

template <class T>
Bounds stored(Bounds bounds, const Floats& want) {
    if (std::is_same_v<T, bf16>)
        for (size_t i = 0; i < want.size(); i++)
            if (bounds[i] > 0) bounds[i] += kEpsBf16 / 2 * (std::fabs(want[i]) + bounds[i]);
    return bounds;
}

// A computed number and the bound of its error.
struct Rough {
    double value, error;
};

inline Rough operator*(Rough a, Rough b) {  // rounded once
    return {a.value * b.value,
            std::fabs(a.value) * b.error + std::fabs(b.value) * a.error + kHalfUnit * std::fabs(a.value * b.value)};
}
inline Rough exact(double x) { return {x, 0}; }

// A dot product of n terms. A CPU lane adds n / 16 of them, then a tree of 4 levels; a GPU lane adds at most n / 32 and
// a pack of 8, then a tree of 5 levels.
inline Rough rough_dot(const float* a, const float* b, int64_t n) {
    double sum = 0, terms = 0;
    for (int64_t i = 0; i < n; i++) sum += double(a[i]) * b[i], terms += std::fabs(double(a[i]) * b[i]);
    return {sum, kHalfUnit * (double(n) / 16 + 8 + 6) * terms};
}

struct RoughGate {
    Rough open, slope;
};

// e^-|x| is correct to two units, four half units, of which half reach the quotient. The sum, the quotient and each
// product add a half unit.
inline RoughGate rough_gate(const float* inp, const float* weight, int64_t G) {
    const Rough x = rough_dot(inp, weight, G);
    const double open = 1 / (1 + std::exp(-x.value)), slope = open * (1 - open);
    return {{open, slope * x.error + 9 * kHalfUnit * open}, {slope, slope * (x.error + 14 * kHalfUnit)}};
}

// A sequential sum of up to n terms, added to a start value.
struct RoughSum {
    double error = 0, terms = 0;
    void add(Rough x) { error += x.error, terms += std::fabs(x.value); }
    double bound(int64_t n, double start = 0) const {
        return error + kHalfUnit * double(n + 3) * (terms + std::fabs(start));
    }
};

struct SmearBounds {
    Bounds out, dinp, dgate_weight, dlambda;
};

inline SmearBounds smear_bounds(const Floats& dout, const Floats& inp, const Floats& weight, float lambda,
                                const Floats& dweight_start, float dlambda_start, int64_t B, int64_t T, int64_t C,
                                int64_t G) {
    SmearBounds bounds;
    std::vector<RoughSum> dweight(static_cast<size_t>(G));
    RoughSum dlambda;
    for (int64_t n = 0; n < B * T; n++) {
        const bool first = n % T == 0, last = n % T == T - 1;
        const float *row = inp.data() + n * C, *grad = dout.data() + n * C;
        const Rough none = exact(0);
        const RoughGate gate = rough_gate(row, weight.data(), G);
        const Rough factor = first ? none : exact(lambda) * gate.open;
        const Rough next = last ? none : exact(lambda) * rough_gate(row + C, weight.data(), G).open;
        const Rough dot = first ? none : rough_dot(grad, row - C, C), du = dot * exact(lambda) * gate.slope;
        dlambda.add(dot * gate.open);
        for (int64_t c = 0; c < C; c++) {
            RoughSum out, dinp;
            out.add(exact(row[c]));
            if (!first) out.add(factor * exact(row[c - C]));
            dinp.add(exact(grad[c]));
            if (!last) dinp.add(next * exact(grad[c + C]));
            if (c < G) dinp.add(du * exact(weight[size_t(c)]));
            if (c < G) dweight[size_t(c)].add(du * exact(row[c]));
            bounds.out.push_back(out.bound(0));
            bounds.dinp.push_back(dinp.bound(1));
        }
    }
    for (size_t g = 0; g < dweight.size(); g++)
        bounds.dgate_weight.push_back(dweight[g].bound(B * T, dweight_start[g]));
    bounds.dlambda.push_back(dlambda.bound(B * T, dlambda_start));
    return bounds;
}

struct ValueEmbeddingBounds {
    Bounds qkv, dinp, dtable, dgate_weight;  // 0 where nothing may change
};

// The *_start arguments are the buffers' content before the op.
inline ValueEmbeddingBounds value_embedding_bounds(const Floats& qkv_start, const Floats& dinp_start,
                                                   const Floats& dtable_start, const Floats& dweight_start,
                                                   const Floats& dqkv, const Floats& inp, const Ints& tokens,
                                                   const Floats& table, const Floats& weight,
                                                   const AttentionShape& shape, int64_t C, int64_t G,
                                                   float gate_scale) {
    const int64_t N = shape.B * shape.T, NKV = shape.NKV, HS = shape.HS;
    ValueEmbeddingBounds bounds{Bounds(qkv_start.size()), Bounds(dinp_start.size()), {}, {}};
    std::vector<RoughSum> dtable(table.size()), dweight(weight.size());
    for (int64_t n = 0; n < N; n++) {
        std::vector<RoughSum> dinp(static_cast<size_t>(G));
        for (int64_t h = 0; h < NKV; h++) {
            const int64_t at = n * shape.row() + (shape.NH + NKV + h) * HS;
            const int64_t entry = (tokens[size_t(n)] * NKV + h) * HS;
            const RoughGate gate = rough_gate(inp.data() + n * C, weight.data() + h * G, G);
            const Rough factor = exact(gate_scale) * gate.open;
            const Rough du = rough_dot(dqkv.data() + at, table.data() + entry, HS) * exact(gate_scale) * gate.slope;
            for (int64_t i = 0; i < HS; i++) {
                RoughSum v;
                v.add(factor * exact(table[size_t(entry + i)]));
                bounds.qkv[size_t(at + i)] = v.bound(0, qkv_start[size_t(at + i)]);
                dtable[size_t(entry + i)].add(factor * exact(dqkv[size_t(at + i)]));
            }
            for (int64_t g = 0; g < G; g++) {
                dinp[size_t(g)].add(du * exact(weight[size_t(h * G + g)]));
                dweight[size_t(h * G + g)].add(du * exact(inp[size_t(n * C + g)]));
            }
        }
        for (int64_t g = 0; g < G; g++)
            bounds.dinp[size_t(n * C + g)] = dinp[size_t(g)].bound(NKV, dinp_start[size_t(n * C + g)]);
    }
    for (size_t i = 0; i < dtable.size(); i++)
        bounds.dtable.push_back(dtable[i].terms > 0 ? dtable[i].bound(N, dtable_start[i]) : 0);
    for (size_t i = 0; i < dweight.size(); i++) bounds.dgate_weight.push_back(dweight[i].bound(N, dweight_start[i]));
    return bounds;
}
