// A Session (session.h) on a device, with weights and activations of type T.
#pragma once
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>
#include "llmc/base/file.h"              // thread_read_bytes
#include "llmc/base/hash.h"              // hex64, xxh3
#include "llmc/base/number_text.h"       // count_text
#include "llmc/comm/handshake.h"         // check_alike
#include "llmc/data/utf8.h"              // printable
#include "llmc/eval/loss.h"              // evaluate
#include "llmc/eval/sample.h"            // sample
#include "llmc/eval/tasks.h"             // score_tasks
#include "llmc/model/flops.h"            // flops_per_token
#include "llmc/model/gpt.h"              // Gpt
#include "llmc/optim/schedule.h"         // learning_rate
#include "llmc/train/checkpointing.h"    // RunState
#include "llmc/train/loading.h"          // load_run
#include "llmc/train/local_saving.h"     // LocalSaver
#include "llmc/train/log.h"              // RunLog
#include "llmc/train/log_follower.h"     // LogFollower
#include "llmc/train/noise_scale.h"      // NoiseScale
#include "llmc/train/outer_optimizer.h"  // OuterOptimizer
#include "llmc/train/rank_watch.h"       // RankWatch
#include "llmc/train/run_balance.h"      // RunBalance
#include "llmc/train/saving.h"           // Saver
#include "llmc/train/session.h"          // Session
#include "llmc/train/prepare.h"          // prepare
#include "llmc/train/run_inputs.h"       // RunInputs
#include "llmc/train/step_profiler.h"    // StepProfiler
#include "llmc/train/stop.h"             // stop_signal
#include "llmc/train/summary.h"          // RunSummary
#include "llmc/train/supervise.h"        // Supervised

inline double now_s() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

template <class Device, class T>
class DeviceSession : public Session {
public:
    static constexpr int64_t kMostSkippedInARow = 10;

    // Makes the model and sets it to the run's initial state. Collective.
    DeviceSession(Device& device, World& world, const RunRequest& request)
        : device_(device),
          world_(world),
          ranks_(world.ranks),
          request_(request),
          run_(prepare<T>(device, world, request)),
          config_(run_.config),
          flags_(config_.flags),
          peak_(has_own_device() ? peak_of<T>(device, flags_.peak_flops) : DevicePeak{}),  // before memory is taken
          data_(open_inputs()),
          passes_{flags_.recompute_mode(), flags_.fp8(), run_.memory.head_rows(config_), flags_.amax_history()},
          comm_(meet()),
          place_{flags_.islands_of_run(), ranks_.world_size, ranks_.rank},
          profiler_(device, world, flags_),
          model_(device, run_.parameters, config_.step.B, config_.step.T, passes_, *comm_,
                 gradient_list(run_.parameters, run_.sharding,
                               gradient_layout(run_.sharding, config_.step.shards_gradients()))),
          optimizer_(device, model_.parameters, run_.sharding, world.together().rank, config_.recipe.rules),
          outer_(place_.islands > 0 ? std::make_unique<OuterOptimizer<Device, T>>(world, model_, optimizer_, *comm_,
                                                                                  place_.islands, flags_.outer())
                                    : nullptr),
          sharded_{optimizer_, outer_ ? &outer_->state() : nullptr, place_, model_.acts.amax},
          data_key_(data_key(flags_, data_.train_hash(), config_.step, ranks_.world_size,
                             separator_of(flags_, run_.tokenizer))),
          flops_per_token_(flops_per_token(model_.parameters, config_.step.T)),
          all_peak_flops_(peak_of_all(ranks_, peak_.flops, world.group != nullptr)),
          balance_(world, config_),
          local_(ranks_, model_, sharded_),
          saver_(flags_.out_dir, ranks_, model_, sharded_) {
        model_.document_token = flags_.document_token.value_or(-1);
        begin_at_start();
        profiler_.plan(first_step_, config_.steps);
        share_weights();
        StepConfig how = config_.step;
        how.first_rank = place_.island() * place_.size();
        stepper_ = std::make_unique<Stepper<Device, T>>(model_, optimizer_, *comm_, how, state_.updates);
        open_log();
        if (flags_.trains()) balance_.begin(state_.step, state_.micro_batches, *data_.train, *stepper_, log_);
        watch_ = std::make_unique<RankWatch<Device, T>>(ranks_, *comm_, device);
        if (outer_) watch_->compare(model_);  // no collective over all of them has made the islands' weights the same
        if (world_.is_first() && comm_->world_size > 1)
            std::printf("ranks: %.2f GB/s from each to the others, as measured now\n", watch_->bytes_per_s() * 1e-9);
        all_out_of_time_ = out_of_time_here();
        if (best_is_unknown_) DeviceSession::validate();
        last_s_ = now_s();
    }

    const RunConfig& config() const override { return config_; }

    bool done() override {
        if (flags_.evaluates()) return true;
        stop_reason_ = stop_reason();
        if (stop_reason_ || out_of_time() || is_any_due(next_step())) drain();  // of islands after an outer step: it is
        is_last_ = under_way() == 0 && (is_end(state_.step) || out_of_time() || is_out_of_patience());
        return is_last_ || stop_reason_;
    }

    bool due(int64_t every) const override { return under_way() == 0 && is_due_at(state_.step, every); }

