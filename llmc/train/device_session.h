/*
A Session (session.h) on a device, with weights and activations of type T: it runs the steps and orders everything
around them. The parts, in the order in which a run uses them:

  prepare.h           tokenizer, model, sharding, communicator, batch
  loading.h           new weights, another model's weights, or a checkpoint
  start_report.h      the report before the first step
  step.h              one step; step_meter.h: its record in the log, and MFU
  run_balance.h       each rank's share of a step; outer_optimizer.h: the outer step of islands
  rank_watch.h        whether ranks have the same weights, and how long each computes
  run_evaluation.h    validation, tasks, samples
  saving.h            checkpoints (llmc/checkpoint/)
  run_end.h           when the run is over and why
*/
#pragma once
#include <array>
#include <chrono>
#include <cstdio>
#include <optional>
#include <string>
#include <vector>
#include "llmc/checkpoint/run_state.h"   // RunState
#include "llmc/checkpoint/saving.h"      // Saver
#include "llmc/data/utf8.h"              // printable
#include "llmc/model/gpt.h"              // Gpt
#include "llmc/run/log.h"                // RunLog, LogFollower
#include "llmc/run/stop.h"               // stop_signal
#include "llmc/run/summary.h"            // RunSummary, summary_text, check_results, append_result
#include "llmc/train/loading.h"          // load_initial_state
#include "llmc/train/outer_optimizer.h"  // OuterOptimizer, IslandStates, apply_outer_step
#include "llmc/train/prepare.h"          // prepare, settle_kernels
#include "llmc/train/rank_watch.h"       // RankWatch
#include "llmc/train/run_balance.h"      // RunBalance
#include "llmc/train/run_end.h"          // RunEnd
#include "llmc/train/run_evaluation.h"   // RunEvaluation
#include "llmc/train/run_inputs.h"       // RunInputs
#include "llmc/train/session.h"          // Session
#include "llmc/train/start_report.h"     // StartReport
#include "llmc/train/step.h"             // Stepper
#include "llmc/train/step_meter.h"       // StepMeter
#include "llmc/train/step_profiler.h"    // StepProfiler

template <class Device, class T>
class DeviceSession : public Session {
public:
    // Makes the model and sets it to the run's initial state. Collective.
    DeviceSession(Device& device, World& world, const RunRequest& request)
        : device_(device), world_(world), request_(request), run_(prepare<T>(device, world, request)) {
        open_inputs();
        make_model();
        const ReadBytes read_bytes = load_state();
        open_log(read_bytes);
        begin();
    }
    ~DeviceSession() override { saver_.reset(); }  // first, because its threads read the other parts

    const RunConfig& config() const override { return config_; }

    bool done() override {
        if (flags_.evaluates()) return true;
        is_stopped_ = end_.stop_reason() != nullptr;
        // With islands all of these change in outer steps only, when no step is in flight.
        if (is_stopped_ || end_.out_of_time() || is_any_due(next_step())) drain();
        is_last_ = under_way() == 0 && (end_.is_last(state_.step) || end_.out_of_time() || end_.is_out_of_patience());
        return is_last_ || is_stopped_;
    }

    bool due(int64_t every) const override { return under_way() == 0 && end_.is_due(state_.step, every); }

    void train_step() override {
        if (&config_.step_at(next_step()) != &config_.step_at(state_.step)) drain();  // before steps of another size
        balance_->before_step(state_.step);
        start_step();
        warn_of_graph();
        if (end_.is_outer_step(next_step())) {
            drain();
            outer_step();
        } else if (under_way() == kMostUnderWay) {
            finish_step();
        }
    }

    void compare_ranks() override {
        if (world_.is_alone()) return;
        const RankReport report = watch_->compare(*model_);
        log_.ranks(state_.step, report.weight_hash, report.min_ms, report.median_ms, report.max_ms, report.slowest,
                   watch_->all_ms(), balance_->sequences());
        // No warning about virtual ranks: they share the cores of one process, so none of them is a slow machine.
        if (world_.is_first() && !world_.group && watch_->has_straggler())
            std::fprintf(stderr, "warning: %s%s\n", report.straggler_text().c_str(), balance_->advice().c_str());
    }

