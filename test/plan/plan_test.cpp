// The output of `plan`, against values worked out by hand.
#include "llmc/plan/plan.h"
#include <filesystem>
#include <map>
#include <set>
#include "llmc/cpu/kernels.h"         // the device Cpu
#include "llmc/optim/state_layout.h"  // StateLayout
#include "llmc/train/tokens.h"        // planned_vocab_size
#include "test/testing.h"

static RunFlags config_of(const std::string& model, int batch_size, int64_t total_batch_size) {
    RunFlags config;
    config.model.model = model;
    config.batch_size = batch_size, config.total_batch_size = total_batch_size;
    return config;
}

static const Gpu& gpu_named(const std::string& name) {
    const Gpu* const gpu = find_gpu(name);
    REQUIRE(gpu);
    return *gpu;
}

static RunPlan planned(const RunFlags& config, int world_size, const Gpu& gpu = gpu_named("H100")) {
    return plan_run(config, config.model.shape(0), gpu, world_size);
}

// GPT-2 124M: C = 768, 12 layers, V = 50257, Vp = 50304, T = 1024. Over 8 ranks each layer has 12 C^2 + 13 C = 7087872
// elements, an eighth of which is 32 short of a multiple of 64; the first bucket has 2 C more, and the same padding.
static constexpr double kElements124M = 12 * 7087872.0 + 2 * 768 + (50304 + 1024) * 768.0, kPadding124M = 12 * 256;
// Matrices and the tied head; attention, 6 C T a layer and token.
static constexpr double kFlops124M = 6 * (12 * 12 * 768.0 * 768 + 50257.0 * 768) + 6 * 12 * 768.0 * 1024;

TEST_CASE("plan: beside adapters the model has neither gradients nor state", "[plan]") {
    RunFlags config = config_of("gpt2-124M", 64, 524288);
    config.steps = 20, config.lora_rank = 16;
    GptShape shape = config.model.shape(0);
    shape.lora = config.lora();
    const RunPlan plan = plan_run(config, shape, *find_gpu("H100"), 1);
    // A and B of qkv, projection, up and down.
    const double adapters = 12 * 16.0 * 768 * ((1 + 3) + (1 + 1) + (1 + 4) + (4 + 1));
    CHECK(plan.num_parameters == 124439808 + int64_t(adapters));
    CHECK(plan.memory.lines[1].bytes == size_t(4 * adapters));
    CHECK(plan.memory.lines[2].bytes == size_t(12 * adapters));
    CHECK(plan.checkpoint_bytes == 14 * adapters);
    CHECK(plan.host_bytes == 14 * adapters);
    const double matrices = 12 * 12 * 768.0 * 768 + 50257.0 * 768;
    CHECK(plan.flops_per_token == Approx(4 * matrices + 6 * adapters + 6 * 12 * 768.0 * 1024));

    // In FP8 the blocks' matrices are codes, a byte each, instead of weights of two.
    config.dtype = "fp8", shape.lora = config.lora();
    const RunPlan fp8 = plan_run(config, shape, *find_gpu("H100"), 1);
    const double codes = 12 * 12 * 768.0 * 768;
    CHECK(plan.memory.lines[0].bytes - fp8.memory.lines[0].bytes == size_t(2 * codes));
    const auto total = [](const RunPlan& of) { return double(of.memory.total_bytes()); };
    // And the rows of an input, and the largest matrix transposed.
    const double more = 64 * 1024 * 3072.0 + 4 * 768.0 * 768;
    CHECK(total(fp8) == Approx(total(plan) - codes + more).epsilon(1e-4));
    // --fit offers it on cards that have it.
    config.dtype = "auto", shape.lora = config.lora();
    for (const char* flag : {"moments", "memory", "offload"}) config.sources[flag] = "the test";
    std::set<std::string> choices;
    for (const Fit& fit : fit_run(config, shape, gpu_named("4090"), 1)) choices.insert(fit.choice);
    CHECK(choices == std::set<std::string>{"", " --dtype fp8"});
    CHECK(fit_run(config, shape, gpu_named("A100"), 1).size() == 1);
}

TEST_CASE("plan: GPT-2 124M on 8 H100", "[plan]") {
    RunFlags config = config_of("gpt2-124M", 64, 524288);
    config.steps = 20000;
    const RunPlan plan = planned(config, 8);
    CHECK(plan.num_parameters == 124439808);
    CHECK(plan.config.step.accumulation == 1);
    const double elements = kElements124M + kPadding124M;
    CHECK(double(plan.sharding.buffer_size) == elements);
    CHECK(plan.bandwidth == 350e9);
    CHECK(plan.sent_gradient_bytes == Approx(elements * 4 * 7 / 8));
    CHECK(plan.sent_weight_bytes == Approx(elements * 2 * 7 / 8));
    CHECK(plan.flops_per_token == Approx(kFlops124M));
    CHECK(plan.flops == Approx(kFlops124M * 524288));
    // All are of one server: two moments and the master of every element, and the weights once.
    CHECK(plan.checkpoint_bytes == 12 * kElements124M + 2 * 124439808);
    CHECK(plan.host_bytes == 12 * kElements124M + 2 * elements);
    // Low is slow, and no case is far from the others.
    CHECK(plan.times[0].step_s > plan.times[1].step_s);
    CHECK(plan.times[1].step_s > plan.times[2].step_s);
    CHECK(plan.times[0].step_s < 1.2 * plan.times[2].step_s);
    // Llm.c and llmq reach 40 to 57 % of the peak.
    CHECK(plan.mfu(0) > 0.3);
    CHECK(plan.mfu(2) < 0.6);
    // 60 ms of backward hide a gradient of 1.2 ms but for its last bucket and a latency.
    CHECK(plan.times[1].exposed_s < 1e-3);
    CHECK(plan.times[1].wire_s > 1.8e-3);
    CHECK(plan.tokens == 20000.0 * 524288);
    CHECK(plan.run_s(1) == Approx(20000 * plan.times[1].step_s));
    CHECK(plan.usd(1) == Approx(20000 * plan.times[1].step_s / 3600 * 8 * 3));
    CHECK(plan.tokens_per_s(1) == Approx(524288 / plan.times[1].step_s));
    CHECK(plan.mfu(1) == Approx(kFlops124M * 524288 / 8 / plan.times[1].step_s / 989e12));
}

