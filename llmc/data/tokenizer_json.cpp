/*
tokenizer.json, the format of Hugging Face's `tokenizers`. Our two kinds, told apart by how text becomes symbols:

  char   no pre-tokenizer;  decoder Fuse;       vocabulary: code point -> id
  byte   pre-tokenizer and decoder ByteLevel;   vocabulary: byte, as GPT-2 spells it -> id = byte

GPT-2 spells a byte as one printable code point: the printable bytes of Latin-1 as themselves, the other 68 as
U+0100, U+0101, ... in order (Radford et al., 2019, encoder.py: bytes_to_unicode).
*/
#include <nlohmann/json.hpp>
#include "llmc/base/check.h"  // require
#include "llmc/base/file.h"   // read_file, write_file_atomically
#include "llmc/data/tokenizer.h"
#include "llmc/data/utf8.h"  // code_point_at, utf8

namespace {
using Json = nlohmann::ordered_json;  // keeps the vocabulary in the order of the ids

std::vector<std::string> gpt2_byte_spellings() {
    std::vector<std::string> spellings;
    char32_t next_unprintable = 0x100;
    for (char32_t byte = 0; byte < 256; byte++) {
        const bool printable = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte != 0xAD);
        spellings.push_back(utf8(printable ? byte : next_unprintable++));
    }
    return spellings;
}

// The string at a path such as {"model", "type"}; "" if there is none.
std::string text_at(const Json& json, std::initializer_list<const char*> path) {
    const Json* at = &json;
    for (const char* key : path) {
        if (!at->is_object() || !at->contains(key)) return "";
        at = &(*at)[key];
    }
    return at->is_string() ? at->get<std::string>() : "";
}

bool is_absent(const Json& json, const char* key) {
    return !json.contains(key) || json[key].is_null() || json[key].empty();
}
}  // namespace

void save_tokenizer(const Tokenizer& tokenizer, const std::string& path) {
    const bool bytes = tokenizer.kind == TokenizerKind::bytes;
    const std::vector<std::string> spellings = bytes ? gpt2_byte_spellings() : tokenizer.symbols;
    Json vocab = Json::object();
    for (size_t id = 0; id < spellings.size(); id++) vocab[spellings[id]] = id;

    const Json byte_level = {
        {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", false}};
    const Json fuse = {{"type", "Fuse"}};
    const Json json = {
        {"version", "1.0"},
        {"truncation", nullptr},
        {"padding", nullptr},
        {"added_tokens", Json::array()},
        {"normalizer", nullptr},
        {"pre_tokenizer", bytes ? byte_level : Json()},
        {"post_processor", nullptr},
        {"decoder", bytes ? byte_level : fuse},
        {"model",
         {{"type", "BPE"},
          {"dropout", nullptr},
          {"unk_token", nullptr},
          {"continuing_subword_prefix", nullptr},
          {"end_of_word_suffix", nullptr},
          {"fuse_unk", false},
          {"byte_fallback", false},
          {"ignore_merges", false},
          {"vocab", vocab},
          {"merges", Json::array()}}},
    };
    write_file_atomically(path, json.dump(1) + "\n");
}

Tokenizer load_tokenizer(const std::string& path) {
    const char* expected = "expected a tokenizer.json that data/prepare wrote (--tokenizer char or byte)";
    const Json json = Json::parse(read_file(path), nullptr, false);
    require(json.is_object(), "%s is not JSON: %s", path.c_str(), expected);
    const std::string model = text_at(json, {"model", "type"}), decoder = text_at(json, {"decoder", "type"});
    require(model == "BPE", "%s holds a tokenizer of type '%s': %s", path.c_str(), model.c_str(), expected);
    require(is_absent(json["model"], "merges"), "%s holds %zu merges, and BPE merges are not supported yet: %s",
            path.c_str(), json["model"]["merges"].size(), expected);
    require(is_absent(json, "normalizer") && is_absent(json, "added_tokens") && is_absent(json, "post_processor"),
            "%s has a normalizer, added tokens or a post-processor: %s", path.c_str(), expected);
    const std::string pre_tokenizer = text_at(json, {"pre_tokenizer", "type"});
    const bool bytes = pre_tokenizer == "ByteLevel" && decoder == "ByteLevel";
    require(bytes || (is_absent(json, "pre_tokenizer") && decoder == "Fuse"),
            "%s has pre-tokenizer '%s' and decoder '%s', which is neither kind of ours: %s", path.c_str(),
            pre_tokenizer.c_str(), decoder.c_str(), expected);

    require(json["model"].contains("vocab") && json["model"]["vocab"].is_object() && !json["model"]["vocab"].empty(),
            "%s has no vocabulary: %s", path.c_str(), expected);
    const Json& vocab = json["model"]["vocab"];
    std::vector<std::string> spellings(vocab.size());
    for (const auto& [symbol, id] : vocab.items()) {
        require(id.is_number_unsigned() && id.get<uint64_t>() < spellings.size() && spellings[id.get<size_t>()].empty(),
                "%s: the id of '%s' is %s: expected each of 0 to %zu once", path.c_str(), symbol.c_str(),
                id.dump().c_str(), spellings.size() - 1);
        spellings[id.get<size_t>()] = symbol;
    }
    if (bytes) {
        require(spellings == gpt2_byte_spellings(), "%s has a vocabulary that is not the 256 bytes in order: %s",
                path.c_str(), expected);
        return byte_tokenizer();
    }
    Tokenizer tokenizer{TokenizerKind::chars, spellings, {}};
    for (size_t id = 0; id < spellings.size(); id++) {
        const CodePoint c = spellings[id].empty() ? CodePoint{0, 0} : code_point_at(spellings[id], 0);
        require(c.bytes > 0 && c.bytes == spellings[id].size(), "%s: symbol %zu is '%s': expected one character; %s",
                path.c_str(), id, spellings[id].c_str(), expected);
        if (c.value >= tokenizer.id_of_code_point.size()) tokenizer.id_of_code_point.resize(c.value + 1, -1);
        tokenizer.id_of_code_point[c.value] = int32_t(id);
    }
    return tokenizer;
}
