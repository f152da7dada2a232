/*
A whole Muon step built from its ops, on any device, and the matrices of the fixture muon_training.

  MuonRun run(cpu, weights, matrix);           matrix.count matrices of one shape: a (3C, C) weight has three
  run.step(cpu, gradients, step);
*/
#pragma once
#include <type_traits>
#include "test/op_testing.h"         // bell, Guarded
#include "llmc/ops/muon.h"           // MuonStep
#include "llmc/ops/newton_schulz.h"  // NewtonSchulzOptions
#include "llmc/ops/step_scalars.h"   // StepScalars

// dev/fixtures/optimizer_fixtures.py has the same table.
struct MuonMatrix {
    const char* name;
    int64_t R, K, count;
    int first;  // the number of the first matrix over the whole list

    size_t size() const { return size_t(count * R * K); }
    Floats gradients(int step) const {
        Floats all;
        for (int i = first; i < first + int(count); i++) {
            const Floats one = bell(uint64_t(1000 * i + step), R * K);
            all.insert(all.end(), one.begin(), one.end());
        }
        return all;
    }
};
inline const std::vector<MuonMatrix> kMuonMatrices = {
    {"square", 24, 24, 1, 0}, {"tall", 96, 24, 1, 1}, {"wide", 24, 96, 1, 2}, {"qkv", 24, 24, 3, 3}};
inline constexpr int kMuonTrainingSteps = 20;
inline constexpr MuonStep kMuonTraining{.learning_rate = 0.02, .momentum = 0.95, .beta2 = 0.9, .weight_decay = 0.1};
// The same with MuonStep::norms, and what the fixture calls it.
struct MuonNormsCase {
    MuonNorms norms;
    const char* name;

    MuonStep step() const {
        MuonStep step = kMuonTraining;
        step.norms = norms, step.floor = 1;
        if (norms == MuonNorms::hyperball) step.weight_decay = 0;
        return step;
    }
    std::string want(const std::string& matrix) const { return std::string("want.") + name + matrix; }
};
inline const std::vector<MuonNormsCase> kMuonNorms = {{MuonNorms::none, ""},
                                                      {MuonNorms::hyperball, "hyperball."},
                                                      {MuonNorms::floor, "floor."},
                                                      {MuonNorms::row_floor, "row_floor."}};
// Each step rounds a weight once, or with hyperball twice, by half a unit: at most 2.4e-6 in 20 steps. Newton-Schulz
// amplifies the rounding of its input by up to 990 in the steepest of 24 directions, which holds sqrt(1 / 24) of the
// update. The update is about as large as the weights, and the learning rate is 0.02: 20 * 0.02 * 990 * 2^-24 /
// sqrt(24) = 4.8e-6. Sums for norms are off by less than 10 units, of 0.02 of a weight in each step, and of a whole one
// in hyperball's last: 8e-7. Together below 1e-5.
inline constexpr double kMuonTrainingTolerance = 1e-5;

// Buffer: holds floats on the device, with guard zones.
template <class Device, class Buffer>
struct MuonRunIn {
    int64_t R, K, count;
    Buffer weight, momentum, second, X, norms, scales, lifts, keep, radius;

    MuonRunIn(Device& device, const Floats& weights, const MuonMatrix& m)
        : R(m.R),
          K(m.K),
          count(m.count),
          weight(device, weights),
          momentum(device, Floats(m.size(), 0)),
          second(device, Floats(size_t(m.count * std::max(m.R, m.K)), 0)),
          X(device, Floats(m.size(), std::nanf(""))),
          norms(device, Floats(size_t(std::max(m.R, m.K)), std::nanf(""))),
          scales(device, Floats(size_t(std::max(m.R, m.K)), std::nanf(""))),
          lifts(device, Floats(size_t(m.R), std::nanf(""))),
          keep(device, Floats(1, std::nanf(""))),
          radius(device, Floats(size_t(m.count), 0)) {}

    void step(Device& device, const Floats& gradients, const MuonStep& step) {
        Buffer grad(device, gradients);
        typename Device::template ToDevice<StepScalars> scalars(device, 1);
        const StepScalars applied{.applied = 1};
        const StepScalars* s = scalars.send(&applied, 1);
        const int64_t size = R * K, n = std::max(R, K);
        for (int64_t i = 0; i < count; i++) {
            muon_momentum(device, pointer(X) + i * size, pointer(norms), pointer(momentum) + i * size,
                          pointer(grad) + i * size, R, K, step, s);
            muon_normalize(device, pointer(X) + i * size, pointer(norms), R, K, step);
        }
        newton_schulz(device, pointer(X), count, R, K, NewtonSchulzOptions::polar_express());
        for (int64_t i = 0; i < count; i++) {
            muon_squares(device, pointer(norms), pointer(X) + i * size, R, K);
            muon_scales(device, pointer(scales), pointer(second) + i * n, pointer(norms), R, K, step, s);
            float* const master = nullptr;
            const bool has_lifts = step.norms != MuonNorms::none;
            if (has_lifts)
                muon_lifts(device, pointer(lifts), pointer(keep), pointer(radius) + i, pointer(weight) + i * size,
                           master, pointer(X) + i * size, pointer(scales), R, K, step, s);
            muon_update(device, pointer(weight) + i * size, master, pointer(X) + i * size, pointer(scales),
                        has_lifts ? pointer(lifts) : nullptr, pointer(keep), R, K, step, s);
        }
        if constexpr (Device::kAsynchronous) device.synchronize();  // before `grad` is released
    }

private:
    static float* pointer(Buffer& buffer) {
        if constexpr (std::is_same_v<Device, Cpu>)
            return buffer.data();
        else
            return buffer.data;
    }
};

struct GuardedFloats : Guarded<> {
    GuardedFloats(Cpu&, const Floats& values) : Guarded(values) {}
};
using MuonRun = MuonRunIn<Cpu, GuardedFloats>;
