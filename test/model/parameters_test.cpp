// The list of parameters: their number at each depth of nanochat, and their initialization.
#include "llmc/model/parameters.h"
#include <map>
#include "llmc/cpu/kernels.h"
#include "llmc/model/gpt.h"
#include "llmc/run/scaling.h"  // depth_model
#include "test/testing.h"

namespace {

GptShape of_depth(int depth, int vocab_size = 32768) {
    ModelConfig config;
    config.depth = depth, config.vocab_size = vocab_size;
    return config.shape(0);
}

GptShape small_model(const char* architecture) {
    GptShape shape{4, 2, 64, 16, 3001, 1};
    shape.architecture = find_architecture(architecture);
    return shape;
}

bool ends_with(const std::string& name, const std::string& end) { return name.ends_with(end); }

// Of n values at random: their mean is within 5 deviations of what it should be, and so is their deviation, whose own
// one is at most sqrt(1 / (2 n)) of it (a normal distribution's; a uniform one's is less).
void check_statistics(const Floats& values, double mean, double deviation) {
    const auto n = double(values.size());
    double sum = 0, squares = 0;
    for (const float x : values) sum += x;
    for (const float x : values) squares += (x - sum / n) * (x - sum / n);
    CHECK(std::fabs(sum / n - mean) <= 5 * deviation / std::sqrt(n));
    CHECK(std::fabs(std::sqrt(squares / n) / deviation - 1) <= 5 / std::sqrt(2 * n));
}

}  // namespace

TEST_CASE("nanochat's models have the published number of parameters at each depth", "[parameters]") {
    struct Row {
        int depth;
        int64_t total, matrices, gates;  // worked out by hand: 12 C^2 d; 12 ceil(d / 2) NKV
    };
    for (const Row& row :
         {Row{1, 12779560, 196608, 12}, Row{3, 35913808, 2359296, 48}, Row{4, 36700242, 3145728, 48},
          Row{8, 125829354, 25165824, 192}, Row{12, 286261730, 84934656, 432}, Row{20, 896533746, 393216000, 1200},
          Row{24, 1384122122, 679477248, 1728}, Row{32, 2818575450, 1610612736, 3072}}) {
        INFO("depth " << row.depth);
        const GptShape shape = of_depth(row.depth);
        const ParameterList list(shape);
        CHECK(list.num_parameters == row.total);
        std::map<ParameterGroup, int64_t> of_group;
        int64_t gates = 0;
        for (const Parameter& p : list) {
            of_group[p.group] += p.exported_rows * p.size() / p.shape[0];
            if (ends_with(p.name, "ve_gate.weight")) gates += p.size();
        }
        using enum ParameterGroup;
        CHECK(gates == row.gates);
        CHECK(of_group[matrices] == row.matrices + row.gates);

        const DepthModel derived = depth_model({.depth = row.depth});
        CHECK(derived.num_parameters == list.num_parameters);
        CHECK((derived.matrices == row.matrices && derived.gates == gates));
        CHECK((derived.embedding == of_group[embedding] && derived.head == of_group[head]));
        CHECK(derived.value_embeddings == of_group[value_embeddings]);
        CHECK(derived.scalars == of_group[resid_lambdas] + of_group[x0_lambdas] + of_group[smear]);
        CHECK(derived.windows == layer_windows(shape.architecture, shape.num_layers, shape.max_seq_len));
        for (int64_t l = 0; l < shape.num_layers; l++)
            CHECK(derived.value_embedding_layers[size_t(l)] == shape.has_value_embedding(l));
    }
}

TEST_CASE("a vocabulary that is padded counts without its padding", "[parameters]") {
    for (const int vocab_size : {32767, 32640 + 1}) {
        const GptShape shape = of_depth(4, vocab_size);
        CHECK(shape.padded_vocab_size() == 32768);
        CHECK(ParameterList(shape).num_parameters == 36700242 - (32768 - vocab_size) * int64_t(256) * 4);
    }
}

