// train_gpt on a GPU, as a user runs it: it learns what the CPU learns, resumes bit for bit, and reports what does not
// fit.
#include <cmath>
#include "llmc/commands/cuda_devices.h"  // workspace_bytes
#include "llmc/cuda/cuda_kernels.h"
#include "llmc/cuda/limits.h"      // kOldestFp8
#include "llmc/run/memory_plan.h"  // memory_plan
#include "test/cuda_testing.h"     // ON_DEVICE
#include "test/models.h"           // Gpt
#include "test/program.h"          // TinyRuns

namespace {

// Heads of 64: bf16 kernels, which --dtype auto takes.
const FlagMap kCuda = {{"device", "cuda"}, {"dtype", "auto"}, {"num-heads", "1"}, {"channels", "64"}};

FlagMap with(FlagMap flags, const FlagMap& more) {
    for (const auto& [name, value] : more) flags[name] = value;
    return flags;
}

}  // namespace

TEST_CASE("a run on a GPU in fp32 follows the CPU's", "[train][once]" ON_DEVICE) {
    const TinyRuns runs;
    must_succeed(runs.train("cpu", {{"device", "cpu"}}));
    must_succeed(runs.train("cuda", {{"device", "cuda"}, {"dtype", "fp32"}}));
    const auto cpu = steps_in(runs.path("cpu")), cuda = steps_in(runs.path("cuda"));
    REQUIRE(cpu.size() == cuda.size());
    // Roundings of 2^-24 that 20 steps of Adam may double a few times.
    for (size_t i = 0; i < cpu.size(); i++) CHECK(std::fabs(cpu[i].loss - cuda[i].loss) <= 1e-5 * cpu[i].loss);
}

// Its matrices are Muon's, among them gates of 12 columns, which are no multiple of 16 bytes in bf16.
TEST_CASE("nanochat's recipe in bf16 on a GPU follows the CPU's", "[train][once]" ON_DEVICE) {
    const TinyRuns runs;
    const FlagMap flags = {{"depth", "2"},      {"head-size", "32"}, {"seq-len", "16"},
                           {"num-layers", "0"}, {"channels", "0"},   {"num-heads", "0"},
                           {"dtype", "bf16"},   {"steps", "6"},      {"warmup-steps", "1"}};
    must_succeed(runs.train("cpu", with(flags, {{"device", "cpu"}})));
    must_succeed(runs.train("cuda", with(flags, {{"device", "cuda"}})));
    const auto cpu = steps_in(runs.path("cpu")), cuda = steps_in(runs.path("cuda"));
    REQUIRE((cpu.size() == 6 && cuda.size() == 6));
    // Logits are below 1 here and off by a unit of bf16, 2^-8, of either sign: their mean over a batch by much less.
    for (size_t i = 0; i < cpu.size(); i++) {
        INFO("step " << i << ": " << cpu[i].loss << " and " << cuda[i].loss);
        CHECK(std::fabs(cpu[i].loss - cuda[i].loss) <= 0x1p-12);
    }
}

