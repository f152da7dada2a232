/*
The optimizer's state in host memory (--offload optimizer), all or that of some stages. For the update of a stage
(StateLayout::Stage) its state is copied into a slot of the device's memory, and back afterwards:

  OffloadedState<Device> state(device, layout, sizeof(T), arena);
  state.host(k, offset)          where `offset` of tensor k is in host memory; k = StateLayout::kMasters: master weights
  state.begin(s);                for each stage, in the order of StateLayout::offloaded, in every step
  state.on_device(k, at)         where the stage's part that lies in host memory at `at` is now
  state.end(s);
  state.finish();                the host waits; then host memory is whole and may be read

With three slots, three streams work at once. The first stages of the next step are copied in as soon as their slots are
free, so that they are there when its update begins:

  in          | stage 2 | stage 3 | stage 4 |  ...  | stage 0 | stage 1 | stage 2 |     beside the next step
  device's    | update 1 | update 2 | update 3 |
  out         | stage 0 | stage 1 | stage 2 |

On a CPU the copies are made at once, between two places in the same memory.
*/
#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <vector>
#include "llmc/base/check.h"          // ensure
#include "llmc/base/memory.h"         // Arena
#include "llmc/optim/state_layout.h"  // StateLayout

template <class Device>
class OffloadedState {
public:
    // `arena` has layout.num_slots() * layout.slot_bytes() for the slots.
    OffloadedState(Device& device, const StateLayout& layout, size_t weight_size, Arena& arena)
        : layout_(layout),
          num_tensors_(layout.num_tensors(weight_size)),
          source_{device},
          memory_(source_, "optimizer in host memory", layout.host_bytes(weight_size)) {
        for (size_t k = 0; k < num_tensors_; k++) {
            const int64_t bytes =
                (k == StateLayout::kMasters ? layout.num_elements * int64_t(sizeof(float)) : layout.sizes[k]) -
                layout.kept[k];
            host_[k] = memory_.take<char>(bytes);
            fill_zero(device, host_[k], bytes);  // a GPU may clear pinned memory, too
        }
        for (size_t slot = 0; slot < layout.num_slots(); slot++) {
            slots_.emplace_back();
            for (size_t k = 0; k < num_tensors_; k++) slots_.back()[k] = arena.take<char>(layout.most_bytes(k));
        }
        copies_ = std::make_unique<typename Device::SlotCopies>(device, slots_.size());
    }

    char* host(size_t tensor, int64_t offset) const { return host_[tensor] + (offset - layout_.kept[tensor]); }

    void begin(size_t stage) {
        ensure(stage == offloaded(num_begun_));
        if (num_begun_ == 0)
            for (size_t slot = 0; slot < slots_.size(); slot++) fill(slot, offloaded(slot));
        stage_ = stage, slot_ = num_begun_++ % slots_.size();
        copies_->await(slot_);
    }
    char* on_device(size_t tensor, const void* at) const {
        return in_slot(slot_, tensor) +
               (static_cast<const char*>(at) - host(tensor, layout_.stages[stage_].begin[tensor]));
    }
    void end(size_t stage) {
        copies_->empty(slot_, [&](auto&& copy) {
            each_tensor(stage, [&](size_t k, char* host, size_t bytes) { copy(host, in_slot(slot_, k), bytes); });
        });
        fill(slot_, offloaded(num_begun_ - 1 + slots_.size()));
    }

    void finish() const { copies_->finish(); }

private:
    using Tensors = std::array<char*, StateLayout::kMasters + 1>;

    const StateLayout& layout_;
    const size_t num_tensors_;
    typename Device::HostMemory source_;
    Arena memory_;
    Tensors host_ = {};
    std::vector<Tensors> slots_;
    std::unique_ptr<typename Device::SlotCopies> copies_;  // destroyed first: they end before their memory is released
    size_t num_begun_ = 0, stage_ = 0, slot_ = 0;

    char* in_slot(size_t slot, size_t tensor) const { return slots_[slot][tensor]; }
    // The stage that is copied as this one of all, counted from the first step on.
    size_t offloaded(size_t number) const { return layout_.offloaded[number % layout_.offloaded.size()]; }

    // Calls visit(tensor, its part in host memory, bytes).
    template <class Visit>
    void each_tensor(size_t stage, Visit&& visit) const {
        const StateLayout::Stage& of = layout_.stages[stage];
        for (size_t k = 0; k < num_tensors_; k++)
            if (of.size(k) > 0) visit(k, host(k, of.begin[k]), size_t(of.size(k)));
    }
    void fill(size_t slot, size_t stage) {
        copies_->fill(slot, [&](auto&& copy) {
            each_tensor(stage, [&](size_t k, char* host, size_t bytes) { copy(in_slot(slot, k), host, bytes); });
        });
    }
};
