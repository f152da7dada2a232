/*
The memory of a training run, computed before any of it is allocated: --dry-run prints it, and it is compared with the
device's memory before the start.
*/
#pragma once
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>
#include "llmc/base/check.h"          // format
#include "llmc/base/head_rows.h"      // kLeastHeadRows, forced_head_rows
#include "llmc/base/memory.h"         // aligned
#include "llmc/model/activations.h"   // Activations, ActivationPolicy
#include "llmc/model/parameters.h"    // ParameterList
#include "llmc/model/shape.h"         // GptShape
#include "llmc/optim/state_layout.h"  // OptimizerMemory

struct MemoryPlan {
    struct Line {
        std::string name, note;
        size_t bytes;
    };
    std::vector<Line> lines;
    size_t taken_bytes = 0;  // used by NCCL beforehand: neither in the total nor in the free memory
    // Pinned memory of the host for the optimizer's state, not in the total; free_host_bytes: what a rank may take.
    size_t host_bytes = 0, free_host_bytes = 0;

    size_t total_bytes() const {
        size_t sum = 0;
        for (const Line& line : lines) sum += line.bytes;
        return sum;
    }
    // One line per part that needs memory, and the total, with `available_bytes` if that is known (not 0).
    std::string table(size_t available_bytes) const;
};

// Throws an Error unless the state of all `ranks` of this host fits into `free_bytes` of its memory (0: not known).
void check_host_fits(size_t bytes_of_each, int ranks, size_t free_bytes);

// Bytes of a rank that are not the model's.
struct MemoryParts {
    OptimizerMemory optimizer = {};
    size_t gradients = 0;    // all buffers
    bool bf16_sums = false;  // of these, the sums are in bf16
    size_t workspace = 0;    // of the device's ops
    size_t sample = 0;       // a sample's KV cache
};

// The memory of a run with T = float or bf16 on one rank. policy.head_rows must be set.
template <class T>
MemoryPlan memory_plan(const ParameterList& list, int64_t B, int64_t T_, ActivationPolicy policy,
                       const MemoryParts& parts) {
    const GptShape& shape = list.model;
    const auto values = [&](size_t size) { return size_t(list.buffer_size) * size; };
    const Activations<T> acts(shape, B, T_, policy);
    const size_t activations = acts.bytes();
    const size_t logits = aligned(size_t(acts.head_rows * shape.padded_vocab_size()) * sizeof(T));
    // What one layer more would take, if it recomputes like the first ones, or keeps all.
    const int64_t recomputed = std::min(policy.recompute.blocks, shape.num_layers);
    const auto layer = [&](bool recomputes) {
        GptShape deeper = shape;
        ActivationPolicy how = policy;
        deeper.num_layers++, how.recompute.blocks = recomputed + recomputes;
        return Activations<T>(deeper, B, T_, how).bytes() - activations;
    };
    const auto each = [&](const char* what, size_t bytes) {
        return format("%s, %.3g bytes per parameter", what, double(bytes) / double(list.num_parameters));
    };
    MemoryPlan plan;
    plan.lines.push_back({"weights", each(sizeof(T) == 2 ? "bf16" : "fp32", values(sizeof(T))), values(sizeof(T))});
    plan.lines.push_back(
        {"gradients", each(parts.bf16_sums ? "bf16; some layers' fp32" : "fp32", parts.gradients), parts.gradients});
    const OptimizerMemory& optimizer = parts.optimizer;
    plan.lines.push_back({"optimizer", "the stages of the update, three at a time", optimizer.device});
    if (optimizer.host == 0) {
        plan.lines.back().note = each("moments", optimizer.device - optimizer.master_weights);
        plan.lines.back().note +=
            optimizer.master_weights > 0 ? each("; master weights", optimizer.master_weights) : "";
    } else if (optimizer.kept > 0) {
        plan.lines.back().note += format("; state that stays, %.1f MiB", double(optimizer.kept) / (1 << 20));
    }
    plan.host_bytes = optimizer.host;
    const size_t layers = size_t(recomputed) * layer(true) + size_t(shape.num_layers - recomputed) * layer(false);
    plan.lines.push_back({"activations", "", layers});
    plan.lines.back().note =
        std::to_string(shape.num_layers) + " layers" + (policy.fp8 ? ", with their weights in fp8" : "");
    plan.lines.push_back({"other", "ends of the model, scratch of both passes", activations - layers - logits});
    plan.lines.push_back({"logits", format("%ld of %ld rows at a time", long(acts.head_rows), long(B * T_)), logits});
    plan.lines.push_back({"workspace", "of the ops", parts.workspace});
    plan.lines.push_back({"sample", "keys and values of a text", parts.sample});
    return plan;
}

// The plan with as many rows of logits at a time as fit: `most`, or a half, a quarter, ... of that, but at least
// `least`, even if that does not fit. plan_with(head_rows) makes a plan. ANVIL_HEAD_ROWS overrides the choice.
struct HeadPlan {
    int64_t head_rows;
    MemoryPlan memory;
};
template <class PlanWith>
HeadPlan plan_head_rows(int64_t most, int64_t least, size_t available_bytes, PlanWith&& plan_with) {
    for (int64_t rows = most;; rows = std::max(least, rows / 2 / kLeastHeadRows * kLeastHeadRows)) {
        const HeadPlan plan{rows, plan_with(rows)};
        if (plan.memory.total_bytes() <= available_bytes || rows <= least || forced_head_rows() > 0) return plan;
    }
}

// The error for a plan that does not fit. It names the largest batch size that would fit, and the --recompute that
// saves most memory at this one. plan_of(B, recompute) makes a plan.
template <class PlanOf>
void check_fits(int64_t B, Recomputation recompute, size_t available_bytes, PlanOf&& plan_of) {
    const MemoryPlan plan = plan_of(B, recompute);
    if (available_bytes == 0 || plan.total_bytes() <= available_bytes) return;
    const auto fits = [&](int64_t b, Recomputation how) { return plan_of(b, how).total_bytes() <= available_bytes; };
    const auto largest = [&](Recomputation how) {  // memory grows with B
        int64_t low = 0, high = B;
        while (high - low > 1) (fits((low + high) / 2, how) ? low : high) = (low + high) / 2;
        return low;
    };
    std::string advice;
    if (const int64_t b = largest(recompute); b > 0) advice = format("--batch-size %ld fits", b);
    const auto mib = [](size_t bytes) { return double(bytes) / (1 << 20); };
    if (recompute.what != Recompute::block || recompute.blocks < Recomputation::kAll) {
        const size_t saved = plan.total_bytes() - plan_of(B, Recompute::block).total_bytes();
        const int64_t b = fits(B, Recompute::block) ? B : largest(Recompute::block);
        if (b > 0)
            advice += format("%s--recompute block saves %.0f MiB and fits --batch-size %ld", advice.empty() ? "" : "; ",
                             mib(saved), b);
    }
    if (advice.empty()) advice = "no batch size fits: the model is too large for this device";
    throw Error(kExitUsage, format("%s\nout of memory: --batch-size %ld needs %.0f MiB and there are %.0f. %s",
                                   plan.table(available_bytes).c_str(), B, mib(plan.total_bytes()),
                                   mib(available_bytes), advice.c_str()));
}
