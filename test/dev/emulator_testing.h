/*
What the tests of the emulator share. Only the emulator can run these: elsewhere there is nothing here.

  Trial trial;                                                       a launch of a kernel (out, inp)
  CHECK(trial.run(kernel, 1, kThreads).error == "");
  const OtherOptions restore;                                        whatever the test does to the emulator's options
  const Finished ended = run_hidden("a hidden test case", "A=B");    in a process of its own
*/
#pragma once
#include "test/cuda_testing.h"  // OnDevice
#ifdef ANVIL_EMULATED
#include <filesystem>
#include "dev/emulator/emulator.h"
#include "dev/emulator/sanitizers.h"  // ANVIL_MSAN, ANVIL_ASAN

// Named: what one build or another leaves unused is no mistake.
namespace emulator_test {

inline constexpr int kThreads = 128;

// "FILE:line" of who calls, as messages give it.
inline std::string at(int line, const char* file = __builtin_FILE()) {
    return format("%s:%d", std::filesystem::path(file).filename().c_str(), line);
}

// One launch of a kernel (out, inp): inp is 1, 2, 3 ..., out is fresh and so NaN.
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
    // How many of the first n results are NaN.
    int num_nan(int n) {
        const Floats values = out.get();
        return int(std::count_if(values.begin(), values.begin() + n, [](float x) { return std::isnan(x); }));
    }
};

// What a test changes of them is as before when it ends.
struct OtherOptions {
    const emulator::Options before = emulator::options();
    ~OtherOptions() { emulator::options() = before; }
};

inline Finished run_hidden(const std::string& test_case, const std::string& environment = "") {
    return run(environment + " " + this_test(test_case));
}

}  // namespace emulator_test
#endif