TEST_CASE("a run on a GPU is resumed bit for bit, in bf16 with its master weights", "[train][once]" ON_DEVICE) {
    const TinyRuns runs;
    const std::string recompute = GENERATE("none", "block");
    if (kWatched && recompute == "none") return;
    const FlagMap flags = with(kCuda, {{"recompute", recompute}, {"steps", "8"}});
    must_succeed(runs.train("whole", flags));
    must_succeed(runs.train("parts", with(flags, {{"steps", "8"}, {"checkpoint-every", "3"}, {"keep", "9"}})));
    CHECK(difference(step_folder(runs.path("whole"), 8), step_folder(runs.path("parts"), 8)) == "");
    for (const int step : {6, 8}) std::filesystem::remove_all(step_folder(runs.path("parts"), step));
    must_succeed(runs.resume("parts"));
    CHECK(difference(step_folder(runs.path("whole"), 8), step_folder(runs.path("parts"), 8)) == "");
    // The master weights are stored with the state: most are not bf16 numbers.
    const std::string folder = step_folder(runs.path("whole"), 8);
    const ShardedTensors state(folder, kOptimizerStem);
    std::vector<float> master_weights(4 * 64 * 64);
    state.read(master_weights.data(), "master.h.0.mlp.c_fc.weight", 0, int64_t(master_weights.size()));
    size_t between = 0;
    for (const float x : master_weights) between += to_float(to_bf16(x)) != x;
    CHECK(between > master_weights.size() / 2);
    // The model's own file has them rounded.
    const SafetensorsReader stored(folder + "/model.safetensors");
    std::vector<bf16> weights(master_weights.size()), transposed(master_weights.size());
    stored.copy(weights.data(), "transformer.h.0.mlp.c_fc.weight", DType::bf16, {64, 4 * 64});
    transpose_copy(transposed.data(), weights.data(), 64, 4 * 64);
    size_t wrong = 0;
    for (size_t i = 0; i < master_weights.size(); i++) wrong += transposed[i].bits != to_bf16(master_weights[i]).bits;
    CHECK(wrong == 0);
}

TEST_CASE("adapters on a GPU follow the CPU's, with the same bits on two ranks and after a resume",
          "[train][once]" ON_DEVICE) {
    const TinyRuns runs;
    must_succeed(
        runs.train("base", with(kCuda, {{"device", "cpu"}, {"dtype", "fp32"}, {"steps", "2"}, {"warmup-steps", "0"}})));
    const auto train = [&](const std::string& out, const FlagMap& changes) {
        FlagMap flags = with(runs.flags(out, {{"init-from", runs.path("base")}, {"lora-rank", "8"}}),
                             with({{"device", "cuda"}, {"steps", "6"}, {"warmup-steps", "0"}}, changes));
        for (const char* of_model : {"num-layers", "num-heads", "channels"}) flags.erase(of_model);
        must_succeed(run(command_of(flags)));
        return steps_in(runs.path(out));
    };
    const auto cpu = train("cpu", {{"device", "cpu"}}), cuda = train("cuda", {});
    REQUIRE((cpu.size() == 6 && cuda.size() == 6));
    for (size_t i = 0; i < cpu.size(); i++) CHECK(std::fabs(cpu[i].loss - cuda[i].loss) <= 1e-5 * cpu[i].loss);

    const FlagMap tree = {
        {"dtype", "bf16"}, {"grad-sum", "tree-ordered"}, {"total-batch-size", "128"}, {"dropout", "0.1"}};
    const auto one = train("one", with(tree, {{"checkpoint-every", "3"}}));
    const auto two = train("two", with(tree, {{"virtual-ranks", "2"}}));
    for (size_t i = 0; i < one.size(); i++) CHECK(one[i].loss == two[i].loss);
    const std::string adapter = "/adapter_model.safetensors", last = step_folder(runs.path("one"), 6);
    CHECK(read_file(step_folder(runs.path("two"), 6) + adapter) == read_file(last + adapter));
    must_succeed(run(command_of(
        {{"resume", step_folder(runs.path("one"), 3)}, {"out-dir", runs.path("again")}, {"virtual-ranks", "2"}})));
    CHECK(read_file(step_folder(runs.path("again"), 6) + adapter) == read_file(last + adapter));
    FlagMap odd = runs.flags("odd", {{"init-from", runs.path("base")}, {"lora-rank", "6"}, {"device", "cuda"}});
    for (const char* of_model : {"num-layers", "num-heads", "channels"}) odd.erase(of_model);
    const Finished refused = run(command_of(odd));
    CHECK(refused.exit_code == kExitUsage);
    CHECK(refused.err.find("--lora-rank 6: on a GPU expected a multiple of 4: the nearest is ") != std::string::npos);
}

