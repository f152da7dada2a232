// See gguf.h.
#include "llmc/interop/gguf.h"
#include <algorithm>
#include <cmath>
#include <map>
#include <string_view>
#include "llmc/base/bf16.h"   // to_bf16
#include "llmc/base/check.h"  // require, ensure
#include "llmc/base/file.h"   // FileWriter
#include "llmc/base/json.h"   // Json

namespace {

constexpr uint64_t kDataAlignment = 32;
constexpr std::string_view kNameCharacters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
enum ValueType : uint32_t { kUint32 = 4, kInt32 = 5, kFloat32 = 6, kBool = 7, kString = 8, kArray = 9 };
enum TensorType : uint32_t { kF32 = 0, kBf16 = 30 };
enum FileType : uint32_t { kAllF32 = 0, kMostlyBf16 = 32 };
enum TokenType : int32_t { kNormal = 1, kControl = 3, kUserDefined = 4, kUnused = 5 };

template <class T>
void put(std::string& to, T value) {
    to.append(reinterpret_cast<const char*>(&value), sizeof value);
}
void put_string(std::string& to, std::string_view text) {
    put(to, uint64_t(text.size()));
    to += text;
}

struct Keys {
    std::string bytes;
    uint64_t n = 0;

    void begin(const std::string& name, ValueType type) {
        put_string(bytes, name);
        put(bytes, uint32_t(type));
        n++;
    }
    void count(const std::string& name, int64_t value) { begin(name, kUint32), put(bytes, uint32_t(value)); }
    void integer(const std::string& name, int64_t value) { begin(name, kInt32), put(bytes, int32_t(value)); }
    void number(const std::string& name, double value) { begin(name, kFloat32), put(bytes, float(value)); }
    void truth(const std::string& name, bool value) { begin(name, kBool), put(bytes, uint8_t(value)); }
    void text(const std::string& name, const std::string& value) { begin(name, kString), put_string(bytes, value); }
    void list(const std::string& name, ValueType type, size_t size) {
        begin(name, kArray);
        put(bytes, uint32_t(type));
        put(bytes, uint64_t(size));
    }
};

// The models that llama.cpp supports, in its terms.
struct Kind {
    const char *model_type, *name;  // config.json's and llama.cpp's
    bool pairs_neighbors;           // it rotates channels 2j and 2j + 1 of a head, Anvil j and j + HS/2
    bool stretches;                 // it supports Llama 3.1's scaled positions
    const char* rotary_layers;      // llama.cpp fixes which layers rotate
};
constexpr Kind kKinds[] = {{"gpt2", "gpt2", false, false, "R"},
                           {"llama", "llama", true, true, "R"},
                           {"qwen2", "qwen2", false, false, "R"},
                           {"qwen3", "qwen3", false, false, "R"},
                           {"smollm3", "smollm3", true, false, "RRRN"}};

// The kind of a model. Throws an Error that says what llama.cpp does not support.
const Kind& kind_of(const GptShape& s) {
    const std::string type = model_type_of(s);
    // A Mistral without windows is a Llama; windows are rejected below.
    const auto found = std::find_if(std::begin(kKinds), std::end(kKinds), [&](const Kind& kind) {
        return (type == "mistral" ? "llama" : type) == kind.model_type;
    });
    require(found != std::end(kKinds),
            "--format gguf writes GPT-2, Llama, Qwen2, Qwen3 and SmolLM3, and this is another model; %s",
            export_advice(s));
    const auto windows = layer_windows(s.architecture, s.num_layers, s.max_seq_len);
    require(std::all_of(windows.begin(), windows.end(), [](int64_t window) { return window < 0; }),
            "--format gguf: this model has layers that see a window of short-window %ld, and llama.cpp has none for "
            "it; %s",
            s.architecture.short_window, export_advice(s));
    const RotaryScaling& scaling = s.architecture.rotary.scaling;
    require(scaling.factor == 1 || (found->stretches && !scaling.is_yarn()),
            "--format gguf: this model has rotary-factor = %g, which it takes of Llamas with rotary-scaling = llama3 "
            "alone; %s",
            scaling.factor, export_advice(s));
    Architecture built_in = s.architecture;
    built_in.rotary_layers = found->rotary_layers;
    for (int64_t l = 0; l < s.num_layers; l++)
        require(rotates(s.architecture, l) == rotates(built_in, l),
                "--format gguf: this model has rotary-pattern = %s, and llama.cpp's %s has %s; %s",
                s.architecture.rotary_layers.c_str(), found->name, found->rotary_layers, export_advice(s));
    return *found;
}

// llama.cpp's name of a tensor that is NAME.weight or NAME.bias in transformers.
std::string gguf_name(const StoredTensor& stored, const Parameter& p) {
    static const std::pair<const char*, const char*> kNames[] = {
        {"wte", "token_embd"},
        {"wpe", "position_embd"},
        {"ln_f", "output_norm"},
        {"lm_head", "output"},
        {"ln_1", "attn_norm"},
        {"attn.c_attn", "attn_qkv"},
        {"attn.c_proj", "attn_output"},
        {"ln_2", "ffn_norm"},
        {"mlp.c_fc", "ffn_up"},
        {"mlp.c_proj", "ffn_down"},
        {"embed_tokens", "token_embd"},
        {"norm", "output_norm"},
        {"input_layernorm", "attn_norm"},
        {"self_attn.q_proj", "attn_q"},
        {"self_attn.k_proj", "attn_k"},
        {"self_attn.v_proj", "attn_v"},
        {"self_attn.q_norm", "attn_q_norm"},
        {"self_attn.k_norm", "attn_k_norm"},
        {"self_attn.o_proj", "attn_output"},
        {"post_attention_layernorm", "ffn_norm"},
        {"mlp.gate_proj", "ffn_gate"},
        {"mlp.up_proj", "ffn_up"},
        {"mlp.down_proj", "ffn_down"},
    };
    std::string name = stored.tensor.name;
    const bool in_block = p.name.starts_with("h.");
    for (const std::string prefix : {"transformer.", "model.", "h.", "layers."})
        if (name.starts_with(prefix)) name = name.substr(prefix.size());
    if (in_block) name = name.substr(name.find('.') + 1);
    const size_t dot = name.rfind('.');
    for (const auto& [theirs, ours] : kNames)
        if (name.substr(0, dot) == theirs)
            return (in_block ? "blk." + std::to_string(p.layer) + "." : "") + ours + name.substr(dot);
    ensure(false);
    return "";
}

bool is_matrix(const Parameter& p) { return p.shape.size() == 2 && p.group != ParameterGroup::positions; }

// Permutes the rows of each head of queries or keys from (heads, 2, HS/2, cols) to (heads, HS/2, 2, cols).
void pair_neighbors(std::vector<float>& values, int64_t heads, int64_t HS, int64_t cols) {
    const std::vector<float> from = values;
    for (int64_t head = 0; head < heads; head++)
        for (int64_t j = 0; j < HS; j++) {
            const int64_t to = j < HS / 2 ? 2 * j : 2 * (j - HS / 2) + 1;
            std::copy_n(&from[size_t((head * HS + j) * cols)], cols, &values[size_t((head * HS + to) * cols)]);
        }
}

// The divisor of each frequency, which is llama.cpp's form of Llama 3.1's positions.
std::vector<float> divisors_of(const GptShape& s) {
    const RotaryOptions& rotary = s.architecture.rotary;
    std::vector<float> divisors;
    for (int64_t j = 0; j < s.head_size() / 2; j++) {
        const auto frequency = [&](const RotaryScaling& scaling) {
            return scaling.frequency(j, s.head_size(), rotary.base);
        };
        divisors.push_back(float(frequency({}) / frequency(rotary.scaling)));
    }
    return divisors;
}

uint64_t padded(uint64_t bytes) { return (bytes + kDataAlignment - 1) / kDataAlignment * kDataAlignment; }

TokenType type_of(const ByteLevelTokenizer::Token& token) {
    return token.is_special ? kControl : token.is_added ? kUserDefined : kNormal;
}

// As convert_hf_to_gguf.py of llama.cpp has them: tokenizer_config.json's end of text takes precedence over
// config.json's. llama.cpp stops at three ids, and at tokens that it knows by their text.
void add_token_ids(Keys& keys, const GptShape& s, const ByteLevelTokenizer& tokenizer, const TokenFacts& facts) {
    const int64_t known = std::min(int64_t(tokenizer.tokens.size()), s.vocab_size);
    std::vector<int64_t> ends;
    if (facts.text_end >= 0) ends.push_back(facts.text_end);
    for (const std::vector<int64_t>& some : {facts.ids.end, all_ends(facts)})
        for (const int64_t id : some)
            if (id < known && std::find(ends.begin(), ends.end(), id) == ends.end()) ends.push_back(id);
    // A file that names no end has token 11 as its end in llama.cpp.
    if (const auto json = facts.files.find("tokenizer.json"); ends.empty() && json != facts.files.end())
        if (const int64_t guess = find_end_token(json->second).id; guess >= 0 && guess < known) ends.push_back(guess);
    // The one that ends an answer comes second, or first. Those that llama.cpp knows come last.
    const auto rank = [&](int64_t id) {
        const std::string& text = tokenizer.tokens[size_t(id)].text;
        if (facts.chat_template.find(text) != std::string::npos) return 0;
        for (const char* known_there : {"<|endoftext|>", "<|end_of_text|>", "<|eot_id|>", "<|eom_id|>", "<|im_end|>"})
            if (text == known_there) return 2;
        return 1;
    };
    if (!ends.empty())
        std::stable_sort(ends.begin() + 1, ends.end(), [&](int64_t a, int64_t b) { return rank(a) < rank(b); });
    const char* const names[] = {"eos", "eot", "eom"};
    for (size_t i = 0; i < std::min(ends.size(), std::size(names)); i++)
        keys.count(std::string("tokenizer.ggml.") + names[i] + "_token_id", ends[i]);
    // What is put before every text must be this one.
    const int64_t begin =
        tokenizer.begin_token >= 0 || facts.ids.begin.empty() ? tokenizer.begin_token : facts.ids.begin[0];
    if (begin >= 0 && begin < known) keys.count("tokenizer.ggml.bos_token_id", begin);
    if (!facts.ids.pad.empty() && facts.ids.pad[0] < known)
        keys.count("tokenizer.ggml.padding_token_id", facts.ids.pad[0]);
    keys.truth("tokenizer.ggml.add_bos_token", tokenizer.begin_token >= 0);
}

// The defaults of generation_config.json for sampling, which transformers follows with do_sample alone.
void add_sampling(Keys& keys, const TokenFacts& facts) {
    const auto found = facts.files.find("generation_config.json");
    const Json config = found == facts.files.end() ? Json() : parse_json(found->second);
    if (!config.is_object() || config.value("do_sample", Json()) != true) return;
    const auto is_number = [&](const char* name) { return config.contains(name) && config[name].is_number(); };
    if (is_number("top_k")) keys.integer("general.sampling.top_k", config["top_k"].get<int32_t>());
    for (const auto& [theirs, ours] : {std::pair{"top_p", "top_p"}, {"min_p", "min_p"}, {"temperature", "temp"}})
        if (is_number(theirs)) keys.number(std::string("general.sampling.") + ours, config[theirs].get<double>());
}

// Beside the default chat template those for tools and the like, which tokenizer_config.json has under other names.
void add_chat_templates(Keys& keys, const TokenFacts& facts) {
    if (!facts.chat_template.empty()) keys.text("tokenizer.chat_template", facts.chat_template);
    const auto found = facts.files.find("tokenizer_config.json");
    const Json config = found == facts.files.end() ? Json() : parse_json(found->second);
    if (!config.is_object() || !config.contains("chat_template") || !config["chat_template"].is_array()) return;
    std::map<std::string, std::string> named;
    for (const Json& each : config["chat_template"]) {
        if (!each.is_object() || !each.value("name", Json()).is_string()) continue;
        if (!each.value("template", Json()).is_string()) continue;
        std::string name = each["name"];
        for (char& c : name) c = kNameCharacters.find(c) == kNameCharacters.npos ? '_' : c;
        if (!name.empty() && name != "default") named[name] = each["template"];
    }
    for (const auto& [name, text] : named) keys.text("tokenizer.chat_template." + name, text);
    if (named.empty()) return;
    keys.list("tokenizer.chat_templates", kString, named.size());
    for (const auto& [name, text] : named) put_string(keys.bytes, name);
}

void add_tokenizer(Keys& keys, const Kind& kind, const GptShape& s, const ByteLevelTokenizer& tokenizer,
                   const TokenFacts& facts) {
    if (tokenizer.tokens.empty()) {
        keys.text("tokenizer.ggml.model", "no_vocab");
        keys.count(std::string(kind.name) + ".vocab_size", s.vocab_size);
        return;
    }
    const size_t V = size_t(s.vocab_size), known = tokenizer.tokens.size();
    require(known <= V, "the tokenizer has %zu tokens, but the model a vocabulary of %zu: they do not belong together",
            known, V);
    keys.text("tokenizer.ggml.model", "gpt2");
    keys.text("tokenizer.ggml.pre", tokenizer.pre);
    keys.list("tokenizer.ggml.tokens", kString, V);
    for (size_t id = 0; id < V; id++)
        put_string(keys.bytes, id < known ? tokenizer.tokens[id].text : "[PAD" + std::to_string(id) + "]");
    keys.list("tokenizer.ggml.token_type", kInt32, V);
    for (size_t id = 0; id < V; id++) put(keys.bytes, int32_t(id >= known ? kUnused : type_of(tokenizer.tokens[id])));
    keys.list("tokenizer.ggml.merges", kString, tokenizer.merges.size());
    for (const std::string& merge : tokenizer.merges) put_string(keys.bytes, merge);
    add_token_ids(keys, s, tokenizer, facts);
    add_chat_templates(keys, facts);
    add_sampling(keys, facts);
}

void add_model(Keys& keys, const Kind& kind, const GptShape& s) {
    const std::string arch = kind.name;
    const bool is_gpt2 = arch == "gpt2";
    keys.count(arch + ".context_length", s.max_seq_len);
    keys.count(arch + ".embedding_length", s.channels);
    keys.count(arch + ".feed_forward_length", s.hidden());
    keys.count(arch + ".block_count", s.num_layers);
    keys.count(arch + ".attention.head_count", s.num_heads);
    keys.number(arch + (is_gpt2 ? ".attention.layer_norm_epsilon" : ".attention.layer_norm_rms_epsilon"),
                s.architecture.norm_eps);
    if (is_gpt2) return;
    keys.count(arch + ".attention.head_count_kv", s.kv_heads());
    keys.count(arch + ".attention.key_length", s.head_size());
    keys.count(arch + ".attention.value_length", s.head_size());
    keys.count(arch + ".rope.dimension_count", s.head_size());
    keys.number(arch + ".rope.freq_base", s.architecture.rotary.base);
}

}  // namespace

