/*
One optimizer step of all ranks: micro-batches, reduction of gradients, norm, clipping, update, all-gather of weights.
The host only enqueues work: whether the gradient is finite, its norm and the clip factor are computed and used on the
device, and reach the host while the next step is already running.

  Stepper<Device, T> stepper(model, optimizer, comm, config, updates);
  stepper.start(data, rates);                        enqueues a whole step
  const StepResult result = stepper.finish();        waits for the oldest step that was started

In the last micro-batch's backward pass, a bucket of gradients is reduce-scattered (or GradientSum says how) as soon as
it is complete, beside the rest of the pass. After the update the weights are all-gathered bucket by bucket in the order
in which the next forward pass needs them, and it waits for each where it does.

With ZeRO-2 every micro-batch's backward pass does so, and this rank's shard of the result is added to that of the
micro-batches before; then another bucket reuses its memory (llmc/optim/gradient_layout.h). So sums are over ranks
first, and the data loader assigns micro-batches in turns: with tree_sum they are again those of one tree, whose leaves
are all ranks' micro-batches in the order of the data, if the ranks are a power of two.

With delayed scaling (llmc/model/linear.h) a step notes the largest magnitudes of what is quantized to FP8. Ranks put
theirs into rows of one buffer, which an all-reduce adds up: other rows are zeros, so the sum has them all as they are.
Then each rank has the same history, and it does not depend on how many there are.

With a CUDA graph, everything up to the decision about the update is captured in the third step and launched as a whole
from then on, with any micro-batches; the update, with the step's own rates, follows it. A profiled step is enqueued op
by op. The bits are the same.

Ranks may have unequal shares of a step (shares.h): loss and gradient are sums over a step's tokens, on whichever rank,
divided by their number. With equal shares the bits are those of a run without them.

Gradients of micro-batches accumulate in place; with tree_sum they are added pairwise, ((0 + 1) + (2 + 3)) + ..., as
ranks' gradients always are (sum_tree in llmc/comm/comm.h). Then a step has the same bits however its micro-batches
are assigned to ranks, as long as each rank has a power of two of them. It takes log2 of that many gradient buffers
more.
*/
#pragma once
#include <bit>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>
#include "llmc/base/check.h"             // Error
#include "llmc/base/op_scope.h"          // PhaseScope
#include "llmc/comm/comm.h"              // Comm, NoComm
#include "llmc/data/loader.h"            // Batch
#include "llmc/model/gpt.h"              // Gpt
#include "llmc/ops/step_scalars.h"       // StepSums, StepScalars
#include "llmc/optim/gradient_layout.h"  // GradientLayout
#include "llmc/optim/optimizer.h"        // Optimizer, Rates

struct StepConfig {
    int64_t B, T, accumulation;  // sequences, tokens each, micro-batches of this rank
    double grad_clip;            // 0: none
    int64_t world_size = 1;      // ranks that exchange gradients: those of an island
    bool tree_sum = false;
    bool bf16_gradients = false;  // gradients travel as bf16
    GradientSum gradient_sum = GradientSum::automatic;
    int zero_stage = 1;        // 2: gradients are sharded, too
    bool noise_scale = false;  // add up the squares of the gradients of a step's parts() as well
    double dropout = 0;        // p; which elements, the seed and the step's number decide, on any ranks
    uint64_t dropout_seed = 0;
    bool graph = false;  // a CUDA graph, where there is one (why_no_graph)
    // Of a step that ranks share unequally: all its sequences. 0: every rank has as many as this one.
    int64_t step_sequences = 0, first_sequence = 0;  // the first that is this rank's
    int64_t islands = 1, first_rank = 0;             // of all islands' ranks: the first of this one's