TEST_CASE("the memory plan is what a run takes", "[train][once]" ON_DEVICE) {
    const bool adapts = GENERATE(false, true);
    GptShape shape{3, 2, 128, 64, 300};
    if (adapts) shape.lora = {.rank = 8, .alpha = 8, .dropout = 0.1, .targets = {true, false, true, false}};
    const int64_t B = 4, seq_len = 64;
    constexpr int64_t kRows = 128;
    for (const ActivationPolicy policy : {ActivationPolicy(Recompute::none, false, kRows),
                                          {Recompute::none, true, kRows},
                                          {Recompute::norms, false, kRows},
                                          {Recompute::norms, true, kRows},
                                          {Recompute::block, false, kRows},
                                          {Recompute::block, true, kRows},
                                          {{Recompute::block, 2}, false, kRows},
                                          {{Recompute::block, 1}, true, kRows}}) {
        Cuda cuda;
        if (policy.fp8 && (adapts || cuda.compute_capability < kOldestFp8)) continue;
        const size_t workspace = workspace_bytes<bf16>(cuda, shape, B, seq_len);
        const ParameterList list(shape);
        const MemoryPlan plan =
            memory_plan<bf16>(list, B, seq_len, policy,
                              {.optimizer = optimizer_memory(list, whole_plan(list), {}, sizeof(bf16)),
                               .gradients = size_t(list.learned_size()) * sizeof(float),
                               .workspace = workspace});
        const size_t before = cuda.free_bytes();
        cuda.reserve_workspace(workspace);
        Gpt<Cuda, bf16> model(cuda, shape, B, seq_len, policy);
        Optimizer<Cuda, bf16> optimizer(cuda, model.parameters, {});
        const size_t taken = before - cuda.free_bytes();
        // The driver takes memory in pieces of 2 MiB.
        const size_t pieces = 7 * (size_t(2) << 20);
        CHECK(taken + pieces >= plan.total_bytes());
        CHECK(taken <= plan.total_bytes() + pieces);
#ifdef ANVIL_EMULATED
        CHECK(taken == plan.total_bytes());
        // And no op of a step needs more workspace than was planned.
        const std::vector<int32_t> tokens(size_t(B * seq_len), 1);
        Cuda::ToDevice<int32_t> to_device(cuda, B * seq_len);
        model.initialize_weights(1);
        model.begin_step();
        model.forward(to_device.send(tokens.data(), B * seq_len), B, seq_len);
        model.loss_and_gradient(to_device.send(tokens.data(), B * seq_len), 1);
        model.backward(to_device.send(tokens.data(), B * seq_len));
        CHECK(cuda.workspace_bytes() == workspace);
#endif
    }
}

TEST_CASE("a GPU's runs follow each other however many rows of logits there are at a time",
          "[train][once][plain][slow]" ON_DEVICE) {
    const TinyRuns runs;
    // 192 rows: one chunk, one and a half, three.
    const FlagMap flags = {{"device", "cuda"},    {"seq-len", "32"}, {"batch-size", "6"},  {"total-batch-size", "384"},
                           {"warmup-steps", "0"}, {"steps", "4"},    {"val-tokens", "192"}};
    std::vector<std::vector<StepRecord>> seen;
    for (const std::string rows : {"", "128", "64"}) {
        const std::string out = "rows" + rows;
        must_succeed(run("ANVIL_HEAD_ROWS=" + rows + " " + command_of(runs.flags(out, flags))));
        seen.push_back(steps_in(runs.path(out)));
        REQUIRE(seen.back().size() == 4);
    }
    for (size_t i = 0; i < 4; i++)
        for (const size_t other : {1, 2}) {
            // The first step's loss is of the same sums; then roundings of the head's gradient, which Adam may double.
            CHECK(std::fabs(seen[0][i].loss - seen[other][i].loss) <= (i == 0 ? 0 : 1e-5) * seen[0][i].loss);
            CHECK(std::fabs(seen[0][i].norm - seen[other][i].norm) <= 1e-4 * seen[0][i].norm);
        }
    for (const std::string rows : {"128", "64"})
        CHECK(contains(records_in(runs.path("rows" + rows), "start").at(0), "\"head_rows\":" + rows + "}"));
    const Finished odd = run("ANVIL_HEAD_ROWS=100 " + command_of(runs.flags("odd", flags)));
    CHECK(odd.exit_code == 2);
    CHECK(contains(odd.err, "ANVIL_HEAD_ROWS=100: expected a multiple of 64"));
}