void write_gguf(const std::string& path, const StoredModel& model, DType dtype, const ByteLevelTokenizer& tokenizer,
                const TokenFacts& facts) {
    const GptShape& s = model.shape();
    const Kind& kind = kind_of(s);
    const ParameterList list(s);
    Keys keys;
    keys.text("general.architecture", kind.name);
    keys.text("general.name", model_type_of(s));
    keys.count("general.file_type", dtype == DType::bf16 ? kMostlyBf16 : kAllF32);
    keys.count("general.alignment", kDataAlignment);
    add_model(keys, kind, s);
    add_tokenizer(keys, kind, s, tokenizer, facts);

    const std::vector<StoredTensor> stored = stored_tensors(list, family_of(s), dtype);
    const auto stored_as = [&](const Parameter& p) { return is_matrix(p) ? dtype : DType::f32; };
    const auto size_of_stored = [&](const StoredTensor& t) {
        return uint64_t(t.tensor.size()) * size_of(stored_as(list.parameters[t.parameter]));
    };
    std::string header = "GGUF", infos;
    uint64_t offset = 0;
    const auto add_info = [&](const std::string& name, int64_t columns, int64_t rows, DType type, uint64_t bytes) {
        put_string(infos, name);
        put(infos, uint32_t(columns > 0 ? 2 : 1));
        if (columns > 0) put(infos, uint64_t(columns));
        put(infos, uint64_t(rows));
        put(infos, uint32_t(type == DType::bf16 ? kBf16 : kF32));
        put(infos, offset);
        offset = padded(offset + bytes);
    };
    for (const StoredTensor& t : stored) {
        const Parameter& p = list.parameters[t.parameter];
        add_info(gguf_name(t, p), p.shape.size() == 2 ? p.shape[1] : 0, t.rows, stored_as(p), size_of_stored(t));
    }
    const std::vector<float> divisors =
        s.architecture.rotary.scaling.factor != 1 ? divisors_of(s) : std::vector<float>();
    if (!divisors.empty())
        add_info("rope_freqs.weight", 0, int64_t(divisors.size()), DType::f32, divisors.size() * sizeof(float));
    put(header, uint32_t(3));
    put(header, uint64_t(stored.size() + (divisors.empty() ? 0 : 1)));
    put(header, keys.n);
    header += keys.bytes + infos;
    header.resize(padded(header.size()), '\0');

    FileWriter file(path);
    file.write(header.data(), header.size());
    const auto write_padded = [&](const void* data, uint64_t bytes) {
        file.write(data, bytes);
        const std::string padding(padded(bytes) - bytes, '\0');
        file.write(padding.data(), padding.size());
    };
    std::vector<float> whole, values;
    std::vector<bf16> halves;
    for (const StoredTensor& t : stored) {
        const Parameter& p = list.parameters[t.parameter];
        const int64_t cols = p.size() / p.shape[0];
        if (t.begin == 0) {
            whole.resize(size_t(p.size()));
            model.read(p, whole.data());
        }
        values.assign(&whole[size_t(t.begin * cols)], &whole[size_t(t.begin * cols)] + t.rows * cols);
        const bool turns = t.tensor.name.find("self_attn.q_proj.") != std::string::npos ||
                           t.tensor.name.find("self_attn.k_proj.") != std::string::npos;
        if (turns && kind.pairs_neighbors) pair_neighbors(values, t.rows / s.head_size(), s.head_size(), cols);
        if (stored_as(p) == DType::bf16) {
            halves.clear();
            for (const float value : values) halves.push_back(to_bf16(value));
            write_padded(halves.data(), size_of_stored(t));
        } else {
            write_padded(values.data(), size_of_stored(t));
        }
    }
    if (!divisors.empty()) write_padded(divisors.data(), divisors.size() * sizeof(float));
    file.sync_and_close();
}