// The launches of a micro-batch as doc/predicted.md counts them.
TEST_CASE("plan: the launches of GPT-2 124M", "[plan]") {
    const RunPlan plan = planned(config_of("gpt2-124M", 32, 524288), 1, gpu_named("H200"));
    CHECK(plan.config.step.accumulation == 16);
    CHECK(plan.trace.middle_repeats == 14);
    std::map<std::string, int> micro, update;
    for (size_t i = plan.trace.second_work; i < plan.trace.work.size(); i++) {
        const TracedWork& work = plan.trace.work[i];
        if (work.micro_batch == 1) micro[work.name]++;
        if (work.phase == "update") update[work.name]++;
    }
    CHECK(micro["cudnn_attention_forward"] == 12);
    CHECK(micro["attention_backward"] == 12);  // ours is the faster one
    // Four linear layers a block and the head in two chunks, each with its two gradients.
    CHECK(micro["cublaslt"] == 12 * 4 * 3 + 2 * 3);
    CHECK(micro["layernorm_forward"] == 25);
    CHECK(micro["layernorm_backward"] == 25);
    CHECK(micro["cross_entropy"] == 2);
    CHECK(micro["adamw_update"] == 0);
    CHECK(update["adamw_update"] == 13);  // one for each bucket
    CHECK(plan.times[1].launches > 16 * 200);
    // An element's 30 bytes in an update, 22 with moments in bf16; of state 12 and 8.
    RunFlags config = config_of("gpt2-124M", 32, 524288);
    config.moments = "bf16";
    const RunPlan halved = planned(config, 1, gpu_named("H200"));
    const auto update_bytes = [](const RunPlan& of) {
        double bytes = 0;
        for (size_t i = of.trace.second_work; i < of.trace.work.size(); i++)
            if (of.trace.work[i].name == "adamw_update") bytes += of.trace.work[i].cost.bytes;
        return bytes;
    };
    CHECK(update_bytes(plan) >= 30 * double(plan.num_parameters));  // and the vocabulary's padding
    CHECK(update_bytes(plan) < 30.1 * double(plan.num_parameters));
    CHECK(30 * update_bytes(halved) == 22 * update_bytes(plan));
    CHECK(3 * halved.state_bytes[0] == 2 * plan.state_bytes[0]);
    CHECK(3 * halved.memory.lines[2].bytes == 2 * plan.memory.lines[2].bytes);
    // Forward and backward: 6 FLOPs a weight of the matrices and token, and attention.
    double flops = 0;
    for (const StepTime::Slice& slice : plan.times[1].slices) {
        const TracedWork& work = plan.trace.work[slice.work];
        if (work.kind == TracedWork::Kind::gemm) flops += double(plan.trace.repeats(work)) * work.cost.flops;
    }
    CHECK(flops == Approx(6 * (12 * 12 * 768.0 * 768 + 50304.0 * 768) * 524288));
}

TEST_CASE("plan: memory is what the run will take", "[plan][plain]") {
    for (const bool muon : {false, true})
        for (const int world : {1, 6}) {
            if (muon == (world == 1)) continue;  // a hundred plans
            INFO("muon " << muon << " on " << world);
            RunFlags config = config_of("gpt2-355M", 4, 0);
            config.optimizer = muon ? "muon" : "adamw", config.recompute = "norms", config.grad_sum = "bf16";
            config.attention = "cudnn";
            const GptShape shape = config.model.shape(0);
            const RunPlan plan = planned(config, world);
            ParameterList list(shape);
            list.place(plan.sharding.offsets, plan.sharding.buffer_size);
            const double size = double(list.buffer_size);
            REQUIRE(plan.memory.lines.size() == 8);
            CHECK(double(plan.memory.lines[0].bytes) == 2 * size);
            CHECK(double(plan.memory.lines[1].bytes) == (world > 1 ? 6 : 4) * size);  // bf16 copies to exchange
            size_t optimizer = 0;
            for (int r = 0; r < world; r++)
                optimizer = std::max(
                    optimizer,
                    StateLayout(list, plan.sharding, r, config.chosen_recipe().rules).memory_bytes(sizeof(bf16)));
            CHECK(plan.memory.lines[2].bytes == optimizer);
            CHECK(plan.memory.lines[3].bytes + plan.memory.lines[4].bytes + plan.memory.lines[5].bytes ==
                  Activations<bf16>(shape, 4, 1024, {Recompute::norms, false, 4096}).bytes());
            CHECK(plan.memory.lines[5].bytes == size_t(2 * 4096 * shape.padded_vocab_size()));
            CHECK(plan.memory.lines[5].note == "4096 of 4096 rows at a time");
            // cuDNN's deterministic backward, 2 B NH T^2 bytes and the sums of rows; for Muon, 32 MiB of cuBLASLt's and
            // the matrices on their way: of a batch of them more than that.
            const double attention = 2. * 4 * 16 * 1024 * 1024;
            CHECK(plan.memory.lines[6].name == "workspace");
            CHECK(double(plan.memory.lines[6].bytes) >= attention);
            if (!muon) CHECK(double(plan.memory.lines[6].bytes) < 1.01 * attention);
            if (world > 1) CHECK(plan.sent_gradient_bytes == plan.sent_weight_bytes);
            if (world == 1) CHECK(plan.sent_gradient_bytes + plan.times[1].wire_s == 0);
            // The largest batches that fit, and no larger ones.
            for (const char* recompute : {"none", "norms", "block"}) {
                config.recompute = recompute;
                const int largest = int(plan.largest_batches[int(config.recomputation().what)]);
                config.batch_size = largest;
                INFO(recompute << " " << largest);
                CHECK(planned(config, world).fits());
                config.batch_size = largest + 1;
                CHECK_FALSE(planned(config, world).fits());
            }
        }
}

