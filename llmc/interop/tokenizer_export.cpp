// See tokenizer_export.h.
#include "llmc/interop/tokenizer_export.h"
#include "llmc/base/check.h"              // Error
#include "llmc/base/json.h"               // Json, OrderedJson
#include "llmc/data/bpe.h"                // Bpe
#include "llmc/data/chat_style.h"         // jinja_of
#include "llmc/data/tokenizer_formats.h"  // read_tokenizer_json

namespace {

// Null if there is no such key.
Json part(const Json& object, const char* name) {
    return object.is_object() && object.contains(name) ? object[name] : Json();
}

struct Added {
    std::string text;
    int64_t id;
    bool is_special;
};

std::vector<Added> added_tokens(const Json& file) {
    std::vector<Added> all;
    const Json list = part(file, "added_tokens");
    if (!list.is_array()) return all;
    for (const Json& token : list) {
        const Json id = part(token, "id"), content = part(token, "content");
        if (id.is_number_unsigned() && id.get<uint64_t>() < (1u << 24) && content.is_string())
            all.push_back({content.get<std::string>(), id.get<int64_t>(), part(token, "special") == true});
    }
    return all;
}

// The special token that a post-processor puts before every text; -1: none.
int64_t find_begin_token(const Json& file) {
    const Json last = part(file, "post_processor"), several = part(last, "processors");
    for (const Json& step : several.is_array() ? several : Json::array({last})) {
        const Json single = part(step, "single");
        if (part(step, "type") != "TemplateProcessing" || !single.is_array() || single.empty()) continue;
        for (const Added& token : added_tokens(file))
            if (part(part(single[0], "SpecialToken"), "id") == token.text) return token.id;
    }
    return -1;
}

// The name of the split pattern in llama.cpp's table (llama-vocab.cpp); empty: there is none.
std::string llama_cpp_pre(const std::string& tokenizer_json) {
    try {
        const Tokenizer tokenizer = read_tokenizer_json(tokenizer_json, "tokenizer.json");
        if (tokenizer.kind != TokenizerKind::bpe) return "";
        switch (tokenizer.bpe->pattern) {
            case SplitPattern::gpt2:
                return "gpt-2";
            case SplitPattern::llama3:
                return tokenizer.bpe->whole_pieces ? "llama-bpe" : "dbrx";  // the same pattern, without whole pieces
            case SplitPattern::qwen2:
                return "qwen2";
            case SplitPattern::smollm:
                return "smollm";
            case SplitPattern::o200k:
                return "gpt-4o";
            case SplitPattern::gpt4:
            case SplitPattern::nanochat:
                break;
        }
    } catch (const Error&) {  // a tokenizer that Anvil cannot read
    }
    return "";
}

}  // namespace

EndToken find_end_token(const std::string& tokenizer_json) {
    const std::vector<Added> added = added_tokens(parse_json(tokenizer_json));
    for (const char* text : {"<|endoftext|>", "<|end_of_text|>", "</s>", "<|bos|>"})
        for (const Added& token : added)
            if (token.text == text) return {token.id, token.text};
    return {};
}

std::string tokenizer_config(const std::string& tokenizer_json, int64_t max_tokens) {
    OrderedJson config = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                          {"model_max_length", max_tokens},
                          {"clean_up_tokenization_spaces", false}};
    const EndToken end = find_end_token(tokenizer_json);
    if (end.id >= 0) config["bos_token"] = config["eos_token"] = end.text;
    return json_text(config, 2) + "\n";
}

int64_t find_end_of_answer(const std::string& tokenizer_json, bool has_template) {
    for (const Added& token : added_tokens(parse_json(tokenizer_json)))
        if (token.text == "<|assistant_end|>" ||
            (has_template && (token.text == "<|im_end|>" || token.text == "<|eot_id|>")))
            return token.id;
    return -1;
}

std::string with_chat_template(const std::string& config, const std::string& tokenizer_json) {
    OrderedJson object = parse_ordered_json(config);
    if (!object.is_object() || object.contains("chat_template") || find_end_of_answer(tokenizer_json) < 0)
        return config;
    object["chat_template"] = jinja_of({.name = "nanochat"}, "<|bos|>");
    return json_text(object, 2) + "\n";
}

ByteLevelTokenizer read_byte_level(const std::string& tokenizer_json) {
    ByteLevelTokenizer tokenizer;
    const auto refuse = [&](const char* why) {
        tokenizer.tokens.clear();
        tokenizer.why = why;
        return tokenizer;
    };
    const Json file = parse_json(tokenizer_json), model = part(file, "model"), vocab = part(model, "vocab"),
               merges = part(model, "merges");
    if (part(model, "type") != "BPE" || !vocab.is_object()) return refuse("it is no BPE");
    if (part(part(file, "decoder"), "type") != "ByteLevel") return refuse("its symbols are characters, not bytes");
    if (merges.is_array())
        for (const Json& merge : merges) {
            const bool is_pair = merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string();
            if (!is_pair && !merge.is_string()) return refuse("its merges are damaged");
            tokenizer.merges.push_back(is_pair ? merge[0].get<std::string>() + " " + merge[1].get<std::string>()
                                               : merge.get<std::string>());
        }
    // Splitting precedes merging, so it matters only if there are merges.
    if (!tokenizer.merges.empty()) tokenizer.pre = llama_cpp_pre(tokenizer_json);
    if (tokenizer.pre.empty()) return refuse("it cuts text in a way that llama.cpp has no name for");
    tokenizer.begin_token = find_begin_token(file);

    std::vector<Added> all;
    for (const auto& [text, id] : vocab.items())
        if (id.is_number_unsigned() && id.get<uint64_t>() < (1u << 24)) all.push_back({text, id.get<int64_t>(), false});
    for (const Added& token : added_tokens(file)) all.push_back(token);
    for (const Added& token : all) {
        if (size_t(token.id) >= tokenizer.tokens.size()) tokenizer.tokens.resize(size_t(token.id) + 1);
        tokenizer.tokens[size_t(token.id)] = {token.text, token.is_special};
    }
    for (const ByteLevelTokenizer::Token& token : tokenizer.tokens)
        if (token.text.empty()) return refuse("its ids have gaps");
    return tokenizer;
}