    int64_t sequences() const { return step_sequences > 0 ? step_sequences : B * accumulation * world_size; }
    int64_t sequences_before(int rank) const { return step_sequences > 0 ? first_sequence : rank * accumulation * B; }
    int64_t num_tokens() const { return sequences() * T; }
    int64_t tokens_of_all() const { return num_tokens() * islands; }
    // What the noise scale compares with the whole step: the ranks, or for one rank its micro-batches. Of these only
    // the first one's gradient ever exists by itself, so only that is used.
    int64_t parts() const { return world_size > 1 ? world_size : accumulation; }
    int64_t parts_measured() const { return world_size > 1 ? world_size : 1; }
    int levels() const { return tree_sum ? std::bit_width(uint64_t(accumulation - 1)) : 0; }  // buffers of tree_sum
    bool has_halves() const { return bf16_gradients && world_size > 1; }
    bool shards_gradients() const { return zero_stage == 2 && world_size > 1; }
};

// Why a step cannot be a CUDA graph; "": it can.
inline std::string why_no_graph(const StepConfig& config, bool on_gpu) {
    if (!on_gpu) return "there is none on a CPU";
    if (config.world_size > 1) return "of several ranks, collectives of one step are waited for in the next";
    if (config.dropout > 0) return "dropout has a mask of its own in every step";
    return "";
}

// What all_to_all_sum() needs besides the gradients. On a CPU ranks read each other's, and in bf16 there is room in
// them.
inline size_t scratch_bytes(const ShardingPlan& plan, const StepConfig& config, bool on_gpu) {
    if (!on_gpu || config.gradient_sum != GradientSum::all_to_all || config.has_halves() || config.world_size == 1)
        return 0;
    int64_t largest = 0;
    for (const Bucket& bucket : plan.buckets) largest = std::max(largest, bucket.shard * plan.shards);
    return aligned(size_t(largest) * sizeof(float));
}
// Bytes of the model's gradients, and of the stepper's own gradient buffers.
inline size_t gradient_bytes(const ShardingPlan& plan, const StepConfig& config, bool on_gpu) {
    const GradientLayout layout = gradient_layout(plan, config.shards_gradients());
    const size_t size = size_t(layout.buffer_size), kept = size_t(layout.kept_size());
    const size_t sums = size_t(config.levels()) + size_t(layout.is_sharded());
    return size * sizeof(float) + sums * kept * sizeof(float) + (config.has_halves() ? size * sizeof(bf16) : 0) +
           scratch_bytes(plan, config, on_gpu);
}

// What ranks request of all ranks by voting; see StepSums::votes. written: its part of a checkpoint is on the disk;
// committed, by rank 0: all of it is. bad_data: it cannot continue, and a step with such a vote is applied on no rank.
// local_over: its part of a local checkpoint is written, or could not be (local_failed).
enum class Vote { stop, out_of_time, written, committed, bad_data, local_over, local_failed };

struct StepResult {
    double loss;      // mean over the step's targets of all ranks that count, before the update
    double norm;      // of the gradient, before clipping
    bool applied;     // false: loss or gradient was not finite, and weights and moments are as before, bit for bit
    int64_t updates;  // the optimizer's count, this one included
    StepSums sums;

    // The squared norm of a part's gradient as the mean over its own tokens, on average over the parts (noise_scale.h).
    double part_squared(const StepConfig& config) const {
        const double share = double(config.num_tokens()) / double(targets()), parts = double(config.parts());
        return sums.part_squares.value() * (parts * (parts / double(config.parts_measured()))) * share * share;
    }
    int64_t targets() const { return int64_t(sums.targets); }  // that count
    int64_t count(Vote vote) const { return int64_t(sums.votes[int(vote)]); }
};

template <class Device, class T = float>
class Stepper {
public:
    static constexpr int kMostUnderWay = Device::kAsynchronous ? 2 : 1;

