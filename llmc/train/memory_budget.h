/*
The memory of a rank's device, and how much of it a step needs. All ranks have the same batch size, for which the rank
with the least memory decides. If --batch-size differs between ranks, each must have enough memory for its own.

  const MemoryBudget<Device, T> memory(device, world, request.flags, tokenizer, parameters, sharding, *comm);
  memory.fits(step), memory.plan(step), memory.check(config)
*/
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>
#include "llmc/base/host_limits.h"    // free_host_memory
#include "llmc/comm/comm.h"           // Comm
#include "llmc/model/kv_cache.h"      // KvCache
#include "llmc/model/parameters.h"    // ParameterList
#include "llmc/optim/optimizer.h"     // Optimizer
#include "llmc/optim/outer_state.h"   // OuterState
#include "llmc/optim/state_layout.h"  // StateLayout, OptimizerMemory, least_offload
#include "llmc/run/memory_plan.h"     // memory_plan, check_fits
#include "llmc/run/run_config.h"      // RunConfig
#include "llmc/run/step_config.h"     // StepConfig
#include "llmc/train/devices.h"       // free_memory, memory_limit, workspace_bytes
#include "llmc/train/world.h"         // World

// The most tokens of a micro-batch on the CPU: so many still fit into the caches, and more are no faster.
inline constexpr int64_t kCpuBatchTokens = 4096;

template <class Device, class T>
class MemoryBudget {
public:
    // Collective, after the communicator has allocated its buffers. `makes_samples`: include a sample's KV cache.
    MemoryBudget(Device& device, World& world, const RunFlags& flags, bool makes_samples,
                 const ParameterList& parameters, const ShardingPlan& sharding, const Comm<Device>& comm)
        : device_(device),
          flags_(flags),
          parameters_(parameters),
          sharding_(sharding),
          seq_len_(flags.seq_len(parameters.model)),
          ranks_here_(world.group ? world.group->world_size : world.place().processes),
          comm_bytes_(comm.taken_bytes()) {
        const GptShape& shape = parameters.model;
        if (makes_samples)
            sample_bytes_ = KvCache<Device, T>::bytes(
                shape, layer_windows(shape.architecture, shape.num_layers, shape.max_seq_len), 1, seq_len_, seq_len_);
        const OptimizerConfig rules = flags.chosen_recipe().rules;
        const StateLayout layout(parameters, sharding, world.together().rank, rules);
        optimizer_ = optimizer_memory(parameters, sharding, rules, sizeof(T));
        struct Memory {
            size_t available, limit, update_workspace;
        } all{free_memory(device), memory_limit(device, ranks_here_),
              flags.trains() ? Optimizer<Device, T>::workspace_bytes(device, layout) : 0};
        own_limit_ = all.limit;
        all = world.ranks.joined_value(all, "its free memory", [](const Memory& a, const Memory& b) {
            return Memory{std::min(a.available, b.available), std::min(a.limit, b.limit),
                          std::max(a.update_workspace, b.update_workspace)};
        });
        available_ = all.available, limit_ = all.limit, update_workspace_bytes_ = all.update_workspace;
    }
    // --offload optimizer:auto: sets rules.offload_percent, which holds for all plans from here on. Rows of logits, on
    // which bits depend, are those of a run that offloads all.
    void settle_offload(OptimizerConfig& rules, const StepConfig& step) {
        if (!flags_.settles_offload()) return;
        const int64_t rows = head_plan(step, kLeastHeadRows).head_rows;
        optimizer_ = least_offload(parameters_, sharding_, rules, sizeof(T), [&](const OptimizerMemory& optimizer) {
            optimizer_ = optimizer;
            return limit_ == 0 || head_plan(step, rows).memory.total_bytes() <= limit_;
        });
    }

    // The most bytes that a rank may use; 0: not known.
    size_t limit() const { return limit_; }

