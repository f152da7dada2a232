// See model_config.h.
#include "llmc/interop/model_config.h"
#include <cmath>
#include "llmc/base/check.h"  // require
#include "llmc/base/flags.h"  // Field, from_json, to_json
#include "llmc/base/json.h"   // OrderedJson

namespace {

constexpr double kMostLayers = 1000, kMostSize = 1 << 22;  // so that sizes multiply, and as flags take them

std::vector<Field> size_fields(GptShape& s) {
    return {{"", "n_layer", &s.num_layers, "", {}, 1, kMostLayers},
            {"", "n_head", &s.num_heads, "", {}, 1, kMostSize},
            {"", "n_embd", &s.channels, "", {}, 1, kMostSize},
            {"", "n_positions", &s.max_seq_len, "", {}, 1, kMostSize},
            {"", "vocab_size", &s.vocab_size, "", {}, 1, kMostSize}};
}

std::vector<Field> more_fields(GptShape& s, ArchitectureFields& parts) {
    std::vector<Field> all = {{"", "n_kv_head", &s.num_kv_heads, "", {}, 0, kMostSize},
                              {"", "n_inner", &s.mlp_channels, "", {}, 0, kMostSize}};
    for (const Field& field : parts.fields()) all.push_back(field);
    return all;
}

// Is it `name`'s architecture but for what that family's config.json can say?
bool is_variety(const Architecture& a, const char* name) {
    Architecture base = find_architecture(name);
    base.norm_eps = a.norm_eps;
    base.tied_head = a.tied_head;
    if (base.rotary_positions) base.rotary.base = a.rotary.base;
    return same_function(a, base);
}

// NanoChatForCausalLM: what has been added to nanochat since is not in it.
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
    if (!same_function(a, base)) return false;
    for (const int64_t window : layer_windows(a, s.num_layers, s.max_seq_len))
        if (window >= 0) return false;
    return true;
}

// The fields of a config.json of transformers, of which most may be absent or null and then have a default.
class ConfigReader {
public:
    ConfigReader(const std::string& text, const std::string& where) : json_(parse_ordered_json(text)), where_(where) {
        require(json_.is_object(), "%s: not a JSON object; use another copy of it", where.c_str());
    }

    bool is_null(const char* name) const { return json_.contains(name) && json_[name].is_null(); }
    bool has(const char* name) const { return json_.contains(name) && !json_[name].is_null(); }
    const OrderedJson& value(const char* name) const { return json_[name]; }

    int64_t count(const char* name, double most = kMostSize) const {
        require(has(name), "%s: \"%s\" is missing", where_.c_str(), name);
        const OrderedJson& value = json_[name];
        require(value.is_number_unsigned() && value.get<uint64_t>() >= 1 && value.get<uint64_t>() <= uint64_t(most),
                "%s: \"%s\": %s: expected an integer from 1 to %.0f", where_.c_str(), name, shown(value).c_str(), most);
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

    // What only one value can be done with here.
    void expect(bool good, const char* name, const char* expected) const {
        require(good, "%s: \"%s\": %s: expected %s: Anvil has no such model", where_.c_str(), name,
                has(name) ? shown(json_[name]).c_str() : "nothing", expected);
    }

private:
    OrderedJson json_;
    std::string where_;

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
    config.expect(!config.truth("add_cross_attention", false), "add_cross_attention", "false");
    return s;
}

// Llama's names of sizes, which its successors have, too.
void read_sizes(const ConfigReader& config, GptShape& s) {
    s.num_layers = config.count("num_hidden_layers", kMostLayers);
    s.num_heads = config.count("num_attention_heads");
    s.num_kv_heads = config.count_or("num_key_value_heads", s.num_heads);
    s.channels = config.count("hidden_size");
    s.mlp_channels = config.count("intermediate_size");
    s.max_seq_len = config.count_or("max_position_embeddings", 2048);
    s.vocab_size = config.count("vocab_size");
    s.architecture.norm_eps = config.number("rms_norm_eps", 1e-6);
    s.architecture.tied_head = config.truth("tie_word_embeddings", false);
    s.architecture.rotary.base = config.number("rope_theta", 10000);
    config.expect(!config.truth("attention_bias", false), "attention_bias", "false");
    config.expect(s.channels % s.num_heads == 0 && config.count_or("head_dim", s.head_size()) == s.head_size(),
                  "head_dim", "hidden_size / num_attention_heads");
    // rope_scaling until transformers 4, rope_parameters since 5
    for (const char* name : {"rope_scaling", "rope_parameters"}) {
        if (!config.has(name)) continue;
        const OrderedJson& rope = config.value(name);
        config.expect(rope.is_object(), name, "an object");
        const OrderedJson type = rope.value("rope_type", rope.value("type", OrderedJson("default")));
        config.expect(type == "default", name, "rope_type default");
        if (rope.contains("rope_theta")) s.architecture.rotary.base = config.positive(rope["rope_theta"], "rope_theta");
    }
}

GptShape read_llama(const ConfigReader& config) {
    GptShape s{};
    s.architecture = find_architecture("llama");
    read_sizes(config, s);
    config.expect(config.text("hidden_act", "silu") == "silu", "hidden_act", "silu");
    config.expect(!config.truth("mlp_bias", false), "mlp_bias", "false");
    return s;
}

// A Llama but for a window over all layers, which Anvil has not: its last layer sees all.
GptShape read_mistral(const ConfigReader& config) {
    GptShape s = read_llama(config);
    if (!config.has("num_key_value_heads") && !config.is_null("num_key_value_heads")) s.num_kv_heads = 8;
    s.max_seq_len = config.count_or("max_position_embeddings", 131072);
    config.expect(config.is_null("sliding_window") || config.count_or("sliding_window", 4096) >= s.max_seq_len,
                  "sliding_window", "null or at least max_position_embeddings");
    return s;
}

GptShape read_nanochat(const ConfigReader& config) {
    GptShape s{};
    Architecture& a = s.architecture = find_architecture("nanochat");
    a.value_embeddings = a.residual_lambdas = a.smear = a.backout = false;
    a.windows = "L";
    a.rotary.scale = 1;
    read_sizes(config, s);
    a.rotary.eps = float(a.norm_eps);
    a.softcap.limit = float(config.number("final_logit_softcapping", 15));
    if (config.is_null("final_logit_softcapping")) a.softcap = {};
    config.expect(config.text("hidden_act", "relu2") == "relu2", "hidden_act", "relu2");
    return s;
}

GptShape read_anvil(const std::string& text, const std::string& where) {
    GptShape s{};
    from_json(size_fields(s), text, where);
    ArchitectureFields parts(s.architecture);
    from_older_json(more_fields(s, parts), text, where);  // a part that is not named is one that the model has not
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
            {"attention_bias", false},
            {"attention_dropout", 0.0}};
}