    void train_step() override {
        balance_.before_step(state_.step);
        start_step();
        say_graph_error();
        if (outer_ && is_outer_step(next_step())) {
            drain();
            outer_step();
        } else if (under_way() == Stepper<Device, T>::kMostUnderWay) {
            finish_step();
        }
    }

    void compare_ranks() override {
        if (world_.is_alone()) return;
        const RankReport report = watch_->compare(model_);
        log_.ranks(state_.step, report.weight_hash, report.min_ms, report.median_ms, report.max_ms, report.slowest,
                   watch_->all_ms(), balance_.sequences());
        // Virtual ranks share the cores of one process: none of them is a slow machine.
        if (world_.is_first() && !world_.group && report.has_straggler())
            std::fprintf(stderr, "warning: %s%s\n", report.straggler_text().c_str(), balance_.advice().c_str());
    }

    void save() override {
        // While steps are skipped, the weights may be ruined: the checkpoints from before must not be pruned for them.
        if (!is_saved() && state_.skipped_in_a_row == 0) save_state(!flags_.async_checkpoint);
    }

    // Unless this step's goes to --out-dir, or a rank still writes the one before.
    void save_local() override {
        if (!local_.is_on() || local_.is_under_way() || is_saved() || state_.step == first_step_ ||
            state_.skipped_in_a_row > 0)
            return;
        note_state();
        local_.begin(state_.step, {run_.tokenizer.json, run_.tokenizer.chat_template, state_, saved_flags()});
    }

    void validate() override {
        if (!data_.val) return;
        seen_ = evaluate(model_, *data_.val, ranks_, least_batch_size(balance_.shares()), config_.step.T,
                         flags_.val_tokens, data_.token_bytes);
        // Weights of a step that was skipped are not saved, so they cannot be the best.
        const bool counts = flags_.trains() && state_.step > state_.best.counted_step && state_.skipped_in_a_row == 0,
                   is_best = counts && state_.best.add(state_.step, seen_.loss);
        seen_step_ = state_.step;
        log_.validation(state_.step, seen_.loss, seen_.bits_per_byte);
        if (is_best && flags_.save_best) save_best();
    }

    bool is_out_of_patience() const override {
        return flags_.patience > 0 && state_.best.worse >= flags_.patience && under_way() == 0;
    }

    // Of an evaluation they are the result, and of a training run something that it can do without.
    void score_tasks() override {
        if (data_.tasks.empty()) return;
        if (flags_.evaluates()) return score();
        look("score", true, [&] { score(); });
    }

    void show_sample() override {
        if (!data_.prompt.empty()) look("sample", false, [&] { print_sample(); });
    }

    void finish() override {
        if (flags_.trains()) {
            if (flags_.check_replicas > 0 && (is_last_ || due(flags_.check_replicas))) compare_ranks();
            // Saving comes before all that may fail and that the checkpoint can do without; ranks that differ have
            // nothing to save.
            if (is_saved())
                finish_save();
            else
                save_state(true);
        }
        if (flags_.evaluates() || !stop_reason_) {
            if (seen_step_ != state_.step) validate();
            score_tasks();
            if (flags_.trains()) show_sample();
        }
        finish_save();
        if (local_.is_on()) {
            local_.end();
            on_first_rank(ranks_, [&] { forget_local(flags_.out_dir); });
        }
        profiler_.finish();
        log_.end(state_.step, end_reason(), plans_made(device_), mixture());
        say_best();
    }

    void save_before(const Error& error) override {
        const bool all_know = world_.is_alone() || dynamic_cast<const SharedError*>(&error);
        if (flags_.evaluates() || !all_know || error.exit_code != kExitUsage || is_saving_ || !is_between_steps_ ||
            !stepper_->is_whole())
            return;
        if (outer_ && state_.step != agreed_step_) return;  // each island has weights of its own
        is_ending_ = true;
        try {
            drain();
            finish_save();
            if (state_.step > first_step_ && begun_step_ != state_.step && state_.skipped_in_a_row == 0)
                save_state(true);
        } catch (const Error& other) {
            if (other.exit_code == kExitRank) throw;
            if (world_.is_first())
                std::fprintf(stderr, "warning: no checkpoint of step %lld: %s\n", static_cast<long long>(state_.step),
                             printable(other.what()).c_str());
        }
    }

    std::string end_reason() const override {
        const char* signal = stop_reason();
        return signal                 ? signal
               : out_of_time()        ? "time budget"
               : is_end(state_.step)  ? "finished"
               : is_out_of_patience() ? "patience"
                                      : "finished";
    }

