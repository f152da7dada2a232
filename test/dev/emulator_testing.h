/*
Helpers of the tests of the emulator. Empty in a build for a GPU.

  Trial trial;                                                       a launch of a kernel (out, inp)
  CHECK(trial.run(kernel, 1, kThreads).error == "");
  const OtherOptions restore;                                        restores the emulator's options at the end
  const Finished ended = run_hidden("a hidden test case", "A=B");    runs it in a process of its own
*/
#pragma once
#include "test/cuda_testing.h"  // OnDevice
#ifdef ANVIL_EMULATED
#include <filesystem>
#include "dev/emulator/emulator.h"
#include "dev/emulator/sanitizers.h"  // ANVIL_MSAN, ANVIL_ASAN

// Not an anonymous namespace: some builds do not use everything in it, which would be a warning.
namespace emulator_test {

inline constexpr int kThreads = 128;

// "FILE:line" of the caller's file, as in error messages.
inline std::string at(int line, const char* file = __builtin_FILE()) {
    return format("%s:%d", std::filesystem::path(file).filename().c_str(), line);
}

// A launch of a kernel (out, inp): inp is 1, 2, 3 ..., out starts as NaN.
struct Trial {
    Cuda cuda;
    OnDevice<float> inp, out;
    std::string error;
    explicit Trial(size_t n = 512) : inp(cuda, counted(n)), out(cuda, n) {}
    static Floats counted(size_t n) {
        Floats x(n);
        for (size_t i = 0; i < n; i++) x[i] = float(i + 1);
        return x;
    }
    using Kernel = void (*)(float*, const float*);
    Trial& run(Kernel kernel, dim3 grid, dim3 block, size_t shared_bytes = 0) {
        error = error_of([&] { launch(cuda, "trial", kernel, grid, block, shared_bytes, out.data, inp.data); });
        return *this;
    }
    // The number of NaNs in the first n results.
    int num_nan(int n) {
        const Floats values = out.get();
        return int(std::count_if(values.begin(), values.begin() + n, [](float x) { return std::isnan(x); }));
    }
};

// Restores the emulator's options at the end of the scope.
struct OtherOptions {
    const emulator::Options before = emulator::options();
    ~OtherOptions() { emulator::options() = before; }
};

inline Finished run_hidden(const std::string& test_case, const std::string& environment = "") {
    return run(environment + " " + this_test(test_case));
}

}  // namespace emulator_test
#endif
