/*
What a training step enqueues in a GPU's streams, as plain data: every kernel, library call and collective with its
shape, in order, and the events between streams. trace_step() (llmc/plan/traced_step.h) records one;
gpu_model.h says how long it takes; trace_report.h prints it.
*/
#pragma once
#include <cstdint>
#include <string>
#include <vector>
#include "llmc/base/op_scope.h"     // OpCost
#include "llmc/cuda/matmul_call.h"  // MatmulCall

struct TracedWork {
    // gemm: by cuBLASLt. attention: by cuDNN; our own are kernels. clear, copy: by the runtime.
    enum class Kind { kernel, gemm, attention, clear, copy, collective };
    Kind kind = Kind::kernel;
    std::string name;          // as a profile shows it: "layernorm_backward"
    std::string op;            // the outermost op that it belongs to, as a profile shows it; "": none
    std::string phase;         // the innermost phase of the step: "forward", "block_backward", "update"
    int64_t micro_batch = -1;  // -1: outside of micro-batches
    int stream = 0;            // 0: the device's own; the others: of collectives, and of copies from and to the host
    bool in_graph = false;     // part of a CUDA graph, which the host enqueues as a whole
    OpCost cost;               // for a GEMM, or attention by cuDNN, from its shape
    bool has_op_cost = false;  // cost is that of the innermost op around it: no other launch does the op's main work

    // For kernels.
    std::string kernel;  // its template: "layernorm_backward_kernel"
    bool is_bf16 = false;
    unsigned grid[3] = {1, 1, 1}, block[3] = {1, 1, 1};
    int64_t shared_bytes = 0;  // dynamic

    MatmulCall gemm = {};
    bool is_backward = false, deterministic = true;  // for attention by cuDNN
    int passes = 0;            // for a collective: how often a ring sends (W - 1) / W of cost.bytes
    bool by_messages = false;  // for a collective: no ring, each rank sends to every other
    int ranks = 0;             // for a collective: how many take part, those of a group; 0: all
    bool between = false;      // for a collective: the ranks are one of each group

    // A copy in a stream of its own, between the device and the host.
    bool is_beside() const { return kind == Kind::copy && stream != 0; }
    int64_t num_blocks() const { return int64_t(grid[0]) * grid[1] * grid[2]; }
    int64_t num_threads() const { return int64_t(block[0]) * block[1] * block[2]; }
};

struct TraceItem {
    // work: element `index` of StepTrace::work. record, wait: event `index`, by `stream`.
    enum class Kind { work, record, wait };
    Kind kind = Kind::work;
    int stream = 0;
    int64_t index = 0;
};

struct StepTrace {
    std::vector<TracedWork> work;
    std::vector<TraceItem> items;
    // Two steps are recorded, so that the second waits for the weights of the first. The second begins here.
    size_t second_work = 0, second_item = 0;
    // If a step has more than three micro-batches, three are recorded, and the middle one stands for this many.
    int64_t middle_repeats = 1;
    int64_t traced_micro_batches = 0;

    // How often the real step does what is recorded once.
    int64_t repeats(const TracedWork& one) const {
        return one.micro_batch == 1 && middle_repeats > 1 ? middle_repeats : 1;
    }
};