    // `updates` so far: not zero after a resume.
    Stepper(Gpt<Device, T>& model, Optimizer<Device, T>& optimizer, Comm<Device>& comm, const StepConfig& config,
            int64_t updates)
        : model_(model),
          optimizer_(optimizer),
          comm_(comm),
          config_(config),
          arena_(comm, "step", aligned(sizeof(StepScalars)) + aligned(size_t(seen_size()) * sizeof(float))),
          scalars_(arena_.take<StepScalars>(1)),
          seen_(seen_size() > 0 ? arena_.take<float>(seen_size()) : nullptr),
          has_graph_(config.graph && why_no_graph(config, Device::kAsynchronous).empty()),
          graph_(model.device),
          observer_(model.device.observer),
          tokens_(model.device, tokens_sent()),
          targets_(model.device, tokens_sent()),
          votes_(model.device, 1),
          results_(model.device),
          by_messages_(comm.takes_all_to_all(config.gradient_sum, config.has_halves())),
          layout_(gradient_layout(optimizer.plan, config.shards_gradients())),
          reduced_(buckets().size()),
          reduced_of_(buckets().size(), -1),
          gathered_(buckets().size()) {
        ensure(config.world_size == comm.world_size && optimizer.plan.world_size == comm.world_size);
        ensure(optimizer.plan.shards == comm.shards());
        ensure(model.gradients.size == layout_.buffer_size);
        const StepScalars start{.updates = updates};
        copy_to_device(model.device, scalars_, &start, 1);
        if (seen_) {
            model.amax_notes = {seen_ + comm.rank * model.acts.amax.tensors, &scalars_->sums.saturated};
            float before[2];
            copy_to_host(model.device, before, model.acts.amax.data, 2);
            model.set_amax_steps(int64_t(before[1]));
        }
        const auto floats = [](int64_t n) { return aligned(size_t(n) * sizeof(float)); };
        for (int level = 0; level < config.levels(); level++)
            sums_.emplace_back(model.device, "gradients", floats(layout_.kept_size()));
        if (layout_.is_sharded()) shards_.emplace(model.device, "gradients", floats(layout_.shards_size));
        if (config.has_halves())
            halves_.emplace(comm, "gradients", aligned(size_t(layout_.buffer_size) * sizeof(bf16)));
        if (const size_t bytes = scratch_bytes(optimizer.plan, config, Device::kAsynchronous))
            scratch_.emplace(comm, "scratch of the all-to-all", bytes);
        model.before_forward = [this](int64_t layer) {
            for (size_t b = 0; b < buckets().size(); b++)
                if (buckets()[b].needed_by <= layer) await(gathered_[b]);
        };
        model.after_backward = [this](int64_t layer) {
            if (!layout_.is_sharded() && !is_last(micro_)) return;
            for (; complete_ < buckets().size() && buckets()[complete_].ready_after >= layer; complete_++)
                reduce(complete_);
            open_buckets(layer);
        };
    }
    // One rank.
    Stepper(Gpt<Device, T>& model, Optimizer<Device, T>& optimizer, const StepConfig& config, int64_t updates)
        : Stepper(model, optimizer, std::make_unique<NoComm<Device>>(model.device), config, updates) {}
    ~Stepper() {
        model_.before_forward = model_.after_backward = nullptr;
        model_.amax_notes = {};
    }
    Stepper(const Stepper&) = delete;
    Stepper& operator=(const Stepper&) = delete;

    // `data`: a DataLoader, or what has its next(). `elapsed_us`: what rank 0 tells the others with the result.
    template <class Data>
    void start(Data& data, const Rates& rates, const std::vector<Vote>& votes = {}, uint64_t elapsed_us = 0,
               int64_t step_number = 0) {
        Device& device = model_.device;
        ensure(under_way_ < kMostUnderWay);
        const PhaseScope step(device, "step");
        elapsed_us_ = elapsed_us;
        begin_sums(votes);
        begin_training_step(device);
        if (takes_graph()) {
            launch_graph(all_batches(data, votes));
        } else {
            enqueue_gradient(step_number, [&](int64_t) {
                const Batch& batch = next_batch(data, votes);
                return Sent{tokens_.send(batch.tokens.data(), config_.B * config_.T),
                            targets_.send(batch.targets.data(), config_.B * config_.T)};
            });
        }
        started_++;
        if (seen_) model_.count_amax_step();
        const PhaseScope phase(device, "update");
        is_whole_ = false;
        for (size_t b = buckets().size(); b-- > 0;) {
            optimizer_.update(b, model_.weights, own_shard(b), rates, scalars_);
            gathered_[b] =
                comm_.all_gather(model_.weights.data + buckets()[b].offset, size_t(buckets()[b].shard) * sizeof(T));
        }
        end_training_step(device);
        results_.send(scalars_);
        under_way_++;
        is_whole_ = true;
    }