TEST_CASE("plan --fit finds the fastest flags that fit", "[plan][slow]") {
    RunFlags asked = config_of("gpt2-1558M", 0, 0);
    asked.batch_size.reset();
    const std::vector<Fit> fits = fit_run(asked, asked.model.shape(0), gpu_named("4090"), 1);
    REQUIRE(fits.size() == 6);  // moments, master weights and where they lie; --memory lean has moments in bf16
    const RunPlan& best = fits[0].plan;
    CHECK(fits[0].choice == " --moments bf16 --offload optimizer:auto");
    CHECK(best.fits());
    CHECK(best.config.step.num_tokens() == 524288);
    CHECK(std::any_of(fits.begin(), fits.end(), [](const Fit& fit) {  // 1.5B, four sequences at a time, in 24 GB
        return fit.choice == " --memory lean" && fit.plan.fits() && fit.plan.config.step.B >= 4;
    }));
    CHECK(fits.back().choice.empty());
    CHECK_FALSE(fits.back().plan.fits());
    const std::string text = text_of(fits);
    CHECK(contains(text, "1 x 4090 of 24 GB, 1.558 G parameters, 524288 tokens per step in sequences of 1024; "));
    CHECK(contains(text, format("--batch-size %ld --recompute %s --moments bf16 --offload optimizer:auto\n",
                                best.config.step.B, best.config.flags.recompute.c_str())));
    CHECK(contains(text, "does not fit"));
    // The flags that it prints are a plan of the same speed, and none of the other ways to recompute is faster.
    asked = best.config.flags;
    CHECK(planned(asked, 1, gpu_named("4090")).tokens_per_s(1) == best.tokens_per_s(1));
    for (const char* recompute : {"none", "norms", "block:24", "block"}) {
        asked.recompute = recompute, asked.batch_size = 0;
        asked.sources["recompute"] = "the command line";
        const RunPlan other = planned(asked, 1, gpu_named("4090"));
        INFO(recompute);
        CHECK((!other.fits() || other.tokens_per_s(1) <= best.tokens_per_s(1)));
    }
    // Flags that are given are not searched for.
    asked = config_of("gpt2-1558M", 0, 0);
    asked.sources["moments"] = "the command line";
    CHECK(fit_run(asked, asked.model.shape(0), gpu_named("H100"), 8).size() ==
          4);  // without --memory lean: its moments are in bf16
    CHECK(fit_run(asked, asked.model.shape(0), gpu_named("H100"), 1).size() == 2);
}

TEST_CASE("plan: gradients that are sent to their owners", "[plan]") {
    RunFlags config = config_of("gpt2-124M", 32, 0);
    const auto with = [&](const char* sum, int world) {
        config.grad_sum = sum;
        return planned(config, world);
    };
    const auto launches = [](const RunPlan& plan, const char* name) {
        return std::count_if(plan.trace.work.begin() + long(plan.trace.second_work), plan.trace.work.end(),
                             [&](const TracedWork& work) { return work.name == name; });
    };
    for (const char* type : {"fp32", "bf16"})
        for (const int world : {8, 64}) {
            INFO(type << " on " << world);
            const bool is_bf16 = std::string(type) == "bf16";
            const RunPlan ring = with(is_bf16 ? "bf16-scatter" : "fp32", world),
                          sent = with(is_bf16 ? "bf16-ordered" : "ordered", world);
            const long buckets = long(sent.sharding.buckets.size());
            CHECK(launches(ring, "reduce_scatter") == buckets);
            CHECK(launches(sent, "all_to_all") == buckets);
            CHECK(launches(sent, "sum_terms") == buckets);
            CHECK(launches(ring, "sum_terms") + launches(sent, "reduce_scatter") == 0);
            CHECK(sent.sent_gradient_bytes == ring.sent_gradient_bytes);
            int64_t largest = 0;
            for (const Bucket& bucket : sent.sharding.buckets) largest = std::max(largest, bucket.shard * world);
            const size_t scratch = std::string(type) == "fp32" ? size_t(largest) * 4 : 0;
            CHECK(sent.memory.lines[1].bytes == ring.memory.lines[1].bytes + scratch);
            // As fast inside a server; between servers each GPU has its own card alone.
            const double slower = sent.times[1].step_s / ring.times[1].step_s;
            if (world == 8) CHECK(std::fabs(slower - 1) < 0.005);
            if (world == 64) CHECK(slower > 1.02);
        }
    CHECK(launches(with("bf16", 8), "all_to_all") > 0);
    CHECK(launches(with("bf16", 16), "all_to_all") == 0);
    CHECK(launches(with("fp32", 8), "all_to_all") == 0);
}

