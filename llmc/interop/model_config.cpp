// See model_config.h.
#include "llmc/interop/model_config.h"
#include <algorithm>
#include <cmath>
#include <set>
#include "llmc/base/check.h"      // require, format
#include "llmc/base/flags.h"      // Field, from_json, to_json
#include "llmc/base/json.h"       // OrderedJson
#include "llmc/io/safetensors.h"  // in_quotes

namespace {

constexpr double kMostFactor = 1e6, kMostLength = 1e9;     // of scaled positions
constexpr double kMostLayers = 1000, kMostSize = 1 << 22;  // the limits of the flags; products of sizes do not overflow

std::vector<Field> size_fields(GptShape& s) {
    return {{"", "n_layer", &s.num_layers, "", {}, 1, kMostLayers},
            {"", "n_head", &s.num_heads, "", {}, 1, kMostSize},
            {"", "n_embd", &s.channels, "", {}, 1, kMostSize},
            {"", "n_positions", &s.max_seq_len, "", {}, 1, kMostSize},
            {"", "vocab_size", &s.vocab_size, "", {}, 1, kMostSize}};
}

std::vector<Field> more_fields(GptShape& s, ArchitectureFields& parts) {
    std::vector<Field> all = {{"", "n_kv_head", &s.num_kv_heads, "", {}, 0, kMostSize},
                              {"", "head_dim", &s.head_channels, "", {}, 0, kMostSize},
                              {"", "n_inner", &s.mlp_channels, "", {}, 0, kMostSize}};
    for (const Field& field : parts.fields()) all.push_back(field);
    return all;
}

bool is_gpt2(const GptShape& s) {
    Architecture base = find_architecture("gpt2");
    base.norm_eps = s.architecture.norm_eps;
    base.tied_head = s.architecture.tied_head;
    return same_function(s.architecture, base) && s.kv_heads() == s.num_heads && s.query_channels() == s.channels;
}

// Llama and its successors, which differ in a switch or two. `otherwise`: the defaults of fields that a config.json
// omits.
struct LlamaKind {
    const char *model_type, *class_name;
    struct {
        int64_t kv_heads;  // 0: as many as heads
        int64_t head_dim;  // 0: hidden_size / heads
        int64_t positions;
        double rope_theta;
        bool tied;
    } otherwise;
    bool has_bias_fields[2];  // whether it has attention_bias and mlp_bias, which must be false
};
enum LlamaType { kLlama, kMistral, kMinistral, kQwen2, kQwen3, kSmolLm3 };
constexpr LlamaKind kLlamaKinds[] = {
    {"llama", "LlamaForCausalLM", {0, 0, 2048, 1e4, false}, {true, true}},
    {"mistral", "MistralForCausalLM", {8, 0, 131072, 1e4, false}, {false, false}},
    {"ministral", "MinistralForCausalLM", {8, 0, 131072, 1e4, false}, {false, false}},
    {"qwen2", "Qwen2ForCausalLM", {32, 0, 32768, 1e4, false}, {false, false}},
    {"qwen3", "Qwen3ForCausalLM", {32, 128, 32768, 1e4, false}, {true, false}},
    {"smollm3", "SmolLM3ForCausalLM", {4, 0, 32768, 2e6, true}, {true, true}},
};
constexpr size_t kNoKind = std::size(kLlamaKinds);

size_t llama_kind_named(const std::string& model_type) {
    size_t kind = 0;
    while (kind < kNoKind && model_type != kLlamaKinds[kind].model_type) kind++;
    return kind;
}

// The successor whose switches are on; kNoKind: no class has all of them.
size_t llama_kind_of(const GptShape& s) {
    const Architecture& a = s.architecture;
    Architecture base = find_architecture("llama");
    base.norm_eps = a.norm_eps;
    base.tied_head = a.tied_head;
    base.rotary.base = a.rotary.base;
    base.rotary.scaling = a.rotary.scaling;
    if (a.rotary.scaling.is_yarn()) base.rotary.scale = a.rotary.scale;
    base.qkv_biases = a.qkv_biases;
    base.qk_rmsnorm = a.qk_rmsnorm;
    base.rotary_layers = a.rotary_layers;
    base.windows = a.windows;
    base.short_window = a.short_window;
    base.full_last_layer = a.full_last_layer;
    if (!same_function(a, base)) return kNoKind;
    const std::vector<int64_t> windows = layer_windows(a, s.num_layers, s.max_seq_len);
    const auto sees_less = [](int64_t window) { return window >= 0; };
    const bool some = std::any_of(windows.begin(), windows.end(), sees_less);
    bool skips_rotation = false;
    for (int64_t l = 0; l < s.num_layers; l++) skips_rotation |= !rotates(a, l);
    if (int(a.qkv_biases) + int(a.qk_rmsnorm) + int(skips_rotation) > 1) return kNoKind;
    if (a.qkv_biases) return kQwen2;
    if (a.qk_rmsnorm) return kQwen3;
    if (skips_rotation) return kSmolLm3;
    if (!some) return kLlama;
    return std::all_of(windows.begin(), windows.end(), sees_less) ? kMistral : kMinistral;
}

// Whether NanoChatForCausalLM can represent the model: it lacks what was later added to nanochat.
bool is_plain_nanochat(const GptShape& s) {
    const Architecture& a = s.architecture;
    Architecture base = find_architecture("nanochat");
    base.norm_eps = a.norm_eps;
    base.tied_head = a.tied_head;
    if (a.softcap.kind != Softcap::Kind::isru) base.softcap = a.softcap;
    base.rotary.base = a.rotary.base;
    base.rotary.eps = float(a.norm_eps);
    base.rotary.scale = 1;
    base.value_embeddings = base.residual_lambdas = base.smear = base.backout = false;
    base.windows = a.windows;
    base.short_window = a.short_window;
    base.full_last_layer = a.full_last_layer;
    if (!same_function(a, base) || s.query_channels() != s.channels) return false;
    for (const int64_t window : layer_windows(a, s.num_layers, s.max_seq_len))
        if (window >= 0) return false;
    return true;
}

// Fields without an effect on what the model computes: of training, of other heads, of the program that wrote them.
constexpr const char* kHarmless =
    "architectures attention_dropout attn_implementation attn_pdrop auto_map bos_token_id chunk_size_feed_forward "
    "decoder_start_token_id dtype embd_pdrop eos_token_id finetuning_task gradient_checkpointing id2label "
    "initializer_range is_decoder is_llama_config keys_to_ignore_at_inference label2id model_type n_ctx name_or_path "
    "num_labels output_attentions output_hidden_states output_router_logits pad_token_id prefix pretraining_tp "
    "problem_type reorder_and_upcast_attn resid_pdrop return_dict rope_interleaved sep_token_id summary_activation "
    "summary_first_dropout summary_proj_to_labels summary_type summary_use_proj task_specific_params "
    "tf_legacy_loss tie_last_hidden_states tokenizer_class torch_dtype torchscript transformers_version use_bfloat16 "
    "use_cache use_return_dict";
// Those of generation_config.json, which older programs wrote into config.json.
constexpr const char* kOfGeneration =
    "assistant_confidence_threshold assistant_lookbehind bad_words_ids begin_suppress_tokens diversity_penalty "
    "do_sample early_stopping encoder_no_repeat_ngram_size encoder_repetition_penalty epsilon_cutoff eta_cutoff "
    "exponential_decay_length_penalty forced_bos_token_id forced_eos_token_id length_penalty max_length max_new_tokens "
    "min_length no_repeat_ngram_size num_assistant_tokens num_assistant_tokens_schedule num_beam_groups num_beams "
    "num_return_sequences output_scores remove_invalid_values repetition_penalty return_dict_in_generate "
    "suppress_tokens target_lookbehind temperature top_k top_p typical_p";
// Fields that must have this value, or null, where a family does not read them.
constexpr struct {
    const char *name, *value;
} kNeutral[] = {{"add_cross_attention", "false"}, {"cross_attention_hidden_size", "null"},
                {"is_encoder_decoder", "false"},  {"partial_rotary_factor", "1.0"},
                {"pruned_heads", "{}"},           {"tie_encoder_decoder", "false"}};

// Reads the fields of transformers' config.json. Most may be absent or null and then have a default.
class ConfigReader {
public:
    ConfigReader(const std::string& text, const std::string& where) : json_(parse_ordered_json(text)), where_(where) {
        require(json_.is_object(), "%s: not a JSON object; use another copy of it", where.c_str());
    }

