/*
A plain attention in double, with bounds for the rounding of the ops on every device, which are compared with it.
test/cpu/attention_test.cpp compares it with PyTorch. It decides for each pair of query and key whether it is masked.
*/
#pragma once
#include <algorithm>
#include <cmath>
#include <vector>
#include "test/testing.h"        // Floats, kEpsF32
#include "llmc/ops/attention.h"  // AttentionShape

struct Sizes : AttentionShape {
    std::vector<int32_t> documents = {};  // (B, T): each token's document, rising along a row; empty: one per row

    // The definition of the mask. It does not use `starts`, because it tests it.
    bool sees(int64_t b, int64_t t, int64_t s) const {
        if (!documents.empty() && documents[size_t(b * T + t)] != documents[size_t(b * T + s)]) return false;
        return s <= t && (window < 0 || t - s <= window);
    }
    // The expected `starts`.
    std::vector<int32_t> document_starts() const {
        std::vector<int32_t> result;
        for (size_t i = 0; i < documents.size(); i++)
            result.push_back(i % size_t(T) == 0                 ? 0
                             : documents[i] == documents[i - 1] ? result.back()
                                                                : int32_t(i % size_t(T)));
        return result;
    }

    size_t out() const { return size_t(B * T * NH * HS); }
    size_t lse() const { return size_t(B * NH * T); }
    size_t qkv() const { return size_t(B * T * row()); }
    // The offset of q, k or v (which = 0, 1, 2) for query head h.
    size_t at(int64_t b, int64_t t, int64_t which, int64_t h) const {
        const int64_t heads[] = {h, NH + h / (NH / NKV), NH + NKV + h / (NH / NKV)};
        return size_t(((b * T + t) * (NH + 2 * NKV) + heads[which]) * HS);
    }
};

// Documents with these lengths in a cycle. Row b starts with lengths[b].
inline std::vector<int32_t> documents_of(int64_t B, int64_t T, const std::vector<int64_t>& lengths) {
    std::vector<int32_t> documents;
    for (int64_t b = 0; b < B; b++)
        for (int32_t d = 0; int64_t(documents.size()) < (b + 1) * T; d++) {
            const int64_t left = (b + 1) * T - int64_t(documents.size());
            documents.insert(documents.end(), size_t(std::min(left, lengths[size_t(b + d) % lengths.size()])), d);
        }
    return documents;
}

// The sums of a[i] b[i] and of |a[i] b[i]|.
struct Dot {
    double sum = 0, magnitude = 0;
    template <class T>
    Dot(const float* a, const T* b, int64_t n) {
        for (int64_t i = 0; i < n; i++) sum += double(a[i]) * b[i], magnitude += std::fabs(double(a[i]) * b[i]);
    }
};

struct Plain {
    Floats out, lse, dqkv;
    std::vector<double> out_bounds, lse_bounds, dqkv_bounds;
};

