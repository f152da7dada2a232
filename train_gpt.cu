/*
Trains a GPT. One optimizer step:

  tokens (B,T) -> forward -> loss -> backward (gradients +=)     [x gradient accumulation, x ranks]
               -> norm -> clip -> AdamW or Muon, each rank its share -> weights to all ranks

Files in reading order: this one, llmc/train/session.h, llmc/model/gpt.h, llmc/cpu/layernorm.h (an op).
The map of the house is doc/design.md; what can be asked is in llmc/train/config.cpp and doc/flags.md.

It is compiled once with main() and for the GPU, and once for each level of CPUs without main():
llmc/train/cpu_program.h.
*/
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <optional>
#include "llmc/base/build_id.h"      // build_id
#include "llmc/base/file.h"          // open_standard_files
#include "llmc/comm/bench_comm.h"    // bench_comm
#include "llmc/comm/handshake.h"     // check_alike
#include "llmc/comm/host.h"          // raise_file_limit
#include "llmc/cpu/waiting.h"        // wait_briefly
#include "llmc/train/config.h"       // TrainConfig
#include "llmc/train/cpu_program.h"  // cpu_program, CpuProgram, Errand
#include "llmc/train/doctor.h"       // doctor
#include "llmc/train/generate.h"     // generate
#include "llmc/train/on_device.h"    // on_device
#include "llmc/train/plan.h"         // plan_run
#include "llmc/train/session.h"      // Session
#include "llmc/train/setup.h"        // Setup
#include "llmc/train/start.h"        // find_start
#include "llmc/train/stop.h"         // catch_stop_signals, outlive_broken_pipes
#include "llmc/train/tokens.h"       // planned_vocab_size
#include "llmc/train/world.h"        // in_world, make_comm

namespace {

bool due(int64_t step, int64_t every) { return every > 0 && step > 0 && step % every == 0; }

// --bench-comm
template <class Device>
void measure_comm(Device& device, World& world, const TrainConfig& config) {
    require(
        !world.is_alone(),
        "--bench-comm measures what ranks exchange, and this is one: start it with mpirun, or give --virtual-ranks");
    check_alike(world.ranks, {{"the build", build_id()},
                              {"the device", kind_of(device)},
                              {"--bench-comm-mib", std::to_string(config.bench_comm_mib)}});
    const std::unique_ptr<Comm<Device>> comm = make_comm(world, device, config);
    const std::string table = bench_comm(*comm, device, world.ranks, size_t(config.bench_comm_mib) << 20);
    if (world.is_first()) std::printf("%s", table.c_str());
}

// The loop. Looking at the model comes before the step, so that the last state is seen as well. After a resume it
// is looked at again, because a run that was told to stop did not wait for that. Saving comes before all that may
// fail and that the checkpoint can do without; ranks that differ have nothing to save.
template <class Device, class T>
void train_on(Session<Device, T>& session, const TrainConfig& config, const RunData& data, bool compares) {
    const bool validates = data.val.has_value(), scores = !data.tasks.empty(), samples = !data.prompt.empty();
    while (true) {
        const int64_t next = session.next_step();
        const char* signal = session.stop_reason();
        const auto is_due = [&](int64_t every) { return next >= config.steps || due(next, every); };
        const bool look = (validates && is_due(config.val_every)) || (scores && is_due(config.eval_tasks_every)) ||
                          (samples && is_due(config.sample_every)) || is_due(config.checkpoint_every) ||
                          (compares && is_due(config.check_replicas));
        // Whoever looks at the state sees that of a step which is over, and so does the clock.
        if (look || signal || session.out_of_time())
            while (session.under_way() > 0) session.finish_step();
        const bool idle = session.under_way() == 0;
        const bool last = idle && (session.step() >= config.steps || session.out_of_time());
        const auto now = [&](int64_t every) { return idle && (last || due(session.step(), every)); };
        if (compares && now(config.check_replicas)) session.compare_ranks();
        if (!session.is_saved() && idle && (signal || last || (session.is_sound() && now(config.checkpoint_every))))
            session.save(last || signal || !config.async_checkpoint);
        if (validates && !signal && now(config.val_every)) session.validate();
        if (scores && !signal && now(config.eval_tasks_every)) session.look("score", true, [&] { session.score(); });
        if (samples && !signal && now(config.sample_every))
            session.look("sample", false, [&] { session.show_sample(); });
        if (last || signal) break;

        session.start_step();
        if (session.is_full()) session.finish_step();
    }
}

template <class T, class Device>
void train(Device& device, World& world, const Start& start, double began_s) {
    // What we learn from, what we learn, and how much in a step
    const Setup<Device, T> setup(device, world, start);
    const TrainConfig& config = setup.config();
    if (config.dry_run) {
        if (world.is_first())
            std::printf("%s\n", setup.memory(setup.how, config.recompute_mode()).table(setup.memory_bytes()).c_str());
        return;
    }
    RunData data(setup, world);

    // Where we start
    Session<Device, T> session(device, world, start, setup, data);

    const bool compares = !world.is_alone() && config.check_replicas > 0;
    try {
        if (!config.eval_only) train_on(session, config, data, compares);
    } catch (const Error& error) {
        session.save_before(error);
        throw;
    }
    if (config.eval_only) {
        if (data.val) session.validate();
        if (!data.tasks.empty()) session.score();
    }
    session.end();
    if (config.summary && world.is_first()) std::printf("%s", session.summary(now_s() - began_s).c_str());
}

template <class T, class Device>
void carry_out(Device& device, World& world, const Errand& errand) {
    if (!errand.start) return measure_comm(device, world, errand.asked);
    if (!errand.asked.generate.empty()) return generate<T>(device, world, *errand.start, errand.asked.tokenizer);
    train<T>(device, world, *errand.start, errand.began_s);
}

#if ANVIL_IS_CPU_COPY

void carry_out_here(World& world, const Errand& errand, int num_threads, const std::string& dtype) {
    Cpu cpu(num_threads);
    if (dtype == "bf16") return carry_out<bf16>(cpu, world, errand);
    carry_out<float>(cpu, world, errand);
}

}  // namespace

const CpuProgram ANVIL_OF_LEVEL(kProgram_, ANVIL_CPU_LEVEL) = {CpuLevel::ANVIL_CPU_LEVEL, carry_out_here,
                                                               product_rates};

#else

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
    const double began_s = now_s();
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
            cpu_program();  // is there one?
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
            const Errand errand{asked, start ? &*start : nullptr, began_s};
            on_device(world, errand,
                      [&](auto& device, auto element) { carry_out<decltype(element)>(device, world, errand); });
        });
        return end(is_training);
    } catch (const std::exception& error) {
        if (!dynamic_cast<const SaidError*>(&error)) print_error(error, rank);
        const Error* ours = dynamic_cast<const Error*>(&error);
        const bool of_files = dynamic_cast<const std::filesystem::filesystem_error*>(&error);  // a folder not readable
        return ours ? ours->exit_code : of_files ? kExitUsage : kExitInternal;
    }
}

#endif