TEST_CASE("plan: sharded gradients, of which 7B fits eight cards with room", "[plan]") {
    RunFlags config = config_of("custom", 4, 8 * 4 * 1024 * 5);
    config.model.num_layers = 32, config.model.num_heads = 32, config.model.channels = 4096;
    config.model.seq_len = 1024, config.model.vocab_size = 32000, config.recompute = "block";
    const RunPlan whole = planned(config, 8);
    config.zero_stage = 2;
    const RunPlan plan = planned(config, 8);
    const GradientLayout layout = gradient_layout(plan.sharding, true);
    CHECK(whole.memory.lines[1].bytes == size_t(4 * plan.sharding.buffer_size));
    CHECK(plan.memory.lines[1].bytes == size_t(4 * (layout.buffer_size + plan.sharding.buffer_size / 8)));
    CHECK(plan.memory.lines[1].bytes < whole.memory.lines[1].bytes / 4);
    for (const size_t line : {0, 2, 3, 4, 5, 6}) CHECK(plan.memory.lines[line].bytes == whole.memory.lines[line].bytes);
    // Every one of five micro-batches is summed over the ranks; the second to fourth are recorded once.
    REQUIRE(plan.config.step.accumulation == 5);
    CHECK(plan.sent_gradient_bytes == 5 * whole.sent_gradient_bytes);
    CHECK(plan.sent_weight_bytes == whole.sent_weight_bytes);
    std::map<int64_t, int> scattered;
    for (size_t i = plan.trace.second_work; i < plan.trace.work.size(); i++)
        if (const TracedWork& work = plan.trace.work[i]; work.name == "reduce_scatter") scattered[work.micro_batch]++;
    const int buckets = int(plan.sharding.buckets.size());
    CHECK(scattered == std::map<int64_t, int>{{0, buckets}, {1, buckets}, {2, buckets}});
    double scatter = 0, gather = 0;
    for (const StepTime::Slice& slice : plan.times[1].slices) {
        const TracedWork& work = plan.trace.work[slice.work];
        (work.name == "reduce_scatter" ? scatter : gather) +=
            work.stream == 0 ? 0 : double(plan.trace.repeats(work)) * slice.seconds;
    }
    CHECK(plan.times[1].wire_s == Approx(scatter + gather));
    CHECK(scatter == Approx(5 * (whole.times[1].wire_s - gather)));
    // It costs bytes, not time: four fifths of them lie beside other micro-batches.
    CHECK(plan.times[1].step_s < 1.1 * whole.times[1].step_s);
    // One GPU shards nothing.
    CHECK(planned(config, 1).memory.lines[1].bytes == size_t(4 * planned(config, 1).sharding.buffer_size));
}

TEST_CASE("plan: two levels", "[plan]") {
    RunFlags config = config_of("gpt2-124M", 32, 0);
    config.optimizer = "muon";
    const RunPlan server = planned(config, 8), flat = planned(config, 64);
    config.shard_ranks = 8;
    const RunPlan plan = planned(config, 64);
    CHECK(plan.sharding.shards == 8);
    CHECK(plan.sharding.padding() == server.sharding.padding());
    CHECK(flat.sharding.padding() > plan.sharding.padding() + 1'000'000);
    CHECK(plan.memory.lines[2].bytes == server.memory.lines[2].bytes);
    CHECK(plan.checkpoint_bytes == Approx(server.checkpoint_bytes));
    const double size = double(plan.sharding.buffer_size);
    CHECK(plan.sent_weight_bytes == Approx(7. / 8 * size * 2));
    CHECK(plan.sent_gradient_bytes == Approx((7. / 8 + 2 * 7. / 8 / 8) * size * 4));
    int between = 0, scattered = 0;
    for (size_t i = plan.trace.second_work; i < plan.trace.work.size(); i++) {
        const TracedWork& work = plan.trace.work[i];
        between += work.name == "all_reduce" && work.between;
        scattered += work.name == "reduce_scatter";
        if (work.name == "all_gather") CHECK(work.ranks == 8);
    }
    CHECK(scattered == int(plan.sharding.buckets.size()));
    CHECK(between == scattered);
    config.shard_ranks = 24;
    CHECK(error_of([&] { planned(config, 64); }) == "2: --shard-ranks 24 does not divide the 64 ranks");
}

TEST_CASE("plan: Newton-Schulz is part of an update", "[plan]") {
    RunFlags config = config_of("gpt2-124M", 64, 0);
    config.optimizer = "muon";
    // A rank has 6 halves of a layer, 12 matrices of C^2 each: 5 iterations, whose third GEMM is the library's, on
    // Hopper all three.
    for (const std::string gpu : {"A100", "H200"}) {
        const RunPlan plan = planned(config, 4, gpu_named(gpu));
        double flops = 0, whole = 0;
        for (const StepTime::Slice& slice : plan.times[1].slices) {
            const TracedWork& work = plan.trace.work[slice.work];
            if (work.op != "newton_schulz") continue;
            if (work.kind == TracedWork::Kind::gemm) flops += work.cost.flops;
            whole += work.cost.flops;
        }
        constexpr double C = 768;
        // The third: 2 n^2 m of matrices whose sides m add up to 6 C a half layer; the first as many, the second 2 n^3.
        CHECK(flops == Approx(6 * 5 * (gpu == "H200" ? 6 + 6 + 3 : 6) * 2 * C * C * C));
        CHECK((whole > flops) == (gpu == "A100"));
    }
}

