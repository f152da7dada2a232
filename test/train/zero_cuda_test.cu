/*
ZeRO-1 on a GPU: virtual ranks on device buffers have the bits of one rank, and overlapped communication changes no
bits.
*/
#include <memory>
#include "llmc/comm/gpu/local_cuda.h"
#include "llmc/comm/gpu/nccl_comm.h"
#include "llmc/cuda/cuda_kernels.h"
#include "llmc/optim/recipe.h"    // find_recipe
#include "llmc/optim/sharding.h"  // plan_sharding
#include "llmc/train/step.h"      // Stepper
#include "test/cuda_testing.h"    // ON_DEVICE
#include "test/models.h"          // Gpt
#include "test/program.h"         // TinyRuns
#ifdef ANVIL_EMULATED
#include "dev/emulator/include/nccl.h"  // ncclResult_t
#include "dev/emulator/fake_nccl.h"
#endif

namespace {

// All of a training of some steps that must not depend on who did what: losses, norms, weights, state, master weights.
struct Trained {
    std::vector<double> losses;
    std::map<std::string, std::vector<float>> tensors;
};

struct How {
    int world_size = 1;
    bool muon = false, noise_scale = false, bf16_gradients = false, ahead = false;
    GradientSum gradient_sum = GradientSum::automatic;
    int shards = 0;
    Order order = Order::overlapped;
    int zero_stage = 1;
    int64_t layers = 2;
    bool tree_sum = true;
    double dropout = 0;
    bool fake_nccl = false;
    bool lean = false;           // --memory lean, in sums of bf16
    int64_t stage_elements = 0;  // > 0: offloaded, this part
    int percent = 100;
};

std::unique_ptr<Comm<Cuda>> comm_of(LocalGroup& group, LocalRanks& ranks, Cuda& cuda, const How& how) {
    if (!how.fake_nccl) return std::make_unique<LocalComm<Cuda>>(group, ranks.rank, cuda, how.order);
#ifdef ANVIL_EMULATED
    emulator::nccl.group = &group;
#endif
    return make_nccl_comm(ranks, cuda, how.order);
}

template <class T>
Trained train(const TinyRuns& runs, const How& how) {
    constexpr int64_t kMicroBatches = 4, kB = 1, kT = 16;
    constexpr int kSteps = 3;
    Trained all;
    LocalGroup group(how.world_size);
    group.run([&](int rank) {
        Cuda cuda;
        LocalRanks ranks(group, rank);
        const std::unique_ptr<Comm<Cuda>> own_comm = comm_of(group, ranks, cuda, how);
        Comm<Cuda>& comm = *own_comm;
        if (how.shards) comm.split(how.shards);
        ParameterList list(GptShape{how.layers, 1, 64, kT, 60});
        const ShardingPlan plan = plan_sharding(list, {.world_size = how.world_size,
                                                       .shards = how.shards,
                                                       .whole_matrices = how.muon,
                                                       .bucket_elements = 1 << 15,  // several buckets
                                                       .piece_elements = how.stage_elements});
        list.place(plan.offsets, plan.buffer_size);
        const StepConfig step = {.B = kB,
                                 .T = kT,
                                 .accumulation = kMicroBatches / how.world_size,
                                 .grad_clip = 1,
                                 .world_size = how.world_size,
                                 .tree_sum = how.tree_sum,
                                 .bf16_gradients = how.bf16_gradients,
                                 .gradient_sum = how.gradient_sum,
                                 .zero_stage = how.lean ? 2 : how.zero_stage,
                                 .bf16_sums = how.lean,
                                 .noise_scale = how.noise_scale,
                                 .dropout = how.dropout};
        Gpt<Cuda, T> model(cuda, list, kB, kT, Recompute::none, comm,
                           gradient_list(list, plan, gradient_layout(plan, step.shards_gradients())));
        OptimizerConfig rules = with_rule({}, how.muon ? "muon" : "adamw");
        rules.bf16_moments = how.lean, rules.master_weights = !how.lean;
        rules.stage_elements = how.stage_elements, rules.offload_percent = how.percent;
        Optimizer<Cuda, T> optimizer(cuda, model.parameters, plan, rank, rules);
        model.initialize_weights(3, [&](size_t i, const float* values) { optimizer.set_masters(i, values); });
        DataLoader data({.pattern = runs.path("data/train_*.bin"),
                         .batch_size = int(kB),
                         .seq_len = int(kT),
                         .rank = rank,
                         .world_size = how.world_size,
                         .batches_per_step = step.accumulation,
                         .in_turns = step.shards_gradients(),
                         .vocab_size = 60});
        Stepper<Cuda, T> stepper(model, optimizer, comm, step, 0);
        const auto finish = [&] {
            const StepResult result = stepper.finish();
            REQUIRE(result.applied);
            if (rank == 0) all.losses.insert(all.losses.end(), {result.loss, result.norm});
        };
        for (int step = 0; step < kSteps; step++) {
            stepper.start(data, find_recipe("gpt2").rules.rates(1));
            if (!how.ahead || stepper.under_way() == stepper.kMostUnderWay) finish();
        }
        while (stepper.under_way() > 0) finish();
        optimizer.finish_copies();
        const auto add = [&](const std::string& name, int64_t begin, int64_t size, const auto* from,
                             bool is_on_host = false) {
            std::vector<std::remove_const_t<std::remove_pointer_t<decltype(from)>>> host(static_cast<size_t>(size));
            if (is_on_host)
                std::copy_n(from, size, host.data());
            else
                copy_to_host(cuda, host.data(), from, size);
            std::vector<float>& to = all.tensors[name];
            to.resize(std::max(to.size(), size_t(begin + size)));
            for (int64_t i = 0; i < size; i++) to[size_t(begin + i)] = to_float(host[size_t(i)]);
        };
        for (const Parameter& p :
             model.parameters)  // the same on all ranks: the first one's, and a check of the others
            add((rank == 0 ? "" : "rank " + std::to_string(rank) + " ") + p.name, 0, p.size(), model.weights.at(p));
        for (size_t i = 0; i < optimizer.pieces().size(); i++) {
            const ShardPiece& piece = optimizer.pieces()[i];
            const std::string& name = optimizer.parameter(piece).name;
            if (how.lean) continue;  // moments are in bf16, and there are no master weights
            add("m." + name, piece.begin, piece.size(), optimizer.state(0, i), optimizer.is_offloaded(i));
            if (!piece.is_matrix())
                add("v." + name, piece.begin, piece.size(), optimizer.state(1, i), optimizer.is_offloaded(i));
            if (optimizer.has_masters())
                add("master." + name, piece.begin, piece.size(), optimizer.master_weights(i),
                    optimizer.is_offloaded(i));
        }
    });
    return all;
}

// "" or the first tensor of `want` that `got` does not have to the bit; the copies of other ranks as well.
std::string difference(const Trained& got, const Trained& want, int world_size) {
    if (got.losses != want.losses) return "losses and norms";
    for (const auto& [name, values] : want.tensors) {
        if (got.tensors.at(name) != values) return name;
        for (int rank = 1; rank < world_size; rank++)
            if (const std::string copy = "rank " + std::to_string(rank) + " " + name; got.tensors.count(copy))
                if (got.tensors.at(copy) != values) return copy;
    }
    return "";
}

}  // namespace

