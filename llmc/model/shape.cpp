// See shape.h.
#include "llmc/model/shape.h"
#include <algorithm>
#include <cmath>
#include <iterator>
#include "llmc/base/check.h"     // require
#include "llmc/base/integers.h"  // up_to_multiple, nearest_divisors
#include "llmc/ops/attention.h"  // kMaxHeadSize

namespace {

constexpr const char* kUnchanged = "preset";

void check_heads(const GptShape& s) {
    require(s.head_channels > 0 || s.channels % s.num_heads == 0,
            "--channels %ld is not a multiple of --num-heads %ld: the nearest are %ld and %ld; or give head-channels",
            s.channels, s.num_heads, s.channels / s.num_heads * s.num_heads,
            (s.channels / s.num_heads + 1) * s.num_heads);
    require(s.head_size() <= kMaxHeadSize, "heads of %ld channels: attention takes at most %ld, so %s", s.head_size(),
            kMaxHeadSize, s.head_channels > 0 ? "lower head-channels" : "raise --num-heads or lower --channels");
    require(s.num_heads % s.kv_heads() == 0,
            "--num-kv-heads %ld does not divide --num-heads %ld: the nearest that do are %s", s.kv_heads(), s.num_heads,
            nearest_divisors(s.num_heads, s.kv_heads()).c_str());
    const int64_t pairs = s.architecture.rotary.half_truncated ? 4 : 2;
    require(s.head_channels == 0 || !s.architecture.rotary_positions || s.head_channels % pairs == 0,
            "head-channels %ld: positions = rotary needs a multiple of %ld: the nearest are %ld and %ld",
            s.head_channels, pairs, s.head_channels / pairs * pairs, (s.head_channels / pairs + 1) * pairs);
    require(!s.architecture.rotary_positions || s.head_size() % pairs == 0,
            "positions = rotary: heads of %ld channels, expected a multiple of %ld: the nearest --channels are %ld and "
            "%ld",
            s.head_size(), pairs, s.head_size() / pairs * pairs * s.num_heads,
            (s.head_size() / pairs + 1) * pairs * s.num_heads);
}

void set_mup_score_scale(GptShape& s) {
    if (s.mup() == 1) return;
    require(!s.architecture.tied_head || s.architecture.norm != NormKind::plain_rmsnorm,
            "mup-base-width = %ld: with tied-head = true the gain of the last norm takes lm_head's factor, and norm = "
            "plain-rmsnorm has none: give another norm, or tied-head = false",
            s.mup_base_width);
    // 1 / sqrt(HS) at the base width, of which the heads are HS * mup() wide, and from there on as 1 / HS.
    double& scale = s.architecture.score_scale;
    if (scale == 0 && s.head_channels == 0) scale = std::sqrt(s.mup() / double(s.head_size()));
}

}  // namespace

void check_lora(const GptShape& s) {
    for (const LinearKind kind : kLinearKinds) {
        if (!s.lora.adapts(kind)) continue;
        for (const int64_t rows : lora_rows(s, kind)) {
            const int64_t columns = linear_size(s, kind).C, most = std::min(rows, columns);
            require(s.lora.rank <= most,
                    "--lora-rank %ld: %s has a matrix of %ld x %ld, so the rank is at most %ld; lower it, or leave %s "
                    "out of --lora-targets",
                    s.lora.rank, kLinearNames[kind], rows, columns, most, kLinearNames[kind]);
        }
    }
}

const GptPreset kGptPresets[6] = {
    {"gpt2-124M", "gpt2", {12, 12, 768, 1024, 50257}},  {"gpt2-355M", "gpt2", {24, 16, 1024, 1024, 50257}},
    {"gpt2-774M", "gpt2", {36, 20, 1280, 1024, 50257}}, {"gpt2-1558M", "gpt2", {48, 25, 1600, 1024, 50257}},
    {"stage-a", "stage-a", {12, 6, 768, 1024, 50257}},  {"llama-135M", "llama", {30, 9, 576, 2048, 50257, 3, 1536}},
};

ModelConfig::ModelConfig() : changes(ArchitectureFields(Architecture()).fields().size(), kUnchanged) {}

