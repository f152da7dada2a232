// The step that `plan` traces is the one that trains: the same launches, in the same order, as on the emulated GPU.
#include "llmc/plan/traced_step.h"
#include "llmc/comm/gpu/local_cuda.h"
#include "llmc/cuda/cuda_kernels.h"
#include "llmc/cuda/limits.h"  // kOldestMx
#include "llmc/model/gpt.h"
#include "llmc/optim/recipe.h"    // find_recipe
#include "llmc/optim/sharding.h"  // plan_sharding
#include "llmc/plan/gpu_model.h"
#include "llmc/train/step.h"    // Stepper
#include "test/cuda_testing.h"  // ON_DEVICE
#include "test/models.h"        // Gpt

#ifdef ANVIL_EMULATED
namespace {

// The names of all launches, GEMMs and collectives.
struct Names : OpObserver {
    std::vector<std::string> all;
    void begin(SliceKind kind, const char* name, const OpCost&, int64_t) override {
        if (kind == SliceKind::kernel || kind == SliceKind::collective) all.push_back(name);
    }
    void end() noexcept override {}
};

struct Zeros {
    Batch batch;
    const Batch& next() { return batch; }
};

struct Case {
    std::string architecture = "gpt2", optimizer = "adamw";
    Recompute recompute = Recompute::none;
    int64_t amax_history = 0;
    bool fp8 = false, documents = false, tree_sum = false, mx = false;
    int64_t accumulation = 2;
};

GptShape shape_of(const Case& one) {
    // Narrower layers are not in FP8.
    GptShape shape = one.fp8 ? GptShape{1, 2, 128, 32, 64} : GptShape{2, 2, 64, 32, 64};
    shape.architecture = find_architecture(one.architecture);
    if (one.architecture == "llama") shape.num_kv_heads = 1;
    return shape;
}

void check_alike(const Case& one) {
    INFO(one.architecture << " " << one.optimizer << " recompute " << int(one.recompute) << " fp8 " << one.fp8
                          << " documents " << one.documents << " micro-batches " << one.accumulation);
    const OptimizerConfig rules = with_rule({}, one.optimizer);
    ParameterList list(shape_of(one));
    const ShardingPlan plan = plan_sharding(
        list, {.world_size = 1, .whole_matrices = shards_whole_matrices(rules), .bucket_elements = 1 << 14});
    list.place(plan.offsets, plan.buffer_size);
    const StepConfig step{.B = 2, .T = 32, .accumulation = one.accumulation, .grad_clip = 1, .tree_sum = one.tree_sum};
    const ActivationPolicy passes{one.recompute, one.fp8, 64, one.amax_history, one.mx};
    const std::vector<int32_t> tokens(size_t(step.B * step.T));
    Zeros data{{tokens, tokens}};

    Cuda cuda(0, {"", AttentionKernels::own});
    if (one.mx) cuda.compute_capability = kOldestMx;
    NoComm<Cuda> comm(cuda);
    plan_attention<bf16>(cuda, {}, true);
    Gpt<Cuda, bf16> model(cuda, list, step.B, step.T, passes, comm);
    if (one.documents) model.document_token = 0;
    Optimizer<Cuda, bf16> optimizer(cuda, model.parameters, plan, 0, rules);
    model.initialize_weights(3, [&](size_t i, const float* values) { optimizer.set_masters(i, values); });
    Stepper<Cuda, bf16> stepper(model, optimizer, comm, step, 0);
    Names names;
    stepper.start(data, rules.rates(1));
    stepper.finish();
    cuda.observer = &names;
    stepper.start(data, rules.rates(1));
    cuda.observer = nullptr;
    stepper.finish();

    const StepTrace trace = trace_step({.parameters = list,
                                        .sharding = plan,
                                        .rank = 0,
                                        .rules = rules,
                                        .rates = rules.rates(1),
                                        .step = step,
                                        .passes = passes,
                                        .has_documents = one.documents,
                                        .attention = "own",
                                        .deterministic = true,
                                        .gpu = {.name = "emulated GPU",
                                                .compute_capability = cuda.compute_capability,
                                                .num_sms = cuda.num_sms,
                                                .memory_bytes = cuda.memory_bytes,
                                                .l2_bytes = cuda.l2_bytes}});
    std::vector<std::string> traced;
    for (size_t i = trace.second_work; i < trace.work.size(); i++) {
        const TracedWork& work = trace.work[i];
        if (work.kind == TracedWork::Kind::clear || work.kind == TracedWork::Kind::copy) continue;
        traced.push_back(work.name);
        // Nothing without a cost but what has next to nothing to do, and registers for every kernel.
        INFO(work.name << " of " << work.op << ", " << work.kernel);
        if (work.name != "decide_step") CHECK(work.cost.bytes + work.cost.flops > 0);
        if (work.name == "attention_forward" && !one.mx) CHECK(work.kernel == "flash_forward_hopper_kernel");
        if (work.name == "attention_backward" && !one.mx) CHECK(work.kernel == "flash_backward_hopper_kernel");
        if (work.kind == TracedWork::Kind::kernel) CHECK(kernel_resources(work, cuda.compute_capability).registers > 0);
        CHECK(time_of(work, *find_gpu(one.mx ? "B200" : "H100"), kMid, 1).seconds < 1);
    }
    if (one.accumulation <= 3 || one.tree_sum) {
        CHECK(traced == names.all);
    } else {
        CHECK(trace.middle_repeats == one.accumulation - 2);
        size_t count = 0;
        for (size_t i = trace.second_work; i < trace.work.size(); i++)
            if (trace.work[i].kind != TracedWork::Kind::clear && trace.work[i].kind != TracedWork::Kind::copy)
                count += size_t(trace.repeats(trace.work[i]));
        CHECK(count == names.all.size());
    }
}

}  // namespace