TEST_CASE("virtual ranks on a GPU train to the bits of one rank", "[zero][once]" ON_DEVICE) {
    const TinyRuns runs;
    const bool muon = GENERATE(false, true);
    const Trained want = train<float>(runs, {.muon = muon});
    for (const int world_size : {2, 4}) {
        INFO((muon ? "muon" : "adamw") << " on " << world_size << " ranks");
        CHECK(difference(train<float>(runs, {.world_size = world_size, .muon = muon}), want, world_size) == "");
    }
}

TEST_CASE("virtual ranks on a GPU train to the same bits in groups, and however gradients get to their owners",
          "[zero][once][slow]" ON_DEVICE) {
    const TinyRuns runs;
    const Trained one = train<float>(runs, {.muon = true});
    const How four{.world_size = 4, .muon = true, .gradient_sum = GradientSum::all_to_all};
    CHECK(difference(train<float>(runs, four), one, 4) == "");
    CHECK(difference(train<float>(runs, {.world_size = 4, .muon = true, .shards = 2}), one, 4) == "");
    if (kWatched) return;  // three ranks are below
    // Of three ranks, which are always added in their order.
    How how{.world_size = 3, .muon = true, .gradient_sum = GradientSum::reduce_scatter};
    const Trained three = train<float>(runs, how);
    how.shards = 1;
    CHECK(difference(train<float>(runs, how), three, 3) == "");
    how.shards = 0, how.gradient_sum = GradientSum::all_to_all;
    CHECK(difference(train<float>(runs, how), three, 3) == "");
    // In bf16 the sums are not rounded.
    how.bf16_gradients = true;
    const Trained exact = train<float>(runs, how);
    how.gradient_sum = GradientSum::reduce_scatter;
    CHECK(difference(train<float>(runs, how), exact, 3) != "");
}