    void save() override {
        // While steps are being skipped the weights may be ruined, and saving them would prune a good checkpoint.
        if (!saver_->is_saved(state_.step) && state_.skipped_in_a_row == 0) save_now(!flags_.async_checkpoint);
    }

    void validate() override {
        bool is_best = false;
        with_averages([&] { is_best = evaluation_->validate(); });
        end_.apply_votes(evaluation_->is_stopped(), false);  // as all ranks know
        if (is_best && flags_.save_best && !saver_->save_as_best(state_.step)) save_now(!flags_.async_checkpoint);
    }

    bool is_out_of_patience() const override { return end_.is_out_of_patience() && under_way() == 0; }
    bool is_told_to_stop() const override { return end_.stop_reason() != nullptr; }
    void score_tasks() override {
        if (is_told_to_stop()) return;
        with_averages([&] { evaluation_->score_tasks(); });
        end_.apply_votes(evaluation_->is_stopped(), false);
    }
    void show_sample() override {
        if (!is_told_to_stop()) with_averages([&] { evaluation_->show_sample(); });
    }

    void finish() override {
        if (flags_.trains()) {
            if (flags_.check_replicas > 0 && (is_last_ || due(flags_.check_replicas))) compare_ranks();
            // Compare first, because ranks that differ have nothing to save. Then save before anything that may fail
            // and that the checkpoint does not need.
            if (saver_->is_saved(state_.step))
                saver_->finish();
            else
                save_now(true);
        }
        if (flags_.evaluates() || !is_stopped_) {
            if (!evaluation_->has_validated(state_.step)) validate();
            score_tasks();
            if (flags_.trains()) show_sample();
        }
        saver_->finish();
        if (flags_.trains() && is_told_to_stop() && world_.is_first()) print_how_to_resume();
        profiler_->finish();
        log_.end(state_.step, end_.reason(), plans_made(device_), data_->mixture());
        evaluation_->print_best(end_.reason());
        world_.print(end_.budget_text());
        if (flags_.summary) world_.print(summary_text(summary()));
        append_to_results(end_.reason());
        saver_->finish_uploads();
    }

    void fail(const Error& error) override {
        const bool all_know = world_.is_alone() || dynamic_cast<const SharedError*>(&error);
        // Between outer steps the islands' weights differ.
        const bool is_whole = is_between_steps_ && stepper_->is_whole() && (!outer_ || state_.step == agreed_step_);
        if (flags_.trains() && all_know && error.exit_code == kExitUsage && is_whole) save_last_step(error);
        append_to_results(format("failed (exit code %d)", error.exit_code));
    }

private:
    static constexpr int kMostUnderWay = Stepper<Device, T>::kMostUnderWay;

    Device& device_;
    World& world_;
    Ranks& ranks_ = world_.ranks;
    const RunRequest& request_;
    const PreparedRun<Device, T> run_;
    const RunConfig& config_ = run_.config;
    const RunFlags& flags_ = config_.flags;
    Comm<Device>& comm_ = *run_.comm;  // with islands: among the ranks of this one
    const IslandPlace place_ = {flags_.islands_of_run(), ranks_.world_size, ranks_.rank};

    // The parts, which the functions of "the start" make.
    DevicePeak peak_;
    std::optional<RunInputs> data_;
    KernelFacts kernels_;
    std::optional<StepProfiler<Device, T>> profiler_;
    std::optional<Gpt<Device, T>> model_;
    std::optional<Optimizer<Device, T>> optimizer_;
    std::optional<OuterOptimizer<Device, T>> outer_;  // only with islands
    std::optional<StepMeter> meter_;
    std::optional<RunBalance<Device, T>> balance_;
    std::optional<Stepper<Device, T>> stepper_;
    RunLog log_;  // writes on rank 0 only
    std::optional<LogFollower> follower_;
    std::optional<RankWatch<Device, T>> watch_;
    RunEnd end_ = {config_, world_, state_};
    std::optional<RunEvaluation<Device, T>> evaluation_;
    std::optional<Saver<Device, T>> saver_;

