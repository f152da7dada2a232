/*
What every test needs: Catch2 (version 2 or 3), seeded data, guarded buffers, tolerances in units of the type, scratch
folders, and functions to run the programs and read what they print.
*/
#pragma once
#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_all.hpp>
using Catch::Approx;
#else
#include <catch2/catch.hpp>
#endif
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>
#include "dev/emulator/sanitizers.h"  // ANVIL_ASAN
#include "llmc/base/bf16.h"           // bf16, to_bf16, to_float
#include "llmc/base/check.h"          // Error
#include "llmc/base/rng.h"            // Rng

// Sanitizers make tests five to ten times slower: long tests do less then.
#if defined(ANVIL_ASAN) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

using Floats = std::vector<float>;

inline Floats randn(size_t n, uint64_t seed, float scale = 1) {
    Rng rng(seed, Stream::tests);
    Floats x(n);
    for (float& v : x) v = scale * float(rng.normal());
    return x;
}

// x rounded to T.
template <class T>
T rounded_value(float x) {
    if constexpr (std::is_same_v<T, bf16>)
        return to_bf16(x);
    else
        return T(x);
}

// Each value rounded to T.
template <class T>
Floats rounded(Floats values) {
    for (float& x : values) x = to_float(rounded_value<T>(x));
    return values;
}

// An output buffer that starts as NaN, between guard zones that the op must not change.
template <class T = float>
struct Guarded {
    static constexpr size_t kGuard = 64;  // elements; keeps `data()` aligned
    static constexpr float kMark = 1234.5f;
    std::vector<T> memory;
    size_t n;

    explicit Guarded(size_t n, float start = std::numeric_limits<float>::quiet_NaN())
        : memory(n + 2 * kGuard, rounded_value<T>(kMark)), n(n) {
        std::fill_n(data(), n, rounded_value<T>(start));
    }
    explicit Guarded(const Floats& start) : Guarded(start.size()) {
        std::transform(start.begin(), start.end(), data(), rounded_value<T>);
    }
    T* data() { return memory.data() + kGuard; }
    operator T*() { return data(); }
    // The content, after checking the guards.
    Floats get() {
        const float mark = to_float(rounded_value<T>(kMark));
        for (size_t i = 0; i < kGuard; i++)
            if (to_float(memory[i]) != mark || to_float(memory[kGuard + n + i]) != mark)
                FAIL("the op wrote outside its buffer of " << n);
        Floats content;
        for (size_t i = 0; i < n; i++) content.push_back(to_float(data()[i]));
        return content;
    }
};

// One unit in the last place at 1.
inline constexpr double kEpsF32 = 0x1p-23, kEpsBf16 = 0x1p-7;

// Checks |got - want| <= tolerance * (|want| + rms(want)) for every element; NaN and infinity must match exactly.
// Write tolerances in epsilons of the output type, with a reason: 4 * kEpsF32.
inline void check_close(const std::string& name, const Floats& got, const Floats& want, double tolerance) {
    REQUIRE(got.size() == want.size());
    double squares = 0;
    for (float w : want) squares += std::isfinite(w) ? double(w) * w : 0;
    const double rms = std::sqrt(squares / double(std::max<size_t>(1, want.size())));
    size_t outside = 0, worst = 0;
    double worst_ratio = 0;
    for (size_t i = 0; i < want.size(); i++) {
        const bool same = got[i] == want[i] || (std::isnan(got[i]) && std::isnan(want[i]));
        const double ratio = same ? 0 : std::fabs(double(got[i]) - want[i]) / (tolerance * (std::fabs(want[i]) + rms));
        if (!(ratio <= 1)) outside++;
        if (!(ratio <= worst_ratio)) worst_ratio = ratio, worst = i;
    }
    INFO(name << ": " << outside << " of " << want.size() << " outside, worst at " << worst << ": got " << got[worst]
              << ", want " << want[worst] << ", " << worst_ratio << " times the tolerance");
    CHECK(outside == 0);
}

// |got - want| / |want|, in the L2 norm.
inline double relative_l2(const Floats& got, const Floats& want) {
    double difference = 0, norm = 0;
    for (size_t i = 0; i < want.size(); i++) {
        difference += (double(got[i]) - want[i]) * (double(got[i]) - want[i]);
        norm += double(want[i]) * want[i];
    }
    return std::sqrt(difference / norm);
}

// The message of the Error that f must throw, as "2: message" (exit code first); "" if it throws none.
template <class F>
std::string error_of(F f) {
    try {
        f();
    } catch (const Error& error) {
        return std::to_string(error.exit_code) + ": " + error.what();
    }
    return "";
}

inline bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// A new folder, removed with its content at the end of the test.
struct ScratchFolder {
    std::string path;
    ScratchFolder();
    ~ScratchFolder();
    std::string operator/(const std::string& name) const { return path + "/" + name; }
};

// A finished program: its exit code (128 + signal if a signal ended it) and what it printed.
struct Finished {
    int exit_code;
    std::string out, err;
};

// The command for one of Anvil's programs: program("train_gpt"), program("data/tokenize"). Use it in tests instead of
// ./train_gpt: under `make sanitize` it is the sanitized program, and under `make aarch64`, which sets ANVIL_RUN_WITH,
// it starts with the emulator of that processor.
std::string program(const std::string& name);
// The command that runs one test of this program, even a hidden one, in a process of its own.
std::string this_test(const std::string& name);

// Runs a shell command line from the repository's root.
Finished run(const std::string& command);
