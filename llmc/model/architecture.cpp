// See architecture.h.
#include "llmc/model/architecture.h"
#include <algorithm>
#include <cmath>
#include <iterator>
#include "llmc/base/check.h"  // require, ensure, format

namespace {

constexpr double kEpsF32 = 0x1p-23;  // the default epsilon of PyTorch's rms_norm
constexpr const char* kNorms[] = {"layernorm", "rmsnorm", "plain-rmsnorm"};
constexpr const char* kMlps[] = {"gelu", "relu-squared", "swiglu"};
constexpr const char* kSoftcaps[] = {"none", "tanh", "isru"};
constexpr const char* kScalings[] = {"llama3", "yarn"};

template <class Kind, size_t n>
Kind kind_named(const char* const (&names)[n], const std::string& name) {
    for (size_t i = 0; i < n; i++)
        if (name == names[i]) return Kind(i);
    ensure(false);
    return Kind(0);
}

struct Named {
    const char* name;
    Architecture architecture;
};

// A function, so that it can be called before main() begins.
const std::vector<Named>& all_architectures() {
    static const std::vector<Named> all = {
        {"gpt2", {}},
        {"llama",
         {.norm = NormKind::rmsnorm,
          .biases = false,
          .mlp = MlpKind::swiglu,
          .tied_head = false,
          .rotary_positions = true,
          .rotary = {.base = 500000}}},
        {"stage-a",
         {.norm = NormKind::rmsnorm,
          .norm_eps = kEpsF32,
          .mlp = MlpKind::relu_squared,
          .tied_head = false,
          .rotary_positions = true,
          .rotary = {.base = 1024, .half_truncated = true, .clockwise = true, .qk_norm = true},
          .score_scale = 0.12,
          .embedding_norm = true,
          .softcap = {Softcap::Kind::isru, 15},
          .init = {.embedding = 1,
                   .head = 0,
                   .matrices = 0.57445626465380284,
                   .by_fan_in = true,
                   .zero_projections = true}}},
        {"nanochat",
         {.norm = NormKind::plain_rmsnorm,
          .norm_eps = kEpsF32,
          .biases = false,
          .mlp = MlpKind::relu_squared,
          .tied_head = false,
          .rotary_positions = true,
          .rotary = {.base = 100000, .clockwise = true, .qk_norm = true, .scale = 1.2f},
          .windows = "SSSL",
          .embedding_norm = true,
          .value_embeddings = true,
          .residual_lambdas = true,
          .smear = true,
          .backout = true,
          .softcap = {Softcap::Kind::tanh, 15},
          .init = {.embedding = 0.8,
                   .head = 0.001,
                   .matrices = 1,
                   .by_fan_in = true,
                   .uniform = true,
                   .mlp_factor = 0.4,
                   .zero_projections = true}}},
    };
    return all;
}

}  // namespace

std::vector<std::string> architecture_names() {
    std::vector<std::string> names;
    for (const Named& known : all_architectures()) names.push_back(known.name);
    return names;
}

Architecture find_architecture(const std::string& name) {
    for (const Named& known : all_architectures())
        if (name == known.name) return known.architecture;
    ensure(false);
    return {};
}

std::vector<int64_t> layer_windows(const Architecture& a, int64_t num_layers, int64_t seq_len, double fraction) {
    ensure(fraction > 0 && fraction <= 1);
    require(!a.windows.empty(), "window-pattern is empty: give letters L (all tokens) and S (fewer), such as SSSL");
    const size_t wrong = a.windows.find_first_not_of("LS");
    require(wrong == std::string::npos,
            "window-pattern = %s: letter %c is neither L (all tokens) nor S (fewer); SSSL is one", a.windows.c_str(),
            wrong == std::string::npos ? ' ' : a.windows[wrong]);
    constexpr int64_t kMultiple = 128;
    const int64_t quarter = ((seq_len + 3) / 4 + kMultiple - 1) / kMultiple * kMultiple;
    const int64_t window = a.short_window > 0 ? a.short_window : quarter;
    std::vector<int64_t> windows;
    for (int64_t layer = 0; layer < num_layers; layer++) {
        const bool all =
            a.windows[size_t(layer) % a.windows.size()] == 'L' || (a.full_last_layer && layer + 1 == num_layers);
        const int64_t whole = all ? seq_len : std::min(window, seq_len);
        auto now = int64_t(std::ceil(fraction * double(whole)));
        if (fraction < 1 && whole > kMultiple) now = std::min(whole, (now + kMultiple - 1) / kMultiple * kMultiple);
        windows.push_back(now >= seq_len ? -1 : now);
    }
    return windows;
}

