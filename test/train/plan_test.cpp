// What `plan` says, against values worked out by hand.
#include "llmc/train/plan.h"
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

static RunPlan planned(const RunFlags& config, int world_size, const PlanOptions& options = {}) {
    return plan_run(config, options, config.model.shape(0), world_size);
}

// GPT-2 124M: C = 768, 12 layers, V = 50257, Vp = 50304, T = 1024. Over 8 ranks each layer has 12 C^2 + 13 C = 7087872
// elements, an eighth of which is 32 short of a multiple of 64; the first bucket has 2 C more, and the same padding.
static constexpr double kElements124M = 12 * 7087872.0 + 2 * 768 + (50304 + 1024) * 768.0, kPadding124M = 12 * 256;
// Matrices and the tied head; attention, 6 C T a layer and token.
static constexpr double kFlops124M = 6 * (12 * 12 * 768.0 * 768 + 50257.0 * 768) + 6 * 12 * 768.0 * 1024;

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
    CHECK(plan.gradients_s == Approx(1.24479e-3).epsilon(1e-4));
    CHECK(plan.weights_s == Approx(0.622395e-3).epsilon(1e-4));
    CHECK(plan.last_bucket_s == Approx(39419904 * 4 * 7.0 / 8 / 350e9));
    CHECK(plan.flops_per_token == Approx(kFlops124M));
    CHECK(plan.flops == Approx(kFlops124M * 524288));
    // All are of one server: two moments and the master of every element, and the weights once.
    CHECK(plan.checkpoint_bytes == 12 * kElements124M + 2 * 124439808);
    CHECK(plan.host_bytes == 12 * kElements124M + 2 * elements);
    CHECK(plan.compute_s == Approx(kFlops124M * 65536 / (989e12 * 0.45)));
    // AdamW: two moments and the master of an eighth, read and written; gradients and weights of it.
    CHECK(plan.update_s == Approx(elements / 8 * (2 * 12 + 6) / 2.85e12));
    // 117 ms of compute hide everything but the last bucket.
    CHECK(plan.exposed_s == plan.last_bucket_s);
    CHECK(plan.step_s == Approx(plan.compute_s + plan.update_s + plan.exposed_s));
    CHECK(plan.tokens == 20000.0 * 524288);
    CHECK(plan.run_s == Approx(20000 * plan.step_s));
    CHECK(plan.usd == Approx(20000 * plan.step_s / 3600 * 8 * 3));
}

TEST_CASE("plan: memory is what the run will take", "[plan]") {
    for (const bool muon : {false, true})
        for (const int world : {1, 6}) {
            INFO("muon " << muon << " on " << world);
            RunFlags config = config_of("gpt2-355M", 4, 0);
            config.optimizer = muon ? "muon" : "adamw", config.recompute = "norms", config.grad_comm = "bf16";
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
            if (world > 1) CHECK(plan.sent_gradient_bytes == plan.sent_weight_bytes);
            if (world == 1) CHECK(plan.sent_gradient_bytes + plan.exposed_s == 0);
            // The largest batches that fit, and no larger ones.
            for (const char* recompute : {"none", "norms", "block"}) {
                config.recompute = recompute;
                const int largest = int(plan.largest_batches[int(config.recompute_mode())]);
                config.batch_size = largest;
                INFO(recompute << " " << largest);
                CHECK(double(planned(config, world).memory.total_bytes()) <= 80e9);
                config.batch_size = largest + 1;
                CHECK(double(planned(config, world).memory.total_bytes()) > 80e9);
            }
        }
}

TEST_CASE("plan: Newton-Schulz is part of an update", "[plan]") {
    RunFlags config = config_of("gpt2-124M", 64, 0);
    config.optimizer = "muon";
    const RunPlan plan = planned(config, 4);
    // A rank has 6 halves of a layer: 5 iterations of 30 C^3; 36 C^2 elements with two floats of state, and three for a
    // quarter of the rest.
    const double C = 768, rest = (kElements124M - 144 * C * C) / 4;
    const double bytes = 2 * 4 * (2 * 36 * C * C + 3 * rest) + 6 * (36 * C * C + rest);
    CHECK(plan.update_s == Approx(bytes / 2.85e12 + 6 * 5 * 30 * C * C * C / (989e12 * 0.45)).epsilon(1e-4));
}