    RunSummary summary(double total_s) const override {
        return {.evaluation = seen_,
                .scores = scores_,
                .best_loss = tells_best() ? state_.best.loss : std::nullopt,
                .best_step = state_.best.step,
                .training_s = state_.training_s,
                .total_s = total_s,
                .peak_bytes = peak_memory(device_),
                .mfu = mfu(counted_tokens(), state_.training_s),
                .cropped = data_.cropped(),
                .tokens = state_.tokens,
                .steps = state_.step,
                .parameters = model_.parameters.num_parameters,
                .layers = config_.shape.num_layers};
    }

private:
    Device& device_;
    World& world_;
    Ranks& ranks_;
    const RunRequest& request_;
    const PreparedRun<Device, T> run_;
    const RunConfig& config_;
    const RunFlags& flags_;
    const DevicePeak peak_;
    RunInputs data_;
    ActivationPolicy passes_;
    KernelFacts kernels_;
    Comm<Device>* comm_;  // of an island, if there are any
    const IslandPlace place_;
    StepProfiler<Device, T> profiler_;
    Gpt<Device, T> model_;
    Optimizer<Device, T> optimizer_;
    const std::unique_ptr<OuterOptimizer<Device, T>> outer_;  // of islands
    const ShardedState<Device, T> sharded_;
    uint64_t data_key_;
    double flops_per_token_, all_peak_flops_;
    RunState state_;
    ReadBytes read_bytes_;  // at a resume
    RunBalance<Device, T> balance_;
    int64_t first_step_ = 0, agreed_step_ = 0;  // agreed: after it all islands had the same weights
    bool already_saved_ = false, best_is_unknown_ = false;
    bool said_graph_error_ = false;
    bool is_saving_ = false;        // what fails now is the save itself
    bool is_ending_ = false;        // by an error
    bool ends_by_data_ = false;     // some of which could not be used: the ranks' loaders are ahead of state_
    bool is_between_steps_ = true;  // state_ is that of the weights, or of the last step but those under way
    int64_t begun_step_ = -1;       // whose save was begun last
    std::unique_ptr<Stepper<Device, T>> stepper_;
    RunLog log_;  // of the ranks, the first one speaks
    std::unique_ptr<LogFollower> follower_;
    std::unique_ptr<RankWatch<Device, T>> watch_;
    NoiseScale noise_scale_;
    std::array<double, Stepper<Device, T>::kMostUnderWay> cropped_ = {};          // of the steps under way, up to them
    std::array<LoaderState, Stepper<Device, T>::kMostUnderWay> data_states_;      // before the steps under way
    std::array<int64_t, Stepper<Device, T>::kMostUnderWay> schedule_steps_ = {};  // of the steps under way
    double agreed_training_s_ = 0;                                                // rank 0's, as of the last result
    Evaluation seen_;                                                             // the last one, of
    int64_t seen_step_ = -1, best_begun_ = -1;                                    // the save of the best one so far
    std::vector<std::pair<std::string, double>> scores_;                          // the last ones
    bool all_stop_ = false, all_out_of_time_ = false;
    bool has_bad_data_ = false;          // a rank of this island, which has not been told to all yet
    const char* stop_reason_ = nullptr;  // as done() saw it
    bool is_last_ = false;               // the same: the run has ended by itself
    double last_s_ = 0;                  // when the last step ended
    LocalSaver<Device, T> local_;
    Saver<Device, T> saver_;  // last, with the one before, because their threads read the others

    int64_t shown_steps() const { return config_.by_time() ? 0 : config_.steps; }
    // The same on all ranks.
    double known_training_s() const { return world_.is_alone() ? state_.training_s : agreed_training_s_; }
    int64_t next_step() const { return state_.step + under_way(); }  // the one to start
    int under_way() const { return stepper_->under_way(); }
    // The state is already on the disk, that of a resumed run which has made no step, or on its way there.
    bool is_saved() const { return (state_.step == first_step_ && already_saved_) || state_.step == begun_step_; }
    bool tells_best() const { return flags_.trains() && (flags_.save_best || flags_.patience > 0); }

    // A request by one rank takes effect on all ranks at the end of the step that carries its vote.
    bool out_of_time() const { return decides_alone() ? out_of_time_here() : all_out_of_time_; }
    // Islands agree in their outer steps, and one does so, too: what is saved is of such a step.
    bool decides_alone() const { return world_.is_alone() && !outer_; }
    // Why to stop before the end; null: no request.
    const char* stop_reason() const {
        if (decides_alone() || (all_stop_ && stop_signal())) return stop_signal();
        return all_stop_ ? "a signal to another rank" : nullptr;
    }

    // A run by time has no last step.
    bool is_end(int64_t step) const { return !config_.by_time() && step >= config_.steps; }

    bool is_outer_step(int64_t step) const { return step % flags_.outer_every == 0 || is_end(step); }
    // Of islands: after an outer step, if it has become due since the one before.
    bool is_due_at(int64_t step, int64_t every) const {
        if (every <= 0 || step <= 0) return false;
        if (!outer_) return step % every == 0;
        const int64_t before = (step - 1) / flags_.outer_every * flags_.outer_every;
        return is_outer_step(step) && step / every > before / every;
    }
    bool is_any_due(int64_t step) const {
        if (is_end(step)) return true;
        const auto due_every = [&](int64_t every) { return is_due_at(step, every); };
        return (data_.val && due_every(flags_.val_every)) ||
               (!data_.tasks.empty() && due_every(flags_.eval_tasks_every)) ||
               (!data_.prompt.empty() && due_every(flags_.sample_every)) || due_every(flags_.checkpoint_every) ||
               (local_.is_on() && due_every(flags_.local_every)) ||
               (!world_.is_alone() && due_every(flags_.check_replicas));
    }

    // Waits until no step is in flight.
    void drain() {
        while (under_way() > 0) finish_step();
    }

