/*
Attention as a graph of small operations, the form in which cuDNN is asked for its fused kernels (Graph API, "Supported
Graph Patterns"). No CUDA in here: the graph is a template over its builder, which is cudnn_attention.cpp for cuDNN and
a plain interpreter in test/cuda/cudnn_attention_test.cpp, which checks the graph against the definition of attention.

  forward:   S = scale Q K^T, masked     lse = log of the sum of exp(S) over keys     P = exp(S) / sum     O = P V
  backward:  P = exp(S - lse)     dV = P^T dO     dS = scale P (dO V^T - rowsum(dO O))     dK = dS^T Q     dQ = dS K

Tensors have four dimensions, (B, heads, rows, columns), and any strides, so that q, k and v are read in place from qkv.
In a GEMM of NH heads with NKV, each of the NKV serves NH / NKV consecutive heads. cuDNN recognizes its fused kernels by
the order and kinds of the operations: another graph that computes the same may have no plan.

A builder G has: G::Tensor; real(uid, type, form), local(type, form), scalar(uid) make tensors; pointwise(op, x, b, y),
index(x, axis, y), select(t, x, b, y), matmul(a, b, c), reduce(op, x, y), transpose(x, y) add an operation and return
its result, which is the last argument.
*/
#pragma once
#include <array>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>
#include "llmc/base/check.h"     // ensure
#include "llmc/ops/attention.h"  // AttentionShape

enum class GraphType { f32, bf16, i32, boolean };
enum class Pointwise { add, sub, mul, div, exp, log, identity, greater, greater_equal };  // the unary ones take no b
enum class Reduction { max, sum };  // over the dimensions in which y is smaller than x

// Tensors in memory and, from kScale on, numbers that the host passes with each call.
enum Uid : int64_t {
    kQ = 1,
    kK,
    kV,
    kOut,
    kLse,
    kDout,
    kDq,
    kDk,
    kDv,
    kRowSums,  // (B, NH, T) fp32, scratch
    kDqSums,   // (B, NH, T, HS) fp32, scratch, if not deterministic
    kScale,
    kMinusInfinity,
    kOne,
    kWindow,
};

struct Form {
    std::array<int64_t, 4> sizes, strides;

    static Form contiguous(int64_t a, int64_t b, int64_t c, int64_t d) {
        return {{a, b, c, d}, {b * c * d, c * d, d, 1}};
    }
    Form transposed() const {
        return {{sizes[0], sizes[1], sizes[3], sizes[2]}, {strides[0], strides[1], strides[3], strides[2]}};
    }
};

// A condition on a pair (query, key): left + offset > right, or >= with `or_equal`, where left and right are the index
// of the query or of the key. A score that fails any of the steps becomes -infinity.
struct MaskStep {
    enum class Index { query, key } left;
    float offset;  // cuDNN recognizes a window by this form: a float, added to the key. Exact below 2^24
    bool or_equal;
    Index right;
};

// The mask of a shape: query >= key and, with a window, key + (window + 1) > query. Documents are not part of it.
inline std::vector<MaskStep> mask_steps(const AttentionShape& shape) {
    ensure(!shape.starts);
    using Index = MaskStep::Index;
    std::vector<MaskStep> steps = {{Index::query, 0, true, Index::key}};
    // A window that reaches from the last query to the first key hides nothing.
    if (shape.window >= 0 && shape.window < shape.T - 1)
        steps.push_back({Index::key, float(shape.window + 1), false, Index::query});
    return steps;
}

// The numbers that the host passes with a call.
inline std::vector<std::pair<Uid, float>> graph_numbers(const AttentionShape& shape, bool is_backward) {
    std::vector<std::pair<Uid, float>> numbers = {{kScale, shape.score_scale()},
                                                  {kMinusInfinity, -std::numeric_limits<float>::infinity()}};
    if (is_backward) numbers.push_back({kOne, 1.f});
    for (const MaskStep& step : mask_steps(shape))
        if (step.offset != 0) numbers.push_back({kWindow, step.offset});
    return numbers;
}

// Where q, k and v, or their gradients, begin in (B, T, NH + 2 NKV, HS), in elements.
inline std::array<int64_t, 3> qkv_offsets(const AttentionShape& s) { return {0, s.NH * s.HS, (s.NH + s.NKV) * s.HS}; }

// Dimensions and strides of what is in memory; q and kv are those of their gradients, too.
struct AttentionForms {
    Form q, kv, out, scores, rows;

    explicit AttentionForms(const AttentionShape& s)
        : q{{s.B, s.NH, s.T, s.HS}, {s.T * s.row(), s.HS, s.row(), 1}},
          kv{{s.B, s.NKV, s.T, s.HS}, {s.T * s.row(), s.HS, s.row(), 1}},
          out{{s.B, s.NH, s.T, s.HS}, {s.T * s.NH * s.HS, s.HS, s.NH * s.HS, 1}},
          scores(Form::contiguous(s.B, s.NH, s.T, s.T)),
          rows(Form::contiguous(s.B, s.NH, s.T, 1)) {}
};