    bool is_null(const char* name) const { return json_.contains(name) && json_[name].is_null(); }
    bool has(const char* name) const { return json_.contains(name) && !json_[name].is_null(); }
    const OrderedJson& value(const char* name) const { return json_[name]; }

    int64_t count(const char* name, double most = kMostSize, uint64_t least = 1) const {
        require(has(name), "%s: \"%s\" is missing", where_.c_str(), name);
        const OrderedJson& value = json_[name];
        require(value.is_number_unsigned() && value.get<uint64_t>() >= least && value.get<uint64_t>() <= uint64_t(most),
                "%s: \"%s\": %s: expected an integer from %lu to %.0f", where_.c_str(), name, shown(value).c_str(),
                static_cast<unsigned long>(least), most);
        return value.get<int64_t>();
    }
    int64_t count_or(const char* name, int64_t otherwise) const { return has(name) ? count(name) : otherwise; }

    double number(const char* name, double otherwise) const {
        return has(name) ? positive(json_[name], name) : otherwise;
    }
    double positive(const OrderedJson& value, const char* name) const {
        require(value.is_number() && std::isfinite(value.get<double>()) && value.get<double>() > 0,
                "%s: \"%s\": %s: expected a number above 0", where_.c_str(), name, shown(value).c_str());
        return value.get<double>();
    }