TEST_CASE("plan: offloaded state takes host memory, and the time of its copies where nothing hides it", "[plan]") {
    RunFlags config = config_of("gpt2-124M", 8, 8 * 1024 * 4);
    const Gpu& card = gpu_named("4090");
    const RunPlan whole = planned(config, 1, card);
    config.offload = "optimizer";
    const RunPlan plan = planned(config, 1, card);
    const double state = 12 * double(plan.sharding.buffer_size);
    CHECK(plan.offloaded_bytes == state);
    CHECK(plan.copied_bytes == state);
    CHECK(double(plan.memory.host_bytes) == state);
    CHECK(plan.host_bytes == whole.host_bytes);
    const int64_t stage = 12 * kStageElements;
    const auto optimizer = [](const RunPlan& of) { return of.memory.lines[2].bytes; };
    REQUIRE(plan.memory.lines[2].name == "optimizer");
    CHECK(optimizer(plan) <= size_t(3 * stage));
    CHECK(double(optimizer(whole)) == state);
    CHECK((whole.offloaded_bytes == 0 && whole.copied_bytes == 0 && whole.times[1].copies_s == 0));

    // Each way by itself; three stages come in beside the step before, and the last ones go out beside the next.
    const StepTime& time = plan.times[1];
    const double one_way = state / (card.host * 1e9);
    CHECK(time.copies_s == Approx(2 * one_way).epsilon(0.01));
    CHECK(time.exposed_copies_s < one_way);
    CHECK(time.exposed_copies_s > one_way - 6 * double(stage) / (card.host * 1e9));
    CHECK(time.step_s > whole.times[1].step_s + 0.9 * time.exposed_copies_s);
    CHECK(time.step_s < whole.times[1].step_s + 1.1 * time.exposed_copies_s);
    CHECK((time.exposed_s == 0 && time.wire_s == 0 && time.efficiency() == 1));
    const std::string text = text_of(plan);
    INFO(text);
    CHECK(contains(text, "\noffload: "));
    CHECK(contains(text, ", at 18 GB/s each way\n"));
    CHECK(contains(text, " of copies, both ways; "));
    CHECK(contains(text, ", waiting for offloaded state "));
    CHECK_FALSE(contains(text_of(whole), "offload"));

    // Of two ranks each has half, and collectives are counted by themselves.
    const RunPlan two = planned(config, 2, card);
    CHECK(two.copied_bytes == Approx(state / 2).epsilon(0.001));
    CHECK(two.offloaded_bytes == Approx(state).epsilon(0.001));
    CHECK(two.times[1].copies_s == Approx(time.copies_s / 2).epsilon(0.01));
    RunFlags without = config;
    without.offload = "none";
    CHECK(two.times[1].wire_s == Approx(planned(without, 2, card).times[1].wire_s));
    CHECK(two.times[1].exposed_copies_s > 0);
    // A model whose state no small card holds.
    RunFlags large = config_of("gpt2-1558M", 4, 4 * 1024 * 8);
    large.recompute = "block";
    CHECK_FALSE(planned(large, 1, card).fits());
    large.offload = "optimizer";
    const RunPlan all = planned(large, 1, card);
    CHECK(all.fits());

    // A part of it, rounded to stages; auto: of all percentages that fit the lowest.
    config.offload = "optimizer:30";
    const RunPlan part = planned(config, 1, card);
    CHECK(part.copied_bytes >= 0.3 * state);
    CHECK(part.copied_bytes < 0.3 * state + double(stage));
    CHECK(part.offloaded_bytes == part.copied_bytes);
    CHECK(double(optimizer(part)) == state - part.copied_bytes + double(optimizer(plan)));
    CHECK(part.times[1].copies_s == Approx(part.copied_bytes / state * time.copies_s).epsilon(0.01));
    CHECK((part.times[1].step_s < time.step_s && part.times[1].step_s > whole.times[1].step_s));
    CHECK(contains(text_of(part), "\noffload: 30 % of the optimizer's state, "));
    config.offload = "optimizer:auto";
    CHECK(planned(config, 1, card).copied_bytes == 0);
    large.offload = "optimizer:auto";
    const RunPlan least = planned(large, 1, card);
    const int percent = least.config.recipe.rules.offload_percent;
    CHECK((least.fits() && percent > 0 && percent < 100));
    CHECK(contains(text_of(least), format("\noffload: %d %% of the optimizer's state, ", percent)));
    CHECK(least.times[1].step_s < all.times[1].step_s);
    large.offload = format("optimizer:%d", percent);
    CHECK(planned(large, 1, card).memory.total_bytes() == least.memory.total_bytes());
    // With less there would be fewer rows of logits at a time, on which bits depend.
    large.offload = format("optimizer:%d", percent - 1);
    CHECK(planned(large, 1, card).memory.lines[5].bytes < least.memory.lines[5].bytes);
    CHECK(least.memory.lines[5].bytes == all.memory.lines[5].bytes);
    CHECK(least.largest_batches[2] == all.largest_batches[2]);
}

