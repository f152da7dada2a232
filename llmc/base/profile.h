/*
Profiles training steps: an observer of ops (op_scope.h) that records when each op ran, a table of their costs, and a
trace in the format of Chrome's tracing, which Perfetto (ui.perfetto.dev) and chrome://tracing open ("Trace Event
Format", Google, 2016: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU).

  HostProfile profile;
  device.observer = &profile;    ... a few steps ...    device.observer = nullptr;
  profile.finish();                                        computes the times
  const PeakRates peaks{.bytes = 20e9, .flops = 1e12};     of this device
  printf("%s", profile_table(profile.slices(), peaks).c_str());
  write_file_atomically(path, chrome_trace(profile.slices(), facts, peaks));

A slice is the interval in which one op, kernel, collective or phase ran. Two slices of a track are either nested or
disjoint. Track 0 is the device's computation; the others are streams beside it: collectives, copies of offloaded state.
*/
#pragma once
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>
#include "llmc/base/op_scope.h"  // OpCost, OpObserver, SliceKind

struct Slice {
    SliceKind kind;
    const char* name;
    OpCost cost;
    int64_t number;                          // of the step, micro-batch or block; -1: none
    int track = 0, depth = 0;                // depth: the number of slices of its track that contain it
    int64_t begin_ns = 0, end_ns = 0;        // since the first slice began
    int64_t begin_mark = -1, end_mark = -1;  // the events that finish() converts to times

    double ms() const { return double(end_ns - begin_ns) * 1e-6; }
};

// Keeps slices in the order in which they begin. A subclass for each device supplies the clock.
class Profile : public OpObserver {
public:
    static constexpr int kTracks = 4;

    void begin(SliceKind kind, const char* name, const OpCost& cost, int64_t number) override;
    void end() noexcept override;

    // Waits for the end of the observed work and computes the times. Call it once, after everything observed was
    // enqueued.
    void finish();
    const std::vector<Slice>& slices() const { return slices_; }

protected:
    // The track of work that is issued now.
    virtual int track() const = 0;
    // Records the current moment on that track, where `slice` begins or ends. Returns its index in times().
    virtual int64_t mark(const Slice& slice, bool begins) noexcept = 0;
    // The time of each mark in ns since the first one, which is the beginning of a step.
    virtual std::vector<int64_t> times() = 0;

private:
    std::vector<Slice> slices_;
    std::vector<size_t> open_[kTracks];  // slices that have begun, the innermost last
};

// For a device whose calls are synchronous.
class HostProfile : public Profile {
protected:
    int track() const override { return 0; }
    int64_t mark(const Slice&, bool) noexcept override;
    std::vector<int64_t> times() override { return times_; }

private:
    using Clock = std::chrono::steady_clock;
    Clock::time_point first_{};
    std::vector<int64_t> times_;
};

// Repeated measurements.
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

// The device's measured peak rates, and how they were measured: "a copy of 128 MiB".
struct PeakRates {
    double bytes = 0, flops = 0;  // per second; 0: not known
    std::string bytes_text, flops_text;
};

// A row of the table: all slices of one op and shape in the profiled steps.
struct ProfileRow {
    std::string name;
    bool nested = false;  // part of the nearest row above that is not nested
    double calls = 0;     // per step
    double ms = 0;        // per step
    double share = 0;     // of the step
    OpCost cost;          // per step; 0: not known
    double of_peak = 0;   // the time that the cost takes at the peak rates, divided by ms; 0: not known
};

struct ProfileSummary {
    int steps = 0;
    double step_ms = 0;            // on average
    std::vector<ProfileRow> rows;  // by time; the last that is not nested: time outside of ops
    std::vector<ProfileRow> phases, collectives;
    double peak_ms = 0;  // per step: the time at peak rates of the ops whose cost is known
};

// Sums up the slices of the profiled steps. No rows if there is no slice of the phase "step".
ProfileSummary summary_of(const std::vector<Slice>& slices, const PeakRates& peaks);
// The same as a table for people.
std::string profile_table(const std::vector<Slice>& slices, const PeakRates& peaks);

// A slice's name; for a linear layer with its shape: "matmul_forward 32768x768 -> 2304".
std::string slice_name(const char* name, const OpCost& cost);

struct TraceFacts {
    int rank = 0;
    std::string device;
    int64_t first_step = 0;  // the number of the first profiled step, counted from 1
};
// The slices as JSON in the format of Chrome's tracing.
std::string chrome_trace(const std::vector<Slice>& slices, const TraceFacts& facts, const PeakRates& peaks);

// FILE for the first rank, FILE with ".rank3" before its extension for the others.
std::string profile_path(const std::string& file, int rank);