ArchitectureFields::ArchitectureFields(const Architecture& a)
    : norm(kNorms[int(a.norm)]),
      mlp(kMlps[int(a.mlp)]),
      positions(a.rotary_positions ? "rotary" : "learned"),
      rotary_layers(a.rotary_layers),
      rotary_scaling(kScalings[int(a.rotary.scaling.kind)]),
      windows(a.windows),
      softcap_kind(kSoftcaps[int(a.softcap.kind)]),
      norm_eps(a.norm_eps),
      rotary_base(a.rotary.base),
      rotary_factor(a.rotary.scaling.factor),
      rotary_low_turns(a.rotary.scaling.low_turns),
      rotary_high_turns(a.rotary.scaling.high_turns),
      rotary_original_length(a.rotary.scaling.original_length),
      qk_scale(double(a.rotary.scale)),
      qk_eps(double(a.rotary.eps)),
      score_scale(a.score_scale),
      softcap(double(a.softcap.limit)),
      short_window(a.short_window),
      biases(a.biases),
      qkv_biases(a.qkv_biases),
      tied_head(a.tied_head),
      qk_rmsnorm(a.qk_rmsnorm),
      full_last_layer(a.full_last_layer),
      half_rotary(a.rotary.half_truncated),
      clockwise_rotary(a.rotary.clockwise),
      qk_norm(a.rotary.qk_norm),
      embedding_norm(a.embedding_norm),
      value_embeddings(a.value_embeddings),
      residual_lambdas(a.residual_lambdas),
      smear(a.smear),
      backout(a.backout) {}

std::vector<Field> ArchitectureFields::fields() {
    const auto names = [](const auto& all) { return std::vector<std::string>(std::begin(all), std::end(all)); };
    return {
        {"model", "norm", &norm, "layernorm has a gain and a bias, rmsnorm a gain, plain-rmsnorm neither",
         names(kNorms)},
        {"model", "norm-eps", &norm_eps, "epsilon of the norms, added to the variance or the mean square", {}, 0, 1},
        {"model", "biases", &biases, "biases in the linear layers of the blocks"},
        {"model", "qkv-biases", &qkv_biases, "biases of queries, keys and values alone, as in Qwen2"},
        {"model", "mlp", &mlp, "activation function of the MLP", names(kMlps)},
        {"model", "tied-head", &tied_head, "lm_head uses the token embedding's matrix"},
        {"model",
         "positions",
         &positions,
         "learned: a vector per position; rotary: queries and keys are rotated (RoPE)",
         {"learned", "rotary"}},
        {"model",
         "rotary-base",
         &rotary_base,
         "RoPE's base (theta): the slowest frequency is nearly 1 / theta radians per token",
         {},
         1,
         1e15},
        {"model",
         "rotary-factor",
         &rotary_factor,
         "scaled RoPE: slow frequencies are divided by this (1: not scaled)",
         {},
         1,
         1e6},
        {"model", "rotary-scaling", &rotary_scaling,
         "scaled RoPE: Llama 3.1's, or YaRN's, whose attention temperature is qk-scale; with --init-from, yarn and a "
         "rotary-factor extend the model's --seq-len by that factor",
         names(kScalings)},
        {"model",
         "rotary-low-turns",
         &rotary_low_turns,
         "scaled RoPE: a frequency is slow if it makes fewer turns than this in rotary-original-length",
         {},
         0,
         1e6},
        {"model",
         "rotary-high-turns",
         &rotary_high_turns,
         "scaled RoPE: a frequency with more turns than this is not scaled",
         {},
         0,
         1e6},
        {"model",
         "rotary-original-length",
         &rotary_original_length,
         "scaled RoPE: context length of the model before scaling",
         {},
         1,
         1e9},
        {"model", "rotary-pattern", &rotary_layers,
         "a letter per layer, repeated: R rotates, N has no positions (RRRN in SmolLM3)"},
        {"model", "half-rotary", &half_rotary, "RoPE rotates only half of each head's channels"},
        {"model", "clockwise-rotary", &clockwise_rotary, "RoPE rotates by the negative angle, as in nanochat"},
        {"model", "qk-norm", &qk_norm, "divide queries and keys by their root mean square, after RoPE"},
        {"model", "qk-rmsnorm", &qk_rmsnorm,
         "RMSNorm of queries and keys with a learned gain, before RoPE, as in Qwen3"},
        {"model", "qk-scale", &qk_scale, "multiply queries and keys by this after qk-norm", {}, 0, 1e6},
        {"model", "qk-eps", &qk_eps, "epsilon of qk-norm", {}, 0, 1},
        {"model", "score-scale", &score_scale, "scale of the attention scores (0: 1 / sqrt(HS))", {}, 0, 1e6},
        {"model", "window-pattern", &windows, "a letter per layer, repeated: L attends to all tokens, S to a window"},
        {"model", "full-last-layer", &full_last_layer, "the last layer attends to all tokens, whatever its letter"},
        {"model",
         "short-window",
         &short_window,
         "window of S: tokens before the current one (0: a quarter of --seq-len)",
         {},
         0},
        {"model", "embedding-norm", &embedding_norm, "a norm without a gain after the embedding"},
        {"model", "value-embeddings", &value_embeddings,
         "further token embeddings, added through a gate to the values of every second layer"},
        {"model", "residual-lambdas", &residual_lambdas,
         "a block's input is r x + z x0, with x0 the first block's input and r, z learned"},
        {"model", "smear", &smear, "add part of the previous token's embedding to each, through a gate"},
        {"model", "backout", &backout, "subtract a learned part of the middle layer's output from the last one's"},
        {"model", "softcap-kind", &softcap_kind, "function that keeps logits within softcap", names(kSoftcaps)},
        {"model", "softcap", &softcap, "bound of the logits' magnitude", {}, 0, 1e6},
    };
}