    StepResult finish() {
        ensure(under_way_ > 0);
        under_way_--;
        const StepScalars s = results_.receive();
        if (under_way_ == 0)  // whoever looks at the weights now sees all of them
            for (Work& work : gathered_) await(work);
        return {s.loss, s.norm, s.applied != 0, s.updates, s.sums};
    }

    // Between steps: this rank's share of those that follow. Of the same batch size, and without tree_sum.
    void assign(int64_t accumulation, int64_t step_sequences, int64_t first_sequence) {
        ensure(under_way_ == 0 && accumulation > 0 && !config_.tree_sum && !has_graph_);
        config_.accumulation = accumulation;
        config_.step_sequences = step_sequences, config_.first_sequence = first_sequence;
    }
    // What the last step's micro-batches took on the host, in ms, waiting for data included and communication left out.
    // Of a CPU: it is done when the calls are.
    double micro_batches_ms() const { return std::chrono::duration<double, std::milli>(computed_).count(); }

    int under_way() const { return under_way_; }
    // Steps that were launched as a graph.
    int64_t graph_launches() const { return graph_launches_; }
    // Why steps are no longer launched as graphs: what could not be captured. "": no failure.
    const std::string& graph_error() const { return graph_error_; }
    // False if start() has thrown while it changed the weights.
    bool is_whole() const { return is_whole_; }
    // What the data threw on this rank; does nothing if there is no such error. The other ranks wait for this one in
    // the step, so start() only votes, computes on with zeros, and asks the data for nothing more.
    void rethrow_data_error() const {
        if (data_error_) std::rethrow_exception(data_error_);
    }

private:
    using Clock = std::chrono::steady_clock;

    std::unique_ptr<Comm<Device>> own_comm_;  // of one rank
    Gpt<Device, T>& model_;
    Optimizer<Device, T>& optimizer_;
    Comm<Device>& comm_;
    StepConfig config_;
    Arena arena_;
    StepScalars* scalars_;  // in the device's memory
    float* seen_;           // (ranks, tensors) of update_amax; null: without delayed scaling
    bool has_graph_;
    typename Device::Graph graph_;
    std::vector<int64_t> graph_windows_;  // that the model had when it was captured
    bool graph_is_delayed_ = false;       // the same of its scales in FP8
    std::string graph_error_;
    int64_t started_ = 0, graph_launches_ = 0;
    const OpObserver* observer_;  // of steps that nobody looks at
    // Of a micro-batch; with a graph, of all of a step's.
    typename Device::template ToDevice<int32_t> tokens_, targets_;
    typename Device::template ToDevice<StepSums> votes_;
    typename Device::template ToHost<StepScalars> results_;
    std::vector<Arena> sums_;       // tree_sum: of 2^i micro-batches
    std::optional<Arena> shards_;   // ZeRO-2: of the micro-batches so far
    std::optional<Arena> halves_;   // bf16_gradients: what travels
    std::optional<Arena> scratch_;  // of all_to_all_sum() in fp32, on a GPU
    const bool by_messages_;        // all_to_all_sum() instead of reduce_scatter()
    const GradientLayout layout_;
    std::vector<Work> reduced_;        // of each bucket
    std::vector<int64_t> reduced_of_;  // ZeRO-2: the micro-batch whose sum is not in shards_ yet; -1: none
    std::vector<Work> gathered_;
    size_t complete_ = 0;                                // buckets whose reduction has begun
    int64_t micro_ = 0;                                  // micro-batch under way
    std::chrono::steady_clock::duration computed_ = {};  // see micro_batches_ms()
    int under_way_ = 0;
    uint64_t elapsed_us_ = 0;  // of the step that is started
    bool is_whole_ = true;
    std::exception_ptr data_error_;
    Batch zeros_;  // once there is an error