    // Once, when a step has found that it cannot be captured.
    void say_graph_error() {
        if (said_graph_error_ || stepper_->graph_error().empty()) return;
        said_graph_error_ = true;
        std::fprintf(stderr, "warning: no CUDA graph, steps continue without: %s\n", stepper_->graph_error().c_str());
    }

    void start_step() {
        const int64_t next = next_step();
        if (under_way() == 0) last_s_ = now_s();
        world_.set_step(*comm_, next + 1);
        model_.set_windows(config_.window_fraction(next));
        const auto watch = profiler_.watch(next);
        data_states_[size_t(next) % data_states_.size()] = data_.train->state();
        const int64_t at = config_.schedule_step(next, known_training_s());
        schedule_steps_[size_t(next) % schedule_steps_.size()] = at;
        stepper_->start(*data_.train, config_.recipe.rates(at, config_.steps), votes(),
                        world_.is_first() ? uint64_t(state_.training_s * 1e6) : 0, next);
        cropped_[size_t(next) % cropped_.size()] = data_.cropped();
        model_.set_windows(1);
    }

    // Takes the result of the oldest step in flight, which arrives while the next one is computed.
    void finish_step() {
        const StepConfig& how = config_.step;
        is_between_steps_ = false;
        const StepResult step = stepper_->finish();
        if (step.count(Vote::bad_data) > 0) {
            if (!outer_) end_by_data();
            has_bad_data_ = true;  // told in the outer step; until then the island stands still
        }
        const double finished_s = now_s(), step_s = finished_s - last_s_;
        last_s_ = finished_s;
        if (config_.counts_time(state_.step)) state_.training_s += step_s;
        agreed_training_s_ = double(step.sums.elapsed_us) * 1e-6;
        state_.tokens += how.tokens_of_all();
        const CommCost cost = watch_->step(step_s * 1e3);
        balance_.step(stepper_->micro_batches_ms());
        if (how.noise_scale)
            noise_scale_.add(double(step.targets()) / double(how.parts()), step.part_squared(how),
                             double(step.targets()), step.norm * step.norm);
        const StepRecord record{
            .step = state_.step + 1,
            .loss = step.loss,
            .norm = step.norm,
            .lr = learning_rate(config_.schedule, schedule_steps_[size_t(state_.step) % schedule_steps_.size()]),
            .ms = step_s * 1e3,
            .tokens = how.tokens_of_all(),
            .ignored = how.num_tokens() - step.targets(),
            .has_comm = !world_.is_alone(),
            .comm_ms = cost.ms,
            .comm_exposed_ms = cost.exposed_ms,
            .comm_predicted_ms = cost.predicted_ms,
            .noise_scale = how.noise_scale ? noise_scale_.tokens() : 0,
            .mfu = mfu(double(how.tokens_of_all()), step_s),
            .saturated = flags_.amax_history() > 0 ? int64_t(step.sums.saturated) : -1,
            .cropped = cropped_[size_t(state_.step) % cropped_.size()]};
        state_.updates = step.updates;
        state_.skipped_in_a_row = step.applied ? 0 : state_.skipped_in_a_row + 1;
        state_.step++;
        is_between_steps_ = true;
        log_.step(record);  // which may throw: the step is over, and can be saved
        profiler_.finish_step(record.step - 1);
        if (!step.applied)
            log_.skip(state_.step, step.loss, step.norm, step.targets() > 0 ? "not finite" : "nothing to learn");
        if (outer_) return;
        if (state_.skipped_in_a_row >= kMostSkippedInARow)
            throw SharedError(kExitDiverged,
                              format("the loss or the gradient was not finite in %ld steps in a row, up to step %ld: "
                                     "resume from an earlier checkpoint with a lower --learning-rate or a --grad-clip",
                                     kMostSkippedInARow, state_.step));
        all_stop_ |= step.count(Vote::stop) > 0;
        all_out_of_time_ |= step.count(Vote::out_of_time) > 0;
        go_on_saving(step.count(Vote::written) == ranks_.world_size, step.count(Vote::committed) > 0);
        go_on_saving_local(step.count(Vote::local_over) == ranks_.world_size, step.count(Vote::local_failed) == 0);
    }

    // What an island's rank has to say in the outer step. Nothing but int64_t: it is sent as it lies in memory.
    struct IslandNews {
        int64_t is_finite, has_bad_data, skipped_in_a_row, updates, wants_stop, is_out_of_time, is_written,
            is_committed, elapsed_us, is_local_over, has_local_failed;
    };