#ifdef ANVIL_EMULATED
TEST_CASE("where memory is short there are fewer rows of logits at a time, and a smaller batch is not asked for",
          "[train][once]" ON_DEVICE) {
    const TinyRuns runs;
    const auto dry = [&](int mib, const FlagMap& more) {
        const FlagMap flags = with(kCuda, {{"dry-run", "true"}, {"vocab-size", "40000"}, {"seq-len", "64"}});
        return run("ANVIL_EMULATOR_MEMORY_MIB=" + std::to_string(mib) + " " +
                   command_of(runs.flags("dry", with(flags, more))));
    };
    // 16384 rows of 40064 logits in bf16 are 1252 MiB, a quarter of them 313.
    const FlagMap large = {{"batch-size", "256"}, {"total-batch-size", "0"}, {"warmup-steps", "0"}};
    const Finished all = dry(65536, large), fewer = dry(700, large), none = dry(100, large);
    CHECK(contains(all.out, "logits           1252.0  16384 of 16384 rows at a time"));
    CHECK(contains(fewer.out, "logits            313.0  4096 of 16384 rows at a time"));
    CHECK(contains(none.out, " 64 of 16384 rows at a time"));
    CHECK(contains(none.out, " of 100.0 that are free: it does not fit\n"));
    CHECK_FALSE(contains(fewer.out, "fit"));
    // The chosen batch size leaves room for 8192 rows of logits, or, as here, for all.
    const Finished chosen = dry(700, {{"batch-size", "auto"}, {"total-batch-size", "16384"}});
    INFO(chosen.out);
    CHECK(contains(chosen.out, " 4096 of 4096 rows at a time"));
}
#endif

TEST_CASE("a memory plan says what NCCL has taken, beside what is free", "[train][once]" ON_DEVICE) {
    MemoryPlan plan;
    plan.lines.push_back({"weights", "bf16", 2 << 20});
    plan.taken_bytes = 3 << 20;
    CHECK(contains(plan.table(10 << 20), "total               2.0  of 10.0 that are free, after 3.0 taken by NCCL"));
}