OrderedJson llama_config(const GptShape& s) {
    OrderedJson config = {{"architectures", {"LlamaForCausalLM"}}, {"model_type", "llama"}};
    config.update(named_as_llama(s));
    config.update({{"head_dim", s.head_size()}, {"hidden_act", "silu"}, {"mlp_bias", false}});
    return config;
}

OrderedJson nanochat_config(const GptShape& s) {
    OrderedJson config = {{"architectures", {"NanoChatForCausalLM"}}, {"model_type", "nanochat"}};
    config.update(named_as_llama(s));
    config.update({{"hidden_act", "relu2"},
                   {"final_logit_softcapping", s.architecture.softcap.kind == Softcap::Kind::none
                                                   ? OrderedJson()
                                                   : OrderedJson(s.architecture.softcap.limit)},
                   {"rope_parameters", {{"rope_type", "default"}, {"rope_theta", s.architecture.rotary.base}}},
                   {"pad_token_id", nullptr}});  // its own is 1
    return config;
}

}  // namespace

ModelFamily family_of(const GptShape& s) {
    if (is_variety(s.architecture, "gpt2") && s.kv_heads() == s.num_heads) return ModelFamily::gpt2;
    if (is_variety(s.architecture, "llama")) return ModelFamily::llama;
    return is_plain_nanochat(s) ? ModelFamily::nanochat : ModelFamily::anvil;
}

const char* export_advice(const GptShape& s) {
    return family_of(s) == ModelFamily::anvil ? "use --format hf, which writes it with its code for transformers"
                                              : "use --format hf";
}

std::string model_config(const GptShape& s, DType dtype, int64_t end_token, const std::string& code) {
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
    if (family != ModelFamily::anvil || !code.empty()) {
        // Without these, transformers takes GPT-2's and Llama's own.
        const OrderedJson end = end_token >= 0 ? OrderedJson(end_token) : OrderedJson();
        config["bos_token_id"] = config["eos_token_id"] = end;
    }
    config["torch_dtype"] = stored_as;
    return json_text(config, 2) + "\n";
}

ConfiguredModel read_model_config(const std::string& text, const std::string& where) {
    const ConfigReader config(text, where);
    const std::string type = config.text("model_type", "none");
    config.expect(type == "gpt2" || type == "llama" || type == "mistral" || type == "nanochat" || type == "anvil",
                  "model_type", "one of gpt2, llama, mistral, nanochat, anvil");
    ConfiguredModel model = type == "gpt2"       ? ConfiguredModel{read_gpt2(config), ModelFamily::gpt2}
                            : type == "llama"    ? ConfiguredModel{read_llama(config), ModelFamily::llama}
                            : type == "mistral"  ? ConfiguredModel{read_mistral(config), ModelFamily::llama}
                            : type == "nanochat" ? ConfiguredModel{read_nanochat(config), ModelFamily::nanochat}
                                                 : ConfiguredModel{read_anvil(text, where), ModelFamily::anvil};
    const GptShape& s = model.shape;
    require(s.channels % s.num_heads == 0 && s.num_heads % s.kv_heads() == 0,
            "%s: %ld channels, %ld heads, %ld of keys and values: expected each to be a multiple of the next",
            where.c_str(), s.channels, s.num_heads, s.kv_heads());
    return model;
}