    RunState state_;
    uint64_t data_key_ = 0;
    int64_t first_step_ = 0, agreed_step_ = 0;  // agreed: the last step after which all islands had the same weights
    int64_t unlearned_in_a_row_ = 0;            // the last steps, if they had no target to learn
    bool warned_of_graph_ = false;
    bool ends_by_data_ = false;                  // a rank's data cannot be used; the ranks' loaders are ahead of state_
    bool has_bad_data_ = false;                  // on a rank of this island; other islands do not know yet
    bool is_between_steps_ = true;               // false while finish_step() updates state_
    bool is_stopped_ = false, is_last_ = false;  // set by done(): stopped on request; ended by itself
    std::array<StepStart, kMostUnderWay> starts_;  // of the steps in flight
    double agreed_training_s_ = 0;                 // rank 0's training_s, as of the last result

    static double now_s() {
        return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
    }

    // ---- the start

    ActivationPolicy passes() const {
        return {config_.step.recompute, flags_.fp8(), run_.memory.head_rows(config_), flags_.amax_history(),
                flags_.mx()};
    }

    // Throws an Error if the run does not fit into memory.
    void open_inputs() {
        if (!flags_.results.empty()) on_first_rank(ranks_, [&] { check_results(flags_.results); });
        // Before memory is taken; only for training, and of virtual ranks only the first.
        if (flags_.trains() && (!world_.group || world_.is_first())) peak_ = peak_of<T>(device_, flags_.peak_flops);
        share_errors(ranks_, [&] { run_.memory.check(config_); });
        data_.emplace(config_, run_.tokenizer, world_);
        kernels_ = settle_kernels(device_, run_, ranks_, *data_, passes().head_rows);
        data_key_ = data_key(flags_, data_->train_hash(), config_.step, ranks_.world_size,
                             separator_of(flags_, run_.tokenizer));
    }

    // Takes the device's memory. Then what needs the model.
    void make_model() {
        profiler_.emplace(device_, world_, flags_);
        model_.emplace(device_, run_.parameters, config_.step.B, config_.step.T, passes(), comm_,
                       gradient_list(run_.parameters, run_.sharding,
                                     gradient_layout(run_.sharding, config_.step.shards_gradients())));
        model_->document_token = flags_.document_token.value_or(-1);
        optimizer_.emplace(device_, model_->parameters, run_.sharding, world_.together().rank, config_.recipe.rules);
        if (place_.islands > 0) outer_.emplace(world_, *model_, *optimizer_, comm_, place_.islands, flags_.outer());
        meter_.emplace(config_, model_->parameters, peak_of_all(ranks_, peak_.flops, world_.group != nullptr),
                       world_.is_alone());
        balance_.emplace(world_, config_);
        evaluation_.emplace(world_, run_, *data_, *model_, *balance_, state_, log_);
        saver_.emplace(flags_, ranks_, run_.tokenizer.facts, *model_, sharded(), log_);
        saver_->base_hash = request_.base_hash;
    }

    ShardedState<Device, T> sharded() {
        return {*optimizer_, outer_ ? &outer_->state() : nullptr, place_, model_->acts.amax};
    }

    ReadBytes load_state() {
        ReadBytes read_bytes;
        state_ = load_initial_state(request_, flags_.seed, ranks_, *model_, *optimizer_, sharded(), read_bytes);
        first_step_ = agreed_step_ = state_.step;
        agreed_training_s_ = state_.training_s;
        if (request_.resumed() && data_->train) {
            const Watchdog::Patience patience(ranks_.watchdog());  // packed rows read shards, which may be fetched
            share_errors(ranks_,
                         [&] { continue_data(*data_->train, state_, data_key_, flags_, request_, world_.is_first()); });
        }
        evaluation_->begin(request_.checkpoint.path);
        share_weights(request_, comm_, optimizer_->plan, *model_);
        if (outer_) outer_->begin();
        profiler_->plan(first_step_, config_.steps);
        StepConfig how = config_.step;
        how.first_rank = place_.island() * place_.size();
        stepper_.emplace(*model_, *optimizer_, comm_, how, state_.updates);
        return read_bytes;
    }