TEST_CASE("communication that overlaps with work has the bits of communication that does not",
          "[zero][once][slow]" ON_DEVICE) {
    const TinyRuns runs;
    const auto [bf16_gradients, gradient_sum] =
        GENERATE(std::pair{false, GradientSum::reduce_scatter}, std::pair{true, GradientSum::reduce_scatter},
                 std::pair{true, GradientSum::all_to_all});
    if (kWatched && gradient_sum == GradientSum::reduce_scatter) return;
    const How serial{.world_size = 2,
                     .muon = true,
                     .noise_scale = true,
                     .bf16_gradients = bf16_gradients,
                     .gradient_sum = gradient_sum,
                     .order = Order::serial};
    const Trained want = train<bf16>(runs, serial);
    How overlapped = serial;
    overlapped.order = Order::overlapped;
    CHECK(difference(train<bf16>(runs, overlapped), want, 2) == "");
    overlapped.ahead = true;  // and with two steps under way
    CHECK(difference(train<bf16>(runs, overlapped), want, 2) == "");
#ifdef ANVIL_EMULATED
    emulator::options().lazy_streams = true;  // nothing is done before somebody waits
    CHECK(difference(train<bf16>(runs, overlapped), want, 2) == "");
    emulator::options().lazy_streams = false;
#endif
}

TEST_CASE("virtual ranks on a GPU whose state lies in host memory train to the bits of those with it on the GPU",
          "[zero][once][slow]" ON_DEVICE) {
    const TinyRuns runs;
    for (const auto& [world_size, muon, zero_stage] :
         {std::tuple{1, true, 1}, {2, false, 2}, {4, true, 2}, {2, true, 1}}) {
        if (kWatched && world_size != 2) continue;
        INFO(world_size << " ranks, muon " << muon << ", stage " << zero_stage);
        How how{.world_size = world_size, .muon = muon, .ahead = true, .zero_stage = zero_stage, .layers = 3};
        const Trained want = train<bf16>(runs, how);
        how.stage_elements = 1 << 12;
        CHECK(difference(train<bf16>(runs, how), want, world_size) == "");
#ifdef ANVIL_EMULATED
        emulator::options().lazy_streams = true, how.percent = 50;
        CHECK(difference(train<bf16>(runs, how), want, world_size) == "");
        emulator::options().lazy_streams = false;
#endif
    }
}

// Six layers in a bucket each: of four layers' gradients the first has its memory from the last.
TEST_CASE("with sharded gradients virtual ranks on a GPU train to the bits of one rank, whatever is under way",
          "[zero][once][slow]" ON_DEVICE) {
    const TinyRuns runs;
    const bool muon = GENERATE(false, true);
    if (kWatched && muon) return;
    const Trained one = train<float>(runs, {.muon = muon, .layers = 6, .dropout = 0.1});
    How how{.world_size = 2, .muon = muon, .zero_stage = 2, .layers = 6, .dropout = 0.1};
    CHECK(difference(train<float>(runs, how), one, 2) == "");
    how.ahead = true;
#ifdef ANVIL_EMULATED
    emulator::options().lazy_streams = true;
    CHECK(difference(train<float>(runs, how), one, 2) == "");
    emulator::options().lazy_streams = false;
#endif
    how.gradient_sum = GradientSum::all_to_all;
    CHECK(difference(train<float>(runs, how), one, 2) == "");
    how.gradient_sum = GradientSum::automatic, how.world_size = 4, how.shards = 2;
    CHECK(difference(train<float>(runs, how), one, 4) == "");
    if (muon) return;
    // Of three ranks with a micro-batch each, in bf16 as well, where it is the bits of ZeRO-1.
    for (const bool bf16_gradients : {false, true}) {
        if (kWatched && !bf16_gradients) continue;
        How three{.world_size = 3, .bf16_gradients = bf16_gradients, .layers = 6};
        const Trained whole = train<bf16>(runs, three);
        three.zero_stage = 2;
        CHECK(difference(train<bf16>(runs, three), whole, 3) == "");
        three.gradient_sum = GradientSum::reduce_scatter;
        const Trained scattered = train<bf16>(runs, three);
        CHECK((difference(scattered, whole, 3) == "") != bf16_gradients);
        three.zero_stage = 1;
        CHECK(difference(train<bf16>(runs, three), scattered, 3) == "");
    }
}