    Stepper(Gpt<Device, T>& model, Optimizer<Device, T>& optimizer, std::unique_ptr<Comm<Device>> comm,
            const StepConfig& config, int64_t updates)
        : Stepper(model, optimizer, *comm, config, updates) {
        own_comm_ = std::move(comm);
    }

    // On while it lives.
    struct DropoutScope {
        Gpt<Device, T>& model;
        DropoutScope(Gpt<Device, T>& model, const Dropout& dropout) : model(model) { model.dropout = dropout; }
        ~DropoutScope() { model.dropout = {}; }
        DropoutScope(const DropoutScope&) = delete;
        DropoutScope& operator=(const DropoutScope&) = delete;
    };
    // The rows of a step are numbered as the data loader assigns them: those of rank 0 first, or in turns.
    Dropout dropout_of(int64_t step_number, int64_t micro) const {
        const int64_t first = layout_.is_sharded()
                                  ? (micro * config_.world_size + comm_.rank) * config_.B
                                  : config_.sequences_before(int(config_.first_rank) + comm_.rank) + micro * config_.B;
        return {config_.dropout, config_.dropout_seed, uint64_t(step_number), first};
    }

    // Where a micro-batch's tokens are in the device's memory.
    struct Sent {
        const int32_t *tokens, *targets;
    };
    int64_t seen_size() const { return comm_.world_size * model_.acts.amax.tensors; }
    int64_t tokens_sent() const { return config_.B * config_.T * (has_graph_ ? config_.accumulation : 1); }

    // From nothing to the decision whether to apply it. `sent(micro)` says where a micro-batch is.
    template <class SentOf>
    void enqueue_gradient(int64_t step_number, SentOf&& sent_of) {
        Device& device = model_.device;
        model_.begin_step();
        if (seen_) fill_zero(device, seen_, seen_size());
        const Clock::time_point began = Clock::now();
        computed_ = {};
        for (int64_t micro = 0; micro < config_.accumulation; micro++) {
            const PhaseScope micro_batch(device, "micro_batch", micro);
            if (layout_.is_sharded())
                model_.begin_gradients();
            else if (micro == 0 || config_.tree_sum)
                model_.zero_gradients();
            micro_ = micro, complete_ = 0;
            const Sent sent = sent_of(micro);
            const DropoutScope scope(model_, dropout_of(step_number, micro));
            model_.forward(sent.tokens, config_.B, config_.T);
            open_buckets(model_.shape.num_layers + 1);
            model_.add_loss_and_gradient(scalars_, sent.targets, float(1 / double(config_.num_tokens())),
                                         double(config_.B) / double(config_.sequences()));
            model_.backward(sent.tokens);
            if (config_.noise_scale && config_.world_size == 1 && micro == 0)
                model_.op.add_squares(device, &scalars_->sums.part_squares, model_.gradients.data,
                                      model_.gradients.size);
            if (config_.tree_sum && !is_last(micro) && !layout_.is_sharded())
                add_partial_sum(micro, model_.gradients.data, 0, model_.gradients.size);
        }
        computed_ += Clock::now() - began;
        model_.end_step();
        ensure(complete_ == buckets().size());
        const PhaseScope phase(device, "norm");
        for (size_t b = 0; b < buckets().size(); b++) {
            if (layout_.is_sharded())
                keep(b);
            else
                receive(b);
            if (comm_.rank < comm_.shards())  // of several owners one
                model_.op.add_squares(device, &scalars_->sums.squares, own_shard(b), buckets()[b].shard);
        }
        Work sums = comm_.all_reduce(reinterpret_cast<uint64_t*>(&scalars_->sums), sizeof(StepSums) / sizeof(uint64_t));
        await(sums);
        if (seen_) {
            Work all_seen = comm_.all_reduce(seen_, seen_size());
            await(all_seen);
            model_.op.update_amax(device, model_.acts.amax, seen_, comm_.world_size);
        }
        model_.op.decide_step(device, scalars_, config_.grad_clip, uint64_t(config_.num_tokens()));
    }