template <class G>
typename G::Tensor masked(G& g, typename G::Tensor scores, const Form& form, const AttentionShape& shape) {
    const auto minus_infinity = g.scalar(kMinusInfinity);
    for (const MaskStep& step : mask_steps(shape)) {
        const auto index = [&](MaskStep::Index which) {
            return g.index(scores, which == MaskStep::Index::query ? 2 : 3, g.local(GraphType::i32, form));
        };
        auto left = index(step.left);
        const auto right = index(step.right);
        if (step.offset != 0)
            left = g.pointwise(Pointwise::add, left, g.scalar(kWindow), g.local(GraphType::f32, form));
        const auto keep = g.pointwise(step.or_equal ? Pointwise::greater_equal : Pointwise::greater, left, right,
                                      g.local(GraphType::boolean, form));
        scores = g.select(keep, scores, minus_infinity, g.local(GraphType::f32, form));
    }
    return scores;
}

template <class G>
void build_attention_forward(G& g, const AttentionShape& shape) {
    const AttentionForms f(shape);
    const auto scores = [&](GraphType type) { return g.local(type, f.scores); };
    const auto rows = [&] { return g.local(GraphType::f32, f.rows); };
    const auto q = g.real(kQ, GraphType::bf16, f.q), k_t = g.real(kK, GraphType::bf16, f.kv.transposed());
    auto s = g.matmul(q, k_t, scores(GraphType::f32));
    s = g.pointwise(Pointwise::mul, s, g.scalar(kScale), scores(GraphType::f32));
    s = masked(g, s, f.scores, shape);
    const auto largest = g.reduce(Reduction::max, s, rows());
    const auto shifted = g.pointwise(Pointwise::sub, s, largest, scores(GraphType::f32));
    const auto weights = g.pointwise(Pointwise::exp, shifted, scores(GraphType::f32));
    const auto sum = g.reduce(Reduction::sum, weights, rows());
    g.pointwise(Pointwise::add, largest, g.pointwise(Pointwise::log, sum, rows()),
                g.real(kLse, GraphType::f32, f.rows));
    const auto p = g.pointwise(Pointwise::div, weights, sum, scores(GraphType::bf16));
    g.matmul(p, g.real(kV, GraphType::bf16, f.kv), g.real(kOut, GraphType::bf16, f.out));
}

// Deterministic: dQ is summed completely and written once. Else blocks add to fp32 sums in any order, cast afterwards.
template <class G>
void build_attention_backward(G& g, const AttentionShape& shape, bool deterministic) {
    const AttentionForms f(shape);
    const auto scores = [&](GraphType type) { return g.local(type, f.scores); };
    const auto q = g.real(kQ, GraphType::bf16, f.q), k_t = g.real(kK, GraphType::bf16, f.kv.transposed());
    const auto v_t = g.real(kV, GraphType::bf16, f.kv.transposed()), out = g.real(kOut, GraphType::bf16, f.out);
    const auto lse = g.real(kLse, GraphType::f32, f.rows), dout = g.real(kDout, GraphType::bf16, f.out);
    const auto scale = g.scalar(kScale);

    const auto products = g.pointwise(Pointwise::mul, dout, out, g.local(GraphType::f32, f.out));
    const auto sums = g.reduce(Reduction::sum, products, g.local(GraphType::f32, f.rows));
    // The pattern has dropout's factor here; ours is one.
    const auto row_sums = g.pointwise(Pointwise::mul, sums, g.scalar(kOne), g.real(kRowSums, GraphType::f32, f.rows));

    auto s = g.matmul(q, k_t, scores(GraphType::f32));
    s = g.pointwise(Pointwise::mul, s, scale, scores(GraphType::f32));
    s = g.pointwise(Pointwise::sub, s, lse, scores(GraphType::f32));
    const auto p = g.pointwise(Pointwise::exp, masked(g, s, f.scores, shape), scores(GraphType::f32));

    // The gradient of keys or values for each query head; those of a group are added.
    const auto to_keys = [&](auto weights, auto rows, Uid gradient) {
        const auto weights_t = g.transpose(weights, g.local(GraphType::bf16, f.scores.transposed()));
        const auto result = g.real(gradient, GraphType::bf16, f.kv);
        if (shape.NH == shape.NKV) {
            g.matmul(weights_t, rows, result);
        } else {
            const Form all_heads = Form::contiguous(shape.B, shape.NH, shape.T, shape.HS);
            g.reduce(Reduction::sum, g.matmul(weights_t, rows, g.local(GraphType::bf16, all_heads)), result);
        }
    };
    to_keys(p, dout, kDv);
    auto ds = g.matmul(dout, v_t, scores(GraphType::f32));
    ds = g.pointwise(Pointwise::sub, ds, row_sums, scores(GraphType::f32));
    ds = g.pointwise(Pointwise::mul, ds, p, scores(GraphType::f32));
    ds = g.pointwise(Pointwise::mul, ds, scale, scores(GraphType::f32));
    to_keys(ds, q, kDk);
    const auto k = g.transpose(k_t, g.local(GraphType::f32, f.kv)), dq = g.real(kDq, GraphType::bf16, f.q);
    if (deterministic) {
        g.matmul(ds, k, dq);
    } else {
        const Form sums_form = Form::contiguous(shape.B, shape.NH, shape.T, shape.HS);
        g.pointwise(Pointwise::identity, g.matmul(ds, k, g.real(kDqSums, GraphType::f32, sums_form)), dq);
    }
}