// The formulas, row by row in double, with bounds for a float32 attention. A bound is the sum of the magnitudes of a
// sum's terms, times the float32 units by which a term may be off. The rounding of a sum itself is about one unit of
// its magnitudes for a score, and sqrt(n) / 2 units for a sum of n terms. A score's error is p's relative error. It
// enters again in lse, and once more in backward, which computes p from a new score and the lse.
//
// `stored` is half a unit of the tensors' type if that is coarser than float32, else 0. Weights and dS are rounded to
// that type before they are multiplied, out and dqkv when they are stored. The errors of out, from its weights and from
// storing it, then also enter D = dout . out. `stored_by_head`: the same for dK and dV of each query head of a group,
// which cuDNN stores before it adds them.
inline Plain plain_attention(const Sizes& s, const Floats& qkv, const Floats& dout, double stored = 0,
                             double stored_by_head = 0) {
    constexpr double kSmallest = 0x1p-126;  // smaller numbers may be flushed to zero
    const size_t HS = size_t(s.HS);
    std::vector<double> dqkv(qkv.size());
    Plain plain{Floats(s.out()),
                Floats(s.lse()),
                {},
                std::vector<double>(s.out()),
                std::vector<double>(s.lse()),
                std::vector<double>(qkv.size(), kSmallest)};
    const double scale = s.scale != 0 ? double(s.scale) : 1 / std::sqrt(double(s.HS));
    // A query sums over T keys at most, a key over T queries of each head of its group.
    const double sum_units = 2 + std::sqrt(double(s.T * (s.NH / s.NKV))) / 2;
    for (int64_t b = 0; b < s.B; b++)
        for (int64_t h = 0; h < s.NH; h++) {
            const std::vector<double> others = dqkv;  // of the heads before this one
            for (int64_t t = 0; t < s.T; t++) {
                const size_t row = size_t(((b * s.T + t) * s.NH + h) * s.HS), q = s.at(b, t, 0, h);
                std::vector<int64_t> keys;  // that query t sees
                for (int64_t j = 0; j < s.T; j++)
                    if (s.sees(b, t, j)) keys.push_back(j);
                std::vector<double> p;
                double score_units = 0;
                for (const int64_t j : keys) {
                    const Dot score(&qkv[q], &qkv[s.at(b, j, 1, h)], s.HS);
                    p.push_back(scale * score.sum);
                    score_units = std::max(score_units, scale * score.magnitude);
                }
                const double largest = *std::max_element(p.begin(), p.end());
                double sum = 0;
                for (const double score : p) sum += std::exp(score - largest);
                for (double& x : p) x = std::exp(x - largest) / sum;
                const size_t lse = size_t((b * s.NH + h) * s.T + t);
                plain.lse[lse] = float(largest + std::log(sum));
                plain.lse_bounds[lse] = (sum_units + score_units + std::fabs(plain.lse[lse])) * kEpsF32;

                std::vector<double> o(HS), o_magnitude(HS);
                for (size_t c = 0; c < HS; c++) {
                    for (size_t i = 0; i < keys.size(); i++) {
                        const double term = p[i] * qkv[s.at(b, keys[i], 2, h) + c];
                        o[c] += term, o_magnitude[c] += std::fabs(term);
                    }
                    plain.out[row + c] = float(o[c]);
                    plain.out_bounds[row + c] = ((sum_units + 2 * score_units) * kEpsF32 + stored) * o_magnitude[c];
                    plain.out_bounds[row + c] += stored * std::fabs(o[c]);
                }
                const double dout_out = Dot(&dout[row], o.data(), s.HS).sum;
                const double dout_out_magnitude = Dot(&dout[row], o_magnitude.data(), s.HS).magnitude;
                const double units = (4 + sum_units + 5 * score_units) * kEpsF32;
                for (size_t i = 0; i < keys.size(); i++) {
                    const double weight = p[i];
                    const size_t k = s.at(b, keys[i], 1, h), v = s.at(b, keys[i], 2, h);
                    const Dot dp(&dout[row], &qkv[v], s.HS);
                    const double p_bound = weight * units + kSmallest;
                    const double dscore = weight * scale * (dp.sum - dout_out);
                    const double dscore_bound = p_bound * scale * (dp.magnitude + dout_out_magnitude) +
                                                2 * stored * weight * scale * dout_out_magnitude +
                                                stored * std::fabs(dscore);
                    for (size_t c = 0; c < HS; c++) {
                        dqkv[q + c] += dscore * qkv[k + c];
                        dqkv[k + c] += dscore * qkv[q + c];
                        dqkv[v + c] += weight * dout[row + c];
                        plain.dqkv_bounds[q + c] += dscore_bound * std::fabs(qkv[k + c]);
                        plain.dqkv_bounds[k + c] += dscore_bound * std::fabs(qkv[q + c]);
                        plain.dqkv_bounds[v + c] += (p_bound + stored * weight) * std::fabs(dout[row + c]);
                    }
                }
            }
            for (size_t i = 0; i < dqkv.size(); i++)
                if (i % size_t(s.row()) >= size_t(s.NH) * HS)  // of k and v
                    plain.dqkv_bounds[i] += stored_by_head * std::fabs(dqkv[i] - others[i]);
        }
    plain.dqkv.assign(dqkv.begin(), dqkv.end());
    for (size_t i = 0; i < dqkv.size(); i++) plain.dqkv_bounds[i] += stored * std::fabs(dqkv[i]);
    return plain;
}