TEST_CASE("plan: a slow network shows", "[plan]") {
    RunFlags config = config_of("gpt2-124M", 8, 8 * 1024 * 16 * 2);
    Gpu slow = planned_gpu({.network = 1, .usd_per_hour = 10}, "H100");
    const RunPlan plan = planned(config, 16, slow);
    CHECK(plan.bandwidth == 8e9);  // of 8 cards
    CHECK(plan.config.step.accumulation == 2);
    const double size = double(plan.sharding.buffer_size);
    const double gradients_s = size * 4 * 15 / 16 / 8e9, weights_s = size * 2 * 15 / 16 / 8e9;
    CHECK(plan.times[1].wire_s == Approx(gradients_s + weights_s).epsilon(0.02));
    CHECK(plan.times[1].exposed_s > 0.7 * (gradients_s + weights_s));
    CHECK(plan.times[1].step_s > gradients_s + weights_s);
    CHECK(plan.usd(1) == Approx(plan.run_s(1) / 3600 * 16 * 10));
    // Inside a server the network does not matter; over two it is not faster than a server is inside.
    config.total_batch_size = 0;
    CHECK(planned(config, 8, slow).bandwidth == 350e9);
    slow.network = 100;
    CHECK(planned(config, 16, slow).bandwidth == 350e9);
    slow.collective = 20;
    CHECK(planned(config, 16, slow).bandwidth == 20e9);
    // Recomputing blocks is a forward pass of theirs more.
    const double before = planned(config, 1).times[1].step_s;
    config.recompute = "block";
    CHECK(planned(config, 1).times[1].step_s > 1.1 * before);
    CHECK(planned(config, 1).times[1].step_s < 1.34 * before);
}

TEST_CASE("plan: the kinds of attention, and documents", "[plan]") {
    RunFlags config = config_of("gpt2-124M", 32, 0);
    const auto names = [&] {
        const RunPlan plan = planned(config, 1);
        std::set<std::string> found;
        for (const TracedWork& work : plan.trace.work) found.insert(work.name);
        return found;
    };
    CHECK(names().count("cudnn_attention_forward") == 1);  // as mixed
    CHECK(names().count("attention_backward") == 1);
    config.attention = "cudnn";
    CHECK(names().count("cudnn_attention_backward") == 1);
    const double cudnn_s = planned(config, 1).times[1].step_s;
    config.deterministic = false;
    CHECK(planned(config, 1).times[1].step_s < cudnn_s);
    config.deterministic = true, config.attention = "own";
    CHECK(names().count("attention_backward") == 1);
    CHECK(names().count("cudnn_attention_forward") == 0);
    const double own_s = planned(config, 1).times[1].step_s;
    config.attention = "mixed";
    CHECK(names().count("attention_backward") == 1);
    CHECK(names().count("cudnn_attention_forward") == 1);
    const double mixed_s = planned(config, 1).times[1].step_s;
    CHECK((mixed_s < own_s && own_s < cudnn_s));
    config.attention = "auto", config.document_token = 50256;
    CHECK(names().count("attention_backward") == 1);
    CHECK(names().count("document_starts") == 1);
}

TEST_CASE("plan: a server holds its own ranks' part of a checkpoint", "[plan]") {
    RunFlags config = config_of("gpt2-124M", 8, 0);
    const RunPlan plan = planned(config, 32);
    CHECK(plan.checkpoint_bytes == 12 * kElements124M + 2 * 124439808);
    const double shares = 12 * kElements124M / 4;  // of 8 ranks; padding is the last one's
    CHECK(plan.host_bytes == Approx(shares + 2 * double(plan.sharding.buffer_size)).epsilon(1e-4));
}

TEST_CASE("plan: every GPU, and what replaces its figures", "[plan]") {
    const std::string help = run(program("train_gpt") + " --help-markdown").out;
    for (const Gpu& gpu : kGpus) {
        CHECK(planned_gpu({}, gpu.name).tflops == gpu.tflops);
        CHECK(contains(help, gpu.name));
    }
    CHECK(std::string(planned_gpu({}, "h200").name) == "H200");
    const Gpu own = planned_gpu({.memory_gb = 1, .tflops = 2, .bandwidth = 4, .network = 5, .usd_per_hour = 6}, "B200");
    CHECK((own.memory_gb == 1 && own.tflops == 2));
    CHECK((own.collective == 4 && own.network == 5 && own.usd_per_hour == 6));
    RunFlags config = config_of("gpt2-124M", 1, 0);
    const GptShape shape = config.model.shape(0);
    CHECK(error_of([&] { plan_runs(config, {.gpu = "H100,T4"}, shape); }) ==
          "2: --gpu T4: expected a name, or several with commas between them, of: A100, H100, H200, B200, 4090, "
          "4070, 5090, L40S, PRO 6000, MI300X-like");
    CHECK(contains(error_of([&] { plan_runs(config, {.world_size = "8,x"}, shape); }), "2: --world-size x"));
    CHECK(contains(error_of([&] { plan_runs(config, {.world_size = ""}, shape); }), "2: --world-size"));
    CHECK(contains(error_of([&] { plan_runs(config, {.world_size = "0"}, shape); }), "2: --world-size 0"));
    CHECK(contains(error_of([&] { plan_runs(config, {.world_size = "1,2", .trace = "x"}, shape); }),
                   "2: --trace is of one plan: give one --gpu and one --world-size"));
    config.dtype = "fp32";
    CHECK(contains(error_of([&] { planned(config, 1); }), "2: `plan` assumes --dtype bf16"));
    config.dtype = "fp8";
    CHECK(contains(error_of([&] { planned(config, 1, gpu_named("A100")); }), "2: --dtype fp8: A100 has no FP8 GEMMs"));
    config.fp8_scaling = "mx";
    CHECK(error_of([&] { planned(config, 1, gpu_named("H100")); }) ==
          "2: --fp8-scaling mx: H100 has no products in MX, which begin with Blackwell: choose another");
}