TEST_CASE("what does not fit a GPU is said before the start, with what would", "[train][once]" ON_DEVICE) {
    const TinyRuns runs;
    const Finished plan = run(command_of(runs.flags("dry", with(kCuda, {{"dry-run", "true"}}))));
    must_succeed(plan);
    CHECK(contains(plan.out, "  weights "));
    CHECK(contains(plan.out, "  left free "));
    CHECK(contains(plan.out, "  total "));
    CHECK_FALSE(std::filesystem::exists(runs.path("dry")));
#ifdef ANVIL_EMULATED
    const std::string small = "ANVIL_EMULATOR_MEMORY_MIB=64 ";
    const Finished full =
        run(small + command_of(runs.flags("full", with(kCuda, {{"batch-size", "3000"}, {"total-batch-size", "0"}}))));
    CHECK(full.exit_code == 2);
    CHECK(contains(full.err, "out of memory: --batch-size 3000 needs "));
    CHECK(contains(full.err, "; --recompute block saves "));
    const size_t at = full.err.find("MiB and there are");
    REQUIRE(at != std::string::npos);
    const size_t fits = full.err.find("--batch-size ", at);
    REQUIRE(fits != std::string::npos);
    const int largest = std::stoi(full.err.substr(fits + 13));
    CHECK(largest > 1);
    const FlagMap one_step = {{"steps", "1"}, {"total-batch-size", "0"}, {"warmup-steps", "0"}, {"dry-run", "true"}};
    const auto dry = [&](int B) {
        return run(small +
                   command_of(runs.flags("fits", with(with(kCuda, one_step), {{"batch-size", std::to_string(B)}}))));
    };
    CHECK(contains(dry(largest).out, "  total "));
    // A GPU as large as this model, and no host is.
    const FlagMap huge = with(kCuda, {{"offload", "optimizer"},
                                      {"num-layers", "400"},
                                      {"channels", "16384"},
                                      {"num-heads", "128"},
                                      {"total-batch-size", "0"}});
    const std::string large = "ANVIL_EMULATOR_MEMORY_MIB=100000000 ";
    const Finished no_host = run(large + command_of(runs.flags("huge", huge)));
    CHECK(no_host.exit_code == 2);
    CHECK(contains(no_host.err, "error: out of host memory: --offload optimizer pins "));
    CHECK(contains(no_host.err, " are free: take more hosts, --moments bf16, --offload optimizer:auto or none\n"));
    const Finished shown = run(large + command_of(runs.flags("huge", with(huge, {{"dry-run", "true"}}))));
    must_succeed(shown);
    CHECK(contains(shown.out, "  host "));
    CHECK(contains(shown.out, "pinned, for the optimizer's state, of "));
    CHECK(shown.out.ends_with(" that are free: it does not fit\n"));
#endif
}

#ifdef ANVIL_EMULATED
TEST_CASE("--offload optimizer:auto keeps on the GPU what fits there", "[train][once][slow]" ON_DEVICE) {
    const TinyRuns runs;
    // 25 M parameters, so that there are several stages.
    const FlagMap flags = with(
        kCuda,
        {{"num-layers", "8"}, {"channels", "512"}, {"num-heads", "8"}, {"total-batch-size", "0"}, {"dry-run", "true"}});
    const auto figure = [](const std::string& out, const std::string& row) {
        const size_t at = out.find("\n  " + row + " ");
        return at == std::string::npos ? 0 : std::stod(out.substr(at + row.size() + 3));
    };
    const auto dry = [&](int mib, const std::string& offload) {
        const Finished done = run(format("ANVIL_EMULATOR_MEMORY_MIB=%d ", mib) +
                                  command_of(runs.flags("dry", with(flags, {{"offload", offload}}))));
        INFO(done.out << done.err);
        must_succeed(done);
        return done.out;
    };
    const std::string all = dry(10000, "optimizer"), none = dry(10000, "none");
    // The MiB of a GPU on which it fits, of which a part is left free.
    const auto needed = [&](const std::string& out) {
        return int((figure(out, "total") - figure(out, "left free")) / (1 - figure(out, "left free") / 10000)) + 2;
    };
    const int least = needed(none);
    CHECK(least > needed(all) + 100);
    CHECK(figure(dry(least, "optimizer:auto"), "host") == 0);
    const double whole = figure(all, "host");
    double before = 0;
    for (const int mib : {least - 20, least - 60}) {
        const std::string out = dry(mib, "optimizer:auto");
        INFO(mib << out);
        const double host = figure(out, "host");
        CHECK((host > before && host < whole));
        CHECK(figure(out, "total") <= mib);
        CHECK(figure(out, "logits") == figure(dry(mib, "optimizer"), "logits"));
        CHECK(contains(out, "three at a time; state that stays, "));
        CHECK_FALSE(contains(out, "does not fit"));
        before = host;
    }
}
#endif

