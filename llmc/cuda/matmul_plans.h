/*
Plans of GEMMs: descriptors and an algorithm for each distinct call, made on first use. They also say when GEMMs are
timed (--tune-matmul): only in training steps, between begin_step() and end_step(). Calls outside of them (prompts,
samples, tasks) may have a new shape each time, and are not worth the time. A plan made outside of a step is made again,
and timed, if a step asks for it.

What was timed is written to the file at the end of the step, all at once.
*/
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include "llmc/cuda/matmul_cache.h"  // MatmulCache
#include "llmc/cuda/matmul_call.h"   // MatmulCall

template <class Plan>
class MatmulPlans {
public:
    MatmulCache cache;
    bool has_cache = false;  // --tune-matmul or ANVIL_MATMUL_CACHE names one

    void begin_step() { in_step_ = true; }
    void end_step() {
        in_step_ = false;
        cache.save();
    }

    struct Made {
        Plan plan;
        bool is_final;  // timed, or from the cache
    };
    // `make(may_time)` returns a Made.
    template <class Make>
    const Plan& plan_for(const MatmulCall& call, Make&& make) {
        const bool may_time = has_cache && in_step_;
        const auto found = plans_.find(call);
        if (found != plans_.end() && (found->second.is_final || !may_time)) return found->second.plan;
        made_++;
        Made entry = make(may_time);
        entry.is_final |= may_time;
        return plans_.insert_or_assign(call, std::move(entry)).first->second.plan;
    }

    // For the log, after the library's name: which algorithms are used.
    std::string text() const {
        if (!has_cache) return "first of its ranking (--tune-matmul times them)";
        return std::to_string(cache.size()) + " timed algorithms known from " + cache.path() +
               ", others timed in the first step, which takes longer";
    }

    int64_t made() const { return made_; }
    void clear() { plans_.clear(); }

private:
    std::map<MatmulCall, Made> plans_;
    bool in_step_ = false;
    int64_t made_ = 0;
};
