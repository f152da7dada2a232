// Scaling by depth: every number of nanochat's models of depth 4 to 32, as published or worked out by hand, and what is
// refused.
#include "llmc/run/scaling.h"
#include <map>
#include "llmc/model/parameters.h"  // ParameterList
#include "test/testing.h"

namespace {

// `want` is a published value with this number of decimals.
void check_printed(double got, double want, int digits) {
    INFO("got " << got << ", printed " << want);
    CHECK(std::fabs(got - want) <= 0.5001 * std::pow(10, -digits));
}

// One sequence per micro-batch: any batch divides.
DepthConfig of_depth(int64_t depth) { return {.depth = depth, .batch_size = 1}; }

std::string refused(const std::function<void(DepthConfig&)>& change) {
    DepthConfig config;
    change(config);
    return error_of([&] { depth_run(config); });
}

}  // namespace

TEST_CASE("depth scaling: shapes, parameters and hyperparameters of nanochat's depths", "[depth_scaling]") {
    struct Row {
        int64_t depth, channels, heads;
        double total, matrices;  // millions; matrices and gates
        int matrix_digits;
        double table, value_embeddings, scaling_parameters;
        int log2_batch;
        double by_batch, by_width;
        int width_digits;
        double weight_decay;
        int decay_digits;
        int64_t steps;
        double flops;  // units of the last digit's power
        double flops_unit;
    };
    // Of depth 16, 6 x 234881792 + 12 x 1024 x 14336 = 1585451520 FLOPs per token.
    for (const Row& r : {
             Row{4, 256, 2, 36.70, 3.15, 2, 8.39, 16.8, 11.53, 18, .7071, 1.732, 3, 1.890, 3, 528, 8.02, 1e7},
             Row{8, 512, 4, 125.83, 25.17, 2, 16.8, 67.1, 41.94, 18, .7071, 1.225, 3, .5197, 4, 1920, 29.57, 1e7},
             Row{12, 768, 6, 286.26, 84.94, 2, 25.2, 151.0, 110.10, 19, 1, 1, 4, .2800, 4, 2520, 75.97, 1e7},
             Row{16, 1024, 8, 536.87, 201.3, 1, 33.6, 268.4, 234.88, 19, 1, .866, 3, .1313, 4, 5376, 15.85, 1e8},
             Row{20, 1280, 10, 896.53, 393.2, 1, 41.9, 419.4, 435.16, 20, 1.4142, .7746, 4, .1002, 4, 4980, 28.86, 1e8},
             Row{24, 1536, 12, 1384.12, 679.5, 1, 50.3, 604.0, 729.81, 20, 1.4142, .7071, 4, .0597, 4, 8352, 47.75,
                 1e8},
             Row{26, 1664, 13, 1681.79, 863.9, 1, 54.5, 708.8, 918.42, 20, 1.4142, .6794, 4, .0475, 4, 10510, 59.91,
                 1e8},
             Row{32, 2048, 16, 2818.58, 1610.6, 1, 67.1, 1073.7, 1677.7, 21, 2, .6124, 4, .0368, 4, 9600, 10.77, 1e9},
         }) {
        INFO("depth " << r.depth);
        const DepthRun run = depth_run(of_depth(r.depth));
        const DepthModel& m = run.model;
        CHECK((m.channels == r.channels && m.num_heads == r.heads && m.num_kv_heads == r.heads));
        CHECK(m.head_size == 128);
        check_printed(double(m.num_parameters) / 1e6, r.total, 2);
        check_printed(double(m.matrices + m.gates) / 1e6, r.matrices, r.matrix_digits);
        check_printed(double(m.embedding) / 1e6, r.table, r.depth == 4 ? 2 : 1);
        CHECK(m.head == m.embedding);
        check_printed(double(m.value_embeddings) / 1e6, r.value_embeddings, 1);
        check_printed(double(m.scaling_parameters) / 1e6, r.scaling_parameters, r.depth == 32 ? 1 : 2);
        CHECK(run.batch == int64_t(1) << r.log2_batch);
        check_printed(run.scaling.learning_rate(), r.by_batch, 4);
        check_printed(run.scaling.width(), r.by_width, r.width_digits);
        check_printed(run.weight_decay, r.weight_decay, r.decay_digits);
        CHECK(run.steps == r.steps);
        CHECK(run.accumulation == run.batch / 2048);
        check_printed(m.flops_per_token / r.flops_unit, r.flops, 2);
    }
}

