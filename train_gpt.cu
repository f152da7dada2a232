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
#include "llmc/base/host_limits.h"   // let_threads_use_given_cores
#include "llmc/comm/host.h"          // raise_file_limit
#include "llmc/commands/backend.h"   // open_backend, links_text
#include "llmc/commands/backends.h"  // look_at_gpu
#include "llmc/commands/doctor.h"    // doctor
#include "llmc/cpu/kernels.h"        // cpu_kernels
#include "llmc/data/utf8.h"          // printable
#include "llmc/plan/plan.h"          // print_plan
#include "llmc/run/command.h"        // parse_command_line, names_ranks
#include "llmc/run/omp_spin.h"       // sets GOMP_SPINCOUNT
#include "llmc/run/results.h"        // append_result
#include "llmc/run/stop.h"           // catch_stop_signals, outlive_broken_pipes, outlive_file_limits
#include "llmc/run/supervise.h"      // supervise, Supervised
#include "llmc/train/run_request.h"  // find_request
#include "llmc/train/session.h"      // Session
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

// Lost output is an error, because printing is part of the command. In a training run it is only a warning, because
// log.jsonl has the same records.
void check_output(bool is_training) {
    if (std::fflush(stdout) == 0 && !std::ferror(stdout)) return;
    const char* const lost = "standard output could not be written, and some of it is lost";
    require(is_training, "%s: is its disk full?", lost);
    std::fprintf(stderr, "warning: %s; log.jsonl has all steps\n", lost);
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
    print(links_text(world, request.flags));
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
            print_plan(line.run, line.plan);
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