TEST_CASE("plan: a slow network shows", "[plan]") {
    RunFlags config = config_of("gpt2-124M", 8, 8 * 1024 * 16 * 2);
    PlanOptions options{.tflops = 500, .mfu = 0.5, .network = 1, .usd_per_hour = 10};
    const RunPlan plan = planned(config, 16, options);
    CHECK(plan.bandwidth == 8e9);  // of 8 cards
    CHECK(plan.config.step.accumulation == 2);
    const double micro_batch_s = kFlops124M * 8 * 1024 / 250e12;
    CHECK(plan.compute_s == Approx(2 * micro_batch_s));
    const double size = double(plan.sharding.buffer_size);
    const double gradients_s = size * 4 * 15 / 16 / 8e9, weights_s = size * 2 * 15 / 16 / 8e9;
    const double last_s = 39419904 * 4 * 15.0 / 16 / 8e9;
    CHECK(plan.exposed_s ==
          Approx(last_s + (gradients_s - last_s - micro_batch_s * 2 / 3) + (weights_s - micro_batch_s / 3)));
    CHECK(plan.usd == Approx(plan.run_s / 3600 * 16 * 10));
    // Inside a server the network does not matter; over two it is not faster than a server is inside.
    config.total_batch_size = 0;
    CHECK(planned(config, 8, options).bandwidth == 350e9);
    options.network = 100;
    CHECK(planned(config, 16, options).bandwidth == 350e9);
    options.bandwidth = 20;
    CHECK(planned(config, 16, options).bandwidth == 20e9);
    // Recomputing blocks is a forward pass more.
    const double before = planned(config, 16, options).compute_s;
    config.recompute = "block";
    CHECK(planned(config, 16, options).compute_s == Approx(before * 4 / 3));
}

TEST_CASE("plan: a server holds its own ranks' part of a checkpoint", "[plan]") {
    RunFlags config = config_of("gpt2-124M", 8, 0);
    const RunPlan plan = planned(config, 32);
    CHECK(plan.checkpoint_bytes == 12 * kElements124M + 2 * 124439808);
    const double shares = 12 * kElements124M / 4;  // of 8 ranks; padding is the last one's
    CHECK(plan.host_bytes == Approx(shares + 2 * double(plan.sharding.buffer_size)).epsilon(1e-4));
}

TEST_CASE("plan: every GPU, and what replaces its figures", "[plan]") {
    for (const PlannedGpu& gpu : kPlannedGpus) {
        const PlannedGpu found = planned_gpu({.gpu = gpu.name});
        CHECK(found.tflops == gpu.tflops);
        CHECK((gpu.mfu > 0 && gpu.mfu < 1));
    }
    const PlannedGpu own = planned_gpu(
        {.gpu = "B200", .memory_gb = 1, .tflops = 2, .mfu = 0.3, .bandwidth = 4, .network = 5, .usd_per_hour = 6});
    CHECK((own.memory_gb == 1 && own.tflops == 2 && own.mfu == 0.3));
    CHECK((own.bandwidth == 4 && own.network == 5 && own.usd_per_hour == 6));
    RunFlags config = config_of("gpt2-124M", 1, 0);
    config.dtype = "fp32";
    CHECK(contains(error_of([&] { planned(config, 1); }), "2: `plan` assumes --dtype bf16"));
}

TEST_CASE("plan: the program prints it without data and without a GPU", "[plan]") {
    const Finished done = run(program("train_gpt") +
                              " plan --world-size 64 --model gpt2-1558M --optimizer muon --batch-size 16 "
                              "--total-batch-size 1048576 --steps 32000 --gpu H200 --price 2 --train-data no");
    INFO(done.out << done.err);
    CHECK(done.exit_code == 0);
    CHECK(contains(done.out, "model: 1.558 G parameters: 48 layers, 25 heads, 1600 channels"));
    CHECK(contains(done.out, "16 sequences x 1024 tokens x 1 micro-batch x 64 ranks = 1048576 tokens per step"));
    CHECK(contains(done.out, "sharding over 64 ranks"));
    CHECK(contains(done.out, " GFLOP per token, forward and backward\n"));
    CHECK(contains(done.out, "\ncheckpoint: "));
    CHECK_FALSE(contains(done.out, "  workspace "));  // a GPU's is not known without it
    CHECK(contains(done.out, "fits; the largest --batch-size that would: "));
    CHECK(contains(done.out, "32000 steps, 33.55 G tokens"));
    CHECK(contains(done.out, "assumed, H200: --memory 141 GB, --tflops 989, --mfu 0.47"));
    CHECK(contains(done.out, "--price 2 USD per hour"));
}

TEST_CASE("plan: the vocabulary is that of the data's tokenizer, where there is one", "[plan]") {
    const ScratchFolder scratch;
    RunFlags config;
    config.train_data = scratch / "train_*.bin";
    config.model.depth = 12;
    CHECK(planned_vocab_size(config) == 0);
    CHECK(contains(error_of([&] { config.model.shape(planned_vocab_size(config)); }),
                   "no tokenizer.json beside the data (--train-data) gives the vocabulary's size: give --vocab-size"));
    save_tokenizer(byte_tokenizer(), scratch / "tokenizer.json");
    CHECK(planned_vocab_size(config) == 256);
    CHECK(config.model.shape(planned_vocab_size(config)).vocab_size == 256);
    config.tokenizer = scratch / "other.json";
    CHECK(planned_vocab_size(config) == 0);
}