    void open_log(const ReadBytes& read_bytes) {
        const StartReport report{.request = request_,
                                 .config = config_,
                                 .data = *data_,
                                 .tokenizer = run_.tokenizer,
                                 .device = describe(device_),
                                 .on_gpu = Device::kAsynchronous,
                                 .type = type_name<T>(),
                                 .num_ranks = ranks_.world_size,
                                 .place = place_,
                                 .outer_size = outer_ ? outer_->state().size() : 0,
                                 .kernels = kernels_,
                                 .head_rows = passes().head_rows,
                                 .num_parameters = model_->parameters.num_parameters,
                                 .num_learned = model_->parameters.num_learned,
                                 .flops_per_token = meter_->flops_per_token,
                                 .peak = peak_,
                                 .all_peak_flops = meter_->all_peak_flops};
        if (flags_.evaluates()) {
            if (!world_.is_first()) return;
            log_ = RunLog::on_console({.steps = config_.shown_steps()});
            return report.print_evaluated();
        }
        on_first_rank(ranks_, [&] {
            log_ = report.begin_log(state_, read_bytes);
            if (flags_.save_best) check_best_is_free(flags_.out_dir);
            follower_.emplace(flags_.log_to, flags_.out_dir);
        });
        saver_->open(state_, request_.resumed(), end_.is_due(state_.step, flags_.val_every),
                     !world_.is_alone() && !world_.group);
        if (world_.is_first())
            report.print(world_.is_alone() ? "one rank" : comm_.describe(), saver_->placement_text());
    }

    // What remains before the first step.
    void begin() {
        if (flags_.trains()) balance_->begin(state_.step, state_.micro_batches, *data_->train, *stepper_, log_);
        watch_.emplace(ranks_, comm_, device_);
        if (outer_) watch_->compare(*model_);  // loading shares weights within an island only, so compare all islands
        if (comm_.world_size > 1)
            world_.print(
                format("ranks: %.2f GB/s from each to the others, as measured now\n", watch_->bytes_per_s() * 1e-9));
        end_.begin();
        if (saver_->best_is_unknown()) validate();
    }

    // ---- steps

    int64_t next_step() const { return state_.step + under_way(); }  // the number of the next one to start, from 0
    int under_way() const { return stepper_->under_way(); }
    StepStart& start_of(int64_t step) { return starts_[size_t(step) % starts_.size()]; }

    bool is_any_due(int64_t step) const {
        if (end_.is_last(step)) return true;
        const auto due_every = [&](int64_t every) { return end_.is_due(step, every); };
        return (data_->val && due_every(flags_.val_every)) ||
               (!data_->tasks.empty() && due_every(flags_.eval_tasks_every)) ||
               (!data_->prompt.empty() && due_every(flags_.sample_every)) || due_every(flags_.checkpoint_every) ||
               (!world_.is_alone() && due_every(flags_.check_replicas));
    }

    // Waits until no step is in flight.
    void drain() {
        while (under_way() > 0) finish_step();
    }

    // Warns once if a step could not be captured.
    void warn_of_graph() {
        if (warned_of_graph_ || stepper_->graph_error().empty()) return;
        warned_of_graph_ = true;
        std::fprintf(stderr, "warning: no CUDA graph, steps continue without: %s\n", stepper_->graph_error().c_str());
    }

    std::vector<Vote> votes() const {
        std::vector<Vote> all;
        if (stop_signal()) all.push_back(Vote::stop);
        if (world_.is_first() && end_.out_of_time_here()) all.push_back(Vote::out_of_time);
        saver_->add_votes(all);
        if (data_->scan->has_found()) all.push_back(Vote::bad_data);
        return all;
    }

    // Acts on the votes of a step, as all ranks do after the same step. count(vote): how many ranks cast it.
    template <class Count>
    void apply_votes(Count&& count) {
        end_.apply_votes(count(Vote::stop) > 0, count(Vote::out_of_time) > 0);
        saver_->advance(count);
    }