// [plain]: many plans, and the sanitizers watch those above.
TEST_CASE("plan: several GPUs and numbers of ranks side by side", "[plan][plain]") {
    const RunFlags config = config_of("gpt2-1558M", 8, 524288);
    const std::vector<RunPlan> plans =
        plan_runs(config, {.gpu = "H200,4090", .world_size = "8,64"}, config.model.shape(0));
    REQUIRE(plans.size() == 4);
    CHECK(std::string(plans[2].gpu.name) == "4090");
    CHECK(plans[3].sharding.world_size == 64);
    CHECK(plans[0].fits());
    CHECK_FALSE(plans[2].fits());
    const std::string text = text_of(plans);
    INFO(text);
    CHECK(std::count(text.begin(), text.end(), '\n') == 7);
    CHECK(contains(text, " DOES NOT FIT, by "));
    CHECK(contains(text, "predicted, nothing here is measured"));
}

TEST_CASE("plan: a run that does not fit has no time and no price, but what is missing and what would fit", "[plan]") {
    RunFlags config = config_of("gpt2-1558M", 64, 0);
    const RunPlan full = planned(config, 1);
    REQUIRE_FALSE(full.fits());
    const std::string text = text_of(full);
    INFO(text);
    const double missing = (double(full.memory.total_bytes()) - 80e9) / (1 << 20);
    CHECK(contains(text, format("DOES NOT FIT, by %.1f MiB; the largest --batch-size that would: %ld, with --recompute "
                                "norms %ld, with block %ld\n",
                                missing, full.largest_batches[0], full.largest_batches[1], full.largest_batches[2])));
    CHECK(contains(text, "\nrun: 2000 steps, 131.1 M tokens, "));  // scripts/run.sh reads them
    CHECK(text.ends_with("FLOP: no time and no price, because it does not fit"));
    for (const char* gone : {"USD", "tokens/s", "step, predicted", "GPU-hours"}) CHECK_FALSE(contains(text, gone));
    config.batch_size = int(full.largest_batches[0]);
    CHECK(contains(text_of(planned(config, 1)), " USD for "));
    // Not even one sequence fits, whatever is recomputed.
    const std::string nothing = text_of(planned(config_of("gpt2-1558M", 1, 0), 1, gpu_named("4070")));
    CHECK(contains(nothing,
                   "; no --batch-size does: take more ranks, --zero-stage 2, --memory lean or --offload optimizer\n"));
    const ScratchFolder scratch;
    const Finished traced =
        run(program("train_gpt") + " plan --model gpt2-1558M --batch-size 64 --trace " + (scratch / "step.json"));
    CHECK(traced.exit_code == 2);
    CHECK(contains(traced.err, "--trace: the run DOES NOT FIT, by "));
    CHECK_FALSE(std::filesystem::exists(scratch / "step.json"));
}

TEST_CASE("plan: the program prints it without data and without a GPU", "[plan]") {
    const ScratchFolder scratch;
    const std::string file = scratch / "step.json";
    const std::string command = program("train_gpt") +
                                " plan --world-size 64 --model gpt2-1558M --optimizer muon --batch-size 16 "
                                "--total-batch-size 1048576 --steps 32000 --gpu H200 --price 2 --train-data no";
    const Finished done = run(command + " --trace " + file);
    INFO(done.out << done.err);
    CHECK(done.exit_code == 0);
    CHECK(contains(done.out, "model: 1.558 G parameters: 48 layers, 25 heads, 1600 channels"));
    CHECK(contains(done.out, "16 sequences x 1024 tokens x 1 micro-batch x 64 ranks = 1048576 tokens per step"));
    CHECK(contains(done.out, "sharding over 64 ranks"));
    CHECK(contains(done.out, " GFLOP per token, forward and backward\n"));
    CHECK(contains(done.out, "\ncheckpoint: "));
    CHECK(contains(done.out, "  workspace "));
    CHECK(contains(done.out, "fits; the largest --batch-size that would: "));
    CHECK(contains(done.out, "\nstep, predicted for H200: "));
    CHECK(contains(done.out, "32000 steps, 33.55 G tokens"));
    CHECK(contains(done.out, "assumed, H200: --memory-gb 141"));
    CHECK(contains(done.out, "--price 2 USD per hour"));
    CHECK(contains(done.out, "Nothing here is measured"));
    CHECK(contains(done.out, "launch, in a step"));
    CHECK(contains(done.out, "reduce_scatter "));
    CHECK(!contains(done.out, "symmetric_matmul "));  // GEMMs of the library are faster on Hopper
    const std::string json = read_file(file);
    CHECK(contains(json, "\"traceEvents\""));
    CHECK(contains(json, "\"name\":\"all_gather\""));
    CHECK(contains(json, "\"launches_per_micro_batch\":"));
    const Finished nowhere = run(command + " --trace " + scratch.path + "/no/such/step.json");
    CHECK(nowhere.exit_code == 2);
    const Finished old = run(program("train_gpt") + " plan --mfu 0.5");
    CHECK(old.exit_code == 2);
    CHECK(contains(old.err, "--mfu is now predicted by ./train_gpt plan itself"));
}