    // The first two steps grow buffers, and time GEMMs if requested.
    bool takes_graph() const { return has_graph_ && started_ >= 2 && model_.device.observer == observer_; }

    // Sends all batches of a step at once.
    template <class Data>
    Sent all_batches(Data& data, const std::vector<Vote>& votes) {
        std::vector<int32_t> tokens, targets;
        for (int64_t micro = 0; micro < config_.accumulation; micro++) {
            const Batch& batch = next_batch(data, votes);
            tokens.insert(tokens.end(), batch.tokens.begin(), batch.tokens.end());
            targets.insert(targets.end(), batch.targets.begin(), batch.targets.end());
        }
        return {tokens_.send(tokens.data(), tokens_sent()), targets_.send(targets.data(), tokens_sent())};
    }

    // If it cannot be captured, this step and all later ones run without a graph.
    void launch_graph(const Sent& all) {
        const auto sent_of = [&](int64_t micro) {
            const int64_t at = micro * config_.B * config_.T;
            return Sent{all.tokens + at, all.targets + at};
        };
        if (!graph_.is_captured() || graph_windows_ != model_.windows ||
            graph_is_delayed_ != model_.has_delayed_scales()) {
            try {
                graph_.capture([&] { enqueue_gradient(0, sent_of); });
                graph_windows_ = model_.windows;
                graph_is_delayed_ = model_.has_delayed_scales();
            } catch (const Error& error) {
                graph_error_ = error.what();
                has_graph_ = false;
                return enqueue_gradient(0, sent_of);
            }
        }
        graph_.replay();
        graph_launches_++;
    }

    const std::vector<Bucket>& buckets() const { return optimizer_.plan.buckets; }

    // This rank's votes, and no loss so far. With bad data among them the loss is not finite, on any rank.
    void begin_sums(const std::vector<Vote>& votes) {
        StepSums sums;
        sums.elapsed_us = elapsed_us_;
        for (const Vote vote : votes) sums.votes[int(vote)]++;
        if (data_error_) sums.votes[int(Vote::bad_data)]++;
        if (sums.votes[int(Vote::bad_data)] > 0) sums.loss.add(double(NAN));
        copy_on_device(model_.device, &scalars_->sums, votes_.send(&sums, 1), 1);
    }

    template <class Data>
    const Batch& next_batch(Data& data, const std::vector<Vote>& votes) {
        if (data_error_) return zeros_;
        try {
            return data.next();
        } catch (const Error&) {
            data_error_ = std::current_exception();
        }
        const std::vector<int32_t> zeros(size_t(config_.B * config_.T));
        zeros_ = {zeros, zeros};
        begin_sums(votes);  // what this step has added up so far does not matter
        return zeros_;
    }

    void await(Work& work) {
        if (work.number >= 0) comm_.wait(work);
        work = {};
    }

    static float* floats_of(const Arena& arena) { return reinterpret_cast<float*>(arena.base); }
    bf16* halves(size_t b) const { return reinterpret_cast<bf16*>(halves_->base) + layout_.offsets[b]; }