    void start_step() {
        const int64_t next = next_step();
        world_.set_step(comm_, next + 1);
        model_->set_windows(config_.window_fraction(next));
        const auto watch = profiler_->watch(next);
        StepStart& start = start_of(next);
        start.data = data_->train->state();
        const double training_s = world_.is_alone() ? state_.training_s : agreed_training_s_;  // the same on all ranks
        start.schedule_step = config_.schedule_step(next, training_s);
        const Recipe& recipe = config_.recipe;
        Rates rates = recipe.rates(start.schedule_step, config_.steps);
        int64_t& since = state_.average_since;
        if (!recipe.averages(start.schedule_step, config_.steps))
            since = -1;
        else if (since < 0)
            since = next;
        if (since >= 0) rates.average = recipe.average_rate(next - since, config_.steps);
        stepper_->start(*data_->train, rates, votes(), world_.is_first() ? uint64_t(state_.training_s * 1e6) : 0, next);
        start.cropped = data_->cropped();
        model_->set_windows(1);
    }

    // Takes the result of the oldest step in flight. It arrives while the next step is being computed.
    void finish_step() {
        is_between_steps_ = false;
        const StepResult step = stepper_->finish();
        if (step.count(Vote::bad_data) > 0) {
            if (!outer_) end_by_data();
            has_bad_data_ = true;  // the outer step tells all islands; until then this one applies no step
        }
        const double step_s = step.seconds;
        if (config_.counts_time(state_.step)) state_.training_s += step_s;
        unlearned_in_a_row_ = step.applied || step.targets() > 0 ? 0 : unlearned_in_a_row_ + 1;
        agreed_training_s_ = double(step.sums.elapsed_us) * 1e-6;
        state_.tokens += config_.step_at(state_.step).tokens_of_all();
        const CommCost cost = watch_->step(step_s * 1e3);
        balance_->step(stepper_->micro_batches_ms());
        StepRecord record = meter_->record(state_.step, step, start_of(state_.step), step_s, cost);
        if (flags_.time_budget_s > 0) record.left_s = flags_.time_budget_s - state_.training_s;
        state_.learning_rate = record.lr;
        state_.updates = step.updates;
        state_.skipped_in_a_row = step.applied ? 0 : state_.skipped_in_a_row + 1;
        state_.step++;
        is_between_steps_ = true;
        log_.step(record);  // may throw: by now the step is complete and can be saved
        profiler_->finish_step(record.step - 1);
        if (!step.applied)
            log_.skip(state_.step, step.loss, step.norm, step.targets() > 0 ? "not finite" : "nothing to learn");
        if (outer_) return;
        end_.check_skipped(unlearned_in_a_row_, data_->cropped());
        apply_votes([&](Vote vote) { return step.count(vote); });
    }

    // Collective over all islands, which have done the same number of steps.
    void outer_step() {
        const double began_s = now_s();
        world_.set_step(comm_, state_.step);
        IslandStates::OfRank mine{.is_finite = outer_->copy_weights(),
                                  .has_bad_data = has_bad_data_,
                                  .skipped_in_a_row = state_.skipped_in_a_row,
                                  .unlearned_in_a_row = unlearned_in_a_row_,
                                  .updates = state_.updates,
                                  .elapsed_us = int64_t(state_.training_s * 1e6)};
        for (const Vote vote : votes()) mine.votes[size_t(vote)] = 1;
        const IslandStates islands(ranks_, place_, mine);
        if (islands.has_bad_data()) end_by_data();
        islands.check(state_.step, config_.step.T, data_->cropped());
        apply_outer_step(*outer_, ranks_, state_.step);

        agreed_step_ = state_.step;
        islands.update(state_);
        agreed_training_s_ = islands.training_s();
        const double outer_s = now_s() - began_s;
        state_.training_s += outer_s;
        log_.outer(state_.step, outer_s * 1e3, double(outer_->sent_bytes()));
        apply_votes([&](Vote vote) { return islands.count(vote); });
    }