TEST_CASE("a run on a GPU has the same bits with offloaded state, after a resume with and without as well",
          "[train][once][slow]" ON_DEVICE) {
    const TinyRuns runs;
    const FlagMap flags = with(kCuda, {{"optimizer", "muon"}, {"steps", "6"}, {"warmup-steps", "1"}});
    const FlagMap offload = with(flags, {{"offload", "optimizer"}, {"checkpoint-every", "2"}, {"keep", "9"}});
    must_succeed(run(command_of(runs.flags("whole", flags))));
    must_succeed(run(command_of(runs.flags("parts", offload))));
    must_succeed(run(command_of(runs.flags("graph", with(offload, {{"cuda-graph", "true"}})))));
    const Finished some = run(command_of(runs.flags("some", with(offload, {{"offload", "optimizer:30"}}))));
    must_succeed(some);
    CHECK(contains(some.out, "--offload optimizer:30: 30 % of the optimizer's state in host memory\n"));
    for (const std::string name : {"parts", "graph", "some"})
        CHECK(difference(step_folder(runs.path(name), 6), step_folder(runs.path("whole"), 6)) == "");
    must_succeed(run(command_of(
        {{"resume", step_folder(runs.path("parts"), 2)}, {"out-dir", runs.path("without")}, {"offload", "none"}})));
    must_succeed(run(command_of({{"resume", step_folder(runs.path("without"), 6)},
                                 {"out-dir", runs.path("again")},
                                 {"steps", "8"},
                                 {"offload", "optimizer:auto"}})));
    CHECK(difference(step_folder(runs.path("without"), 6), step_folder(runs.path("whole"), 6)) == "");
    must_succeed(run(command_of(runs.resume_flags("whole", {{"steps", "8"}}))));
    CHECK(difference(step_folder(runs.path("again"), 8), step_folder(runs.path("whole"), 8)) == "");
}

// The CPU's ops take them all; a GPU's are told before any memory is taken.
TEST_CASE("a head size that no kernel of a GPU takes is named, with what to do", "[train][once]" ON_DEVICE) {
    const TinyRuns runs;
    const FlagMap heads_of_12 = with(kCuda, {{"num-heads", "2"}, {"channels", "24"}});
    const std::string says =
        "error: heads of 12 channels: on a GPU attention in bf16 takes multiples of 8 up to 256: choose --channels and "
        "--num-heads so that channels / heads is one, or give --dtype fp32 or --device cpu\n";
    const Finished finished = runs.train("a", heads_of_12);
    CHECK(finished.exit_code == 2);
    CHECK(contains(finished.err, says));
    CHECK_FALSE(std::filesystem::exists(runs.path("a")));
    must_succeed(runs.train("a", with(heads_of_12, {{"dtype", "fp32"}, {"steps", "1"}, {"warmup-steps", "0"}})));
    const Finished generated = run(program("train_gpt") + " generate --device cuda --dtype bf16 --init-from " +
                                   runs.path("a") + " --prompt a");
    CHECK(generated.exit_code == 2);
    CHECK(contains(generated.err, says));
    CHECK(generated.out.empty());
}

// GELU without biases is another epilogue of the product than with them.
TEST_CASE("a run without biases on a GPU follows the CPU's", "[train][once]" ON_DEVICE) {
    const TinyRuns runs;
    const FlagMap flags = {{"biases", "false"}, {"steps", "4"}, {"warmup-steps", "2"}};
    must_succeed(runs.train("cpu", with(flags, {{"device", "cpu"}})));
    must_succeed(runs.train("cuda", with(flags, {{"device", "cuda"}})));
    const auto cpu = steps_in(runs.path("cpu")), cuda = steps_in(runs.path("cuda"));
    REQUIRE(cpu.size() == 4);
    REQUIRE(cuda.size() == 4);
    // As with biases, above: roundings of 2^-24 that steps of Adam may double a few times.
    for (size_t i = 0; i < cpu.size(); i++) CHECK(std::fabs(cpu[i].loss - cuda[i].loss) <= 1e-5 * cpu[i].loss);
}