    // Collective, of all islands, which have made the same number of steps. First they tell each other how they
    // are, in a few bytes; so what cannot go on ends before anything is changed, and is saved by none.
    void outer_step() {
        const double began_s = now_s();
        world_.set_step(*comm_, state_.step);
        const bool is_finite = outer_->look();
        const IslandNews mine{is_finite,
                              has_bad_data_,
                              state_.skipped_in_a_row,
                              state_.updates,
                              stop_signal() != nullptr,
                              world_.is_first() && out_of_time_here(),
                              saver_.is_written(),
                              saver_.is_committed(),
                              int64_t(state_.training_s * 1e6),
                              local_.is_over(),
                              local_.has_failed()};
        const std::vector<IslandNews> all = ranks_.all_gather_values(mine, "how its island is");
        const auto count = [&](int64_t IslandNews::*what) {
            return std::count_if(all.begin(), all.end(), [&](const IslandNews& news) { return news.*what != 0; });
        };
        if (count(&IslandNews::has_bad_data) > 0) end_by_data();
        for (size_t r = 0; r < all.size(); r++)
            if (!all[r].is_finite || all[r].skipped_in_a_row >= kMostSkippedInARow)
                throw SharedError(
                    kExitDiverged,
                    format("outer step at step %ld: the %s of %s not finite, so no island has taken it: resume from "
                           "an "
                           "earlier checkpoint with a lower --learning-rate, or a lower --outer-lr",
                           state_.step, all[r].is_finite ? "loss or the gradient" : "weights",
                           (place_.name_of(place_.island_of(int(r))) + (all[r].is_finite ? " is" : " are")).c_str()));
        const bool is_sound = outer_->exchange();
        const std::vector<int64_t> sound = ranks_.all_gather_values(int64_t(is_sound), "its part of the outer step");
        require_outer(sound);
        outer_->apply();

        agreed_step_ = state_.step;
        state_.skipped_in_a_row = 0;
        state_.island_updates.clear();
        for (int island = 0; island < place_.count(); island++) {
            const IslandNews& news = all[size_t(island * place_.size())];
            state_.skipped_in_a_row = std::max(state_.skipped_in_a_row, news.skipped_in_a_row);
            state_.island_updates += (island ? "," : "") + std::to_string(news.updates);
        }
        agreed_training_s_ = double(all[0].elapsed_us) * 1e-6;
        all_stop_ |= count(&IslandNews::wants_stop) > 0;
        all_out_of_time_ |= count(&IslandNews::is_out_of_time) > 0;
        const double outer_s = now_s() - began_s;
        state_.training_s += outer_s;
        log_.outer(state_.step, outer_s * 1e3, double(outer_->sent_bytes()));
        go_on_saving(count(&IslandNews::is_written) == ranks_.world_size, count(&IslandNews::is_committed) > 0);
        go_on_saving_local(count(&IslandNews::is_local_over) == ranks_.world_size,
                           count(&IslandNews::has_local_failed) == 0);
    }

    void require_outer(const std::vector<int64_t>& sound) const {
        for (size_t r = 0; r < sound.size(); r++)
            if (!sound[r])
                throw SharedError(kExitDiverged,
                                  format("outer step at step %ld: the mean of the islands is not finite, as rank %zu "
                                         "computes it, so none has taken it: resume from an earlier checkpoint with a "
                                         "lower --outer-lr",
                                         state_.step, r));
    }

    // Of weights that were loaded each rank has its own part only. New ones are the same everywhere, as rank 0 sees to.
    void share_weights() {
        if (request_.resumed() || request_.source)
            gather_weights(*comm_, optimizer_.plan, model_.weights);
        else
            comm_->wait(comm_->broadcast(model_.weights.data, size_t(model_.weights.size) * sizeof(T), 0));
        if (!outer_) return;
        outer_->begin();
        agreed_step_ = state_.step;
    }

    void score() {
        scores_.clear();
        for (const TaskFile& file : data_.tasks) {
            const double began_s = now_s();
            const TaskScores scores =
                ::score_tasks(model_, file, ranks_, least_batch_size(balance_.shares()), config_.step.T);
            log_.tasks(state_.step, file.path(), scores.tasks, scores.score, (now_s() - began_s) * 1e3);
            for (const TaskRecord& task : scores.tasks) scores_.push_back({"accuracy_" + task.name, task.accuracy()});
            if (scores.tasks.size() > 1) scores_.push_back({"score_" + file.stem(), scores.score});
        }
    }

    void print_sample() {
        if (!world_.is_first()) return;
        Rng rng(mix64(flags_.seed) + uint64_t(state_.step), Stream::sampling);  // the same after any interruption
        const std::vector<int32_t> tokens =
            sample(model_, data_.prompt, config_.step.T, flags_.sample(), Context::cached, rng);
        log_.sample(state_.step, flags_.prompt, run_.tokenizer.tokenizer->decode(tokens));
    }

    // Something optional, such as a sample: if it fails the run continues, with a warning. With several ranks only if
    // all of them know, or if rank 0 works alone (`together` is false); else they would wait for each other.
    template <class Look>
    void look(const char* what, bool together, Look&& look) {
        try {
            look();
        } catch (const std::exception& error) {
            const Error* const ours = dynamic_cast<const Error*>(&error);
            const bool all_know = world_.is_alone() || !together || dynamic_cast<const SharedError*>(&error);
            if (!all_know || (ours && ours->exit_code == kExitRank)) throw;
            if (world_.is_first())
                std::fprintf(stderr, "warning: no %s at step %lld: %s\n", what, static_cast<long long>(state_.step),
                             printable(error.what()).c_str());
            log_.warning(state_.step, what, error.what());
        }
    }

