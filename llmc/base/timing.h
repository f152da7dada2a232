// Statistics of repeated measurements.
#pragma once
#include <algorithm>
#include <cstddef>
#include <vector>

struct Timing {
    double median, fastest, p90;  // seconds
    int runs;
};

// The statistics of at least one measurement.
inline Timing timing_of(std::vector<double> seconds) {
    std::sort(seconds.begin(), seconds.end());
    const size_t n = seconds.size();
    return {seconds[n / 2], seconds[0], seconds[n * 9 / 10], int(n)};
}