    bool truth(const char* name, bool otherwise) const {
        if (!has(name)) return otherwise;
        require(json_[name].is_boolean(), "%s: \"%s\": %s: expected true or false", where_.c_str(), name,
                shown(json_[name]).c_str());
        return json_[name].get<bool>();
    }

    std::string text(const char* name, const std::string& otherwise) const {
        if (!has(name)) return otherwise;
        require(json_[name].is_string(), "%s: \"%s\": %s: expected text", where_.c_str(), name,
                shown(json_[name]).c_str());
        return json_[name].get<std::string>();
    }

    // Throws an Error if a field is not `read` (names with spaces between) and could change what the model computes.
    void expect_only(const std::string& read) const {
        for (const auto& [name, value] : json_.items()) {
            const auto* const neutral = std::find_if(std::begin(kNeutral), std::end(kNeutral),
                                                     [&name = name](const auto& one) { return name == one.name; });
            const bool known = has_word(read, name);
            if (!known && neutral != std::end(kNeutral)) {
                expect(value.is_null() || value == parse_ordered_json(neutral->value), neutral->name, neutral->value);
                continue;
            }
            require(known || has_word(kHarmless, name) || has_word(kOfGeneration, name) || name.starts_with("_") ||
                        name.starts_with("transformers.") || name.starts_with("unsloth_"),
                    "%s: %s: %s: a field that Anvil does not know and that may change what the model computes; "
                    "remove it if it does not",
                    where_.c_str(), in_quotes(name).c_str(), shown(value).c_str());
        }
    }

    // Throws an Error unless a field has a value that Anvil supports.
    void expect(bool good, const char* name, const char* expected) const {
        require(good, "%s: \"%s\": %s: expected %s: Anvil has no such model", where_.c_str(), name,
                has(name) ? shown(json_[name]).c_str() : "nothing", expected);
    }

private:
    OrderedJson json_;
    std::string where_;

    static bool has_word(const std::string& words, const std::string& word) {
        return word.find(' ') == std::string::npos && (" " + words + " ").find(" " + word + " ") != std::string::npos;
    }