    // Updates the parts of the state that are not kept up to date.
    void note_state() {
        state_.data_key = data_key_;
        state_.micro_batches = balance_.saved();
        state_.data = ends_by_data_ ? data_states_[size_t(state_.step) % data_states_.size()] : data_.train->state();
    }
    RunFlags saved_flags() const {
        RunFlags asked = request_.flags;
        // Of these ranks alone, and not kept for a resume; the step that it makes is the run's.
        if (asked.balance_mode().kind == BalanceMode::Kind::listed) asked.total_batch_size = config_.step.num_tokens();
        asked.packing = flags_.packing;  // a resumed run is not asked again (choose_packing)
        return asked;
    }

    void save_state(bool and_wait) {
        finish_save();
        is_saving_ = true;
        note_state();
        saver_.begin(state_.step, {run_.tokenizer.json, run_.tokenizer.chat_template, state_, saved_flags()},
                     [this, is_best = state_.step == best_begun_](const SavedCheckpoint& saved) {
                         if (is_best) mark_best(flags_.out_dir, saved.step);
                         prune(flags_.out_dir, flags_.keep, saved.step);
                     });
        begun_step_ = state_.step;
        is_saving_ = false;
        if (and_wait) finish_save();
    }

    // The sources of the training data; none if there is one only.
    std::vector<SourceFacts> mixture() const {
        if (!data_.train || data_.train->shards().size() == 1) return {};
        return data_.train->sources();
    }

    // Keeps the checkpoint of this step as the best one, and makes it if there is none.
    void save_best() {
        finish_save();
        best_begun_ = state_.step;
        if (is_saved())
            on_first_rank(ranks_, [&] { mark_best(flags_.out_dir, state_.step); });
        else
            save_state(!flags_.async_checkpoint);
    }

    // The last lines, of a run that looks for its best.
    void say_best() {
        if (!tells_best() || !world_.is_first() || !state_.best.loss) return;
        const int64_t step = state_.best.step;
        const std::string place = best_step(flags_.out_dir) != step ? "not kept" : "in " + flags_.out_dir + "/best";
        std::printf("best validation loss: %.4f at step %lld, %s\n", *state_.best.loss, static_cast<long long>(step),
                    flags_.save_best ? place.c_str() : "not kept without --save-best");
        if (end_reason() == "patience")
            std::printf("stopped early, at step %lld: no lower loss in the last %lld validations (--patience %lld)\n",
                        static_cast<long long>(state_.step), static_cast<long long>(state_.best.worse),
                        static_cast<long long>(flags_.patience));
        std::fflush(stdout);
    }

    // What is known of validations before this run, or before it was resumed.
    void begin_best() {
        if (!data_.val || !flags_.trains()) return;
        const uint64_t key = validation_key(flags_, data_.val->data_hash(), config_.step.T);
        if (state_.best.loss && state_.best.key != key && tells_best() && world_.is_first())
            std::fprintf(stderr,
                         "warning: not the validation data, --val-tokens, --seq-len or --packing that %s was validated "
                         "with: its best loss, %.4f, is no measure\n",
                         request_.checkpoint.path.c_str(), *state_.best.loss);
        if (state_.best.key != key) state_.best = {.counted_step = state_.best.counted_step, .key = key};
    }

    // After a resume: a kill may have come between a checkpoint and its mark, or the best one was validated when it
    // had been saved already. True in the latter case, unless that validation is due again anyhow: its loss is not
    // known.
    bool find_best() {
        if (!flags_.save_best) return false;
        const int64_t marked = best_step(flags_.out_dir), best = state_.best.step;
        if (marked == state_.step && best != marked) return !is_due_at(state_.step, flags_.val_every);
        if (best >= 0 && std::filesystem::exists(checkpoint_path(flags_.out_dir, best)))
            mark_best(flags_.out_dir, best);
        return false;
    }

    // A run that does not fit into memory ends here.
    RunInputs open_inputs() {
        share_errors(ranks_, [&] { run_.memory.check(config_); });
        return {config_, run_.tokenizer, world_};
    }

    Comm<Device>* meet() {
        share_errors(ranks_, [&] {
            kernels_ = plan_kernels<T>(device_, config_.shape, config_.step.B, config_.step.T,
                                       flags_.document_token.has_value(), flags_.trains());
        });
        const bool one_size = have_one_batch_size(config_.shares);
        check_same_data(ranks_, "the training data", data_.train);
        check_same_data(ranks_, "the validation data", data_.val);
        check_alike(ranks_, {{"the kernels of attention", kernels_.attention},
                             {"the rows of logits at a time", one_size ? std::to_string(passes_.head_rows) : "own"},
                             {"the files of --eval-tasks", hash_of_tasks()}});
        device_.reserve_workspace(run_.memory.workspace(config_.step.B));
        return run_.comm.get();
    }

    std::string hash_of_tasks() const {
        std::string all;
        for (const TaskFile& file : data_.tasks) all += hex64(file.hash());
        return all;
    }

    void begin_at_start() {
        load();
        begin_best();
    }

