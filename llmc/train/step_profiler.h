/*
--profile: profiles a few steps of a run, op by op, then prints a table and writes the trace; the run continues
unchanged. It profiles `profile-steps` steps from the third one on, because the first two warm up. In a shorter run it
begins earlier.

  StepProfiler<Device, T> profiler(device, world, config);       measures the device's peaks
  profiler.plan(first, end);                                     the steps of this process
  {
      const auto watch = profiler.watch(step);                   around the start of each step
      stepper.start(...);
  }
  profiler.finish_step(step);                                    after each step
  profiler.finish();                                             at the end of the run, even if it ends early
*/
#pragma once
#include <algorithm>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <memory>
#include <string>
#include <type_traits>
#include "llmc/base/check.h"     // require
#include "llmc/base/file.h"      // FileWriter, write_file_atomically
#include "llmc/base/profile.h"   // HostProfile, chrome_trace, profile_table
#include "llmc/run/run_flags.h"  // RunFlags
#include "llmc/train/devices.h"  // describe, make_profile, measure_peaks
#include "llmc/train/world.h"    // World

template <class Device, class T>
class StepProfiler {
public:
    static constexpr int64_t kWarmUpSteps = 2;

    // Throws an Error on all ranks if a rank's file cannot be written. To be called before the model allocates its
    // memory, because the measurement needs some. Collective.
    StepProfiler(Device& device, World& world, const RunFlags& config)
        : device_(device), count_(config.profile_steps), rank_(world.ranks.rank) {
        if (config.profile.empty()) return;
        path_ = profile_path(config.profile, rank_);
        share_errors(world.ranks, [&] { check_writable(); });
        // Ranks measure at the same time, and so share memory bandwidth and power as in a step. Virtual ranks take
        // turns.
        if (world.is_first() || !world.group) peaks_ = measure_peaks<T>(device);
        profile_ = make_profile(device);
    }
    StepProfiler(const StepProfiler&) = delete;
    StepProfiler& operator=(const StepProfiler&) = delete;

    // The process will do the steps [first, end).
    void plan(int64_t first, int64_t end) {
        begin_ = std::max(first, std::min(first + kWarmUpSteps, end - count_));
        end_ = std::min(end, begin_ + count_);
    }

    // During its lifetime the device's ops are profiled, if `step` is one of the chosen steps.
    class Watch {
    public:
        Watch(Device& device, OpObserver* observer) : device_(device), kept_(device.observer) {
            if (observer) device.observer = observer;
        }
        ~Watch() { device_.observer = kept_; }
        Watch(const Watch&) = delete;
        Watch& operator=(const Watch&) = delete;

    private:
        Device& device_;
        OpObserver* kept_;
    };
    Watch watch(int64_t step) { return Watch(device_, step >= begin_ && step < end_ ? profile_.get() : nullptr); }

    // Call it when `step` is complete.
    void finish_step(int64_t step) {
        if (profile_ && step + 1 == end_) finish();
    }

    // Reports the profile. A file that cannot be written is a warning: it must not end the run.
    void finish() {
        const std::unique_ptr<Profile> profile = std::move(profile_);
        if (!profile) return;
        if (profile->slices().empty()) {
            if (rank_ == 0)
                std::fprintf(stderr, "warning: --profile %s: there was no step to profile, so it is not written\n",
                             path_.c_str());
            return;
        }
        profile->finish();
        if (rank_ == 0) std::printf("%s", profile_table(profile->slices(), peaks_).c_str());
        try {
            const TraceFacts facts{.rank = rank_, .device = describe(device_), .first_step = begin_ + 1};
            write_file_atomically(path_, chrome_trace(profile->slices(), facts, peaks_));
            if (rank_ == 0) std::printf("profile: %s, for ui.perfetto.dev or chrome://tracing\n", path_.c_str());
        } catch (const std::exception& error) {
            std::fprintf(stderr, "warning: --profile: %s\n", error.what());
        }
    }

private:
    Device& device_;
    const int64_t count_;
    const int rank_;
    std::string path_;
    PeakRates peaks_;
    std::unique_ptr<Profile> profile_;  // null: nothing is left to profile
    int64_t begin_ = 0, end_ = 0;

    void check_writable() const {
        const std::filesystem::path path(path_);
        require((!std::filesystem::exists(path) || std::filesystem::is_regular_file(path)) && path.has_filename(),
                "--profile %s: that is a folder or a device: give the name of a file", path_.c_str());
        if (path.has_parent_path()) make_folders(path.parent_path());
        const std::string tmp = path_ + ".tmp";
        try {
            FileWriter file(tmp);
        } catch (const Error& error) {
            throw Error(kExitUsage, std::string("--profile: ") + error.what());
        }
        std::filesystem::remove(tmp);
    }
};