    // Some rank's data cannot be used, so no rank applied the step. All ranks throw the first such rank's error.
    void end_by_data() {
        while (under_way() > 0) stepper_->finish();
        has_bad_data_ = false;
        ends_by_data_ = is_between_steps_ = true;
        share_errors(ranks_, [&] {
            stepper_->rethrow_data_error();
            data_->scan->rethrow();
        });
        ensure(false);  // a rank that votes bad_data has an error to throw
    }

    // ---- the end

    // The flags that were asked for, with what was decided at the start and is part of the run from then on. A resumed
    // run has those of an undisturbed one.
    RunFlags asked() const {
        RunFlags asked = request_.flags;
        asked.packing = flags_.packing;  // a resumed run is not asked again (choose_packing)
        asked.after_checkpoint = asked.before_resume = asked.fetch = "";  // not for those who get the checkpoint
        if (!flags_.trains()) return asked;
        asked.total_batch_size = config_.step.tokens_of_all();
        asked.warmup_steps = config_.recipe.warmup_steps;
        if (asked.dtype == "auto") asked.dtype = type_name<T>();
        return asked;
    }

    RunSummary summary() const {
        const std::chrono::duration<double> since_start = std::chrono::steady_clock::now() - program_start;
        RunSummary summary{.evaluation = {},
                           .training_s = state_.training_s,
                           .total_s = since_start.count(),
                           .peak_bytes = peak_memory(device_),
                           .mfu = meter_->mfu_so_far(state_),
                           .cropped = data_->cropped(),
                           .tokens = state_.tokens,
                           .steps = state_.step,
                           .parameters = model_->parameters.num_parameters,
                           .layers = config_.shape.num_layers};
        evaluation_->fill(summary);
        return summary;
    }

    void append_to_results(const std::string& status) const {
        if (!flags_.results.empty() && world_.is_first()) append_result(flags_.results, asked(), summary(), status);
    }

    // Calls work() with the averages in place of the weights, on all ranks, if there are averages.
    template <class Work>
    void with_averages(Work&& work) {
        const int64_t since = optimizer_->config.averages ? state_.average_since : -1;
        // Shown already: an error has come from work(), and the run saves once more.
        if (since < 0 || state_.step <= since || optimizer_->shows_averages()) return work();
        const auto show = [&](bool shown) {
            optimizer_->show_averages(model_->weights, shown);
            gather_weights(comm_, optimizer_->plan, model_->weights);
        };
        show(true);
        work();
        show(false);
    }

    // ---- saving

    void save_now(bool and_wait) {
        with_averages([&] { saver_->save(whole_state(), asked(), and_wait); });
    }

    // The run ends by this error.
    void save_last_step(const Error& error) {
        saver_->log_may_fail = true;
        try {
            drain();
            saver_->finish();
            if (state_.step > first_step_ && !saver_->is_saved(state_.step) && state_.skipped_in_a_row == 0)
                save_now(true);
        } catch (const Error& other) {
            if (other.exit_code == kExitRank) throw;
            // The second try of a save may fail as the first one, which is told anyway.
            if (world_.is_first() && std::string(other.what()) != error.what())
                std::fprintf(stderr, "warning: no checkpoint of step %ld: %s\n", state_.step,
                             printable(other.what()).c_str());
        }
    }

    void print_how_to_resume() const {
        const bool by_itself = flags_.resume == "auto" || flags_.resume == flags_.out_dir || flags_.launch.supervise;
        std::printf(
            "stopped by %s: step %ld is saved in %s; %s\n", end_.stop_reason(), state_.step,
            checkpoint_path(flags_.out_dir, state_.step).c_str(),
            by_itself ? "the same command continues from there" : ("continue with --resume " + flags_.out_dir).c_str());
    }

    // The state, with those members that are not kept up to date.
    const RunState& whole_state() {
        state_.data_key = data_key_;
        state_.micro_batches = balance_->saved();
        state_.data = ends_by_data_ ? start_of(state_.step).data : data_->train->state();
        return state_;
    }
};
