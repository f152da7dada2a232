/*
Records what is enqueued: the observer of the device that launches nothing (llmc/plan/include), to which its runtime,
launches and libraries report.
*/
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>
#include "llmc/base/op_scope.h"    // OpObserver
#include "llmc/base/profile.h"     // slice_name
#include "llmc/plan/step_trace.h"  // StepTrace

class StepRecorder : public OpObserver {
public:
    StepTrace trace;
    bool in_graph = false;  // whether what is enqueued now is being captured

    // One per thread, because the runtime's functions have no argument that could lead to it.
    static StepRecorder*& current() {
        static thread_local StepRecorder* recorder = nullptr;
        return recorder;
    }
    StepRecorder() : before_(std::exchange(current(), this)) {}
    ~StepRecorder() override { current() = before_; }
    StepRecorder(const StepRecorder&) = delete;
    StepRecorder& operator=(const StepRecorder&) = delete;

    void begin(SliceKind kind, const char* name, const OpCost& cost, int64_t number) override {
        scopes_.push_back({kind, name, cost, number});
    }
    void end() noexcept override { scopes_.pop_back(); }

    // Adds work in `stream`; the scopes around it give its op and phase.
    TracedWork& add(TracedWork::Kind kind, const std::string& name, const void* stream) {
        TracedWork one;
        one.kind = kind, one.name = name, one.stream = stream_number(stream), one.in_graph = in_graph;
        for (const OpenScope& scope : scopes_) {
            if (scope.kind == SliceKind::op && one.op.empty()) one.op = slice_name(scope.name, scope.cost);
            if (scope.kind != SliceKind::phase) continue;
            one.phase = scope.name;
            if (one.phase == "micro_batch") one.micro_batch = scope.number;
        }
        trace.items.push_back({TraceItem::Kind::work, one.stream, int64_t(trace.work.size())});
        trace.work.push_back(one);
        return trace.work.back();
    }
    // The cost of the op around a launch, once: if an op has several launches, each of these names its own cost.
    OpCost take_op_cost() {
        for (size_t i = scopes_.size(); i-- > 0;)
            if (scopes_[i].kind == SliceKind::op) {
                const OpCost cost = scopes_[i].cost;
                scopes_[i].cost.bytes = scopes_[i].cost.flops = 0;
                return cost;
            }
        return {};
    }

    void record(const void* event, const void* stream) {
        trace.items.push_back({TraceItem::Kind::record, stream_number(stream), event_number(event)});
    }
    void wait(const void* event, const void* stream) {
        trace.items.push_back({TraceItem::Kind::wait, stream_number(stream), event_number(event)});
    }

    // The first step only fills the streams.
    void begin_second_step() { trace.second_work = trace.work.size(), trace.second_item = trace.items.size(); }

    // Streams are numbered in the order of their first use.
    int stream_number(const void* stream) { return int(number_of(streams_, stream)); }

private:
    struct OpenScope {
        SliceKind kind;
        const char* name;
        OpCost cost;
        int64_t number;
    };
    StepRecorder* before_;
    std::vector<OpenScope> scopes_;
    std::map<const void*, int64_t> streams_, events_;

    static int64_t number_of(std::map<const void*, int64_t>& numbers, const void* what) {
        return numbers.try_emplace(what, int64_t(numbers.size())).first->second;
    }
    int64_t event_number(const void* event) { return number_of(events_, event); }
};