std::vector<Field> ModelConfig::fields() {
    std::vector<std::string> names = {"custom"}, architectures = architecture_names();
    for (const GptPreset& preset : kGptPresets) names.push_back(preset.name);
    architectures.insert(architectures.begin(), kUnchanged);
    std::vector<Field> all = {
        Field{"model", "model", &model,
              "a preset, or a file of lines, of which one may name a preset (`model = gpt2-124M`); flags override "
              "both",
              names}
            .or_file(),
        {"model",
         "depth",
         &depth,
         "nanochat's model with this many layers, from which everything else follows (0: off)",
         {},
         0,
         1000},
        Field{"model", "aspect-ratio", &aspect_ratio, "with --depth: channels per layer", {}, 1, 1 << 16}.only_in(
            "model"),
        Field{"model", "head-size", &depth_head_size, "with --depth: channels per head", {}, 1, kMaxHeadSize}.only_in(
            "model"),
        {"model", "num-layers", &num_layers, "transformer blocks (0: the preset's; custom: 4)", {}, 0, 1000},
        {"model", "num-heads", &num_heads, "attention heads (0: the preset's; custom: 4)", {}, 0, 1000},
        {"model",
         "num-kv-heads",
         &num_kv_heads,
         "heads of keys and values, each shared by a group of query heads (0: the preset's, or --num-heads)",
         {},
         0,
         1000},
        {"model", "channels", &channels, "width C (0: the preset's; custom: 128)", {}, 0, 1 << 20},
        Field{"model", "head-channels", &head_channels, "width HS of each head (0: C / heads)", {}, 0, kMaxHeadSize}
            .only_in("model"),
        Field{"model",
              "mlp-channels",
              &mlp_channels,
              "width of the MLP's hidden layer (0: the preset's, or 4 C)",
              {},
              0,
              1 << 22}
            .only_in("model"),
        Field{"model", "mup-base-width", &mup_base_width,
              "muP: the width C at which it is the standard parametrization (0: at any); initialization, AdamW's rates "
              "and attention's scale follow from C / this, so that the best learning rate stays (doc/recipes.md)"}
            .from(0, 1 << 20)
            .only_in("model"),
        {"model",
         "seq-len",
         &seq_len,
         "tokens per sequence T (0: the preset's; custom: 64, with --depth 2048)",
         {},
         0,
         1 << 20},
        {"model", "vocab-size", &vocab_size, "V (0: the tokenizer's)", {}, 0, 1 << 20},
        {"model", "architecture", &architecture, "`preset`: that of --model or --depth; custom: gpt2", architectures},
    };
    ArchitectureFields example{Architecture()};
    const std::vector<Field> parts = example.fields();
    for (size_t i = 0; i < parts.size(); i++) {
        Field field = parts[i];
        if (field.is_bool()) field.choices = {"true", "false"};
        if (!field.choices.empty()) field.choices.insert(field.choices.begin(), kUnchanged);
        field.value = &changes[i], field.in_file = "model";
        field.min = -std::numeric_limits<double>::infinity(), field.max = -field.min;
        all.push_back(field);
    }
    return all;
}

std::string ModelConfig::architecture_name() const {
    if (architecture != kUnchanged) return architecture;
    if (depth > 0) return "nanochat";
    for (const GptPreset& preset : kGptPresets)
        if (model == preset.name) return preset.architecture;
    return "gpt2";
}

GptShape ModelConfig::extended(GptShape s) const {
    ArchitectureFields parts(s.architecture);
    RotaryOptions& rotary = s.architecture.rotary;
    if (rotary.scaling.factor != 1 || !s.architecture.rotary_positions) return s;
    const std::vector<Field> fields = parts.fields();
    for (size_t i = 0; i < fields.size(); i++)
        if (const std::string name = fields[i].name; name == "rotary-factor" || name == "rotary-scaling")
            if (changes[i] != kUnchanged) set_field(fields[i], changes[i], name + " = " + changes[i]);
    if (parts.rotary_factor == 1 || parts.rotary_scaling != "yarn") return s;
    rotary.scaling = {.factor = parts.rotary_factor,
                      .low_turns = 1,
                      .high_turns = 32,
                      .original_length = double(s.max_seq_len),
                      .kind = RotaryScaling::Kind::yarn};
    rotary.scale *= float(RotaryScaling::yarn_scale(parts.rotary_factor));
    s.max_seq_len = int64_t(double(s.max_seq_len) * parts.rotary_factor);
    return s;
}

