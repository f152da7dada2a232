// See gguf.h.
#include "llmc/interop/gguf.h"
#include <algorithm>
#include <string_view>
#include "llmc/base/bf16.h"   // to_bf16
#include "llmc/base/check.h"  // require, ensure
#include "llmc/base/file.h"   // FileWriter

namespace {

constexpr uint64_t kDataAlignment = 32;
enum ValueType : uint32_t { kUint32 = 4, kInt32 = 5, kFloat32 = 6, kString = 8, kArray = 9 };
enum TensorType : uint32_t { kF32 = 0, kBf16 = 30 };
enum FileType : uint32_t { kAllF32 = 0, kMostlyBf16 = 32 };
enum TokenType : int32_t { kNormal = 1, kControl = 3, kUnused = 5 };

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
    void number(const std::string& name, double value) { begin(name, kFloat32), put(bytes, float(value)); }
    void text(const std::string& name, const std::string& value) { begin(name, kString), put_string(bytes, value); }
    void list(const std::string& name, ValueType type, size_t size) {
        begin(name, kArray);
        put(bytes, uint32_t(type));
        put(bytes, uint64_t(size));
    }
};

// What llama.cpp calls it.
std::string gguf_name(const Parameter& p) {
    static const std::pair<const char*, const char*> kNames[] = {
        {"wte", "token_embd"},  {"wpe", "position_embd"},    {"ln_f", "output_norm"},        {"lm_head", "output"},
        {"ln_1", "attn_norm"},  {"attn.c_attn", "attn_qkv"}, {"attn.c_proj", "attn_output"}, {"ln_2", "ffn_norm"},
        {"mlp.c_fc", "ffn_up"}, {"mlp.c_proj", "ffn_down"}};
    const bool in_block = p.name.starts_with("h.");
    const size_t begin = in_block ? p.name.find('.', 2) + 1 : 0, dot = p.name.rfind('.');
    for (const auto& [ours, theirs] : kNames)
        if (p.name.substr(begin, dot - begin) == ours)
            return (in_block ? "blk." + std::to_string(p.layer) + "." : "") + theirs + p.name.substr(dot);
    ensure(false);
    return "";
}

bool is_matrix(const Parameter& p) { return p.shape.size() == 2 && p.group != ParameterGroup::positions; }

uint64_t padded(uint64_t bytes) { return (bytes + kDataAlignment - 1) / kDataAlignment * kDataAlignment; }

void add_tokenizer(Keys& keys, const GptShape& s, const ByteLevelTokenizer& tokenizer, const EndToken& end) {
    if (tokenizer.tokens.empty()) {
        keys.text("tokenizer.ggml.model", "no_vocab");
        keys.count("gpt2.vocab_size", s.vocab_size);
        return;
    }
    const size_t V = size_t(s.vocab_size), known = tokenizer.tokens.size();
    require(known <= V, "the tokenizer has %zu tokens, but the model a vocabulary of %zu: they do not belong together",
            known, V);
    keys.text("tokenizer.ggml.model", "gpt2");
    keys.text("tokenizer.ggml.pre", "gpt-2");
    keys.list("tokenizer.ggml.tokens", kString, V);
    for (size_t id = 0; id < V; id++)
        put_string(keys.bytes, id < known ? tokenizer.tokens[id].text : "[PAD" + std::to_string(id) + "]");
    keys.list("tokenizer.ggml.token_type", kInt32, V);
    for (size_t id = 0; id < V; id++)
        put(keys.bytes, int32_t(id >= known ? kUnused : tokenizer.tokens[id].is_special ? kControl : kNormal));
    keys.list("tokenizer.ggml.merges", kString, tokenizer.merges.size());
    for (const std::string& merge : tokenizer.merges) put_string(keys.bytes, merge);
    if (end.id >= 0) {
        keys.count("tokenizer.ggml.bos_token_id", end.id);
        keys.count("tokenizer.ggml.eos_token_id", end.id);
    }
}

}  // namespace

void write_gguf(const std::string& path, const StoredModel& model, DType dtype, const ByteLevelTokenizer& tokenizer,
                const EndToken& end) {
    const GptShape& s = model.shape();
    require(family_of(s) == ModelFamily::gpt2, "--format gguf writes GPT-2, and this is another model; %s",
            export_advice(s));
    const ParameterList list(s);
    Keys keys;
    keys.text("general.architecture", "gpt2");
    keys.text("general.name", "gpt2");
    keys.count("general.file_type", dtype == DType::bf16 ? kMostlyBf16 : kAllF32);
    keys.count("general.alignment", kDataAlignment);
    keys.count("gpt2.context_length", s.max_seq_len);
    keys.count("gpt2.embedding_length", s.channels);
    keys.count("gpt2.feed_forward_length", s.hidden());
    keys.count("gpt2.block_count", s.num_layers);
    keys.count("gpt2.attention.head_count", s.num_heads);
    keys.number("gpt2.attention.layer_norm_epsilon", s.architecture.norm_eps);
    add_tokenizer(keys, s, tokenizer, end);

    const auto stored_as = [&](const Parameter& p) { return is_matrix(p) ? dtype : DType::f32; };
    const auto size_of_stored = [&](const Parameter& p) {
        return uint64_t(p.exported_rows * (p.size() / p.shape[0])) * size_of(stored_as(p));
    };
    std::string header = "GGUF", infos;
    uint64_t offset = 0;
    for (const Parameter& p : list) {
        put_string(infos, gguf_name(p));
        put(infos, uint32_t(p.shape.size()));
        if (p.shape.size() == 2) put(infos, uint64_t(p.shape[1]));
        put(infos, uint64_t(p.exported_rows));
        put(infos, uint32_t(stored_as(p) == DType::bf16 ? kBf16 : kF32));
        put(infos, offset);
        offset = padded(offset + size_of_stored(p));
    }
    put(header, uint32_t(3));
    put(header, uint64_t(list.parameters.size()));
    put(header, keys.n);
    header += keys.bytes + infos;
    header.resize(padded(header.size()), '\0');

    FileWriter file(path);
    file.write(header.data(), header.size());
    std::vector<float> values;
    std::vector<bf16> halves;
    for (const Parameter& p : list) {
        values.resize(size_t(p.size()));
        model.read(p, values.data());
        const size_t n = size_t(p.exported_rows * (p.size() / p.shape[0])), bytes = size_of_stored(p);
        const void* from = values.data();
        if (stored_as(p) == DType::bf16) {
            halves.clear();
            for (size_t i = 0; i < n; i++) halves.push_back(to_bf16(values[i]));
            from = halves.data();
        }
        file.write(from, bytes);
        const std::string padding(padded(bytes) - bytes, '\0');
        file.write(padding.data(), padding.size());
    }
    file.sync_and_close();
}
