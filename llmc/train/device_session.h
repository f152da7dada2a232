// A Session (session.h) on a device, with weights and activations of type T.
#pragma once
#include <array>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>
#include "llmc/base/hash.h"            // hex64, xxh3
#include "llmc/base/log.h"             // RunLog
#include "llmc/comm/handshake.h"       // check_alike
#include "llmc/data/utf8.h"            // printable
#include "llmc/eval/loss.h"            // evaluate
#include "llmc/eval/sample.h"          // sample
#include "llmc/eval/tasks.h"           // score_tasks
#include "llmc/model/gpt.h"            // Gpt
#include "llmc/optim/schedule.h"       // learning_rate
#include "llmc/train/checkpointing.h"  // load_run, RunState
#include "llmc/train/log_follower.h"   // LogFollower
#include "llmc/train/noise_scale.h"    // NoiseScale
#include "llmc/train/rank_watch.h"     // RankWatch
#include "llmc/train/saving.h"         // Saver
#include "llmc/train/session.h"        // Session
#include "llmc/train/setup.h"          // Setup, RunData
#include "llmc/train/step_profiler.h"  // StepProfiler
#include "llmc/train/stop.h"           // stop_signal
#include "llmc/train/summary.h"        // summary_text

inline double now_s() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

template <class Device, class T>
class DeviceSession : public Session {
public:
    static constexpr int64_t kMostSkippedInARow = 10;

    // Makes the model and takes it to where the run starts. All ranks.
    DeviceSession(Device& device, World& world, const Start& start)
        : device_(device),
          world_(world),
          ranks_(world.ranks),
          start_(start),
          setup_(device, world, start),
          config_(setup_.config()),
          data_(setup_, world),
          passes_(setup_.passes()),
          comm_(meet()),
          profiler_(device, world, config_),
          model_(device, setup_.list, setup_.how.B, setup_.seq_len, passes_, *comm_),
          optimizer_(device, model_.parameters, setup_.plan, ranks_.rank, setup_.recipe().rules),
          data_key_(data_key(config_, data_.train_hash(), setup_.seq_len, setup_.document_token())),
          schedule_(setup_.recipe().schedule(config_.steps)),
          flops_per_token_(model_.flops_per_token(setup_.seq_len)),
          all_peak_flops_(peak_flops<T>(device) * ranks_.world_size),
          saver_(config_.out_dir, ranks_, model_, optimizer_) {
        device.reserve_workspace(optimizer_.workspace_bytes());
        model_.document_token = config_.document_token;
        begin_at_start();
        profiler_.plan(first_step_, config_.steps);
        comm_->wait(comm_->broadcast(model_.weights.data, size_t(model_.weights.size) * sizeof(T), 0));
        stepper_ = std::make_unique<Stepper<Device, T>>(model_, optimizer_, *comm_, setup_.how, state_.updates);
        open_log();
        watch_ = std::make_unique<RankWatch<Device, T>>(ranks_, *comm_, device);
        if (world_.is_first() && !world_.is_alone())
            std::printf("ranks: %.2f GB/s from each to the others, as measured now\n", watch_->bytes_per_s() * 1e-9);
        all_out_of_time_ = out_of_time_here();
        last_s_ = now_s();
    }

    const TrainConfig& config() const override { return config_; }

    bool done() override {
        if (config_.eval_only) return true;
        stop_reason_ = stop_reason();
        if (stop_reason_ || out_of_time() || is_any_due(next_step())) drain();
        is_last_ = under_way() == 0 && (state_.step >= config_.steps || out_of_time());
        return is_last_ || stop_reason_;
    }

    bool due(int64_t every) const override {
        return under_way() == 0 && every > 0 && state_.step > 0 && state_.step % every == 0;
    }

    void train_step() override {
        start_step();
        if (under_way() == Stepper<Device, T>::kMostUnderWay) finish_step();
    }

    void compare_ranks() override {
        if (world_.is_alone()) return;
        const RankReport report = watch_->compare(model_);
        log_.ranks(state_.step, report.weight_hash, report.min_ms, report.median_ms, report.max_ms, report.slowest);
        // Virtual ranks share the cores of one process: none of them is a slow machine.
        if (world_.is_first() && !world_.group && report.has_straggler())
            std::fprintf(stderr, "warning: %s\n", report.straggler_text().c_str());
    }