TEST_CASE("with --memory lean a rank or two on a GPU train to the same bits, whatever is under way",
          "[zero][once][slow]" ON_DEVICE) {
    const TinyRuns runs;
    const bool muon = GENERATE(false, true);
    for (const int world_size : {1, 2}) {
        How how{.world_size = world_size,
                .muon = muon,
                .order = Order::serial,
                .layers = 5,
                .tree_sum = false,
                .lean = true};
        const Trained want = train<bf16>(runs, how);
        how.order = Order::overlapped, how.ahead = true;
#ifdef ANVIL_EMULATED
        emulator::options().lazy_streams = true;
        CHECK(difference(train<bf16>(runs, how), want, world_size) == "");
        emulator::options().lazy_streams = false;
#else
        CHECK(difference(train<bf16>(runs, how), want, world_size) == "");
#endif
        // Its first gradient is that of sums in fp32, but for their rounding: below a unit in each micro-batch.
        how.lean = false;
        const Trained whole = train<bf16>(runs, how);
        CHECK(want.losses[0] == whole.losses[0]);
        CHECK(want.losses[1] != whole.losses[1]);
        CHECK(std::fabs(want.losses[1] - whole.losses[1]) <= 4 / world_size * std::exp2(-7) * whole.losses[1]);
    }
}

#ifdef ANVIL_EMULATED
TEST_CASE("with sharded gradients ranks of NCCL train to the bits of whole ones", "[zero][once]" ON_DEVICE) {
    const TinyRuns runs;
    emulator::nccl = {};
    emulator::options().lazy_streams = true;
    // NCCL's sums have an order of their own: of the same ranks with a micro-batch each it is the same one.
    How how{.world_size = 4, .gradient_sum = GradientSum::reduce_scatter, .layers = 5, .fake_nccl = true};
    const Trained whole = train<bf16>(runs, how);
    how.zero_stage = 2;
    CHECK(difference(train<bf16>(runs, how), whole, 4) == "");
    how.shards = 2;
    const Trained groups = train<bf16>(runs, how);
    how.zero_stage = 1;
    CHECK(difference(train<bf16>(runs, how), groups, 4) == "");
    // In the order of ranks they are those of one rank, with two micro-batches each.
    const Trained one = train<float>(runs, {.layers = 5});
    const How two{.world_size = 2,
                  .ahead = true,
                  .gradient_sum = GradientSum::all_to_all,
                  .zero_stage = 2,
                  .layers = 5,
                  .fake_nccl = true};
    CHECK(difference(train<float>(runs, two), one, 2) == "");
    emulator::options().lazy_streams = false;
    CHECK(emulator::nccl.misuse == "");
    CHECK(emulator::nccl.live() == 0);
    emulator::nccl = {};
}
#endif

TEST_CASE("train_gpt on virtual ranks of a GPU, resumed at another number", "[zero][once]" ON_DEVICE) {
    const TinyRuns runs;
    const FlagMap flags = {
        {"device", "cuda"},         {"num-heads", "1"},        {"channels", "64"},   {"steps", "4"},
        {"warmup-steps", "1"},      {"optimizer", "muon"},     {"grad-sum", "tree"}, {"batch-size", "1"},
        {"total-batch-size", "64"}, {"checkpoint-every", "2"}, {"dtype", "bf16"}};
    must_succeed(runs.train("one", flags));
    FlagMap two = flags;
    two["virtual-ranks"] = "2";
    must_succeed(runs.train("two", two));
    const auto one = steps_in(runs.path("one")), other = steps_in(runs.path("two"));
    REQUIRE(one.size() == 4);
    for (size_t i = 0; i < one.size(); i++) CHECK((one[i].loss == other[i].loss && one[i].norm == other[i].norm));
    std::filesystem::remove_all(step_folder(runs.path("two"), 4));
    must_succeed(runs.resume("two", {{"virtual-ranks", "4"}}));
    CHECK(read_file(step_folder(runs.path("two"), 4) + "/model.safetensors") ==
          read_file(step_folder(runs.path("one"), 4) + "/model.safetensors"));
    two["grad-sum"] = "fp32", two["balance"] = "auto";
    const Finished refused = runs.train("auto", two);
    CHECK(refused.exit_code == kExitUsage);
    CHECK(contains(refused.err, "error: ranks with GPUs have equal shares of a step: give --balance equal"));
}
