/*
Plans of an attention library by shape and pass. Each is made on first use; refusals are remembered, too. Making a plan
takes most of a second, so a caller with many shapes would stall: plan_attention() in attention.cuh decides which shapes
may have plans.
*/
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include "llmc/base/check.h"     // Error
#include "llmc/ops/attention.h"  // AttentionShape

// What a plan depends on. All windows that hide nothing are equal; the scale is an argument of each call.
using AttentionKey = std::tuple<int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, bool>;
inline AttentionKey key_of(const AttentionShape& s) {
    const int64_t window = s.window >= 0 && s.window < s.T - 1 ? s.window : -1;
    return {s.B, s.T, s.NH, s.NKV, s.HS, window, s.starts != nullptr};
}

template <class Plan>
class AttentionPlans {
public:
    struct Entry {
        Plan plan;
        std::string why_not;  // "" if there is a plan
    };

    // `refuse(shape)` says why there can be none, at no cost ("" if there may be); `make(shape, is_backward)` makes
    // one, or throws.
    template <class Refuse, class Make>
    const Entry& entry_for(const AttentionShape& shape, bool is_backward, Refuse&& refuse, Make&& make) {
        const auto [found, is_new] = entries_.try_emplace({key_of(shape), is_backward});
        Entry& entry = found->second;
        if (!is_new) return entry;
        entry.why_not = refuse(shape);
        if (!entry.why_not.empty()) return entry;
        made_++;
        // A refusal by the library must not end the run: our own kernels take over.
        try {
            entry.plan = make(shape, is_backward);
        } catch (const Error& error) {
            entry.why_not = error.what();
        }
        return entry;
    }

    int64_t made() const { return made_; }  // including those that the library refused after trying
    void clear() { entries_.clear(); }

private:
    std::map<std::pair<AttentionKey, bool>, Entry> entries_;
    int64_t made_ = 0;
};