    static std::string shown(const OrderedJson& value) {
        const std::string all = json_ascii(value);
        return all.size() > 100 ? all.substr(0, 100) + "..." : all;
    }
};

GptShape read_gpt2(const ConfigReader& config) {
    GptShape s{};
    s.num_layers = config.count("n_layer", kMostLayers);
    s.num_heads = config.count("n_head");
    s.channels = config.count("n_embd");
    s.max_seq_len = config.count("n_positions");
    s.vocab_size = config.count("vocab_size");
    s.mlp_channels = config.count_or("n_inner", 0);
    s.architecture.norm_eps = config.number("layer_norm_epsilon", 1e-5);
    s.architecture.tied_head = config.truth("tie_word_embeddings", true);
    const std::string activation = config.text("activation_function", "gelu_new");
    config.expect(activation == "gelu_new" || activation == "gelu_pytorch_tanh" || activation == "gelu_fast",
                  "activation_function", "gelu_new");
    config.expect(config.truth("scale_attn_weights", true), "scale_attn_weights", "true");
    config.expect(!config.truth("scale_attn_by_inverse_layer_idx", false), "scale_attn_by_inverse_layer_idx", "false");
    config.expect_only(
        "n_layer n_head n_embd n_positions vocab_size n_inner layer_norm_epsilon tie_word_embeddings "
        "activation_function scale_attn_weights scale_attn_by_inverse_layer_idx");
    return s;
}

// The frequencies: rope_scaling up to transformers 4, rope_parameters since 5. If both exist, the older name alone
// counts, as in transformers, unless it is empty.
void read_rotation(const ConfigReader& config, RotaryOptions& rotary, int64_t positions) {
    rotary.base = config.number("rope_theta", rotary.base);
    const bool is_older = config.has("rope_scaling") && config.value("rope_scaling") != OrderedJson::object();
    const char* const name = is_older ? "rope_scaling" : "rope_parameters";
    if (!config.has(name)) return;
    const OrderedJson& rope = config.value(name);
    config.expect(rope.is_object(), name, "an object");
    const OrderedJson type = rope.value("rope_type", rope.value("type", OrderedJson("default")));
    const bool is_yarn = type == "yarn";
    config.expect(type == "default" || type == "llama3" || is_yarn, name, "rope_type default, llama3 or yarn");
    const auto number = [&](const char* field, double otherwise) {
        const bool has = rope.contains(field) && !(is_yarn && rope[field].is_null());
        if (!has) config.expect(otherwise > 0, name, format("a number \"%s\"", field).c_str());
        return has ? config.positive(rope[field], field) : otherwise;
    };
    rotary.base = number("rope_theta", rotary.base);
    std::set<std::string> known = {"rope_type", "type", "rope_theta", "partial_rotary_factor"};
    config.expect(number("partial_rotary_factor", 1) == 1, name, "partial_rotary_factor 1");
    if (type != "default") {
        const char *const low = is_yarn ? "beta_slow" : "low_freq_factor", *const high = is_yarn ? "beta_fast"
                                                                                                 : "high_freq_factor";
        rotary.scaling = {.factor = number("factor", 0),
                          .low_turns = number(low, is_yarn ? 1 : 0),
                          .high_turns = number(high, is_yarn ? 32 : 0),
                          .original_length = number("original_max_position_embeddings", double(positions)),
                          .kind = is_yarn ? RotaryScaling::Kind::yarn : RotaryScaling::Kind::llama3};
        const RotaryScaling& s = rotary.scaling;
        config.expect(s.factor >= 1 && s.factor <= kMostFactor, name, "a factor from 1 to 1e6");
        config.expect(s.low_turns < s.high_turns && s.high_turns <= kMostFactor, name,
                      format("%s below %s, at most 1e6", low, high).c_str());
        config.expect(s.original_length >= 1 && s.original_length <= kMostLength, name,
                      "original_max_position_embeddings from 1 to 1e9");
        known.insert({"factor", low, high, "original_max_position_embeddings"});
        if (is_yarn) {
            rotary.scale = float(number("attention_factor", RotaryScaling::yarn_scale(s.factor)));
            config.expect(!rope.contains("truncate") || rope["truncate"] == true, name, "truncate true");
            known.insert({"attention_factor", "truncate"});
        }
        if (s.factor == 1) rotary.scaling = {};
    }
    for (const auto& [field, value] : rope.items())
        config.expect(known.count(field) > 0, name, format("no field \"%s\"", field.c_str()).c_str());
}

// What Llama's successors and NanoChat share.
constexpr const char* kFieldsOfLlama =
    "num_hidden_layers num_attention_heads num_key_value_heads hidden_size head_dim intermediate_size "
    "max_position_embeddings vocab_size rms_norm_eps tie_word_embeddings rope_theta rope_scaling rope_parameters "
    "attention_bias hidden_act";

// Sizes by Llama's names, which its successors share.
void read_sizes(const ConfigReader& config, GptShape& s, const LlamaKind& kind) {
    s.num_layers = config.count("num_hidden_layers", kMostLayers);
    s.num_heads = config.count("num_attention_heads");
    // null differs from a missing field
    const int64_t kv_heads = config.is_null("num_key_value_heads") ? 0 : kind.otherwise.kv_heads;
    s.num_kv_heads = config.count_or("num_key_value_heads", kv_heads > 0 ? kv_heads : s.num_heads);
    s.channels = config.count("hidden_size");
    s.head_channels = config.count_or("head_dim", config.is_null("head_dim") ? 0 : kind.otherwise.head_dim);
    s.mlp_channels = config.count("intermediate_size");
    s.max_seq_len = config.count_or("max_position_embeddings", kind.otherwise.positions);
    s.vocab_size = config.count("vocab_size");
    s.architecture.norm_eps = config.number("rms_norm_eps", 1e-6);
    s.architecture.tied_head = config.truth("tie_word_embeddings", kind.otherwise.tied);
    s.architecture.rotary.base = kind.otherwise.rope_theta;
    if (s.head_channels == 0)
        config.expect(s.channels % s.num_heads == 0, "hidden_size", "a multiple of num_attention_heads");
    if (s.query_channels() == s.channels) s.head_channels = 0;
    config.expect(s.head_size() % 2 == 0, config.has("head_dim") ? "head_dim" : "hidden_size", "heads of even size");
    read_rotation(config, s.architecture.rotary, s.max_seq_len);
    config.expect(!config.truth("attention_bias", false), "attention_bias", "false");
}

// A list with one entry per layer, if it exists.
template <class Take>
bool read_layers(const ConfigReader& config, const char* name, int64_t num_layers, const char* expected, Take take) {
    if (!config.has(name)) return false;
    const OrderedJson& list = config.value(name);
    config.expect(list.is_array() && int64_t(list.size()) == num_layers, name, expected);
    for (const OrderedJson& layer : list) config.expect(take(layer), name, expected);
    return true;
}

// sliding_window includes the token itself, short_window does not.
void read_windows(const ConfigReader& config, GptShape& s, size_t kind) {
    Architecture& a = s.architecture;
    const bool is_mistral = kind == kMistral || kind == kMinistral;
    const bool is_asked = is_mistral || config.truth("use_sliding_window", false);
    int64_t window = 0;  // none
    if (is_asked && kind != kLlama && !config.is_null("sliding_window")) {
        window = kind == kSmolLm3 ? config.count_or("sliding_window", 0) : config.count_or("sliding_window", 4096);
        config.expect(window != 1, "sliding_window", "at least 2");
    }
    std::string letters;
    const bool is_listed = read_layers(config, "layer_types", s.num_layers,
                                       "full_attention or sliding_attention for each layer", [&](const OrderedJson& t) {
                                           letters += t == "sliding_attention" ? 'S' : 'L';
                                           return t == "sliding_attention" || t == "full_attention";
                                       });
    // Llama's class passes the list over; the others fail with it.
    config.expect(window > 0 || kind == kLlama || letters.find('S') == std::string::npos, "layer_types",
                  is_mistral ? "full_attention, as there is no sliding_window"
                             : "full_attention, as there is no sliding_window with use_sliding_window");
    if (is_mistral && !is_listed) letters = std::string(size_t(s.num_layers), 'S');
    if (!is_mistral && !is_listed) {
        const int64_t first = config.has("max_window_layers") ? config.count("max_window_layers", kMostSize, 0) : 28;
        for (int64_t l = 0; l < s.num_layers; l++)
            letters += (kind == kSmolLm3 ? !rotates(a, l) : l >= first) ? 'S' : 'L';
    }
    if (window == 0 || window >= s.max_seq_len || letters.find('S') == std::string::npos) return;
    a.short_window = window - 1;
    a.full_last_layer = letters.back() == 'L';
    a.windows = letters.find('L') == std::string::npos ? "S" : letters;
}

GptShape read_llama(const ConfigReader& config, size_t kind) {
    GptShape s{};
    Architecture& a = s.architecture = find_architecture("llama");
    read_sizes(config, s, kLlamaKinds[kind]);
    const std::string activation = config.text("hidden_act", "silu");
    config.expect(activation == "silu" || activation == "swish", "hidden_act", "silu");
    config.expect(!config.truth("mlp_bias", false), "mlp_bias", "false");
    a.qkv_biases = kind == kQwen2;
    a.qk_rmsnorm = kind == kQwen3;
    if (kind == kSmolLm3) {
        const int64_t interval = config.count_or("no_rope_layer_interval", 4);
        std::string letters;
        const bool is_listed =
            read_layers(config, "no_rope_layers", s.num_layers, "0 or 1 for each layer", [&](const OrderedJson& layer) {
                letters += layer == 0 ? 'N' : 'R';
                return layer == 0 || layer == 1;
            });
        if (!is_listed)
            for (int64_t l = 0; l < s.num_layers; l++) letters += (l + 1) % interval == 0 ? 'N' : 'R';
        if (letters.find('N') != std::string::npos) a.rotary_layers = letters;
    }
    read_windows(config, s, kind);
    config.expect_only(
        kFieldsOfLlama +
        std::string(" mlp_bias sliding_window use_sliding_window max_window_layers layer_types no_rope_layers "
                    "no_rope_layer_interval"));
    return s;
}

GptShape read_nanochat(const ConfigReader& config) {
    GptShape s{};
    Architecture& a = s.architecture = find_architecture("nanochat");
    a.value_embeddings = a.residual_lambdas = a.smear = a.backout = false;
    a.windows = "L";
    a.rotary.scale = 1;
    static constexpr LlamaKind kNanochat = {"nanochat", "NanoChatForCausalLM", {0, 0, 2048, 1e4, false}, {true, false}};
    read_sizes(config, s, kNanochat);
    config.expect(s.query_channels() == s.channels, "head_dim", "hidden_size / num_attention_heads");
    config.expect(a.rotary.scaling.factor == 1 && a.rotary.scale == 1,
                  config.has("rope_scaling") ? "rope_scaling" : "rope_parameters", "rope_type default");
    a.rotary.eps = float(a.norm_eps);
    a.softcap.limit = float(config.number("final_logit_softcapping", 15));
    if (config.is_null("final_logit_softcapping")) a.softcap = {};
    config.expect(config.text("hidden_act", "relu2") == "relu2", "hidden_act", "relu2");
    config.expect_only(kFieldsOfLlama + std::string(" final_logit_softcapping"));
    return s;
}

GptShape read_anvil(const ConfigReader& config, const std::string& text, const std::string& where) {
    GptShape s{};
    from_json(size_fields(s), text, where);
    ArchitectureFields parts(s.architecture);
    from_older_json(more_fields(s, parts), text, where);  // the model lacks the parts that are missing
    std::string known = "tie_word_embeddings";            // transformers writes it; tied-head is what counts
    for (const std::vector<Field>& some : {size_fields(s), more_fields(s, parts)})
        for (const Field& field : some) known += std::string(" ") + field.name;
    config.expect_only(known);
    s.architecture = parts.architecture();
    return s;
}

OrderedJson gpt2_config(const GptShape& s) {
    return {{"architectures", {"GPT2LMHeadModel"}},
            {"model_type", "gpt2"},
            {"vocab_size", s.vocab_size},
            {"n_positions", s.max_seq_len},
            {"n_embd", s.channels},
            {"n_layer", s.num_layers},
            {"n_head", s.num_heads},
            {"n_inner", s.mlp_channels > 0 ? OrderedJson(s.mlp_channels) : OrderedJson()},
            {"activation_function", "gelu_new"},
            {"layer_norm_epsilon", s.architecture.norm_eps},
            {"attn_pdrop", 0.0},
            {"embd_pdrop", 0.0},
            {"resid_pdrop", 0.0}};
}

OrderedJson named_as_llama(const GptShape& s) {
    return {{"vocab_size", s.vocab_size},
            {"max_position_embeddings", s.max_seq_len},
            {"hidden_size", s.channels},
            {"intermediate_size", s.hidden()},
            {"num_hidden_layers", s.num_layers},
            {"num_attention_heads", s.num_heads},
            {"num_key_value_heads", s.kv_heads()},
            {"rms_norm_eps", s.architecture.norm_eps},
            {"rope_theta", s.architecture.rotary.base},
            {"attention_dropout", 0.0}};
}

OrderedJson llama_config(const GptShape& s) {
    const Architecture& a = s.architecture;
    const size_t type = llama_kind_of(s);
    const LlamaKind& kind = kLlamaKinds[type];
    OrderedJson config = {{"architectures", {kind.class_name}}, {"model_type", kind.model_type}};
    config.update(named_as_llama(s));
    config.update({{"head_dim", s.head_size()}, {"hidden_act", "silu"}});
    if (kind.has_bias_fields[0]) config["attention_bias"] = false;
    if (kind.has_bias_fields[1]) config["mlp_bias"] = false;
    if (const RotaryScaling& scaling = a.rotary.scaling; scaling.factor != 1) {
        const bool is_yarn = scaling.is_yarn();
        config["rope_scaling"] = {{"rope_type", is_yarn ? "yarn" : "llama3"},
                                  {"rope_theta", a.rotary.base},
                                  {"factor", scaling.factor},
                                  {is_yarn ? "beta_slow" : "low_freq_factor", scaling.low_turns},
                                  {is_yarn ? "beta_fast" : "high_freq_factor", scaling.high_turns},
                                  {"original_max_position_embeddings", scaling.original_length}};
        if (is_yarn) config["rope_scaling"]["attention_factor"] = a.rotary.scale;
        if (const auto whole = int64_t(scaling.original_length); double(whole) == scaling.original_length)
            config["rope_scaling"]["original_max_position_embeddings"] = whole;
        config["rope_parameters"] = config["rope_scaling"];
    }
    if (type == kSmolLm3) {
        config["no_rope_layers"] = OrderedJson::array();
        for (int64_t l = 0; l < s.num_layers; l++) config["no_rope_layers"].push_back(int(rotates(a, l)));
    }
    if (type == kLlama) return config;
    int64_t longest = -1;
    OrderedJson layers = OrderedJson::array();
    for (const int64_t window : layer_windows(a, s.num_layers, s.max_seq_len)) {
        layers.push_back(window < 0 ? "full_attention" : "sliding_attention");
        longest = std::max(longest, window);
    }
    config["sliding_window"] = longest < 0 ? OrderedJson() : OrderedJson(longest + 1);
    if (type == kMistral) return config;
    if (type != kMinistral) config["use_sliding_window"] = longest >= 0;
    config["layer_types"] = layers;
    return config;
}

OrderedJson nanochat_config(const GptShape& s) {
    OrderedJson config = {{"architectures", {"NanoChatForCausalLM"}}, {"model_type", "nanochat"}};
    config.update(named_as_llama(s));
    config.update({{"attention_bias", false},
                   {"hidden_act", "relu2"},
                   {"final_logit_softcapping", s.architecture.softcap.kind == Softcap::Kind::none
                                                   ? OrderedJson()
                                                   : OrderedJson(s.architecture.softcap.limit)},
                   {"rope_parameters", {{"rope_type", "default"}, {"rope_theta", s.architecture.rotary.base}}}});
    return config;
}

// null, one id, or a list.
OrderedJson json_of(const std::vector<int64_t>& ids) {
    if (ids.empty()) return {};
    return ids.size() == 1 ? OrderedJson(ids[0]) : OrderedJson(ids);
}

}  // namespace

