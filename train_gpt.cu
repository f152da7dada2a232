/*
Trains a GPT. One optimizer step:

  tokens (B,T) -> forward -> loss -> backward (gradients +=)     [x gradient accumulation, x ranks]
               -> norm -> clip -> AdamW or Muon, each rank its share -> weights to all ranks

Files in reading order: this one, llmc/train/device_session.h, llmc/train/step.h, llmc/model/gpt.h, llmc/ops/layernorm.h
and llmc/cpu/layernorm.h (an op). doc/design.md is the map of the code; llmc/run/command.cpp, llmc/run/run_flags.cpp
and doc/flags.md list the flags.
*/
#include <errno.h>
#include <sys/prctl.h>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include "llmc/base/build_id.h"      // anvil_version, build_id
#include "llmc/base/file.h"          // open_standard_files
#include "llmc/base/host_cpus.h"     // let_threads_use_given_cores
#include "llmc/comm/host.h"          // raise_file_limit
#include "llmc/comm/topology.h"      // network_text
#include "llmc/cpu/kernels.h"        // cpu_kernels
#include "llmc/data/utf8.h"          // printable
#include "llmc/commands/backend.h"   // open_backend
#include "llmc/commands/backends.h"  // look_at_gpu
#include "llmc/run/command.h"        // parse_command_line
#include "llmc/commands/doctor.h"    // doctor
#include "llmc/run/omp_spin.h"       // sets GOMP_SPINCOUNT
#include "llmc/plan/trace_report.h"  // launch_table, limits_text, predicted_chrome_trace
#include "llmc/plan/plan.h"          // plan_runs
#include "llmc/run/results.h"        // append_result
#include "llmc/train/session.h"      // Session
#include "llmc/train/run_request.h"  // find_request
#include "llmc/run/stop.h"           // catch_stop_signals, outlive_broken_pipes, outlive_file_limits
#include "llmc/run/supervise.h"      // supervise, Supervised
#include "llmc/train/tokens.h"       // planned_vocab_size
#include "llmc/train/world.h"        // in_world

namespace {

double seconds_since(std::chrono::steady_clock::time_point then) {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - then).count();
}

// All that is due is done before a step; after the last step finish() does it. Ranks are compared first, because ranks
// that differ have nothing to save. Saving precedes all that may fail and that a checkpoint does not need.
void train(Session& session) {
    const RunFlags& flags = session.config().flags;
    while (!session.done()) {
        if (session.due(flags.check_replicas)) session.compare_ranks();
        if (session.due(flags.checkpoint_every)) session.save();
        if (session.due(flags.val_every)) session.validate();
        if (session.is_out_of_patience()) break;
        if (session.due(flags.eval_tasks_every)) session.score_tasks();
        if (session.due(flags.sample_every)) session.show_sample();
        if (!session.is_told_to_stop()) session.train_step();
    }
    session.finish();
}

constexpr double kMeetingS = 10;  // how long to wait for the other ranks if one cannot read its flags

// Whether the flags tell the rank or how to meet the other ranks. Called for flags that could not be parsed.
bool names_ranks(int argc, char** argv) {
    for (int i = 1; i < argc; i++)
        for (const char* flag : {"--rank", "--world-size", "--master", "--launcher", "--virtual-ranks"})
            if (std::string(argv[i]).starts_with(flag)) return true;
    return false;
}

// Lost output is an error, because printing is part of the command. In a training run it is only a warning, because
// log.jsonl has the same records.
void check_output(bool is_training) {
    if (std::fflush(stdout) == 0 && !std::ferror(stdout)) return;
    const char* const lost = "standard output could not be written, and some of it is lost";
    require(is_training, "%s: is its disk full?", lost);
    std::fprintf(stderr, "warning: %s; log.jsonl has all steps\n", lost);
}

void print_plan(const CommandLine& line) {
    const RunFlags& flags = line.run;
    flags.validate();
    if (flags.device == "cpu")
        std::fprintf(stderr,
                     "warning: `plan` is for GPUs, and these are the figures of --gpu %s; for a CPU --dry-run of "
                     "`train` prints the memory plan\n",
                     line.plan.gpu.c_str());
    const int64_t found = flags.model.vocab_size ? 0 : planned_vocab_size(flags);
    const std::vector<RunPlan> plans = plan_runs(flags, line.plan, flags.model.shape(found));
    std::printf("%s\n", text_of(plans).c_str());
    // Once per GPU.
    for (size_t i = 0; i < plans.size(); i++)
        if (plans[i].calibration && (i == 0 || plans[i].calibration != plans[i - 1].calibration))
            std::printf("\n%s", text_of(*plans[i].calibration).c_str());
    const std::string path = flags.tokenizer_path();
    if (assumes_vocabulary(flags))
        std::printf("%s", kAssumedVocabulary);
    else if (found == plans[0].shape.vocab_size)
        std::printf("vocabulary: that of %s; --vocab-size plans for another\n", path.c_str());
    if (line.plan.trace.empty()) return;
    const RunPlan& plan = plans[0];
    std::printf("\n%s\n%s", launch_table(plan.trace, plan.times[1], plan.gpu, 0).c_str(),
                limits_text(plan.trace, plan.times[1]).c_str());
    write_file_atomically(line.plan.trace,
                          predicted_chrome_trace(plan.trace, plan.times[1], plan.gpu, facts_json(plan)));
}