    bool is_last(int64_t micro) const { return micro + 1 == config_.accumulation; }
    // tree_sum, a binary counter: before micro-batch i, sums_[k] holds a sum of 2^k of them if bit k of i is set.
    // Adds those that end with this one, or if it is the last one all, to `data`: n elements that are at `at` there.
    void add_sums(int64_t micro, float* data, int64_t at, int64_t n) {
        const size_t count = is_last(micro) ? sums_.size() : size_t(std::countr_one(uint64_t(micro)));
        for (size_t k = 0; k < count; k++)
            if (uint64_t(micro) >> k & 1) model_.op.accumulate(model_.device, data, floats_of(sums_[k]) + at, n);
    }
    // And puts the sum where it belongs.
    void add_partial_sum(int64_t micro, float* data, int64_t at, int64_t n) {
        add_sums(micro, data, at, n);
        float* const level = floats_of(sums_[size_t(std::countr_one(uint64_t(micro)))]);
        copy_on_device(model_.device, level + at, data, n);
    }

    // Where this rank's shard of a bucket's sum arrives, and where it is when the step is summed up.
    float* arrival(size_t b) const {
        return model_.gradients.data + layout_.offsets[b] + comm_.shard() * buckets()[b].shard;
    }
    float* own_shard(size_t b) const {
        return layout_.is_sharded() ? floats_of(*shards_) + layout_.shard_offsets[b] : arrival(b);
    }
    void receive(size_t b) {
        await(reduced_[b]);
        const int64_t shard = buckets()[b].shard;
        if (halves_ && !by_messages_)
            model_.op.cast_to_float(model_.device, arrival(b), halves(b) + comm_.shard() * shard, shard);
    }

    // ZeRO-2: before backward writes to buckets that it has not reached yet. What lay there goes to its shard.
    void open_buckets(int64_t written_after) {
        if (!layout_.is_sharded()) return;
        for (size_t b = 0; b < buckets().size(); b++) {
            const Bucket& bucket = buckets()[b];
            if (bucket.written_after != written_after) continue;
            for (const size_t other : layout_.neighbors[b]) keep(other);
            model_.zero_gradients(bucket.offset, bucket.offset + bucket.shard * comm_.shards(),
                                  model_.gradients.data + layout_.offsets[b]);
        }
    }
    // ZeRO-2: adds what has arrived of a bucket to this rank's shard of it.
    void keep(size_t b) {
        if (reduced_of_[b] < 0) return;
        receive(b);
        const int64_t micro = std::exchange(reduced_of_[b], -1), at = layout_.shard_offsets[b], n = buckets()[b].shard;
        if (config_.tree_sum && !is_last(micro)) return add_partial_sum(micro, arrival(b), at, n);
        if (config_.tree_sum) add_sums(micro, arrival(b), at, n);
        if (config_.tree_sum || micro == 0)
            copy_on_device(model_.device, own_shard(b), arrival(b), n);
        else
            model_.op.accumulate(model_.device, own_shard(b), arrival(b), n);
    }

    void reduce(size_t b) {
        const Clock::time_point began = Clock::now();
        begin_reduction(b);
        computed_ -= Clock::now() - began;
    }
    void begin_reduction(size_t b) {
        const Bucket& bucket = buckets()[b];
        const int64_t n = bucket.shard * comm_.shards();
        float* data = model_.gradients.data + layout_.offsets[b];
        if (layout_.is_sharded())
            reduced_of_[b] = micro_;
        else
            add_sums(micro_, data, layout_.offsets[b], n);
        if (config_.noise_scale && config_.world_size > 1)
            model_.op.add_squares(model_.device, &scalars_->sums.part_squares, data, n);
        if (halves_) {
            bf16* const terms = halves(b);
            model_.op.cast_to_bf16(model_.device, terms, data, n);
            reduced_[b] = by_messages_ ? comm_.all_to_all_sum(data, terms, bucket.shard)
                                       : comm_.reduce_scatter(terms, bucket.shard);
        } else {
            float* const scratch = scratch_ ? floats_of(*scratch_) : nullptr;
            reduced_[b] = by_messages_ ? comm_.all_to_all_sum(data, bucket.shard, scratch)
                                       : comm_.reduce_scatter(data, bucket.shard);
        }
    }
};