// The minimum of divisors: far above the range where a float underflows to 0.
static constexpr double kLeastScale = 1e-6;

Architecture ArchitectureFields::architecture() const {
    const bool rotates = positions == "rotary";
    require(rotates || !qk_norm, "qk-norm needs positions = rotary: it is part of the same step");
    require(!qkv_biases || !biases, "qkv-biases = true: biases = true has them already; leave one out");
    const size_t wrong = rotary_layers.find_first_not_of("RN");
    require(!rotary_layers.empty() && wrong == std::string::npos,
            "rotary-pattern = %s: expected letters R (rotates) and N (does not), such as RRRN", rotary_layers.c_str());
    const bool is_yarn = rotary_factor != 1 && rotary_scaling == "yarn";
    require(rotary_layers.find('N') == std::string::npos || (rotates && !qk_norm && (qk_scale == 1 || is_yarn)),
            "rotary-pattern = %s: layers without a rotation need positions = rotary, and have neither qk-norm, which "
            "is part of it, nor qk-scale, unless it is YaRN's; qk-rmsnorm is free of it",
            rotary_layers.c_str());
    require(!qk_norm || !qk_rmsnorm, "qk-norm and qk-rmsnorm: the one has no gain, the other has; leave one out");
    require(rotary_factor == 1 || (rotates && !half_rotary),
            "rotary-factor = %g: it stretches positions = rotary, and not half-rotary", rotary_factor);
    require(rotary_factor == 1 || rotary_low_turns < rotary_high_turns,
            "rotary-low-turns = %g: expected fewer than rotary-high-turns = %g", rotary_low_turns, rotary_high_turns);
    require(rotates || !embedding_norm, "embedding-norm needs positions = rotary: a norm would undo learned positions");
    require(softcap_kind == "none" || softcap >= kLeastScale,
            "softcap = %g: expected at least %g, such as 15, or softcap-kind = none", softcap, kLeastScale);
    require(qk_scale >= kLeastScale, "qk-scale = %g: expected at least %g, such as 1", qk_scale, kLeastScale);
    require(score_scale == 0 || score_scale >= kLeastScale,
            "score-scale = %g: expected at least %g, or 0 for 1 / sqrt(HS)", score_scale, kLeastScale);
    Architecture a;
    a.norm = kind_named<NormKind>(kNorms, norm);
    a.norm_eps = norm_eps;
    a.biases = biases;
    a.qkv_biases = qkv_biases;
    a.mlp = kind_named<MlpKind>(kMlps, mlp);
    a.tied_head = tied_head;
    a.rotary_positions = rotates;
    a.rotary = {.base = rotary_base,
                .half_truncated = half_rotary,
                .clockwise = clockwise_rotary,
                .qk_norm = qk_norm,
                .eps = float(qk_eps),
                .scale = float(qk_scale),
                .scaling = {.factor = rotary_factor,
                            .low_turns = rotary_low_turns,
                            .high_turns = rotary_high_turns,
                            .original_length = rotary_original_length,
                            .kind = kind_named<RotaryScaling::Kind>(kScalings, rotary_scaling)}};
    if (rotary_factor == 1) a.rotary.scaling = {};
    a.rotary_layers = rotary_layers;
    a.qk_rmsnorm = qk_rmsnorm;
    a.score_scale = score_scale;
    a.windows = windows;
    a.full_last_layer = full_last_layer;
    a.short_window = short_window;
    a.embedding_norm = embedding_norm;
    a.value_embeddings = value_embeddings;
    a.residual_lambdas = residual_lambdas;
    a.smear = smear;
    a.backout = backout;
    a.softcap = {kind_named<Softcap::Kind>(kSoftcaps, softcap_kind), float(softcap)};
    return a;
}
