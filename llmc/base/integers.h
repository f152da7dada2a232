// Rounding integers up to multiples, and the nearest divisors for error messages.
#pragma once
#include <algorithm>
#include <cstdint>
#include <string>

inline int64_t up_to_multiple(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }
// The multiple next to n, but not 0.
inline int64_t nearest_multiple(int64_t n, int64_t multiple) {
    return std::max(multiple, (n + multiple / 2) / multiple * multiple);
}

// The divisors of n > 0 next to the number asked for: "4 and 6", or "4" if the number is a divisor.
inline std::string nearest_divisors(int64_t n, int64_t asked) {
    int64_t below = std::clamp<int64_t>(asked, 1, n), above = below;
    while (n % below != 0) below--;
    while (n % above != 0) above++;
    return below == above ? std::to_string(below) : std::to_string(below) + " and " + std::to_string(above);
}