    void save() override {
        // While steps are skipped, the weights may be ruined: the checkpoints from before must not be pruned for them.
        if (!is_saved() && state_.skipped_in_a_row == 0) save_state(!config_.async_checkpoint);
    }

    void validate() override {
        if (!data_.val) return;
        seen_ =
            evaluate(model_, *data_.val, ranks_, setup_.how.B, setup_.seq_len, config_.val_tokens, data_.token_bytes);
        log_.validation(state_.step, seen_.loss, seen_.bits_per_byte);
    }

    // Of an evaluation they are the result, and of a training run something that it can do without.
    void score_tasks() override {
        if (data_.tasks.empty()) return;
        if (config_.eval_only) return score();
        look("score", true, [&] { score(); });
    }

    void show_sample() override {
        if (!data_.prompt.empty()) look("sample", false, [&] { print_sample(); });
    }

    void finish() override {
        if (!config_.eval_only) {
            if (config_.check_replicas > 0 && (is_last_ || due(config_.check_replicas))) compare_ranks();
            // Saving comes before all that may fail and that the checkpoint can do without; ranks that differ have
            // nothing to save.
            if (!is_saved()) save_state(true);
        }
        if (config_.eval_only || !stop_reason_) {
            validate();
            score_tasks();
            if (!config_.eval_only) show_sample();
        }
        finish_save();
        profiler_.finish();
        const char* signal = stop_reason();
        log_.end(state_.step, signal ? signal : out_of_time() ? "time budget" : "finished", plans_made(device_));
    }