    // For --batch-size auto: whether a step fits, without a batch so large that lm_head would be slow.
    bool fits(const StepConfig& step) const {
        const size_t bytes = head_plan(step, kGpuHeadRows).memory.total_bytes();
        return (available_ > 0 || step.B * step.T <= kCpuBatchTokens) && (limit_ == 0 || bytes <= limit_);
    }
    MemoryPlan plan(const StepConfig& step) const { return head_plan(step, kLeastHeadRows).memory; }
    // Rows of logits computed at a time.
    int64_t head_rows(const RunConfig& config) const { return head_plan(config.step, kLeastHeadRows).head_rows; }
    // Throws an Error with advice if the run does not fit.
    void check(const RunConfig& config) const {
        if (Device::kAsynchronous && optimizer_.host > 0)
            check_host_fits(optimizer_.host, ranks_here_, free_host_bytes_);
        const size_t limit = are_equal(config.shares) ? limit_ : own_limit_;
        check_fits(config.step.B, config.step.recompute, limit, [&](int64_t batch_size, Recomputation recompute) {
            StepConfig other = config.step;
            other.B = batch_size, other.recompute = recompute;
            return plan(other);
        });
    }

    // Bytes of workspace for the ops of the model and the optimizer.
    size_t workspace(int64_t B) const {
        return std::max(update_workspace_bytes_,
                        workspace_bytes<T>(device_, parameters_.model, B, seq_len_, flags_.document_token.has_value(),
                                           flags_.trains(), flags_.lengths()));
    }

private:
    Device& device_;
    RunFlags flags_;
    ParameterList parameters_;
    ShardingPlan sharding_;
    int64_t seq_len_;
    int ranks_here_;  // on this host
    size_t comm_bytes_, sample_bytes_ = 0, update_workspace_bytes_ = 0;
    OptimizerMemory optimizer_;
    size_t free_host_bytes_ = free_host_memory();
    size_t available_ = 0;  // 0: not known
    size_t limit_ = 0;      // available_, or on a CPU, where that is not known, this rank's share of the host's memory
    size_t own_limit_ = 0;  // this rank's limit; limit_ is the smallest of all ranks

    size_t outer_bytes() const {
        const int64_t most = *std::max_element(sharding_.state_size.begin(), sharding_.state_size.end());
        return OuterState::memory_bytes(most, flags_.islands, flags_.outer().type);
    }
    HeadPlan head_plan(const StepConfig& step, int64_t least) const {
        const int64_t most = device_.head_rows(step.B * seq_len_, parameters_.model.padded_vocab_size(), sizeof(T));
        const size_t gradients = gradient_bytes(sharding_, step, Device::kAsynchronous), ops = workspace(step.B);
        return plan_head_rows(
            most, std::min(most, least), available_ == 0 ? SIZE_MAX : available_, [&](int64_t head_rows) {
                MemoryPlan plan =
                    memory_plan<T>(parameters_, step.B, seq_len_,
                                   {step.recompute, flags_.fp8(), head_rows, flags_.amax_history(), flags_.mx()},
                                   {.optimizer = optimizer_,
                                    .gradients = gradients,
                                    .bf16_sums = step.bf16_sums,
                                    .workspace = ops,
                                    .sample = sample_bytes_});
                plan.free_host_bytes = free_host_bytes_ / size_t(ranks_here_);
                if (!Device::kAsynchronous && optimizer_.host > 0) {  // the same memory
                    plan.lines.push_back({"offloaded", "the optimizer's state", optimizer_.host});
                    plan.host_bytes = 0;
                }
                // On a GPU it is the host's memory, and in no plan.
                if (flags_.islands_of_run() > 0 && !Device::kAsynchronous)
                    plan.lines.push_back({"outer step", "reference, momentum, what islands exchange", outer_bytes()});
                plan.lines.push_back({"left free", "for libraries", memory_margin(device_)});
                plan.taken_bytes = comm_bytes_;
                return plan;
            });
    }
};
