/*
Trains a GPT. One optimizer step:

  tokens (B,T) -> forward -> loss -> backward (gradients +=)     [x gradient accumulation, x ranks]
               -> norm -> clip -> AdamW or Muon, each rank its share -> weights to all ranks

Files in reading order: this one, llmc/train/device_session.h, llmc/train/step.h, llmc/model/gpt.h, llmc/ops/layernorm.h
and llmc/cpu/layernorm.h (an op). The map of the house is doc/design.md; what can be asked is in llmc/train/config.cpp
and doc/flags.md.
*/
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <optional>
#include "llmc/base/build_id.h"   // build_id
#include "llmc/base/file.h"       // open_standard_files
#include "llmc/comm/host.h"       // raise_file_limit
#include "llmc/cpu/kernels.h"     // cpu_kernels
#include "llmc/cpu/waiting.h"     // wait_briefly
#include "llmc/train/backend.h"   // open_backend
#include "llmc/train/backends.h"  // look_at_gpu
#include "llmc/train/config.h"    // TrainConfig
#include "llmc/train/doctor.h"    // doctor
#include "llmc/train/plan.h"      // plan_run
#include "llmc/train/session.h"   // Session
#include "llmc/train/start.h"     // find_start
#include "llmc/train/stop.h"      // catch_stop_signals, outlive_broken_pipes
#include "llmc/train/tokens.h"    // planned_vocab_size
#include "llmc/train/world.h"     // in_world

namespace {

double seconds_since(std::chrono::steady_clock::time_point then) {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - then).count();
}

// Looking at the model comes before the step, so that the last state is seen as well. Saving comes before all that may
// fail and that a checkpoint can do without.
void train(Session& session) {
    const TrainConfig& config = session.config();
    while (!session.done()) {
        if (session.due(config.check_replicas)) session.compare_ranks();
        if (session.due(config.checkpoint_every)) session.save();
        if (session.due(config.val_every)) session.validate();
        if (session.due(config.eval_tasks_every)) session.score_tasks();
        if (session.due(config.sample_every)) session.show_sample();
        session.train_step();
    }
    session.finish();
}

constexpr double kMeetingS = 10;  // for ranks of which one has flags that it cannot read

// Do the flags say which rank this is, or where it meets the others? Asked of flags that could not be read.
bool names_ranks(int argc, char** argv) {
    for (int i = 1; i < argc; i++)
        for (const char* flag : {"--rank", "--world-size", "--master", "--launcher", "--virtual-ranks"})
            if (std::string(argv[i]).starts_with(flag)) return true;
    return false;
}

// What a program is asked to print, and cannot, it has not done. For a training run that is only what log.jsonl says
// too.
void check_output(bool is_training) {
    if (std::fflush(stdout) == 0 && !std::ferror(stdout)) return;
    const char* const lost = "standard output could not be written, and some of it is lost";
    require(is_training, "%s: is its disk full?", lost);
    std::fprintf(stderr, "warning: %s; log.jsonl has all steps\n", lost);
}

}  // namespace

int main(int argc, char** argv) {
    open_standard_files();
    catch_cut_files();
    wait_briefly(argv);
    raise_file_limit();
    const auto began = std::chrono::steady_clock::now();
    int rank = 0;
    const auto end = [](bool is_training = false) {
        check_output(is_training);
        return kExitOk;
    };
    try {
        check_openmp();
        if (argc == 2 && !std::strcmp(argv[1], "--help-markdown")) {
            std::printf("%s", flags_document().c_str());
            return end();
        }
        if (argc == 2 && !std::strcmp(argv[1], "--version")) {
            std::printf("train_gpt %s\n", build_id());
            return end();
        }
        bool help = false;
        TrainConfig asked;
        std::exception_ptr wrong_flags;
        try {
            asked = parse_config(argc, argv, &help);
            cpu_kernels();  // are there any for this processor?
        } catch (const Error&) {
            if (names_ranks(argc, argv)) throw;  // how to reach the others is not known
            wrong_flags = std::current_exception();
            asked.comm_timeout_s = kMeetingS;
        }
        if (help) return end();
        if (asked.plan.asked) {
            asked.validate();
            const int64_t found = asked.model.vocab_size ? 0 : planned_vocab_size(asked);
            const RunPlan plan = plan_run(asked, asked.model.shape(found), std::max(1, asked.launch.world_size));
            std::printf("%s\n", text_of(plan).c_str());
            if (found == plan.shape.vocab_size)
                std::printf("vocabulary: that of %s; --vocab-size plans for another\n", asked.tokenizer_path().c_str());
            return end();
        }
        if (asked.export_format != "none") {
            std::printf("%s", export_asked(asked).c_str());
            return end();
        }
        if (asked.doctor) {
            const int exit_code = doctor(argc, argv, look_at_gpu);
            check_output(false);
            return exit_code;
        }
        catch_stop_signals();
        const bool is_training = asked.generate.empty() && !asked.eval_only && !asked.bench_comm && !asked.dry_run;
        if (is_training) outlive_broken_pipes();  // the others end with them, as programs do whose output is all
        in_world(asked, wrong_flags, [&](World& world) {
            if (!world.group) rank = world.ranks.rank;
            if (world.is_first() && !world.is_alone()) std::printf("%s\n", world.source.c_str());
            std::optional<Start> start;
            if (!asked.bench_comm) {
                start = find_start(argc, argv, world.ranks);
                // What is wrong whatever the vocabulary is said before anything is measured for it.
                if (!start->resumed() && !start->source)
                    share_errors(world.ranks, [&] { start->config.model.shape(1); });
            }
            const std::unique_ptr<Backend> backend = open_backend(world, start ? start->config : asked);
            if (!asked.generate.empty()) return backend->generate(world, *start, asked.tokenizer);
            const auto print = [&](const std::string& text) {
                if (world.is_first()) std::printf("%s", text.c_str());
            };
            if (!start) return print(backend->bench_comm(world, asked));
            if (start->config.dry_run) return print(backend->memory_table(world, *start) + "\n");
            const std::unique_ptr<Session> session = backend->open_session(world, *start);
            try {
                train(*session);
            } catch (const Error& error) {
                session->save_before(error);
                throw;
            }
            if (start->config.summary) print(session->summary(seconds_since(began)));
        });
        return end(is_training);
    } catch (const std::exception& error) {
        if (!dynamic_cast<const SaidError*>(&error)) print_error(error, rank);
        const Error* ours = dynamic_cast<const Error*>(&error);
        const bool of_files = dynamic_cast<const std::filesystem::filesystem_error*>(&error);  // a folder not readable
        return ours ? ours->exit_code : of_files ? kExitUsage : kExitInternal;
    }
}