    void save_before(const Error& error) override {
        const bool all_know = world_.is_alone() || dynamic_cast<const SharedError*>(&error);
        if (config_.eval_only || !all_know || error.exit_code != kExitUsage || is_saving_ || !is_between_steps_ ||
            !stepper_->is_whole())
            return;
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

    std::string summary(double total_s) const override {
        return summary_text({.evaluation = seen_,
                             .scores = scores_,
                             .training_s = state_.training_s,
                             .total_s = total_s,
                             .peak_bytes = peak_memory(device_),
                             .mfu = mfu(double(state_.tokens), state_.training_s),
                             .cropped = data_.cropped(),
                             .tokens = state_.tokens,
                             .steps = state_.step,
                             .parameters = model_.parameters.num_parameters,
                             .layers = setup_.shape.num_layers});
    }

private:
    Device& device_;
    World& world_;
    Ranks& ranks_;
    const Start& start_;
    const Setup<Device, T> setup_;
    const TrainConfig& config_;
    RunData data_;
    Passes passes_;
    KernelFacts kernels_;
    Comm<Device>* comm_;
    StepProfiler<Device, T> profiler_;
    Gpt<Device, T> model_;
    Optimizer<Device, T> optimizer_;
    uint64_t data_key_;
    Schedule schedule_;
    double flops_per_token_, all_peak_flops_;
    RunState state_;
    int64_t first_step_ = 0;
    bool already_saved_ = false;
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
    std::array<double, Stepper<Device, T>::kMostUnderWay> cropped_ = {};      // of the steps under way, up to them
    std::array<LoaderState, Stepper<Device, T>::kMostUnderWay> data_states_;  // before the steps under way
    Evaluation seen_;                                                         // the last one
    std::vector<std::pair<std::string, double>> scores_;                      // the last ones
    bool all_stop_ = false, all_out_of_time_ = false;
    const char* stop_reason_ = nullptr;  // as done() saw it
    bool is_last_ = false;               // the same: the run has ended by itself
    double last_s_ = 0;                  // when the last step ended
    Saver<Device, T> saver_;             // last, because its thread reads the others

    int64_t next_step() const { return state_.step + under_way(); }  // the one to start
    int under_way() const { return stepper_->under_way(); }
    // The state is already on the disk: that of a resumed run which has made no step.
    bool is_saved() const { return state_.step == first_step_ && already_saved_; }

    // What one rank wants of all becomes everybody's with the step in which it has said so.
    bool out_of_time() const { return world_.is_alone() ? out_of_time_here() : all_out_of_time_; }
    // Why to stop before the end; null: nobody has asked for it.
    const char* stop_reason() const {
        if (world_.is_alone() || (all_stop_ && stop_signal())) return stop_signal();
        return all_stop_ ? "a signal to another rank" : nullptr;
    }

    bool is_any_due(int64_t step) const {
        if (step >= config_.steps) return true;
        const auto due_every = [&](int64_t every) { return every > 0 && step > 0 && step % every == 0; };
        return (data_.val && due_every(config_.val_every)) ||
               (!data_.tasks.empty() && due_every(config_.eval_tasks_every)) ||
               (!data_.prompt.empty() && due_every(config_.sample_every)) || due_every(config_.checkpoint_every) ||
               (!world_.is_alone() && due_every(config_.check_replicas));
    }

    // Waits until no step is under way.
    void drain() {
        while (under_way() > 0) finish_step();
    }

    void start_step() {
        const int64_t next = next_step();
        if (under_way() == 0) last_s_ = now_s();
        world_.set_step(*comm_, next + 1);
        model_.set_windows(config_.window_part(next));
        const auto watch = profiler_.watch(next);
        data_states_[size_t(next) % data_states_.size()] = data_.train->state();
        stepper_->start(*data_.train, setup_.recipe().rates(next, config_.steps), votes());
        cropped_[size_t(next) % cropped_.size()] = data_.cropped();
        model_.set_windows(1);
    }

    // Takes the result of the oldest step under way, which comes back while the next one is computed.
    void finish_step() {
        const StepConfig& how = setup_.how;
        is_between_steps_ = false;
        const StepResult step = stepper_->finish();
        if (step.count(Vote::bad_data) > 0) end_by_data();
        const double finished_s = now_s(), step_s = finished_s - last_s_;
        last_s_ = finished_s;
        state_.training_s += step_s;
        state_.tokens += how.num_tokens();
        const CommCost cost = watch_->step(step_s * 1e3);
        if (how.noise_scale)
            noise_scale_.add(how.B * how.T * how.accumulation, step.rank_squared(how), how.num_tokens(),
                             step.norm * step.norm);
        const StepRecord record{.step = state_.step + 1,
                                .loss = step.loss,
                                .norm = step.norm,
                                .lr = learning_rate(schedule_, state_.step),
                                .ms = step_s * 1e3,
                                .tokens = how.num_tokens(),
                                .has_comm = !world_.is_alone(),
                                .comm_ms = cost.ms,
                                .comm_exposed_ms = cost.exposed_ms,
                                .comm_predicted_ms = cost.predicted_ms,
                                .noise_scale = how.noise_scale ? noise_scale_.tokens() : 0,
                                .mfu = mfu(double(how.num_tokens()), step_s),
                                .cropped = cropped_[size_t(state_.step) % cropped_.size()]};
        state_.updates = step.updates;
        state_.skipped_in_a_row = step.applied ? 0 : state_.skipped_in_a_row + 1;
        state_.step++;
        is_between_steps_ = true;
        log_.step(record);  // which may throw: the step is over, and can be saved
        profiler_.finish_step(record.step - 1);
        if (!step.applied) log_.skip(state_.step, step.loss, step.norm, "not finite");
        if (state_.skipped_in_a_row >= kMostSkippedInARow)
            throw SharedError(kExitDiverged,
                              format("the loss or the gradient was not finite in %ld steps in a row, up to step %ld: "
                                     "resume from an earlier checkpoint with a lower --learning-rate or a --grad-clip",
                                     kMostSkippedInARow, state_.step));
        all_stop_ |= step.count(Vote::stop) > 0;
        all_out_of_time_ |= step.count(Vote::out_of_time) > 0;
        if (saver_.is_under_way() && step.count(Vote::written) == ranks_.world_size) finish_save();
    }

    void score() {
        scores_.clear();
        for (const TaskFile& file : data_.tasks) {
            const double began_s = now_s();
            const TaskScores scores = ::score_tasks(model_, file, ranks_, setup_.how.B, setup_.seq_len);
            log_.tasks(state_.step, file.path(), scores.tasks, scores.score, (now_s() - began_s) * 1e3);
            for (const TaskRecord& task : scores.tasks) scores_.push_back({"accuracy_" + task.name, task.accuracy()});
            if (scores.tasks.size() > 1) scores_.push_back({"score_" + file.stem(), scores.score});
        }
    }

    void print_sample() {
        if (!world_.is_first()) return;
        Rng rng(mix64(config_.seed) + uint64_t(state_.step), Stream::sampling);  // the same after any interruption
        const std::vector<int32_t> tokens =
            sample(model_, data_.prompt, setup_.seq_len, config_.sample(), Context::kept, rng);
        log_.sample(state_.step, config_.prompt, setup_.text.tokenizer->decode(tokens));
    }

    // What a run can do without, such as a sample: if it fails the run goes on, with a warning. Of several ranks that
    // is so only if all of them know, or if rank 0 works alone (`together` is false), or they would wait for each
    // other.
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

    void save_state(bool and_wait) {
        finish_save();
        is_saving_ = true;
        state_.data_key = data_key_;
        state_.data = ends_by_data_ ? data_states_[size_t(state_.step) % data_states_.size()] : data_.train->state();
        saver_.begin(start_.config, state_, setup_.text.json);
        begun_step_ = state_.step;
        is_saving_ = false;
        if (and_wait) finish_save();
    }

    Comm<Device>* meet() {
        share_errors(ranks_, [&] { kernels_ = setup_.plan_kernels(); });
        check_alike(ranks_, {{"the kernels of attention", kernels_.attention},
                             {"the rows of logits at a time", std::to_string(passes_.head_rows)},
                             {"the training data", hex64(data_.train_hash())},
                             {"the validation data", data_.val ? hex64(data_.val->data_hash()) : ""},
                             {"the files of --eval-tasks", hash_of_tasks()}});
        device_.reserve_workspace(setup_.workspace(setup_.how.B));
        return setup_.comm.get();
    }

    std::string hash_of_tasks() const {
        std::string all;
        for (const TaskFile& file : data_.tasks) all += hex64(file.hash());
        return all;
    }

    void begin_at_start() {
        if (start_.source)
            return share_errors(ranks_, [&] { load_weights(*start_.source, model_, optimizer_, nullptr); });
        if (!start_.resumed())
            return model_.initialize_weights(config_.seed,
                                             [&](size_t i, const float* values) { optimizer_.set_masters(i, values); });
        share_errors(ranks_, [&] { state_ = load_run(start_.from.path, model_, optimizer_); });
        share_errors(ranks_, [&] {
            require(state_.step == start_.from.step,
                    "%s: state.json is of step %lld, and manifest.json of step %lld; use another checkpoint",
                    start_.from.path.c_str(), static_cast<long long>(state_.step),
                    static_cast<long long>(start_.from.step));
        });
        first_step_ = state_.step;
        if (!data_.train) return;
        if (state_.data_key == data_key_)
            data_.train->restore(state_.data);
        else if (world_.is_first())
            std::fprintf(stderr,
                         "warning: not the data, --seq-len, --packing, --shuffle or --seed that %s was trained with: "
                         "reading the data from their start\n",
                         start_.from.path.c_str());
    }

    void open_log() {
        if (config_.eval_only) {
            if (!world_.is_first()) return;
            log_ = RunLog::on_console({.steps = config_.steps});
            std::printf("model: %s, %.2fM parameters; device: %s\n", start_.path().c_str(),
                        double(model_.parameters.num_parameters) * 1e-6, describe(device_).c_str());
            std::printf("%s", kernel_line().c_str());
            return;
        }
        on_first_rank(ranks_, [&] {
            log_ = begun_log();
            follower_ = std::make_unique<LogFollower>(config_.log_to, config_.out_dir);
            already_saved_ = std::filesystem::exists(checkpoint_path(config_.out_dir, state_.step));
            // What a run that was killed while it saved has left, if this one has nothing more to save.
            if (start_.resumed() && already_saved_) {
                remove_leftovers(config_.out_dir);
                prune(config_.out_dir, config_.keep, state_.step);
            }
        });
        already_saved_ = ranks_.broadcast(already_saved_ ? "yes" : "") == "yes";
        if (!world_.is_first()) return;
        const Recipe& recipe = setup_.recipe();
        std::printf("model: %.2fM parameters in %s, %.1f MFLOP a token; batch: %s\n",
                    double(model_.parameters.num_parameters) * 1e-6, config_.fp8() ? "fp8" : type_name<T>(),
                    flops_per_token_ * 1e-6, batch_text(setup_.how).c_str());
        std::printf("%s", setup_.run.text.c_str());
        std::printf("recipe: %s, %ld steps; %s", recipe.name, config_.steps, recipe.text().c_str());
        std::printf("data: %s tokens; device: %s; %s\n", count_text(double(data_.train->num_tokens())).c_str(),
                    describe(device_).c_str(), world_.is_alone() ? "one rank" : comm_->describe().c_str());
        std::printf("%s", kernel_line().c_str());
    }

    std::string kernel_line() const {
        if (kernels_.attention.empty()) return "";
        return format("attention: %s; GEMM: %s; head: %ld of %ld rows of logits at a time\n",
                      kernels_.attention.c_str(), kernels_.gemm.c_str(), long(passes_.head_rows),
                      long(setup_.how.B * setup_.seq_len));
    }

    RunLog begun_log() const {
        TrainConfig config = config_;  // whose fields() are for reading and writing
        const std::string& tokenizer = setup_.text.json;
        const RunFacts facts{.config_json = to_json(config.fields()),
                             .device = describe(device_),
                             .ranks = ranks_.world_size,
                             .data_hash = hex64(data_.train->data_hash()),
                             .val_hash = data_.val ? hex64(data_.val->data_hash()) : "",
                             .tokenizer_hash = tokenizer.empty() ? "" : hex64(xxh3(tokenizer.data(), tokenizer.size())),
                             .attention = kernels_.attention,
                             .gemm = kernels_.gemm,
                             .head_rows = passes_.head_rows};
        RunLog::Options options{
            .steps = config.steps, .print_every = config.print_every, .tensorboard = config.tensorboard};
        if (config.time_budget_s > 0) options.time_budget_s = std::max(0.0, config.time_budget_s - state_.training_s);
        RunLog log(config.out_dir, start_.resumed() ? RunLog::Mode::resume : RunLog::Mode::fresh, options);
        TrainConfig asked = start_.config, defaults;
        std::printf("%s", changed_flags(asked.fields(), defaults.fields()).c_str());
        std::vector<std::string> passed_over;
        for (const PassedOver& other : start_.from.passed_over) passed_over.push_back(other.path + ": " + other.why);
        if (start_.resumed())
            log.resume(facts, state_.step, start_.from.path, passed_over);
        else
            log.start(facts);
        return log;
    }

    bool out_of_time_here() const { return config_.time_budget_s > 0 && state_.training_s >= config_.time_budget_s; }

    std::vector<Vote> votes() const {
        std::vector<Vote> all;
        if (stop_signal()) all.push_back(Vote::stop);
        if (world_.is_first() && out_of_time_here()) all.push_back(Vote::out_of_time);
        if (saver_.is_written()) all.push_back(Vote::written);
        if (data_.scan->has_found()) all.push_back(Vote::bad_data);
        return all;
    }

    // One rank's data cannot be used, so the step was applied on none. All throw the first such rank's error.
    void end_by_data() {
        while (under_way() > 0) stepper_->finish();
        ends_by_data_ = is_between_steps_ = true;
        share_errors(ranks_, [&] {
            stepper_->rethrow_data_error();
            data_.scan->rethrow();
        });
        ensure(false);  // whoever votes has an error
    }

    void finish_save() {
        if (!saver_.is_under_way()) return;
        is_saving_ = true;
        const SavedCheckpoint saved = saver_.finish();
        is_saving_ = false;
        on_first_rank(ranks_, [&] {
            prune(config_.out_dir, config_.keep, saved.step);
            try {
                log_.checkpoint(saved.step, saved.path, saved.ms);
            } catch (const Error&) {
                if (!is_ending_) throw;  // else it may be the log whose error ends the run
            }
        });
    }

    double mfu(double tokens, double seconds) const {
        return all_peak_flops_ > 0 && seconds > 0 ? flops_per_token_ * tokens / (seconds * all_peak_flops_) : 0;
    }
};