TEST_CASE("the traced step launches what the real one launches", "[traced_step][once][plain][slow]" ON_DEVICE) {
    for (const char* architecture : {"gpt2", "llama", "nanochat"}) check_alike({.architecture = architecture});
    check_alike({.optimizer = "muon"});
    check_alike({.architecture = "nanochat", .optimizer = "muon", .accumulation = 1});
    check_alike({.recompute = Recompute::norms});
    check_alike({.recompute = Recompute::block});
    check_alike({.fp8 = true});
    for (const char* architecture : {"gpt2", "llama"})
        check_alike({.architecture = architecture, .amax_history = 1, .fp8 = true});
    for (const char* architecture : {"gpt2", "llama"})
        check_alike({.architecture = architecture, .recompute = Recompute::norms, .fp8 = true, .mx = true});
    check_alike({.documents = true});
    check_alike({.tree_sum = true, .accumulation = 4});
    check_alike({.accumulation = 5});
}

TEST_CASE("the traced step with a graph launches the same, all but the update in one",
          "[traced_step][once]" ON_DEVICE) {
    const OptimizerConfig rules = with_rule({}, "adamw");
    ParameterList list(shape_of({}));
    const ShardingPlan plan =
        plan_sharding(list, {.world_size = 1, .whole_matrices = false, .bucket_elements = 1 << 14});
    list.place(plan.offsets, plan.buffer_size);
    const auto trace_of = [&](bool graph) {
        return trace_step({.parameters = list,
                           .sharding = plan,
                           .rank = 0,
                           .rules = rules,
                           .rates = rules.rates(1),
                           .step = {.B = 2, .T = 32, .accumulation = 5, .grad_clip = 1, .graph = graph},
                           .passes = {Recompute::none, false, 64},
                           .gpu = {.name = "H200", .compute_capability = 90, .num_sms = 132, .memory_bytes = 1 << 30}});
    };
    const StepTrace eager = trace_of(false), graph = trace_of(true);
    const auto names = [](const StepTrace& trace) {
        std::vector<std::string> all;
        for (size_t i = trace.second_work; i < trace.work.size(); i++)
            if (trace.work[i].kind != TracedWork::Kind::copy) all.push_back(trace.work[i].name);
        return all;
    };
    CHECK(names(eager) == names(graph));
    CHECK(graph.middle_repeats == 3);
    for (size_t i = graph.second_work; i < graph.work.size(); i++) {
        const TracedWork& work = graph.work[i];
        INFO(work.name << " in " << work.phase);
        if (work.kind == TracedWork::Kind::copy) continue;
        CHECK(work.in_graph == (work.phase != "update"));
    }
    for (const TracedWork& work : eager.work) CHECK_FALSE(work.in_graph);
}
#endif