TEST_CASE("weights of every architecture begin with their mean, deviation and range", "[parameters]") {
    enum Kind { constant, normal, uniform, ramp };
    struct Rule {
        std::string end;  // of the name; the first that fits
        Kind kind;
        double a, b = 0;  // the constant; the deviation; least and most; first and last
    };
    // C = 64 inputs, or 256 of the MLP's projection; L = 4.
    const double C = 64, nano = std::sqrt(3 / C), llama = 0.02, into_stream = 0.02 / std::sqrt(8.);
    const std::map<std::string, std::vector<Rule>> all = {
        {"gpt2",
         {{"ln_1.weight", constant, 1},
          {"ln_2.weight", constant, 1},
          {"ln_f.weight", constant, 1},
          {"bias", constant, 0},
          {"c_proj.weight", normal, into_stream},
          {"", normal, 0.02}}},
        {"llama",
         {{"ln_1.weight", constant, 1},
          {"ln_2.weight", constant, 1},
          {"ln_f.weight", constant, 1},
          {"c_proj.weight", normal, into_stream},
          {"", normal, llama}}},
        {"stage-a",
         {{"ln_1.weight", constant, 1},
          {"ln_2.weight", constant, 1},
          {"ln_f.weight", constant, 1},
          {"bias", constant, 0},
          {"c_proj.weight", constant, 0},
          {"lm_head.weight", constant, 0},
          {"wte.weight", normal, 1},
          {"", normal, std::sqrt(0.33 / C)}}},
        {"nanochat",
         {{"smear_gate.weight", uniform, 0, 0.02},
          {"ve_gate.weight", uniform, 0, 0.02},
          {"resid_lambdas", ramp, 1.15, 1.05},
          {"x0_lambdas", ramp, 0.2, 0.05},
          {"smear_lambda", constant, 0},
          {"backout_lambda", constant, 0.2},
          {"c_proj.weight", constant, 0},
          {"lm_head.weight", normal, 0.001},
          {"wte.weight", normal, 0.8},
          {"c_fc.weight", uniform, -0.4 * nano, 0.4 * nano},
          {"", uniform, -nano, nano}}},  // value embeddings, too
    };
    for (const std::string& architecture : architecture_names()) {
        const ParameterList list(small_model(architecture.c_str()));
        for (const Parameter& p : list) {
            INFO(architecture << ": " << p.name);
            const auto used = size_t(p.exported_rows * p.size() / p.shape[0]);
            Floats values(size_t(p.size()), std::nanf(""));
            initialize(p, values.data(), 5);
            for (size_t i = used; i < values.size(); i++) REQUIRE(values[i] == 0);  // the vocabulary's padding
            values.resize(used);
            const auto& rules = all.at(architecture);
            const Rule& rule =
                *std::find_if(rules.begin(), rules.end(), [&](const Rule& r) { return ends_with(p.name, r.end); });
            if (rule.kind == constant)
                for (const float x : values) REQUIRE(x == float(rule.a));
            if (rule.kind == normal) check_statistics(values, 0, rule.a);
            if (rule.kind == ramp)
                for (size_t i = 0; i < used; i++)
                    CHECK(std::fabs(values[i] - (rule.a + (rule.b - rule.a) * double(i) / double(used - 1))) <=
                          kEpsF32 * rule.a);
            if (rule.kind != uniform) continue;
            check_statistics(values, (rule.a + rule.b) / 2, (rule.b - rule.a) / std::sqrt(12.));
            for (const float x : values) REQUIRE((x >= float(rule.a) && x <= float(rule.b)));
        }
    }
    // One layer has the first of a ramp.
    float one = 0;
    initialize({.name = "one", .shape = {1}, .init = Init::ramp(1.15, 1.05), .exported_rows = 1}, &one, 5);
    CHECK(one == 1.15f);
}

// Logits begin as products of normalized rows and a head of deviation 0.001: each is 0.001 sqrt(C) = 0.011 at random.
// The mean over N = 2048 targets of theirs moves the loss by 2.5e-4, the spread of the others by half of 0.011^2, 6e-5:
// 1e-3 is four times the first.
TEST_CASE("nanochat's loss begins at ln V, and with a head of zeros exactly", "[parameters]") {
    for (const char* architecture : {"nanochat", "stage-a"}) {
        INFO(architecture);
        constexpr int64_t V = 2048, T = 32;
        GptShape shape{2, 2, 128, T, V};
        shape.architecture = find_architecture(architecture);
        Cpu cpu;
        Gpt<Cpu> model(cpu, shape, V / T, T);
        model.initialize_weights(3);
        std::vector<int32_t> tokens, targets;
        for (int32_t v = 0; v < V; v++) tokens.push_back(v), targets.push_back((v * 5 + 1) % int32_t(V));
        model.forward(tokens.data(), V / T, T);
        const double loss = model.loss(targets.data());
        const bool zeros = architecture == std::string("stage-a");
        CHECK(std::fabs(loss - std::log(double(V))) <= (zeros ? 4 * kEpsF32 * std::log(double(V)) : 1e-3));
    }
}

TEST_CASE("models are the same if they compute the same from the same weights", "[parameters]") {
    const GptShape shape = small_model("nanochat");
    GptShape other = shape;
    other.architecture.init.embedding *= 2, other.mlp_channels = 4 * shape.channels;  // the default
    CHECK(same_model(shape, other));
    CHECK(other.architecture != shape.architecture);
    other.num_kv_heads = 0;  // as many as heads
    CHECK_FALSE(same_model(shape, other));
    other = shape, other.architecture.softcap.limit += 1;
    CHECK_FALSE(same_model(shape, other));
    other = shape, other.max_seq_len += 1;
    CHECK_FALSE(same_model(shape, other));
}

TEST_CASE("activations take the memory that they count", "[parameters]") {
    Cpu cpu;
    for (const std::string& name : architecture_names())
        for (const Recompute recompute : {Recompute::none, Recompute::norms, Recompute::block, Recompute::never})
            for (const bool fp8 : {false, true}) {
                GptShape shape = small_model(name.c_str());
                shape.channels = 128;
                INFO(name << ", recompute " << int(recompute) << (fp8 ? ", FP8" : ""));
                const Activations<float> plan(shape, 3, 16, {recompute, fp8, 5});
                Arena arena(cpu, "activations", plan.bytes());
                Activations<float> acts = plan;
                acts.take(arena);
                CHECK(arena.used_bytes == plan.bytes());
                CHECK(plan.blocks[1].qkv == nullptr);
                const auto &first = acts.blocks[0], &last = acts.blocks[3];
                CHECK((first.qkv == last.qkv) == (recompute >= Recompute::block));
                CHECK((first.activated == last.activated) == (fp8 || recompute >= Recompute::norms));
                CHECK((first.fp8[kQkv].inp_t == last.fp8[kQkv].inp_t) == (!fp8 || recompute >= Recompute::norms));
                CHECK((first.fp8[kQkv].weight == last.fp8[kQkv].weight) == !fp8);
                CHECK((acts.d_residual == nullptr) == (recompute == Recompute::never));
            }
}