TEST_CASE("depth scaling: figures that are known to more digits", "[depth_scaling]") {
    CHECK(depth_model(of_depth(12)).num_parameters == 286261730);
    check_printed(depth_model(of_depth(12)).flops_per_token / 1e8, 7.5970, 4);
    check_printed(depth_model(of_depth(24)).flops_per_token / 1e9, 4.7752, 4);
    DepthConfig full = of_depth(12);
    full.window_pattern = "L";
    check_printed(depth_model(full).flops_per_token / 1e8, 8.8710, 4);
    CHECK(depth_run(of_depth(12)).batch == 524288);
    check_printed(depth_run(of_depth(24)).scaling.learning_rate(), 1.41421, 5);

    // The speedrun's: ratio 8, eight GPUs of 16 sequences. Batch and weight decay do not depend on the ratio.
    const DepthConfig speedrun{.depth = 24, .param_data_ratio = 8, .batch_size = 16, .world_size = 8};
    const DepthRun run = depth_run(speedrun);
    CHECK((run.steps == 5568 && run.batch == 1 << 20 && run.accumulation == 4));
    check_printed(run.weight_decay, 0.0597, 4);

    // An odd depth is rounded up to a whole head, and value embeddings end with the last layer.
    const DepthModel odd = depth_model(of_depth(5));
    CHECK((odd.channels == 384 && odd.num_heads == 3));
    CHECK(odd.value_embedding_layers == std::vector<bool>{true, false, true, false, true});
    CHECK(depth_model(of_depth(4)).value_embedding_layers == std::vector<bool>{false, true, false, true});
    CHECK(depth_model(of_depth(1)).value_embedding_layers == std::vector<bool>{true});

    // Keys and values of fewer heads: of 12 C^2 a layer 2 C x 128 x 4 are missing.
    DepthConfig grouped = of_depth(12);
    grouped.num_kv_heads = 2;
    const DepthModel few = depth_model(grouped), all = depth_model(of_depth(12));
    CHECK(all.matrices - few.matrices == 12 * 2 * 768 * 128 * 4);
    CHECK(few.value_embeddings * 3 == all.value_embeddings);
    CHECK(depth_run(grouped).scaling.reference_tokens == depth_run(of_depth(12)).scaling.reference_tokens);
    CHECK((few.gates == 6 * 2 * 12 && all.gates == 6 * 6 * 12 && few.scalars == 2 * 12 + 24 + 1 + 1));
    CHECK(all.flops_per_token - few.flops_per_token == 6 * double(all.scaling_parameters - few.scaling_parameters));
}

TEST_CASE("depth scaling: what ends the run, and what that leaves alone", "[depth_scaling]") {
    const DepthRun plain = depth_run(of_depth(8));
    DepthConfig config = of_depth(8);
    config.steps = 77;
    CHECK(depth_run(config).steps == 77);
    CHECK((depth_run(config).batch == plain.batch && depth_run(config).weight_decay == plain.weight_decay));
    config.steps = 0, config.target_flops = plain.model.flops_per_token * double(plain.batch) * 10.6;
    CHECK(depth_run(config).steps == 11);
    CHECK((depth_run(config).batch == plain.batch && depth_run(config).weight_decay == plain.weight_decay));
    config.target_flops = 0, config.param_data_ratio = 24;
    CHECK(depth_run(config).steps == 2 * plain.steps);
    CHECK(depth_run(config).batch == plain.batch);
    config.param_data_ratio = 12, config.total_batch_size = 1 << 17;
    const DepthRun asked = depth_run(config);
    CHECK((asked.batch == 1 << 17 && asked.steps == 2 * plain.steps));
    CHECK(asked.scaling.learning_rate() == 0.5);
    CHECK(asked.weight_decay == Approx(plain.weight_decay * std::sqrt(0.5)));
    config.weight_decay = 0.56;
    CHECK(depth_run(config).weight_decay == Approx(2 * asked.weight_decay));
}

TEST_CASE("depth scaling: windows", "[depth_scaling]") {
    using Windows = std::vector<int64_t>;
    const auto windows = [](const char* pattern, int64_t depth, int64_t seq_len) {
        return depth_model({.depth = depth, .seq_len = seq_len, .window_pattern = pattern}).windows;
    };
    CHECK(windows("SSSL", 6, 2048) == Windows{512, 512, 512, -1, 512, -1});
    CHECK(windows("SSSL", 4, 1024) == Windows{256, 256, 256, -1});
    CHECK(windows("S", 3, 512) == Windows{128, 128, -1});
    CHECK(windows("L", 2, 2048) == Windows{-1, -1});
    CHECK(windows("LS", 4, 2052) == Windows{-1, 640, -1, -1});  // a quarter is 513
    CHECK(windows("LS", 4, 2049) == Windows{-1, 640, -1, -1});  // 512.25
    CHECK(windows("S", 2, 129) == Windows{128, -1});
    CHECK(windows("S", 2, 128) == Windows{-1, -1});  // it reaches over all there is
    CHECK(windows("S", 1, 4096) == Windows{-1});
    CHECK(
        contains(refused([](DepthConfig& d) { d.window_pattern = ""; }), "2: window-pattern is empty: give letters L"));
    CHECK(contains(refused([](DepthConfig& d) { d.window_pattern = "SXL"; }),
                   "2: window-pattern = SXL: letter X is neither L (all tokens) nor S"));
}