ModelFamily family_of(const GptShape& s) {
    if (is_gpt2(s)) return ModelFamily::gpt2;
    if (llama_kind_of(s) != kNoKind) return ModelFamily::llama;
    return is_plain_nanochat(s) ? ModelFamily::nanochat : ModelFamily::anvil;
}

const char* model_type_of(const GptShape& s) {
    switch (family_of(s)) {
        case ModelFamily::gpt2:
            return "gpt2";
        case ModelFamily::llama:
            return kLlamaKinds[llama_kind_of(s)].model_type;
        case ModelFamily::nanochat:
            return "nanochat";
        case ModelFamily::anvil:
            break;
    }
    return "anvil";
}

const char* export_advice(const GptShape& s) {
    return family_of(s) == ModelFamily::anvil ? "use --format hf, which writes it with its code for transformers"
                                              : "use --format hf";
}

std::string model_config(const GptShape& s, DType dtype, const TokenIds& tokens, const std::string& code) {
    const std::string stored_as = dtype == DType::bf16 ? "bfloat16" : "float32";
    const ModelFamily family = family_of(s);
    OrderedJson config;
    if (family == ModelFamily::anvil) {
        GptShape copy = s;
        ArchitectureFields parts(s.architecture);
        std::string model_type = "anvil";
        std::vector<Field> fields = {{"", "model_type", &model_type, ""}};
        for (const std::vector<Field>& some : {size_fields(copy), more_fields(copy, parts)})
            fields.insert(fields.end(), some.begin(), some.end());
        config = parse_ordered_json(to_json(fields));
        if (!code.empty()) {
            config["architectures"] = {"AnvilForCausalLM"};
            config["auto_map"] = {{"AutoConfig", code + ".AnvilConfig"},
                                  {"AutoModelForCausalLM", code + ".AnvilForCausalLM"}};
        }
    } else {
        config = family == ModelFamily::gpt2    ? gpt2_config(s)
                 : family == ModelFamily::llama ? llama_config(s)
                                                : nanochat_config(s);
        config["tie_word_embeddings"] = s.architecture.tied_head;
    }
    // Without these fields, transformers uses the tokens of GPT-2, Llama, ...
    config["bos_token_id"] = json_of(tokens.begin);
    config["eos_token_id"] = json_of(tokens.end);
    config["pad_token_id"] = json_of(tokens.pad);
    config["torch_dtype"] = stored_as;
    return json_text(config, 2) + "\n";
}

