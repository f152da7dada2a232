/*
One optimizer step of all ranks: micro-batches, reduction of gradients, norm, clipping, update, all-gather of weights.
The host only enqueues work. The gradient's norm, the clip factor and whether the gradient is finite are computed and
used on the device; the host receives them while the next step is already running.

  Stepper<Device, T> stepper(model, optimizer, comm, config, updates);
  stepper.start(data, rates);                        enqueues a whole step
  const StepResult result = stepper.finish();        waits for the oldest step that was started

During the last micro-batch's backward pass, each bucket of gradients is reduced as soon as it is complete, overlapping
the rest of the pass: by a reduce-scatter or an all-to-all (GradientSum in llmc/comm/comm.h). After the update the
weights are all-gathered bucket by bucket, in the order in which the next forward pass needs them. That pass waits for
each bucket just before it reads it.

ZeRO-2: buckets are reduced in every micro-batch's backward pass. This rank's shard of each sum is added to that of the
earlier micro-batches; then another bucket reuses the memory (llmc/optim/gradient_layout.h). So gradients are summed
over ranks first and over micro-batches second, and the data loader deals out micro-batches round-robin. With tree_sum
and a power of two of ranks, the sum is again one tree, whose leaves are all ranks' micro-batches in the order of the
data.

--memory lean: as ZeRO-2, on one rank, too, and the sums so far are kept in bf16. After the backward pass they are
expanded to fp32, bucket by bucket, into memory that other gradients had: once for the norm, once for the update. So no
op but accumulate_rounded() knows of them.

Delayed scaling (llmc/model/linear.h): a step records the largest magnitude of each tensor that is quantized to FP8.
Each rank writes its own row of one buffer, and the other rows are zero, so an all-reduce gives every rank all rows.
Therefore all ranks have the same history, and it does not depend on the number of ranks.

CUDA graph: everything up to the decision about the update is captured in the third step and launched as a whole from
then on, whatever the micro-batches contain. The update, which needs the step's learning rates, follows the graph. A
profiled step is enqueued op by op. The bits are the same in all cases.

Unequal shares of a step (shares.h): loss and gradient are sums over all tokens of the step, whichever rank has them,
divided by the number of tokens. With equal shares the bits are those of a run without shares.

Gradients of micro-batches accumulate in place. With tree_sum they are added pairwise, ((0 + 1) + (2 + 3)) + ..., as
gradients of ranks always are (sum_tree in llmc/base/sum_tree.h). Then a step has the same bits however its
micro-batches are assigned to ranks, as long as each rank has a power of two of them, n. That takes log2(n) more
gradient buffers.
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
#include "llmc/ops/step_scalars.h"       // StepScalars
#include "llmc/optim/gradient_layout.h"  // GradientLayout
#include "llmc/optim/optimizer.h"        // Optimizer, Rates
#include "llmc/run/step_config.h"        // StepConfig, StepResult

template <class Device, class T = float>
class Stepper {
public:
    static constexpr int kMostUnderWay = Device::kAsynchronous ? 2 : 1;

    // `updates`: StepResult::updates of the steps before a resume.
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
          stopwatch_(model.device),
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
            model.linear.amax_notes = {seen_ + comm.rank * model.acts.amax.tensors, &scalars_->sums.saturated};
            float before[2];
            copy_to_host(model.device, before, model.acts.amax.data, 2);
            model.linear.set_amax_steps(int64_t(before[1]));
        }
        const auto floats = [](int64_t n) { return aligned(size_t(n) * sizeof(float)); };
        for (int level = 0; level < config.levels(); level++)
            sums_.emplace_back(model.device, "gradients", floats(layout_.kept_size()));
        if (config.bf16_sums) {
            ensure(layout_.is_sharded() && !config.tree_sum);
            shards_.emplace(model.device, "gradients", aligned(size_t(layout_.shards_size) * sizeof(bf16)));
            // Padding belongs to no parameter.
            fill_zero(model.device, reinterpret_cast<float*>(shards_->base), layout_.shards_size / 2);
            find_rounded_sums();
        } else if (layout_.is_sharded()) {
            shards_.emplace(model.device, "gradients", floats(layout_.shards_size));
        }
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
    // For one rank.
    Stepper(Gpt<Device, T>& model, Optimizer<Device, T>& optimizer, const StepConfig& config, int64_t updates)
        : Stepper(model, optimizer, std::make_unique<NoComm<Device>>(model.device), config, updates) {}
    ~Stepper() {
        model_.before_forward = model_.after_backward = nullptr;
        model_.linear.amax_notes = {};
    }
    Stepper(const Stepper&) = delete;
    Stepper& operator=(const Stepper&) = delete;

    // Enqueues a step. `data`: a DataLoader, or any type with its next(). `votes`: this rank's. `elapsed_us`: rank 0's
    // training time, which all ranks receive with the result; 0 on the others. `step_number`: of the run, from 0.
    template <class Data>
    void start(Data& data, const Rates& rates, const std::vector<Vote>& votes = {}, uint64_t elapsed_us = 0,
               int64_t step_number = 0) {
        Device& device = model_.device;
        ensure(under_way_ < kMostUnderWay);
        const PhaseScope step(device, "step");
        elapsed_us_ = elapsed_us;
        if (under_way_ == 0) stopwatch_.start();
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
        if (seen_) model_.linear.count_amax_step();
        const PhaseScope phase(device, "update");
        is_whole_ = false;
        for (size_t b = buckets().size(); b-- > 0;) {
            optimizer_.update(b, model_.weights, own_shard(b), rates, scalars_);
            gathered_[b] =
                comm_.all_gather(model_.weights.data + buckets()[b].offset, size_t(buckets()[b].shard) * sizeof(T));
        }
        end_training_step(device);
        stopwatch_.lap();
        results_.send(scalars_);
        under_way_++;
        is_whole_ = true;
    }

    // Waits for the oldest step in flight and returns its result.
    StepResult finish() {
        ensure(under_way_ > 0);
        under_way_--;
        const StepScalars s = results_.receive();
        if (under_way_ == 0)  // from here on the weights are complete
            for (Work& work : gathered_) await(work);
        return {s.loss, s.norm, s.applied != 0, s.updates, s.sums, stopwatch_.lap_s()};
    }

    // Between steps: sets this rank's share of the following steps. Not with tree_sum or a CUDA graph.
    void assign(int64_t accumulation, int64_t step_sequences, int64_t first_sequence) {
        ensure(under_way_ == 0 && accumulation > 0 && !config_.tree_sum && !has_graph_);
        config_.accumulation = accumulation;
        config_.step_sequences = step_sequences, config_.first_sequence = first_sequence;
    }
    // Between steps: how the following ones divide the same or another number of micro-batches' tokens. A row of the
    // data is one sequence, or several shorter ones.
    void assign(const StepConfig& how) {
        ensure(under_way_ == 0 && how.B * how.T == config_.B * config_.T);
        ensure(how.accumulation <= config_.most_micro_batches());
        config_.B = how.B, config_.T = how.T, config_.accumulation = how.accumulation;
        graph_windows_.clear(), started_ = 0;  // a graph is captured again, after steps that may grow buffers
    }
    // Host time of the last step's micro-batches, in ms, with waits for data and without communication. Only a CPU's
    // time is meaningful: there the calls return when the work is done.
    double micro_batches_ms() const { return std::chrono::duration<double, std::milli>(computed_).count(); }

    int under_way() const { return under_way_; }
    // The number of steps that were launched as a graph.
    int64_t graph_launches() const { return graph_launches_; }
    // Why capturing a graph failed, after which steps run without one. Empty: no failure.
    const std::string& graph_error() const { return graph_error_; }
    // False if start() threw an error while it changed the weights.
    bool is_whole() const { return is_whole_; }
    // Rethrows the error that the data threw on this rank, if any. start() does not throw it, because the other ranks
    // wait for this one in the step: it votes bad_data, continues with zeros and reads no more data.
    void rethrow_data_error() const {
        if (data_error_) std::rethrow_exception(data_error_);
    }

private:
    using Clock = std::chrono::steady_clock;

    std::unique_ptr<Comm<Device>> own_comm_;  // only with the constructor for one rank
    Gpt<Device, T>& model_;
    Optimizer<Device, T>& optimizer_;
    Comm<Device>& comm_;
    StepConfig config_;
    Arena arena_;
    StepScalars* scalars_;  // in the device's memory
    float* seen_;           // (ranks, tensors), for update_amax; null without delayed scaling
    bool has_graph_;
    typename Device::Graph graph_;
    std::vector<int64_t> graph_windows_;  // the model's windows when the graph was captured; empty: of other steps
    bool graph_is_delayed_ = false;       // whether its FP8 scales were delayed then
    std::string graph_error_;
    int64_t started_ = 0, graph_launches_ = 0;
    const OpObserver* observer_;  // the device's when no step is profiled
    // For one micro-batch; with a graph, for all micro-batches of a step.
    typename Device::template ToDevice<int32_t> tokens_, targets_;
    typename Device::template ToDevice<StepSums> votes_;
    typename Device::template ToHost<StepScalars> results_;
    typename Device::Stopwatch stopwatch_;
    std::vector<Arena> sums_;      // tree_sum: sums_[i] is the sum of 2^i micro-batches
    std::optional<Arena> shards_;  // ZeRO-2: this rank's shards, summed over the micro-batches so far; in bf16 if lean
    std::vector<std::vector<RoundedSum>> rounded_sums_;  // bf16_sums: of each bucket
    std::optional<Arena> halves_;                        // bf16_gradients: the gradients as they are sent
    std::optional<Arena> scratch_;                       // for all_to_all_sum() in fp32 on a GPU
    const bool by_messages_;                             // uses all_to_all_sum() instead of reduce_scatter()
    const GradientLayout layout_;
    std::vector<Work> reduced_;        // each bucket's reduction; gathered_: its all-gather of weights
    std::vector<int64_t> reduced_of_;  // ZeRO-2, each bucket: the micro-batch whose sum is not in shards_ yet; -1: none
    std::vector<Work> gathered_;
    size_t complete_ = 0;                                // how many buckets' reduction has begun
    int64_t micro_ = 0;                                  // the current micro-batch
    std::chrono::steady_clock::duration computed_ = {};  // see micro_batches_ms()
    int under_way_ = 0;
    uint64_t elapsed_us_ = 0;  // start()'s argument
    bool is_whole_ = true;
    std::exception_ptr data_error_;
    Batch zeros_;  // replaces the data after an error

    Stepper(Gpt<Device, T>& model, Optimizer<Device, T>& optimizer, std::unique_ptr<Comm<Device>> comm,
            const StepConfig& config, int64_t updates)
        : Stepper(model, optimizer, *comm, config, updates) {
        own_comm_ = std::move(comm);
    }

    // Turns the model's dropout on during its lifetime.
    struct DropoutScope {
        Gpt<Device, T>& model;
        DropoutScope(Gpt<Device, T>& model, const Dropout& dropout) : model(model) { model.dropout = dropout; }
        ~DropoutScope() { model.dropout = {}; }
        DropoutScope(const DropoutScope&) = delete;
        DropoutScope& operator=(const DropoutScope&) = delete;
    };
    // The rows of a step are numbered as the data loader assigns them: all rows of rank 0 first, or with ZeRO-2
    // micro-batch by micro-batch, round-robin over the ranks.
    Dropout dropout_of(int64_t step_number, int64_t micro) const {
        const int64_t first = layout_.is_sharded()
                                  ? (micro * config_.world_size + comm_.rank) * config_.B
                                  : config_.sequences_before(int(config_.first_rank) + comm_.rank) + micro * config_.B;
        return {config_.dropout, config_.dropout_seed, uint64_t(step_number), first};
    }

    // A micro-batch's tokens and targets (B, T) in device memory.
    struct Sent {
        const int32_t *tokens, *targets;
    };
    int64_t seen_size() const { return comm_.world_size * model_.acts.amax.tensors; }
    int64_t tokens_sent() const { return config_.B * config_.T * (has_graph_ ? config_.most_micro_batches() : 1); }

    // Enqueues a step from its start to the decision whether to apply it. sent_of(micro) returns a micro-batch's Sent.
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
        if (layout_.is_sharded())
            for (size_t b = 0; b < buckets().size(); b++) keep(b);
        for (size_t b = 0; b < buckets().size(); b++) {
            if (!layout_.is_sharded()) receive(b);
            if (comm_.rank < comm_.shards())  // a shard with several owners counts once
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

    // Not in the first two steps: they grow buffers, and time GEMMs if requested.
    bool takes_graph() const { return has_graph_ && started_ >= 2 && model_.device.observer == observer_; }

    // Sends all micro-batches of a step to the device at once.
    template <class Data>
    Sent all_batches(Data& data, const std::vector<Vote>& votes) {
        std::vector<int32_t> tokens, targets;
        for (int64_t micro = 0; micro < config_.accumulation; micro++) {
            const Batch& batch = next_batch(data, votes);
            tokens.insert(tokens.end(), batch.tokens.begin(), batch.tokens.end());
            targets.insert(targets.end(), batch.targets.begin(), batch.targets.end());
        }
        return {tokens_.send(tokens.data(), int64_t(tokens.size())),
                targets_.send(targets.data(), int64_t(tokens.size()))};
    }

    // If capturing fails, this step and all later ones run without a graph.
    void launch_graph(const Sent& all) {
        const auto sent_of = [&](int64_t micro) {
            const int64_t at = micro * config_.B * config_.T;
            return Sent{all.tokens + at, all.targets + at};
        };
        if (!graph_.is_captured() || graph_windows_ != model_.windows ||
            graph_is_delayed_ != model_.linear.has_delayed_scales()) {
            try {
                graph_.capture([&] { enqueue_gradient(0, sent_of); });
                graph_windows_ = model_.windows;
                graph_is_delayed_ = model_.linear.has_delayed_scales();
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

    // Sets the step's sums to this rank's votes and zeros. A vote bad_data makes the loss NaN, so that no rank applies
    // the step.
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
        begin_sums(votes);  // resets what this step has summed so far, which does not matter
        return zeros_;
    }

    void await(Work& work) {
        if (work.number >= 0) comm_.wait(work);
        work = {};
    }

    static float* floats_of(const Arena& arena) { return reinterpret_cast<float*>(arena.base); }
    bf16* halves(size_t b) const { return reinterpret_cast<bf16*>(halves_->base) + layout_.offsets[b]; }

    bool is_last(int64_t micro) const { return micro + 1 == config_.accumulation; }
    // tree_sum as a binary counter: before micro-batch i, sums_[k] holds the sum of 2^k micro-batches if bit k of i is
    // set. Adds to `data` (n) the sums that are completed by this micro-batch, or by the last one all of them. `at` is
    // the offset of data's elements in sums_.
    void add_sums(int64_t micro, float* data, int64_t at, int64_t n) {
        const size_t count = is_last(micro) ? sums_.size() : size_t(std::countr_one(uint64_t(micro)));
        for (size_t k = 0; k < count; k++)
            if (uint64_t(micro) >> k & 1) model_.op.accumulate(model_.device, data, floats_of(sums_[k]) + at, n);
    }
    // The same, and stores the result in its level of sums_.
    void add_partial_sum(int64_t micro, float* data, int64_t at, int64_t n) {
        add_sums(micro, data, at, n);
        float* const level = floats_of(sums_[size_t(std::countr_one(uint64_t(micro)))]);
        copy_on_device(model_.device, level + at, data, n);
    }

    // Where a reduction leaves this rank's shard of a bucket.
    float* arrival(size_t b) const {
        return model_.gradients.data + layout_.offsets[b] + comm_.shard() * buckets()[b].shard;
    }
    bf16* bf16_sums() const { return reinterpret_cast<bf16*>(shards_->base); }
    void find_rounded_sums() {
        rounded_sums_.resize(buckets().size());
        for (size_t i = 0; i < optimizer_.pieces().size(); i++) {
            const ShardPiece& piece = optimizer_.pieces()[i];
            const Bucket& bucket = buckets()[piece.bucket];
            const int64_t at =
                optimizer_.parameter(piece).offset + piece.begin - bucket.offset - comm_.shard() * bucket.shard;
            rounded_sums_[piece.bucket].push_back({bf16_sums() + layout_.shard_offsets[piece.bucket] + at,
                                                   arrival(piece.bucket) + at, piece.size(), optimizer_.rounding(i)});
        }
    }
    // Where that shard is once all micro-batches are summed. If lean, it is there until the next call.
    float* own_shard(size_t b) const {
        if (!layout_.is_sharded()) return arrival(b);
        if (!config_.bf16_sums) return floats_of(*shards_) + layout_.shard_offsets[b];
        model_.op.cast_to_float(model_.device, arrival(b), bf16_sums() + layout_.shard_offsets[b], buckets()[b].shard);
        return arrival(b);
    }
    void receive(size_t b) {
        await(reduced_[b]);
        const int64_t shard = buckets()[b].shard;
        if (halves_ && !by_messages_)
            model_.op.cast_to_float(model_.device, arrival(b), halves(b) + comm_.shard() * shard, shard);
    }

    // ZeRO-2: called before backward first writes to the buckets with this `written_after`. Moves the sums of the
    // buckets that share their memory to shards_, then zeros the memory.
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
    // ZeRO-2: adds a reduced bucket to this rank's shard in shards_, if that has not been done yet.
    void keep(size_t b) {
        if (reduced_of_[b] < 0) return;
        receive(b);
        const int64_t micro = std::exchange(reduced_of_[b], -1), at = layout_.shard_offsets[b], n = buckets()[b].shard;
        if (config_.bf16_sums) {
            const std::vector<RoundedSum>& sums = rounded_sums_[b];
            return model_.op.accumulate_rounded(model_.device, sums.data(), int64_t(sums.size()), micro, scalars_);
        }
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
