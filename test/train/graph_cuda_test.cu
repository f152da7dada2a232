/*
Steps as a CUDA graph have the bits of steps that are enqueued op by op, whatever changes from step to step. And what
the emulated runtime captures.
*/
#include "llmc/comm/comm.h"  // NoComm
#include "llmc/cuda/cuda_kernels.h"
#include "llmc/optim/recipe.h"    // find_recipe
#include "llmc/optim/sharding.h"  // plan_sharding
#include "llmc/train/step.h"      // Stepper
#include "test/cuda_testing.h"    // ON_DEVICE
#include "test/models.h"          // Gpt
#include "test/program.h"         // TinyRuns

namespace {

constexpr int64_t kB = 1, kT = 16, kVocabulary = 60;
constexpr int kSteps = 5;

// Batches that differ all of them, and targets that do not count.
struct Numbers {
    std::vector<int32_t> tokens = std::vector<int32_t>(kB * kT), targets = tokens;
    Batch batch;
    uint32_t state = 7;
    int32_t draw() { return int32_t((state = state * 1664525 + 1013904223) >> 16) % kVocabulary; }
    const Batch& next() {
        for (int32_t& token : tokens) token = draw();
        for (int32_t& target : targets) target = draw() - (draw() == 0 ? kVocabulary : 0);
        for (int32_t& target : targets) target = target < 0 ? -1 : target;
        return batch = {tokens, targets};
    }
};

struct How {
    std::string architecture = "gpt2", optimizer = "adamw";
    Recompute recompute = Recompute::none;
    int64_t amax_history = 0;
    bool fp8 = false, tree_sum = false, documents = false, grows = false, waits = false, lean = false;
    int64_t accumulation = 2;
    bool longer = false;  // the first steps have fewer micro-batches, of twice as many sequences of half the length
};

struct Trained {
    std::vector<double> results;
    std::vector<std::vector<float>> weights;
    int64_t graphs = 0;
};

struct Nobody : OpObserver {
    void begin(SliceKind, const char*, const OpCost&, int64_t) override {}
    void end() noexcept override {}
};

template <class T>
Trained train(const How& how, bool graph, bool is_observed = false) {
    GptShape shape{how.fp8 ? 1 : 2, how.fp8 ? 2 : 1, how.fp8 ? 128 : 64, kT, kVocabulary};
    shape.architecture = find_architecture(how.architecture);
    OptimizerConfig rules = with_rule({}, how.optimizer);
    rules.bf16_moments = how.lean, rules.master_weights = !how.lean;
    ParameterList list(shape);
    const ShardingPlan plan = plan_sharding(
        list, {.world_size = 1, .whole_matrices = shards_whole_matrices(rules), .bucket_elements = 1 << 15});
    list.place(plan.offsets, plan.buffer_size);
    Cuda cuda;
    NoComm<Cuda> comm(cuda);
    const StepConfig step{.B = kB,
                          .T = kT,
                          .accumulation = how.accumulation,
                          .grad_clip = 1,
                          .tree_sum = how.tree_sum,
                          .zero_stage = how.lean ? 2 : 1,
                          .bf16_sums = how.lean,
                          .graph = graph,
                          .most_accumulation = how.accumulation};
    Gpt<Cuda, T> model(cuda, list, kB, kT, {how.recompute, how.fp8, 16, how.amax_history}, comm,
                       gradient_list(list, plan, gradient_layout(plan, step.shards_gradients())));
    if (how.documents) model.document_token = 5;
    Optimizer<Cuda, T> optimizer(cuda, model.parameters, plan, 0, rules);
    model.initialize_weights(3, [&](size_t i, const float* values) { optimizer.set_masters(i, values); });
    Stepper<Cuda, T> stepper(model, optimizer, comm, step, 0);
    // What no capture allows.
    if (how.waits)
        model.before_forward = [&cuda, before = model.before_forward](int64_t layer) {
            cuda.synchronize();
            before(layer);
        };
    Trained all;
    Numbers data;
    Nobody nobody;
    const auto finish = [&] {
        const StepResult result = stepper.finish();
        all.results.insert(all.results.end(), {result.loss, result.norm, double(result.targets())});
    };
    if (how.longer) {
        StepConfig shorter = step;
        shorter.B = 2 * kB, shorter.T = kT / 2, shorter.accumulation = 1;
        stepper.assign(shorter);
    }
    for (int i = 0; i < kSteps + (how.longer ? 2 : 0); i++) {
        if (how.longer && i == 3) {
            while (stepper.under_way() > 0) finish();
            stepper.assign(step);
        }
        if (how.grows) model.set_windows(i < 3 ? 0.5 : 1);
        if (is_observed && i == 3) cuda.observer = &nobody;
        stepper.start(data, rules.rates(1. / (i + 1)));
        cuda.observer = nullptr;
        if (stepper.under_way() == stepper.kMostUnderWay) finish();
    }
    while (stepper.under_way() > 0) finish();
    if (how.waits && graph)
        CHECK(contains(stepper.graph_error(), "not permitted when stream is capturing"));
    else
        CHECK(stepper.graph_error() == "");
    std::vector<T> host(size_t(model.weights.size));
    copy_to_host(cuda, host.data(), model.weights.data, model.weights.size);
    all.weights.emplace_back();
    for (const T& weight : host) all.weights.back().push_back(to_float(weight));
    all.graphs = stepper.graph_launches();
    return all;
}

template <class T>
void check_same(const How& how) {
    INFO(how.architecture << " " << how.optimizer << " recompute " << int(how.recompute) << " fp8 " << how.fp8
                          << " tree " << how.tree_sum << " documents " << how.documents << " grows " << how.grows);
    const Trained eager = train<T>(how, false), graph = train<T>(how, true);
    CHECK(eager.graphs == 0);
    CHECK(graph.graphs == (how.waits ? 0 : kSteps - 2));  // if longer, 1 of the first three steps, and 2 later
    CHECK(eager.results == graph.results);
    CHECK((eager.weights == graph.weights));  // as a whole: there are too many to print
    CHECK(graph.results[0] != graph.results[3 * (kSteps - 1)]);
}

}  // namespace