// The links that join the ranks, as rank 0's host sees them; "" if ranks share memory.
std::string links_of(const World& world, const RunFlags& flags) {
    if (world.is_alone() || world.group || !world.is_first()) return "";
    const std::string gpus = flags.device != "cpu" && why_no_cuda().empty() ? cuda_gpu_links() : "";
    const std::string network = world.ranks.num_hosts > 1 ? network_text() : "";
    if (gpus.empty() && network.empty()) return "";
    return "links: " + gpus + (gpus.empty() || network.empty() ? "" : "; ") + network + "\n";
}

// Runs the commands that take several ranks. Called once per rank.
void run_on_ranks(const CommandLine& line, World& world, std::chrono::steady_clock::time_point began) {
    const auto print = [&](const std::string& text) {
        if (world.is_first()) std::printf("%s", text.c_str());
    };
    if (!world.is_alone()) print(world.source + "\n");
    if (line.run.command == Command::bench_comm)
        return print(open_backend(world, line.run)->bench_comm(world, line.run, line.bench_comm));

    const RunRequest request = find_request(line, world.ranks);
    // Errors that do not depend on the vocabulary come first, before anything is measured.
    if (!request.resumed() && !request.source) share_errors(world.ranks, [&] { request.flags.model.shape(1); });
    const std::unique_ptr<Backend> backend = open_backend(world, request.flags);
    print(links_of(world, request.flags));
    if (line.run.command == Command::generate)
        return backend->generate(world, request, line.run.tokenizer, line.generate);
    if (line.run.command == Command::chat) return backend->chat(world, request, line.run.tokenizer, line.chat);
    if (request.flags.dry_run) return print(backend->memory_table(world, request) + "\n");
    const RunFlags& flags = request.flags;
    // Called when the run is over: what fails here must not hide how it ended.
    const auto note_result = [&](const Session& session, const std::string& status) {
        if (flags.results.empty() || !world.is_first()) return;
        try {
            append_result(flags.results, session.asked(), session.summary(seconds_since(began)), status);
        } catch (const Error& error) {
            std::fprintf(stderr, "warning: no row of this run: %s\n", printable(error.what()).c_str());
        }
    };
    if (!flags.results.empty()) on_first_rank(world.ranks, [&] { check_results(flags.results); });
    const std::unique_ptr<Session> session = backend->open_session(world, request);
    try {
        train(*session);
    } catch (const Error& error) {
        session->save_before(error);
        note_result(*session, format("failed (exit code %d)", error.exit_code));
        throw;
    }
    if (flags.summary) print(summary_text(session->summary(seconds_since(began))));
    note_result(*session, session->end_reason());
}

}  // namespace

int main(int argc, char** argv) {
    open_standard_files();
    catch_cut_files();
    outlive_file_limits();
    prctl(PR_SET_NAME, program_invocation_short_name);  // else ps shows "exe" (omp_spin.h)
    let_threads_use_given_cores();
    raise_file_limit();
    const auto began = std::chrono::steady_clock::now();
    int rank = 0, exit_code = kExitOk;
    bool is_training = false;
    try {
        check_openmp();
        const std::string only = argc == 2 ? argv[1] : "";
        CommandLine line;
        std::exception_ptr wrong_flags;
        if (only == "--help-markdown") {
            std::printf("%s", flags_document().c_str());
            line.is_done = true;
        } else if (only == "--version") {
            std::printf("train_gpt %s (build %s)\n", anvil_version(), build_id());
            line.is_done = true;
        } else {
            try {
                line = parse_command_line(argc, argv);
                cpu_kernels();  // throws an Error if there are none for this processor
            } catch (const Error&) {
                if (names_ranks(argc, argv)) throw;  // the flags that tell how to meet the other ranks may be missing
                wrong_flags = std::current_exception();
                line.run.comm_timeout_s = kMeetingS;
            }
        }
        const Command command = line.run.command;
        if (line.is_done) {
        } else if (command == Command::plan) {
            print_plan(line);
        } else if (command == Command::export_model) {
            std::printf("%s", export_asked(line).c_str());
        } else if (command == Command::doctor) {
            exit_code = doctor(line, look_at_gpu);
        } else if (command == Command::train && line.run.launch.supervise && !Supervised::now() && !wrong_flags) {
            exit_code = supervise(line.run, argv);
        } else {
            is_training = command == Command::train && !line.run.dry_run;
            // What has nothing to save ends as any program does.
            if (is_training || line.run.generates()) catch_stop_signals();
            if (is_training && line.run.launch.supervise) line.run.resume = "auto";
            if (is_training) outlive_broken_pipes();  // other commands end if their output is closed, as is usual
            in_world(line, wrong_flags, [&](World& world) {
                if (!world.group) rank = world.ranks.rank;
                run_on_ranks(line, world, began);
            });
        }
        check_output(is_training);
        return exit_code;
    } catch (const std::exception& error) {
        if (!dynamic_cast<const SaidError*>(&error)) print_error(error, rank);
        const Error* ours = dynamic_cast<const Error*>(&error);
        const bool of_files = dynamic_cast<const std::filesystem::filesystem_error*>(&error);  // an unreadable folder
        return ours ? ours->exit_code : of_files ? kExitUsage : kExitInternal;
    }
}