ConfiguredModel read_model_config(const std::string& text, const std::string& where) {
    const ConfigReader config(text, where);
    const std::string type = config.text("model_type", "none");
    size_t kind = llama_kind_named(type);
    // As transformers reads it, whatever the list is.
    if (kind == kMistral && (config.has("layer_types") || config.is_null("layer_types"))) kind = kMinistral;
    config.expect(type == "gpt2" || kind != kNoKind || type == "nanochat" || type == "anvil", "model_type",
                  "one of gpt2, llama, mistral, ministral, qwen2, qwen3, smollm3, nanochat, anvil");
    ConfiguredModel model = type == "gpt2"       ? ConfiguredModel{read_gpt2(config), ModelFamily::gpt2}
                            : kind != kNoKind    ? ConfiguredModel{read_llama(config, kind), ModelFamily::llama}
                            : type == "nanochat" ? ConfiguredModel{read_nanochat(config), ModelFamily::nanochat}
                                                 : ConfiguredModel{read_anvil(config, text, where), ModelFamily::anvil};
    const GptShape& s = model.shape;
    require((s.head_channels > 0 || s.channels % s.num_heads == 0) && s.num_heads % s.kv_heads() == 0,
            "%s: %ld channels, %ld heads, %ld of keys and values: expected each to be a multiple of the next",
            where.c_str(), s.channels, s.num_heads, s.kv_heads());
    layer_windows(s.architecture, s.num_layers, s.max_seq_len);
    return model;
}
