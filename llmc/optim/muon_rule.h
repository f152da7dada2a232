// Muon (Jordan et al., 2024) in nanochat's variant, for whole matrices: llmc/ops/muon.h.
#pragma once
#include <algorithm>
#include <vector>
#include "llmc/base/integers.h"      // up_to_multiple
#include "llmc/ops/muon.h"           // MuonStep
#include "llmc/optim/update_rule.h"  // UpdateRule, UpdateBatch

struct MuonRule {
    // The momentum, NorMuon's second moment of rows or columns, and the norm that a matrix keeps.
    inline static const UpdateRule value{
        .name = "muon",
        .title = "Muon",
        .whole_matrices = true,
        .state = {{"m"},
                  {"v",
                   [](int64_t rows, int64_t cols, const OptimizerConfig& config) {
                       return config.muon.second_moment ? std::max(rows, cols) : 0;
                   }},
                  {"radius",
                   [](int64_t, int64_t, const OptimizerConfig& config) {
                       return int64_t(config.muon.norms == MuonNorms::hyperball);
                   }},
                  kAverage},
        .batch_elements = int64_t(1) << 25,
        // Matrices during orthogonalization; squared norms of rows, of rows or columns, and their scales.
        .scratch_bytes = [](int64_t n, int64_t rows, int64_t cols, size_t weight_size) {
            const size_t side = size_t(std::max(rows, cols)) * sizeof(float);
            const size_t row = size_t(up_to_multiple(cols, kMuonRowMultiple));
            return std::vector{size_t(n * rows) * row * weight_size, side, side, side};
        }};

    template <class Device, class T>
    static size_t workspace_bytes(Device& device, const Ops<Device, T>& op, int64_t n, int64_t rows, int64_t cols) {
        return op.newton_schulz_workspace(device, n, rows, op.muon_row(device, cols));
    }

    template <class Device, class T>
    static void update(const UpdateBatch<Device, T>& batch) {
        const auto& [device, op, pieces, R, K, scratch, config, rates, scalars] = batch;
        const MuonConfig& muon = config.muon;
        const MuonStep step{
            .learning_rate = rates.muon,
            .momentum = rates.muon_momentum,
            .beta2 = muon.beta2,
            .weight_decay = muon.norms == MuonNorms::hyperball
                                ? 0  // which takes its place
                                : rates.muon_weight_decay / (muon.shaped_decay ? 1 : MuonStep::shape_factor(R, K)),
            .equal_rows = muon.equal_rows,
            .fixed_norm = muon.fixed_norm,
            .cautious = muon.cautious,
            .margin = muon.margin,
            .norms = muon.norms,
            .floor = muon.floor,
            .radius = muon.radius};
        const int64_t row = op.muon_row(device, K);  // elements between rows of X
        T* const all = reinterpret_cast<T*>(scratch[0]);
        float* const row_squares = reinterpret_cast<float*>(scratch[1]);
        float* const squares = reinterpret_cast<float*>(scratch[2]);
        float* const scales = reinterpret_cast<float*>(scratch[3]);
        T* X = all;
        for (const UpdatePiece<T>& piece : pieces) {
            if (config.bf16_moments)
                op.muon_momentum_bf16(device, X, row_squares, piece.template state_as<bf16>(0), piece.gradient, R, K,
                                      step, scalars, piece.rounding);
            else
                op.muon_momentum(device, X, row_squares, piece.template state_as<float>(0), piece.gradient, R, K, step,
                                 scalars);
            op.muon_normalize(device, X, row_squares, R, K, step);
            X += R * row;
        }
        op.newton_schulz(device, all, int64_t(pieces.size()), R, row, muon.newton_schulz);
        X = all;
        for (const UpdatePiece<T>& piece : pieces) {
            op.muon_squares(device, squares, X, R, K);
            op.muon_scales(device, scales, piece.template state_as<float>(1), squares, R, K, step, scalars);
            // The squares have been read.
            float *const lifts = step.norms == MuonNorms::none ? nullptr : row_squares, *const keep = squares;
            if (lifts)
                op.muon_lifts(device, lifts, keep, piece.template state_as<float>(2), piece.weight, piece.master_weight,
                              X, scales, R, K, step, scalars);
            op.muon_update(device, piece.weight, piece.master_weight, X, scales, lifts, keep, R, K, step, scalars,
                           piece.rounding);
            X += R * row;
        }
    }
};