TEST_CASE("plan: benchmarks of a card replace the model's constants", "[plan]") {
    // Made for this test: half the bandwidth of the H100 that the model knows.
    const ScratchFolder scratch;
    const std::string file = scratch / "results.jsonl";
    write_file_atomically(
        file,
        R"({"type": "bench", "what": "gelu_forward", "shape": "124M", "device": "NVIDIA H100 made up", "dtype": "bf16", )"
        R"("bound": "memory", "median_ms": 1, "bytes": 1.26e9, "flops": 1e9, "peak": 1.5e12})"
        "\n");
    const RunFlags config = config_of("gpt2-124M", 8, 0);
    const auto plans = [&](const std::string& gpus, const std::string& calibrated) {
        return plan_runs(config, {.gpu = gpus, .calibrate = calibrated}, config.model.shape(0));
    };
    const RunPlan before = plans("H100", "")[0], after = plans("H100", file)[0];
    for (const int i : {0, 1, 2}) CHECK(after.times[i].step_s > 1.1 * before.times[i].step_s);
    CHECK(after.memory.total_bytes() == before.memory.total_bytes());
    CHECK(contains(text_of(before), "Nothing here is measured"));
    CHECK(contains(text_of(after), "rates measured on NVIDIA H100 made up"));
    CHECK(contains(facts_json(after), "\"measured_ms\":1.0"));
    CHECK_FALSE(contains(facts_json(before), "calibration"));
    CHECK(contains(error_of([&] { plans("H100,4090", file); }), "which is no 4090"));
    const Finished done = run(program("train_gpt") + " plan --model gpt2-124M --train-data no --calibrate " + file);
    INFO(done.out << done.err);
    CHECK(done.exit_code == 0);
    CHECK(contains(done.out, "calibrated by 1 rows of " + file));
    const Finished wrong = run(program("train_gpt") + " plan --model gpt2-124M --gpu B200 --calibrate " + file);
    CHECK(wrong.exit_code == 2);
    CHECK(std::count(wrong.err.begin(), wrong.err.end(), '\n') == 1);
}

TEST_CASE("plan: the vocabulary is that of the data's tokenizer, where there is one", "[plan]") {
    const ScratchFolder scratch;
    RunFlags config;
    config.train_data = scratch / "train_*.bin";
    CHECK(planned_vocab_size(config) == 0);
    CHECK(contains(error_of([&] { config.model.shape(planned_vocab_size(config)); }),
                   "no tokenizer.json beside the data (--train-data) gives the vocabulary's size: give --vocab-size"));
    save_tokenizer(byte_tokenizer(), scratch / "tokenizer.json");
    CHECK(planned_vocab_size(config) == 256);
    CHECK(config.model.shape(planned_vocab_size(config)).vocab_size == 256);
    config.tokenizer = scratch / "other.json";
    CHECK(planned_vocab_size(config) == 0);
    // With --depth the figures are nanochat's, unless data that were named say otherwise.
    config.tokenizer.clear();
    config.model.depth = 12;
    CHECK(planned_vocab_size(config) == 32768);  // tiny Shakespeare, the default, is not what anybody plans for
    config.sources["train-data"] = "the command line";
    CHECK(planned_vocab_size(config) == 256);
    std::filesystem::remove(scratch / "tokenizer.json");
    CHECK(planned_vocab_size(config) == 32768);
}

TEST_CASE("a preset's micro-batch is the largest that fits, if a step's tokens are given", "[plan]") {
    RunFlags flags;
    flags.model.model = "gpt2-124M";
    const GptShape shape = flags.model.shape(0);
    const auto micro_batch = [&](int64_t total, int64_t most, const char* model) {
        flags.total_batch_size = total, flags.model.model = model;
        const Decision decision = decide(flags, shape, 1, [&](const StepConfig& step) { return step.B <= most; });
        return *decision.flags.batch_size;
    };
    CHECK(micro_batch(524288, 64, "gpt2-124M") == 64);  // 12 divides no power of two
    CHECK(micro_batch(524288, 63, "gpt2-124M") == 32);
    CHECK(micro_batch(0, 64, "gpt2-124M") == 12);
    CHECK(micro_batch(491520, 64, "custom") == 12);
    flags.batch_size = 8;
    CHECK(micro_batch(524288, 64, "gpt2-124M") == 8);
    const Finished plan = run(program("train_gpt") + " plan --depth 12 --gpu H100");
    CHECK(contains(plan.out, "model: 286"));
    CHECK(contains(plan.out,
                   "vocabulary: 32768, as nanochat's; --train-data, --tokenizer or --vocab-size plan for another\n"));
    const Finished on_cpu = run(program("train_gpt") + " plan --model gpt2-124M --device cpu");
    CHECK(on_cpu.exit_code == 0);
    CHECK(contains(on_cpu.err, "warning: `plan` is for GPUs, and these are the figures of --gpu H100"));
    CHECK(run(program("train_gpt") + " plan --model gpt2-124M --total-batch-size 524288").exit_code == 0);
    // A plan, without the default data, and where these have a tokenizer and a run its checkpoint: nobody named them.
    const ScratchFolder nowhere;
    for (const bool has_data : {false, true}) {
        if (has_data)
            CHECK(run(program("data/tokenize") + " --stories 200000 --tokenizer char --out " + nowhere.path +
                      "/data/tinyshakespeare && mkdir -p " + nowhere.path + "/run/default/step_00000001")
                      .exit_code == 0);
        const Finished dry = run("d=$(realpath " + program("train_gpt") + ") && cd " + nowhere.path +
                                 " && $d train --depth 2 --dry-run --device cpu --dtype fp32");
        INFO(dry.err);
        CHECK(dry.exit_code == 0);
        CHECK(contains(dry.out, "vocabulary: 32768, as nanochat's"));
        CHECK(contains(dry.out, "depth: 2 layers\n"));
    }
}