    void load() {
        if (request_.source)
            return share_errors(ranks_, [&] { load_tensors(TensorSource{*request_.source}, model_, sharded_); });
        if (!request_.resumed())
            return model_.initialize_weights(flags_.seed,
                                             [&](size_t i, const float* values) { optimizer_.set_masters(i, values); });
        const uint64_t read_before = thread_read_bytes;
        share_errors(ranks_, [&] { state_ = load_run(request_, ranks_, model_, sharded_); });
        const uint64_t loaded = thread_read_bytes - read_before;
        read_bytes_ = ranks_.joined_value(ReadBytes{request_.verified_bytes, request_.verified_bytes, loaded, loaded},
                                          "what it has read", [](const ReadBytes& a, const ReadBytes& b) {
                                              return ReadBytes{
                                                  a.verified + b.verified, std::max(a.most_verified, b.most_verified),
                                                  a.loaded + b.loaded, std::max(a.most_loaded, b.most_loaded)};
                                          });
        share_errors(ranks_, [&] {
            require(state_.step == request_.checkpoint.step,
                    "%s: state.json is of step %lld, and manifest.json of step %lld; use another checkpoint",
                    request_.checkpoint.path.c_str(), static_cast<long long>(state_.step),
                    static_cast<long long>(request_.checkpoint.step));
        });
        state_.updates = state_.updates_of(place_.island());
        if (!outer_) state_.island_updates.clear();
        first_step_ = state_.step;
        agreed_training_s_ = state_.training_s;
        if (!data_.train) return;
        if (state_.data_key == data_key_)
            data_.train->restore(state_.data);
        else if (world_.is_first())
            std::fprintf(stderr,
                         "warning: not the data, --seq-len, --packing, --shuffle, --seed or --data-order%s that %s was "
                         "trained with: reading the data from their start\n",
                         flags_.data_order == "llmc" ? " (with it --batch-size and ranks)" : "",
                         request_.checkpoint.path.c_str());
    }

    void open_log() {
        if (flags_.evaluates()) {
            if (!world_.is_first()) return;
            log_ = RunLog::on_console({.steps = shown_steps()});
            std::printf("model: %s, %.2fM parameters; device: %s\n", request_.path().c_str(),
                        double(model_.parameters.num_parameters) * 1e-6, describe(device_).c_str());
            std::printf("%s", kernel_line().c_str());
            return;
        }
        bool looks_again = false;
        on_first_rank(ranks_, [&] {
            log_ = begun_log();
            if (flags_.save_best) check_best_is_free(flags_.out_dir);
            follower_ = std::make_unique<LogFollower>(flags_.log_to, flags_.out_dir);
            already_saved_ = std::filesystem::exists(checkpoint_path(flags_.out_dir, state_.step));
            // What a run that was killed while it saved has left, if this one has nothing more to save.
            if (request_.resumed() && already_saved_) {
                remove_leftovers(flags_.out_dir);
                looks_again = find_best();
                prune(flags_.out_dir, flags_.keep, state_.step);
            }
        });
        already_saved_ = ranks_.broadcast(already_saved_ ? "yes" : "") == "yes";
        best_is_unknown_ = ranks_.broadcast(looks_again ? "yes" : "") == "yes";
        if (!world_.is_alone() && !world_.group)
            saver_.place(find_placement(ranks_, flags_.out_dir, flags_.checkpoint_to));
        if (flags_.local_every > 0)
            local_.open(open_local(ranks_, flags_.out_dir, flags_.checkpoint_local, request_.local_run));
        if (!world_.is_first()) return;
        const Recipe& recipe = config_.recipe;
        std::printf("model: %.2fM parameters in %s, %.1f MFLOP per token; batch: %s\n",
                    double(model_.parameters.num_parameters) * 1e-6, flags_.fp8() ? "fp8" : type_name<T>(),
                    flops_per_token_ * 1e-6, batch_text(config_).c_str());
        std::printf("%s", config_.derivation.c_str());
        if (config_.step.graph)
            if (const std::string why = why_no_graph(config_.step, Device::kAsynchronous); !why.empty())
                std::printf("--cuda-graph: without one: %s\n", why.c_str());
        const std::string length =
            config_.by_time() ? format("%g s, of which schedules are %ld steps", flags_.time_budget_s, config_.steps)
                              : format("%ld steps", config_.steps);
        std::printf("recipe: %s, %s; %s", recipe.name, length.c_str(), recipe.text().c_str());
        double weights = 0;
        for (const SourceFacts& facts : mixture()) weights += facts.source.weight;
        for (const SourceFacts& facts : mixture())
            std::printf("data: %.2f%% of all rows from the %s tokens of %s\n", 100 * facts.source.weight / weights,
                        count_text(double(facts.num_tokens)).c_str(), facts.source.pattern.c_str());
        std::printf("data: %s tokens; device: %s; %s\n", count_text(double(data_.train->num_tokens())).c_str(),
                    describe(device_).c_str(), world_.is_alone() ? "one rank" : comm_->describe().c_str());
        std::printf("%s", peak_line().c_str());
        if (outer_)
            std::printf(
                "islands: %d of %d %s each, every %ld steps a mean (rate %g, momentum %g) of %.1f MB in %s from "
                "each rank to each other island\n",
                place_.count(), place_.size(), place_.size() == 1 ? "rank" : "ranks", flags_.outer_every,
                flags_.outer_lr, flags_.outer_momentum,
                double(OuterState::encoded_bytes(outer_->state().size(), flags_.outer().type)) * 1e-6,
                flags_.outer_dtype.c_str());
        std::printf("%s%s", kernel_line().c_str(), saver_.placement().text.c_str());
    }