TEST_CASE("depth scaling: the model that is trained has the same parameters", "[depth_scaling]") {
    for (const int64_t depth : {1, 4, 5, 12, 13}) {
        for (const int64_t kv_heads : {0, 1}) {
            INFO("depth " << depth << ", kv_heads " << kv_heads);
            const DepthModel m = depth_model({.depth = depth, .num_kv_heads = kv_heads, .vocab_size = 32000});
            const GptShape shape{.num_layers = depth,
                                 .num_heads = m.num_heads,
                                 .channels = m.channels,
                                 .max_seq_len = m.seq_len,
                                 .vocab_size = m.vocab_size,
                                 .num_kv_heads = kv_heads,
                                 .architecture = find_architecture("nanochat")};
            const ParameterList list(shape);
            CHECK(list.num_parameters == m.num_parameters);
            std::map<ParameterGroup, int64_t> of_group;
            for (const Parameter& p : list) of_group[p.group] += p.exported_rows * (p.size() / p.shape[0]);
            using enum ParameterGroup;
            CHECK(of_group[matrices] == m.matrices + m.gates);
            CHECK((of_group[embedding] == m.embedding && of_group[head] == m.head));
            CHECK(of_group[value_embeddings] == m.value_embeddings);
            CHECK(of_group[resid_lambdas] + of_group[x0_lambdas] + of_group[smear] == m.scalars);
            CHECK(layer_windows(shape.architecture, depth, m.seq_len) == m.windows);
            for (int64_t layer = 0; layer < depth; layer++)
                CHECK(shape.has_value_embedding(layer) == m.value_embedding_layers[size_t(layer)]);
        }
    }
}

TEST_CASE("depth scaling: what it refuses, and what would work", "[depth_scaling]") {
    CHECK(contains(refused([](DepthConfig& d) { d.depth = 0; }), "2: --depth 0: a model has at least 1 layer"));
    CHECK(contains(refused([](DepthConfig& d) { d.aspect_ratio = 0; }), "2: aspect-ratio = 0: "));
    CHECK(contains(refused([](DepthConfig& d) { d.seq_len = 1; }), "2: --seq-len 1: "));
    CHECK(contains(refused([](DepthConfig& d) { d.vocab_size = 0; }), "2: --vocab-size 0: "));
    CHECK(contains(refused([](DepthConfig& d) { d.head_size = 100; }),
                   "2: head-size = 100: the kernels take multiples of 16 up to 256: the nearest is 96"));
    CHECK(contains(refused([](DepthConfig& d) { d.head_size = 0; }), "the nearest is 16"));
    CHECK(contains(refused([](DepthConfig& d) { d.head_size = 512; }), "the nearest is 256"));

    const auto narrow = [](DepthConfig& d) { d.depth = 2, d.aspect_ratio = 4, d.head_size = 16, d.batch_size = 1; };
    CHECK(refused(narrow) == "2: --depth 2 makes 16 channels, and gates read 24: the nearest that works is 5");
    for (const int64_t depth : {4, 5}) {
        DepthConfig config;
        narrow(config), config.depth = depth;
        CHECK((error_of([&] { depth_model(config); }) == "") == (depth == 5));
    }
    CHECK(contains(refused([](DepthConfig& d) { d.num_kv_heads = 4; }),
                   "2: --num-kv-heads 4 does not divide the 10 heads of --depth 20; nearest: 2 and 5"));
    CHECK(contains(refused([](DepthConfig& d) { d.num_kv_heads = 11; }), "nearest: 10"));
    CHECK(contains(refused([](DepthConfig& d) { d.num_kv_heads = -1; }), "--num-kv-heads -1 does not divide"));

    // A ratio that gives no step: 12 times as many parameters as this are a step.
    DepthConfig small = of_depth(4);
    small.param_data_ratio = 0.5, small.total_batch_size = 1 << 24;
    CHECK(
        error_of([&] { depth_run(small); }) ==
        "2: --target-param-data-ratio 0.5: 5767192 tokens are less than a step of 16777216: the nearest that works is "
        "1.455");
    small.param_data_ratio = 1.455;
    CHECK(depth_run(small).steps == 1);
    small.param_data_ratio = 1.454;
    CHECK(contains(error_of([&] { depth_run(small); }), "the nearest that works is 1.455"));
    CHECK(contains(refused([](DepthConfig& d) { d.param_data_ratio = 0; }), "2: --target-param-data-ratio 0: "));
    CHECK(contains(refused([](DepthConfig& d) { d.param_data_ratio = 1e-12; }), "leaves no token"));
    CHECK(contains(refused([](DepthConfig& d) { d.target_flops = 1e12; }),
                   "2: --target-flops 1e+12 is less than half a step: the nearest that works is 3.026e+15"));
    CHECK(contains(refused([](DepthConfig& d) { d.target_flops = 1e20, d.steps = 5; }), "both end the run: give one"));
    CHECK(contains(refused([](DepthConfig& d) { d.steps = -1; }), "none may be negative"));
    CHECK(contains(refused([](DepthConfig& d) { d.batch_size = 0; }), "none may be negative"));

    CHECK(contains(refused([](DepthConfig& d) { d.batch_size = 48; }),
                   "2: --batch-size 48 does not divide the 512 sequences that each of 1 ranks has in a step of 1048576 "
                   "tokens; nearest: 32 and 64"));
    CHECK(contains(refused([](DepthConfig& d) { d.batch_size = 600; }), "nearest: 512"));
    CHECK(contains(refused([](DepthConfig& d) { d.world_size = 3; }),
                   "2: a step of 1048576 tokens is no whole number of sequences of --seq-len 2048 for each of 3 ranks: "
                   "the nearest --total-batch-size is 1050624"));
    CHECK(error_of([] { depth_run({.total_batch_size = 1050624, .batch_size = 1, .world_size = 3}); }) == "");
}