TEST_CASE("steps as a graph have the bits of steps op by op", "[graph][once][slow]" ON_DEVICE) {
    check_same<float>({});
    check_same<bf16>({.architecture = "nanochat", .optimizer = "muon", .grows = true});
    // The third step is captured with scales of its own, the next one anew with delayed ones.
    check_same<bf16>(
        {.recompute = Recompute::block, .amax_history = 3, .fp8 = true, .tree_sum = true, .documents = true});
    check_same<bf16>({.architecture = "llama", .accumulation = 1});
    check_same<bf16>({.lean = true, .accumulation = 3});
    check_same<bf16>({.architecture = "nanochat", .tree_sum = true, .accumulation = 4, .longer = true});
    // What cannot be captured is enqueued op by op, that step and all others.
    check_same<float>({.waits = true});
    // A step that somebody watches is enqueued op by op, and the next one as a graph again.
    CHECK(train<float>({}, true, true).results == train<float>({}, false).results);
    CHECK(train<float>({}, true, true).graphs == kSteps - 3);
}

#ifdef ANVIL_EMULATED
TEST_CASE("what is captured is done when it is launched, in its order", "[graph][once]" ON_DEVICE) {
    Cuda cuda;
    const Ops<Cuda, float>& op = ops<float>(cuda);
    const OnDevice<float> from(cuda, std::vector<float>(4, 2)), to(cuda, 4);
    const auto value = [&] {
        std::vector<float> host(4);
        copy_to_host(cuda, host.data(), to.data, 4);
        return host[3];
    };
    fill_zero(cuda, to.data, 4);
    CudaGraph graph(cuda);
    graph.capture([&] {
        op.accumulate(cuda, to.data, from.data, 4);
        copy_on_device(cuda, from.data, to.data, 4);
    });
    CHECK(value() == 0);
    for (const float expected : {2, 4, 8}) {  // each adds what the one before has copied
        graph.replay();
        CHECK(value() == expected);
    }

    // What a capture does not allow is an error, and leaves no graph and a stream as before.
    const auto refused = [&](auto&& what) {
        CHECK_THROWS_AS(graph.capture(what), Error);
        CHECK_FALSE(graph.is_captured());
        fill_zero(cuda, to.data, 4);
        CHECK(value() == 0);
    };
    refused([&] { cuda.synchronize(); });
    refused([&] { cuda.allocate(1 << 20); });
    refused([&] { cudaStreamSynchronize(cuda.stream); });  // found out at the end, too
    cudaEvent_t event = nullptr;
    cuda_check(cudaEventCreate(&event), "event");
    refused([&] { cudaEventRecord(event, cuda.stream); });
    refused([&] { cudaStreamWaitEvent(cuda.stream, event); });
    cuda_check(cudaEventDestroy(event), "event");
}

TEST_CASE("--cuda-graph says in a line where there is none", "[graph][once][plain]" ON_DEVICE) {
    const TinyRuns runs(20000);
    const auto output = [&](const std::string& name, const FlagMap& more) {
        FlagMap flags = {{"cuda-graph", "true"}, {"steps", "4"}, {"warmup-steps", "0"}};
        for (const auto& [flag, text] : more) flags[flag] = text;
        const Finished done = run(command_of(runs.flags(name, flags)));
        must_succeed(done);
        return done.out;
    };
    CHECK(contains(output("cpu", {{"device", "cpu"}}), "--cuda-graph: without one: there is none on a CPU"));
    CHECK(contains(output("dropout", {{"device", "cuda"}, {"dropout", "0.1"}}), "without one: dropout"));
    CHECK_FALSE(contains(output("gpu", {{"device", "cuda"}}), "without one"));
}
#endif