    // For training, and not another virtual rank's, which has its figure, too.
    bool has_own_device() const { return flags_.trains() && (!world_.group || world_.is_first()); }

    std::string peak_line() const {
        if (all_peak_flops_ <= 0) return "";
        if (all_peak_flops_ == peak_.flops) return "MFU: of " + peak_.text() + "\n";
        return format("MFU: of %.3g TFLOP/s of all ranks, rank 0's %s\n", all_peak_flops_ * 1e-12,
                      peak_.text().c_str());
    }

    std::string kernel_line() const {
        if (kernels_.attention.empty()) return "";
        return format("attention: %s; GEMM: %s; head: %ld of %ld rows of logits at a time\n",
                      kernels_.attention.c_str(), kernels_.gemm.c_str(), long(passes_.head_rows),
                      long(config_.step.B * config_.step.T));
    }

    RunLog begun_log() const {
        RunFlags flags = flags_;  // whose fields() are for reading and writing
        const std::string& tokenizer = run_.tokenizer.json;
        const RunFacts facts{.config_json = to_json(flags.fields()),
                             .device = describe(device_),
                             .ranks = ranks_.world_size,
                             .data_hash = hex64(data_.train->data_hash()),
                             .val_hash = data_.val ? hex64(data_.val->data_hash()) : "",
                             .tokenizer_hash = tokenizer.empty() ? "" : hex64(xxh3(tokenizer.data(), tokenizer.size())),
                             .attention = kernels_.attention,
                             .gemm = kernels_.gemm,
                             .head_rows = passes_.head_rows,
                             .num_parameters = model_.parameters.num_parameters,
                             .flops_per_token = flops_per_token_,
                             .peak_flops = all_peak_flops_,
                             .peak = peak_.how,
                             .sources = flags_.sources};
        RunLog::Options options{
            .steps = shown_steps(), .print_every = flags.print_every, .tensorboard = flags.tensorboard};
        if (flags.time_budget_s > 0) options.time_budget_s = std::max(0.0, flags.time_budget_s - state_.training_s);
        RunLog log(flags.out_dir, request_.resumed() ? RunLog::Mode::resume : RunLog::Mode::fresh, options);
        std::printf("%s", flags_by_source(flags.fields(), flags.sources).c_str());
        std::vector<std::string> passed_over;
        for (const PassedOver& other : request_.checkpoint.passed_over)
            passed_over.push_back(other.path + ": " + other.why);
        if (request_.resumed())
            log.resume(facts, state_.step, request_.checkpoint.path, passed_over, read_bytes_);
        else
            log.start(facts);
        return log;
    }

    bool out_of_time_here() const { return flags_.time_budget_s > 0 && state_.training_s >= flags_.time_budget_s; }

    std::vector<Vote> votes() const {
        std::vector<Vote> all;
        if (stop_signal()) all.push_back(Vote::stop);
        if (world_.is_first() && out_of_time_here()) all.push_back(Vote::out_of_time);
        if (saver_.is_written()) all.push_back(Vote::written);
        if (saver_.is_committed()) all.push_back(Vote::committed);
        if (local_.is_over()) all.push_back(Vote::local_over);
        if (local_.has_failed()) all.push_back(Vote::local_failed);
        if (data_.scan->has_found()) all.push_back(Vote::bad_data);
        return all;
    }

    // One rank's data cannot be used, so the step was applied on none. All throw the first such rank's error.
    void end_by_data() {
        while (under_way() > 0) stepper_->finish();
        has_bad_data_ = false;
        ends_by_data_ = is_between_steps_ = true;
        share_errors(ranks_, [&] {
            stepper_->rethrow_data_error();
            data_.scan->rethrow();
        });
        ensure(false);  // whoever votes has an error
    }

    // As all ranks have heard of it in the same step. What they say of a save may come when it is over: then it is of
    // none, for the next one begins when no step is under way.
    void go_on_saving(bool all_written, bool committed) {
        if (saver_.is_committing()) {
            if (committed) finish_save();
        } else if (saver_.is_under_way() && all_written) {
            is_saving_ = true;
            saver_.commit();
            is_saving_ = false;
        }
    }

    void go_on_saving_local(bool all_over, bool all_good) {
        if (local_.is_under_way() && all_over) local_.finish(all_good);
    }

    void finish_save() {
        if (!saver_.is_under_way()) return;
        is_saving_ = true;
        const SavedCheckpoint saved = saver_.finish();
        is_saving_ = false;
        Supervised::say_saved();
        on_first_rank(ranks_, [&] {
            try {
                log_.checkpoint(saved.step, saved.path, saved.ms);
            } catch (const Error&) {
                if (!is_ending_) throw;  // else it may be the log whose error ends the run
            }
        });
    }

    // Of the steps whose time is counted.
    double counted_tokens() const {
        const int64_t uncounted = config_.by_time() ? std::min(state_.step, RunConfig::kUncountedSteps) : 0;
        return double(state_.tokens) - double(uncounted * config_.step.tokens_of_all());
    }

    double mfu(double tokens, double seconds) const {
        return all_peak_flops_ > 0 && seconds > 0 ? flops_per_token_ * tokens / (seconds * all_peak_flops_) : 0;
    }
};