void ModelConfig::follow(const GptShape& s) {
    if (model != "custom" || depth > 0) return;
    const auto take = [](int& to, int64_t from) {
        if (to == 0) to = int(from);
    };
    take(num_layers, s.num_layers), take(num_heads, s.num_heads), take(num_kv_heads, s.kv_heads());
    take(channels, s.channels), take(mlp_channels, s.hidden()), take(vocab_size, s.vocab_size);
    if (s.query_channels() != s.channels) take(head_channels, s.head_channels);
    // The named architecture with the fewest differences, and these differences.
    ArchitectureFields wanted(s.architecture);
    const std::vector<Field> fields = wanted.fields();
    const auto differences = [&](const std::string& name) {
        ArchitectureFields parts(find_architecture(name));
        const std::vector<Field> named = parts.fields();
        std::vector<size_t> all;
        for (size_t i = 0; i < fields.size(); i++)
            if (text_of(named[i]) != text_of(fields[i])) all.push_back(i);
        return all;
    };
    if (architecture != kUnchanged) return;
    const std::vector<std::string> names = architecture_names();
    architecture = *std::min_element(names.begin(), names.end(), [&](const std::string& a, const std::string& b) {
        return differences(a).size() < differences(b).size();
    });
    for (const size_t i : differences(architecture))
        if (changes[i] == kUnchanged) changes[i] = text_of(fields[i]);
}

std::string ModelConfig::recipe() const {
    const std::string name = architecture_name();
    return name == "nanochat" || name == "stage-a" ? name : "gpt2";
}

GptShape ModelConfig::shape(int64_t tokenizer_vocab_size) const {
    const bool custom = model == "custom" && depth == 0;
    require(model == "custom" || depth == 0,
            "--depth %d makes nanochat's model, and --model %s is another: leave one out", depth, model.c_str());
    require(head_channels == 0 || depth == 0, "head-channels %d: with --depth it is head-size", head_channels);
    require(mup_base_width == 0 || depth == 0,
            "mup-base-width = %d with --depth, whose laws scale learning rates by width: leave one out",
            mup_base_width);
    GptShape shape{4, 4, 128, 64, 0};
    for (const GptPreset& preset : kGptPresets)
        if (model == preset.name) shape = preset.shape;
    if (depth > 0) {
        const int64_t C = up_to_multiple(int64_t(depth) * aspect_ratio, depth_head_size);
        shape = {depth, C / depth_head_size, C, 2048, 0};
    }
    if (num_layers) shape.num_layers = num_layers;
    if (num_heads) shape.num_heads = num_heads;
    if (num_kv_heads) shape.num_kv_heads = num_kv_heads;
    if (channels) shape.channels = channels;
    if (head_channels) shape.head_channels = head_channels;
    if (mlp_channels) shape.mlp_channels = mlp_channels;
    const Architecture base = find_architecture(architecture_name());
    ArchitectureFields parts(base);
    const std::vector<Field> fields = parts.fields();
    for (size_t i = 0; i < fields.size(); i++)
        if (changes[i] != kUnchanged)
            set_field(fields[i], changes[i], format("%s = %s", fields[i].name, changes[i].c_str()));
    shape.architecture = parts.architecture();
    shape.architecture.init = base.init;
    // Presets keep their learned positions, but may train on fewer of them.
    if (seq_len && (custom || depth > 0 || shape.architecture.rotary_positions)) shape.max_seq_len = seq_len;
    if (vocab_size)
        shape.vocab_size = vocab_size;
    else if (custom || depth > 0)
        shape.vocab_size = tokenizer_vocab_size;
    require(shape.vocab_size > 0,
            "no tokenizer.json beside the data (--train-data) gives the vocabulary's size: give --vocab-size");
    require(tokenizer_vocab_size <= shape.vocab_size,
            "the data's tokenizer has %ld symbols, but the model a vocabulary of %ld: raise --vocab-size",
            tokenizer_vocab_size, shape.vocab_size);
    check_heads(shape);
    require(!shape.architecture.smear || shape.channels >= kSmearChannels,
            "smear reads %ld channels, and there are --channels %ld: give %ld", kSmearChannels, shape.channels,
            kSmearChannels);
    require(!shape.architecture.value_embeddings || shape.channels >= kGateChannels,
            "value-embeddings have gates that read %ld channels, and there are --channels %ld: give %ld", kGateChannels,
            shape.channels, kGateChannels);
    require(seq_len <= shape.max_seq_len, "--seq-len %d is above the %ld positions of --model %s", seq_len,
            shape.max_seq_len, model.c_str());
    layer_windows(shape.architecture, shape.num_layers, shape.max_seq_len);
    shape.mup_base_width = mup_base_width;
    set_mup_score_scale(shape);
    return shape;
}
