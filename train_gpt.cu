/*
Trains a GPT. One optimizer step:

  tokens (B,T) -> forward -> loss -> backward (gradients +=)     [x gradient accumulation, x ranks]
               -> norm -> clip -> AdamW or Muon, each rank its share -> weights to all ranks

Files in reading order: this one, llmc/train/device_session.h, llmc/train/step.h, llmc/model/gpt.h, llmc/ops/layernorm.h
and llmc/cpu/layernorm.h (an op). doc/design.md is the map of the code; llmc/run/command.cpp, llmc/run/run_flags.cpp
and doc/flags.md list the flags.
*/
#include <cstdio>
#include <exception>
#include <memory>
#include "llmc/commands/backend.h"   // prepare_process, open_backend
#include "llmc/commands/doctor.h"    // doctor
#include "llmc/plan/plan.h"          // print_plan, predicted_tokens_per_s
#include "llmc/platform/omp_spin.h"  // sets GOMP_SPINCOUNT
#include "llmc/run/command.h"        // read_command_line
#include "llmc/run/local_ranks.h"    // local_ranks, run_local_ranks
#include "llmc/run/stop.h"           // catch_stop_signals, outlive_broken_pipes
#include "llmc/run/supervise.h"      // supervise, Supervised
#include "llmc/train/run_request.h"  // find_request, export_asked
#include "llmc/train/session.h"      // Session
#include "llmc/train/world.h"        // in_world, check_output, exit_code_of

namespace {

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

// Runs the commands that take several ranks. Called once per rank.
void run_on_ranks(const CommandLine& line, World& world) {
    if (!world.is_alone()) world.print(world.source + "\n");
    RunRequest request = find_request(line, world.ranks);
    request.predict = predicted_tokens_per_s;
    const std::unique_ptr<Backend> backend = open_backend(world, request.flags);
    if (!request.needs_session()) return backend->run_command(world, line, request);
    const std::unique_ptr<Session> session = backend->open_session(world, request);
    try {
        train(*session);
    } catch (const Error& error) {
        session->fail(error);
        throw;
    }
}

}  // namespace

int main(int argc, char** argv) {
    try {
        prepare_process();
        const CommandLine line = read_command_line(argc, argv);
        const Command command = line.run.command;
        const bool is_training = command == Command::train && !line.is_done && !line.run.dry_run;
        if (is_training) outlive_broken_pipes();  // so do processes that start ranks, or start them again
        int exit_code = kExitOk;
        if (line.is_done) {
        } else if (command == Command::plan) {
            print_plan(line.run, line.plan);
        } else if (command == Command::export_model) {
            std::printf("%s", export_asked(line).c_str());
        } else if (command == Command::doctor) {
            exit_code = doctor(line);
        } else if (const int n = local_ranks(line); n > 0) {
            exit_code = run_local_ranks(line.run, n, argv);
        } else if (command == Command::train && line.run.launch.supervise && !Supervised::now()) {
            exit_code = supervise(line.run, argv);
        } else {
            // What has nothing to save ends as any program does: by a signal, or once its output is closed.
            if (is_training || line.run.streams()) catch_stop_signals();
            in_world(line, [&](World& world) { run_on_ranks(line, world); });
        }
        check_output(is_training);
        return exit_code;
    } catch (const std::exception& error) {
        return exit_code_of(error);
    }
}
