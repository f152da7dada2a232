// See tokenizer_export.h.
#include "llmc/interop/tokenizer_export.h"
#include <algorithm>
#include <filesystem>
#include "llmc/base/check.h"              // Error
#include "llmc/base/file.h"               // read_file
#include "llmc/base/json.h"               // Json, OrderedJson
#include "llmc/data/bpe.h"                // Bpe
#include "llmc/data/chat_style.h"         // jinja_of
#include "llmc/data/tokenizer_formats.h"  // read_tokenizer_json

namespace fs = std::filesystem;

namespace {

constexpr const char *kTokenizerConfig = "tokenizer_config.json", *kGenerationConfig = "generation_config.json";
const char* const kTokenFiles[] = {kTokenizerConfig, kGenerationConfig, "special_tokens_map.json", kChatTemplateFile};

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

// One id or a list of them.
std::vector<int64_t> ids_in(const Json& value) {
    std::vector<int64_t> ids;
    for (const Json& id : value.is_array() ? value : Json::array({value}))
        if (id.is_number_unsigned() && id.get<uint64_t>() < (1u << 24)) ids.push_back(id.get<int64_t>());
    return ids;
}

std::vector<int64_t> once_each(const std::vector<int64_t>& ids) {
    std::vector<int64_t> once;
    for (const int64_t id : ids)
        if (id >= 0 && std::find(once.begin(), once.end(), id) == once.end()) once.push_back(id);
    return once;
}

// The chat template in a tokenizer_config.json: text, or the one named default in a list.
std::string template_in(const std::string& config) {
    const Json value = part(parse_json(config), "chat_template");
    if (value.is_string()) return value;
    if (value.is_array())
        for (const Json& named : value)
            if (part(named, "name") == "default" && part(named, "template").is_string()) return named["template"];
    return "";
}

bool has_nanochat_tokens(const std::vector<Added>& added) {
    return std::any_of(added.begin(), added.end(),
                       [](const Added& token) { return token.text == "<|assistant_end|>"; });
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

int64_t find_end_of_answer(const std::string& tokenizer_json, const std::string& chat_template) {
    const std::vector<Added> added = added_tokens(parse_json(tokenizer_json));
    for (const char* text : {"<|assistant_end|>", "<|im_end|>", "<|eot_id|>"})
        for (const Added& token : added)
            if (token.text == text && chat_template.find(text) != std::string::npos) return token.id;
    return -1;
}

TokenFacts read_token_facts(const std::string& folder, const std::string& tokenizer_json, int64_t max_tokens,
                            const std::string& chat_template) {
    TokenFacts facts;
    std::error_code ignored;
    const auto text_of = [&](const std::string& file) {
        const std::string path = folder + "/" + file;
        return !folder.empty() && fs::exists(path, ignored) ? read_file(path) : "";
    };
    const Json config = parse_json(text_of("config.json"));
    if (!tokenizer_json.empty()) facts.files["tokenizer.json"] = tokenizer_json;
    if (!tokenizer_json.empty())
        for (const char* name : kTokenFiles)
            if (const std::string text = text_of(name); !text.empty()) facts.files[name] = text;
    const std::vector<Added> added = added_tokens(parse_json(tokenizer_json));
    // tokenizer_config.json takes precedence over the older special_tokens_map.json.
    const auto named = [&](const std::string& name) -> std::vector<int64_t> {
        for (const char* file : {kTokenizerConfig, "special_tokens_map.json"}) {
            const Json entry = facts.files.count(file) ? part(parse_json(facts.files[file]), name.c_str()) : Json();
            const Json text = entry.is_object() ? part(entry, "content") : entry;
            for (const Added& token : added)
                if (text == token.text) return {token.id};
        }
        return {};
    };
    bool is_said = false;
    const auto ids = [&](const std::string& name) {
        const std::string key = name + "_id";
        const bool has_key = config.is_object() && config.contains(key);
        const std::vector<int64_t> found = has_key ? ids_in(config[key]) : named(name);
        is_said |= has_key || !found.empty();
        return found;
    };
    facts.ids = {ids("bos_token"), ids("eos_token"), ids("pad_token")};
    if (const std::vector<int64_t> end = named("eos_token"); !end.empty()) facts.text_end = end[0];
    if (!is_said)
        if (const EndToken end = find_end_token(tokenizer_json); end.id >= 0)
            facts.ids.begin = facts.ids.end = {facts.text_end = end.id};
    if (tokenizer_json.empty()) return facts;

    std::string& beside = facts.files[kTokenizerConfig];
    if (beside.empty()) beside = tokenizer_config(tokenizer_json, max_tokens);
    const auto set_template = [&](const OrderedJson& text) {
        OrderedJson object = parse_ordered_json(beside);
        if (!object.is_object() || object.contains("chat_template") == text.is_string()) return;
        if (text.is_string())
            object["chat_template"] = text;
        else
            object.erase("chat_template");
        beside = json_text(object, 2) + "\n";
    };
    facts.chat_template = facts.files.count(kChatTemplateFile) ? facts.files[kChatTemplateFile] : template_in(beside);
    bool is_complete = facts.files.count(kGenerationConfig) > 0;
    if (!chat_template.empty() && chat_template != facts.chat_template) {
        facts.files[kChatTemplateFile] = facts.chat_template = chat_template;
        set_template({});
        is_complete = false;
    }
    if (facts.chat_template.empty() && has_nanochat_tokens(added)) {
        facts.chat_template = jinja_of({.name = "nanochat"}, "<|bos|>");
        set_template(facts.chat_template);
    }
    std::vector<int64_t> ends = {find_end_of_answer(tokenizer_json, facts.chat_template), facts.text_end};
    ends.insert(ends.end(), facts.ids.end.begin(), facts.ids.end.end());
    ends = once_each(ends);
    if (is_complete || ends.empty()) return facts;
    OrderedJson generation = parse_ordered_json(facts.files[kGenerationConfig]);  // with its defaults for sampling
    if (!generation.is_object()) generation = OrderedJson::object();
    if (!facts.ids.begin.empty()) generation["bos_token_id"] = facts.ids.begin[0];
    generation["eos_token_id"] = ends.size() == 1 ? OrderedJson(ends[0]) : OrderedJson(ends);
    if (!facts.ids.pad.empty()) generation["pad_token_id"] = facts.ids.pad[0];
    facts.files[kGenerationConfig] = json_text(generation, 2) + "\n";
    return facts;
}

bool same_added_tokens(const std::string& a, const std::string& b) {
    const auto sorted = [](const std::string& json) {
        std::map<int64_t, std::string> texts;
        for (const Added& token : added_tokens(parse_json(json))) texts[token.id] = token.text;
        return texts;
    };
    return sorted(a) == sorted(b);
}

std::vector<int64_t> all_ends(const TokenFacts& facts) {
    const auto generation = facts.files.find(kGenerationConfig);
    std::vector<int64_t> ends;
    if (generation != facts.files.end()) ends = ids_in(part(parse_json(generation->second), "eos_token_id"));
    ends.insert(ends.end(), facts.ids.end.begin(), facts.ids.end.end());
    ends.push_back(facts.text_end);
    return once_each(ends);
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

    for (const auto& [text, id] : vocab.items())
        if (id.is_number_unsigned() && id.get<uint64_t>() < (1u << 24)) tokenizer.put(id.get<int64_t>(), {text});
    for (const Added& token : added_tokens(file)) tokenizer.put(token.id, {token.text, true, token.is_special});
    for (const ByteLevelTokenizer::Token& token : tokenizer.tokens)
        if (token.text.empty()) return refuse("its ids have gaps");
    return tokenizer;
}