TEST_CASE("depth scaling: each number with its formula", "[depth_scaling]") {
    const std::string text = text_of(depth_run({.depth = 12, .batch_size = 16, .world_size = 8}));
    INFO(text);
    for (const char* line : {"depth: 12 layers\n",
                             "channels: C = 768, depth x aspect ratio up to a multiple of the head size 128\n",
                             "heads: 6 = C / 128, with 6 key and value heads\n",
                             "windows: 9 layers of the last 512 tokens, 3 of all 2048\n",
                             "value embeddings: in 6 layers, every second one and the last\n",
                             "matrices: 84934656 parameters = 12 (10 C^2 + 2 C x 768)\n",
                             "gates: 432 = 6 x 6 x 12\n",
                             "embedding and head: 25165824 each = V C, V = 32768\n",
                             "value embeddings: 150994944 = 6 V x 768\n",
                             "scalars: 50 = 2 x 12 + 24 + 2\n",
                             "parameters: 286261730 in all\n",
                             "N: 110100912 = matrices + gates + head\n",
                             "FLOPs per token: 7.597e+08 = 6 N + 12 C x the keys of all layers (nanochat's count, for "
                             "--target-flops; all other figures count the keys that causal attention sees)\n",
                             "D: 1321210944 tokens = 12 N; D_ref = 1321210944, of depth 12\n",
                             "batch: B = 524288 tokens per step = 2^round(log2(524288 (D / D_ref)^0.383))\n",
                             "learning rates: x 1 = sqrt(B / 524288)\n",
                             "learning rates of embeddings and head: also x 1 = sqrt(768 / C)\n",
                             "weight decay: 0.28, x 1 = sqrt(B / 524288) D_ref / D\n",
                             "steps: 2520 = D / B, rounded down\n",
                             "micro-batches: 2 a step = B / (16 sequences x 2048 tokens x 8 ranks)\n"})
        CHECK(contains(text, line));
    const std::string flops =
        text_of(depth_run({.depth = 4, .window_pattern = "L", .target_flops = 1e17, .batch_size = 1}));
    INFO(flops);
    CHECK(contains(flops, "windows: all 4 layers see all 2048 tokens\n"));
    CHECK(contains(flops, "steps: 4"));
    CHECK(contains(flops, " = round(1e+17 / (FLOPs per token x B))\n"));
    const std::string asked = text_of(depth_run({.depth = 4, .steps = 9, .total_batch_size = 4096, .batch_size = 2}));
    CHECK(contains(asked, "batch: B = 4096 tokens per step, as asked\n"));
    CHECK(contains(asked, "steps: 9, as asked\n"));
}
