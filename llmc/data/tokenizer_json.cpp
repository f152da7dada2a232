/*
The format tokenizer.json of Hugging Face's `tokenizers`. The three kinds differ in how text becomes symbols:

  char   no pre-tokenizer;  decoder Fuse;       vocabulary: code point -> id
  byte   pre-tokenizer and decoder ByteLevel;   vocabulary: byte, as GPT-2 spells it -> id = byte
  bpe    the same, with a pattern to split by (GPT-2's is part of ByteLevel); vocabulary: bytes, as GPT-2 spells them ->
         id; merges in the order of their ranks; special tokens are among `added_tokens` (added_tokens.h), and have
         their place in the vocabulary too, because `tokenizers` gives an added token that has none the next free id
  bpe of characters (bpe.h)   Metaspace or normalizers put a space before the text; byte_fallback, whose bytes are
         spelled <0x0A>; the decoder is a sequence that reverses these
*/
#include <unordered_map>
#include <unordered_set>
#include "llmc/base/check.h"              // require
#include "llmc/base/file.h"               // write_file_atomically
#include "llmc/base/json.h"               // Json, OrderedJson
#include "llmc/data/bpe.h"                // Bpe, gpt2_byte_spellings
#include "llmc/data/split.h"              // SplitPattern
#include "llmc/data/tokenizer_formats.h"  // read_tokenizer_json
#include "llmc/data/utf8.h"               // code_point_at

namespace {

const char* const kExpected =
    "expected a tokenizer.json of data/tokenize, or one of `tokenizers` that is a byte-level BPE or SentencePiece's "
    "with "
    "byte_fallback";

struct PatternText {
    const char* regex;
    SplitPattern pattern;
};

// The patterns as spelled in files. The first spelling of each is the one that is written.
constexpr PatternText kPatternTexts[] = {
    {R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,2}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+)",
     SplitPattern::nanochat},
    {R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s+\z|\s*[\r\n]|\s+(?!\S)|\s+)",
     SplitPattern::gpt4},
    {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
     SplitPattern::llama3},
    {R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+)",
     SplitPattern::llama3},
    {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
     SplitPattern::qwen2},
    {R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
     SplitPattern::o200k},
    {R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)", SplitPattern::gpt2},
};

// ---- writing -------------------------------------------------------------------------------------------------------

OrderedJson byte_level(bool use_regex) {
    return {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", use_regex}};
}

const char* metaspace_scheme(FirstSpace first) {
    return first == FirstSpace::none ? "never" : first == FirstSpace::text ? "first" : "always";
}

OrderedJson pre_tokenizer_of(const Tokenizer& tokenizer) {
    if (tokenizer.kind == TokenizerKind::chars) return nullptr;
    if (tokenizer.kind == TokenizerKind::bytes) return byte_level(false);
    if (tokenizer.bpe->of_characters) {
        if (!tokenizer.bpe->metaspace) return nullptr;
        return {{"type", "Metaspace"},
                {"replacement", kSpelledSpace},
                {"prepend_scheme", metaspace_scheme(tokenizer.bpe->first_space)},
                {"split", false}};
    }
    if (tokenizer.bpe->pattern == SplitPattern::gpt2) return byte_level(true);
    if (tokenizer.bpe->pattern == SplitPattern::smollm) {
        const OrderedJson digits = {{"type", "Digits"}, {"individual_digits", true}};
        return {{"type", "Sequence"}, {"pretokenizers", OrderedJson::array({digits, byte_level(true)})}};
    }
    const char* regex = "";
    for (const PatternText& text : kPatternTexts)
        if (text.pattern == tokenizer.bpe->pattern && *regex == '\0') regex = text.regex;
    const OrderedJson split = {
        {"type", "Split"}, {"pattern", {{"Regex", regex}}}, {"behavior", "Isolated"}, {"invert", false}};
    return {{"type", "Sequence"}, {"pretokenizers", OrderedJson::array({split, byte_level(false)})}};
}

OrderedJson replace(const char* from, const char* to) {
    return {{"type", "Replace"}, {"pattern", {{"String", from}}}, {"content", to}};
}

OrderedJson normalizer_of(const Tokenizer& tokenizer) {
    if (!tokenizer.bpe) return nullptr;
    const Bpe& bpe = *tokenizer.bpe;
    if (!bpe.of_characters) return bpe.normalizes ? OrderedJson{{"type", "NFC"}} : OrderedJson();
    if (bpe.metaspace) return nullptr;
    if (bpe.first_space == FirstSpace::none) return replace(" ", kSpelledSpace);
    const OrderedJson prepend = {{"type", "Prepend"}, {"prepend", kSpelledSpace}};
    return {{"type", "Sequence"}, {"normalizers", OrderedJson::array({prepend, replace(" ", kSpelledSpace)})}};
}

OrderedJson decoder_of(const Tokenizer& tokenizer) {
    const OrderedJson fuse = {{"type", "Fuse"}};
    if (tokenizer.kind == TokenizerKind::chars) return fuse;
    if (!tokenizer.bpe || !tokenizer.bpe->of_characters) return byte_level(tokenizer.kind == TokenizerKind::bpe);
    OrderedJson steps = OrderedJson::array({replace(kSpelledSpace, " "), {{"type", "ByteFallback"}}, fuse});
    if (tokenizer.bpe->first_space != FirstSpace::none)
        steps.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
    return {{"type", "Sequence"}, {"decoders", steps}};
}

OrderedJson added_tokens_of(const Tokenizer& tokenizer) {
    OrderedJson tokens = OrderedJson::array();
    if (!tokenizer.bpe) return tokens;
    for (const AddedToken& token : tokenizer.bpe->added)
        tokens.push_back({{"id", token.id},
                          {"content", token.text},
                          {"single_word", false},
                          {"lstrip", token.lstrip},
                          {"rstrip", token.rstrip},
                          {"normalized", token.normalized},
                          {"special", token.special}});
    return tokens;
}

std::string spelled_byte(size_t byte) { return format("<0x%02zX>", byte); }

std::string spelled_spaces(std::string text) {
    for (size_t at = 0; (at = text.find(' ', at)) != std::string::npos;) text.replace(at, 1, kSpelledSpace);
    return text;
}

// The vocabulary's spelling of each id; "": the id is not used.
std::vector<std::string> spellings_of(const Tokenizer& tokenizer) {
    if (tokenizer.kind == TokenizerKind::chars) return tokenizer.symbols;
    std::vector<std::string> spellings;
    const bool of_characters = tokenizer.bpe && tokenizer.bpe->of_characters;
    for (const std::string& symbol : tokenizer.symbols)
        spellings.push_back(of_characters ? spelled_spaces(symbol) : spell_as_gpt2(symbol));
    if (of_characters)
        for (size_t byte = 0; byte < 256; byte++) spellings[size_t(tokenizer.bpe->byte_ids[byte])] = spelled_byte(byte);
    if (tokenizer.bpe)
        for (const AddedToken& token : tokenizer.bpe->added) spellings[size_t(token.id)] = token.text;
    return spellings;
}

std::string quoted(const std::string& text) { return json_text(Json(text)); }

// Appends the lines of an object or array. With the library, members in this order would take quadratic time.
void append_lines(std::string& text, char open, const std::vector<std::string>& lines, char close) {
    text += open;
    for (size_t i = 0; i < lines.size(); i++) text += (i ? ",\n   " : "\n   ") + lines[i];
    text += lines.empty() ? std::string(1, close) : std::string("\n  ") + close;
}
}  // namespace

std::string tokenizer_json(const Tokenizer& tokenizer) {
    require(!tokenizer.bpe || tokenizer.bpe->encodes,
            "the merges of this tokenizer are not known, which a tokenizer.json would need");
    const std::vector<std::string> spellings = spellings_of(tokenizer);
    std::vector<std::string> vocab, merges;
    for (size_t id = 0; id < spellings.size(); id++)
        if (!spellings[id].empty()) vocab.push_back(quoted(spellings[id]) + ": " + std::to_string(id));
    if (tokenizer.bpe)
        for (const Merge& merge : tokenizer.bpe->merges)
            merges.push_back(quoted(spellings[size_t(merge.left)] + " " + spellings[size_t(merge.right)]));

    const bool of_characters = tokenizer.bpe && tokenizer.bpe->of_characters;
    const OrderedJson head = {
        {"version", "1.0"},
        {"truncation", nullptr},
        {"padding", nullptr},
        {"added_tokens", added_tokens_of(tokenizer)},
        {"normalizer", normalizer_of(tokenizer)},
        {"pre_tokenizer", pre_tokenizer_of(tokenizer)},
        {"post_processor", nullptr},
        {"decoder", decoder_of(tokenizer)},
    };
    std::string text = json_text(head, 1);
    text.resize(text.size() - 2);  // "\n}"
    text += std::string(",\n \"model\": {\n  \"type\": \"BPE\",\n  \"dropout\": null,\n  \"unk_token\": null,\n") +
            "  \"continuing_subword_prefix\": null,\n  \"end_of_word_suffix\": null,\n  \"fuse_unk\": false,\n" +
            "  \"byte_fallback\": " + (of_characters ? "true" : "false") +
            ",\n  \"ignore_merges\": " + (tokenizer.bpe && tokenizer.bpe->whole_pieces ? "true" : "false") +
            ",\n  \"vocab\": ";
    append_lines(text, '{', vocab, '}');
    text += ",\n  \"merges\": ";
    append_lines(text, '[', merges, ']');
    return text + "\n }\n}\n";
}

void save_tokenizer(const Tokenizer& tokenizer, const std::string& path) {
    write_file_atomically(path, tokenizer_json(tokenizer));
}

// ---- reading -------------------------------------------------------------------------------------------------------

namespace {
// The value at a path such as {"model", "type"}; null if there is none.
const Json& value_at(const Json& json, std::initializer_list<const char*> path) {
    static const Json none;
    const Json* at = &json;
    for (const char* key : path) {
        if (!at->is_object() || !at->contains(key)) return none;
        at = &(*at)[key];
    }
    return *at;
}

std::string text_at(const Json& json, std::initializer_list<const char*> path) {
    const Json& value = value_at(json, path);
    return value.is_string() ? value.get<std::string>() : "";
}

bool is_absent(const Json& json, const char* key) {
    return !json.contains(key) || json[key].is_null() || json[key].empty() || json[key] == "";
}

// The steps of a normalizer or pre-tokenizer, which may be one, a sequence of them, or missing.
std::vector<Json> steps_of(const Json& step, const char* key, int depth = 0) {
    if (step.is_null()) return {};
    if (text_at(step, {"type"}) != "Sequence" || depth == 8) return {step};
    std::vector<Json> steps;
    if (value_at(step, {key}).is_array())
        for (const Json& part : step[key])
            for (Json& one : steps_of(part, key, depth + 1)) steps.push_back(std::move(one));
    return steps;
}

std::vector<Json> normalizers_in(const Json& json) { return steps_of(value_at(json, {"normalizer"}), "normalizers"); }

// The split pattern; throws an Error if the pre-tokenizer does not match one of the known patterns.
SplitPattern pattern_of(const Json& pre_tokenizer, const std::string& path) {
    const std::vector<Json> parts = steps_of(pre_tokenizer, "pretokenizers");
    require(!parts.empty() && parts.size() <= 2 && text_at(parts.back(), {"type"}) == "ByteLevel" &&
                value_at(parts.back(), {"add_prefix_space"}) == false,
            "%s has a pre-tokenizer that is not ByteLevel without a space put before the text: %s", path.c_str(),
            kExpected);
    const bool gpt2 = value_at(parts.back(), {"use_regex"}) != false;
    if (parts.size() == 1) {
        require(gpt2, "%s does not split text into words before it merges bytes: %s", path.c_str(), kExpected);
        return SplitPattern::gpt2;
    }
    if (gpt2 && text_at(parts[0], {"type"}) == "Digits" && value_at(parts[0], {"individual_digits"}) == true)
        return SplitPattern::smollm;
    const std::string regex = text_at(parts[0], {"pattern", "Regex"});
    require(!gpt2 && text_at(parts[0], {"type"}) == "Split" && text_at(parts[0], {"behavior"}) == "Isolated" &&
                value_at(parts[0], {"invert"}) != true,
            "%s splits text in a way that is not known: %s", path.c_str(), kExpected);
    for (const PatternText& text : kPatternTexts)
        if (regex == text.regex) return text.pattern;
    require(false,
            "%s splits text by the pattern %s, which is none of GPT-2's, GPT-4's, GPT-4o's, "
            "Llama 3's, Qwen2's and nanochat's",
            path.c_str(), regex.c_str());
    return {};
}

// The spellings by id; "": an id that is not used, which is allowed only with `holes`.
std::vector<std::string> spellings_in(const Json& vocab, bool holes, const std::string& path) {
    const size_t limit = holes ? size_t(kMaxBpeIds) : vocab.size();
    std::vector<std::string> spellings(holes ? 0 : vocab.size());
    for (const auto& [symbol, id] : vocab.items()) {
        const bool fits = id.is_number_unsigned() && id.get<uint64_t>() < limit;
        if (fits && id.get<size_t>() >= spellings.size()) spellings.resize(id.get<size_t>() + 1);
        require(fits && spellings[id.get<size_t>()].empty() && (!holes || !symbol.empty()),
                "%s: the id of '%s' is %s: expected each of 0 to %zu once", path.c_str(), symbol.c_str(),
                json_text(id).c_str(), limit - 1);
        spellings[id.get<size_t>()] = symbol;
    }
    return spellings;
}

// Puts their spellings among the others.
std::vector<AddedToken> added_in(const Json& json, std::vector<std::string>& spellings, const std::string& path) {
    std::vector<AddedToken> added;
    std::unordered_set<int32_t> seen;
    const Json& tokens = value_at(json, {"added_tokens"});
    if (tokens.is_null()) return added;
    require(tokens.is_array(), "%s: expected an array of added_tokens", path.c_str());
    for (const Json& token : tokens) {
        const Json& id = value_at(token, {"id"});
        const std::string text = text_at(token, {"content"});
        const bool fits = id.is_number_unsigned() && id.get<uint64_t>() < uint64_t(kMaxBpeIds) && !text.empty();
        require(fits, "%s: an added token is %s: expected content and an id below %d", path.c_str(),
                json_text(token).substr(0, 60).c_str(), kMaxBpeIds);
        const int32_t at = id.get<int32_t>();
        if (size_t(at) >= spellings.size()) spellings.resize(size_t(at) + 1);
        require(seen.insert(at).second && (spellings[size_t(at)].empty() || spellings[size_t(at)] == text),
                "%s: the id of the added token '%s' is %d, which another token has", path.c_str(), text.c_str(), at);
        spellings[size_t(at)] = text;
        const auto is = [&token](const char* flag) { return value_at(token, {flag}) == true; };
        const bool special = value_at(token, {"special"}) != false;
        require(special || !is("single_word"),
                "%s: the added token '%s' is made from text where it is a whole word (\"single_word\"), which is not "
                "supported: expected false, or a token that is \"special\"",
                path.c_str(), text.c_str());
        added.push_back({text, at, special, is("normalized"), is("lstrip"), is("rstrip")});
    }
    return added;
}

std::vector<Merge> merges_in(const Json& merges, const std::vector<std::string>& spellings, const std::string& path) {
    std::unordered_map<std::string_view, int32_t> id_of;
    for (size_t id = 0; id < spellings.size(); id++)
        if (!spellings[id].empty()) id_of.emplace(spellings[id], int32_t(id));
    std::vector<Merge> result;
    std::unordered_set<uint64_t> seen;
    for (const Json& merge : merges) {
        std::string left, right;
        if (merge.is_string()) {
            const std::string text = merge;
            const size_t space = std::min(text.find(' '), text.size());
            left = text.substr(0, space);
            right = text.substr(std::min(space + 1, text.size()));
        } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
            left = merge[0];
            right = merge[1];
        }
        const auto a = id_of.find(left), b = id_of.find(right), both = id_of.find(left + right);
        require(a != id_of.end() && b != id_of.end() && both != id_of.end(),
                "%s: merge %zu is %s: expected two tokens of the vocabulary that together are one of it too",
                path.c_str(), result.size(), json_text(merge).substr(0, 60).c_str());
        require(seen.insert(uint64_t(a->second) << 32 | uint64_t(b->second)).second, "%s: merge %zu, %s, occurs twice",
                path.c_str(), result.size(), json_text(merge).substr(0, 60).c_str());
        result.push_back({a->second, b->second, both->second});
    }
    return result;
}

// Reads what both kinds of BPE have, except how text is split. Returns for each of the symbols whether it is added.
std::vector<bool> read_merges(const Json& json, Bpe& bpe, std::vector<std::string>& symbols, const std::string& path) {
    const Json& model = json["model"];
    bpe.whole_pieces = value_at(model, {"ignore_merges"}) == true;
    symbols = spellings_in(model["vocab"], true, path);
    bpe.added = added_in(json, symbols, path);
    bpe.merges = merges_in(value_at(model, {"merges"}), symbols, path);
    std::vector<bool> is_added(symbols.size());
    for (const AddedToken& token : bpe.added) is_added[size_t(token.id)] = true;
    return is_added;
}

void check_plain(const Json& model, const std::string& path) {
    const Json& dropout = value_at(model, {"dropout"});
    require(is_absent(model, "continuing_subword_prefix") && is_absent(model, "end_of_word_suffix") &&
                (dropout.is_null() || dropout == 0),
            "%s has a BPE with a prefix or suffix of words or dropout: %s", path.c_str(), kExpected);
}

Tokenizer read_bpe(const Json& json, const std::string& path) {
    check_plain(json["model"], path);
    Bpe bpe;
    bpe.pattern = pattern_of(json["pre_tokenizer"], path);
    bpe.normalizes = !normalizers_in(json).empty();
    std::vector<std::string> symbols;
    const std::vector<bool> is_added = read_merges(json, bpe, symbols, path);
    for (size_t id = 0; id < symbols.size(); id++) {
        if (is_added[id]) continue;
        const std::string spelled = symbols[id];
        require(bytes_of_gpt2_spelling(spelled, symbols[id]),
                "%s: token %zu is '%s', which is not bytes as GPT-2 spells them: %s", path.c_str(), id, spelled.c_str(),
                kExpected);
    }
    return make_bpe_tokenizer(std::move(symbols), std::move(bpe), path);
}

// Where normalizers and the pre-tokenizer put a space. Throws an Error if they do anything else but spell spaces.
void read_spaces(const Json& json, Bpe& bpe, const std::string& path) {
    const auto replaces = [](const Json& step) {
        return text_at(step, {"type"}) == "Replace" && text_at(step, {"pattern", "String"}) == " " &&
               text_at(step, {"content"}) == kSpelledSpace;
    };
    const std::vector<Json> normalizers = normalizers_in(json),
                            words = steps_of(value_at(json, {"pre_tokenizer"}), "pretokenizers");
    if (words.empty() && !normalizers.empty() && normalizers.size() <= 2 && replaces(normalizers.back())) {
        const bool prepends =
            text_at(normalizers[0], {"type"}) == "Prepend" && text_at(normalizers[0], {"prepend"}) == kSpelledSpace;
        if (prepends) bpe.first_space = FirstSpace::parts;
        if (prepends == (normalizers.size() == 2)) return;
    }
    const Json metaspace = normalizers.empty() && words.size() == 1 ? words[0] : Json();
    const std::string scheme = text_at(metaspace, {"prepend_scheme"});
    bpe.metaspace = true;
    for (const FirstSpace first : {FirstSpace::none, FirstSpace::text, FirstSpace::parts})
        if (scheme == metaspace_scheme(first)) bpe.first_space = first;
    require(text_at(metaspace, {"type"}) == "Metaspace" && text_at(metaspace, {"replacement"}) == kSpelledSpace &&
                value_at(metaspace, {"split"}) == false && scheme == metaspace_scheme(bpe.first_space),
            "%s has byte_fallback, and neither the normalizers nor the Metaspace without \"split\" that go with it in "
            "files of SentencePiece: %s",
            path.c_str(), kExpected);
}

Tokenizer read_characters_bpe(const Json& json, const std::string& path) {
    check_plain(json["model"], path);
    Bpe bpe;
    bpe.of_characters = true;
    read_spaces(json, bpe, path);
    std::vector<std::string> symbols;
    const std::vector<bool> is_added = read_merges(json, bpe, symbols, path);
    std::unordered_map<std::string, size_t> byte_of;
    for (size_t byte = 0; byte < 256; byte++) byte_of[spelled_byte(byte)] = byte;
    bpe.byte_ids.fill(-1);
    for (size_t id = 0; id < symbols.size(); id++) {
        if (is_added[id]) continue;
        if (const auto byte = byte_of.find(symbols[id]); byte != byte_of.end()) {
            bpe.byte_ids[byte->second] = int32_t(id);
            symbols[id] = std::string(1, char(byte->second));
            continue;
        }
        require(symbols[id].find(' ') == std::string::npos, "%s: token %zu is '%s', with a space that no text has: %s",
                path.c_str(), id, symbols[id].c_str(), kExpected);
        symbols[id] = with_spaces(symbols[id]);
        const CodePoint c = symbols[id].empty() ? CodePoint{0, 0} : code_point_at(symbols[id], 0);
        if (c.bytes == 0 || c.bytes != symbols[id].size()) continue;
        if (c.value >= bpe.char_ids.size()) bpe.char_ids.resize(c.value + 1, -1);
        bpe.char_ids[c.value] = int32_t(id);
    }
    for (size_t byte = 0; byte < 256; byte++)
        require(bpe.byte_ids[byte] >= 0, "%s has byte_fallback, but no token %s: %s", path.c_str(),
                spelled_byte(byte).c_str(), kExpected);
    return make_bpe_tokenizer(std::move(symbols), std::move(bpe), path);
}

Tokenizer read_chars(const std::vector<std::string>& spellings, const std::string& path) {
    Tokenizer tokenizer{TokenizerKind::chars, spellings, {}, nullptr};
    for (size_t id = 0; id < spellings.size(); id++) {
        const CodePoint c = spellings[id].empty() ? CodePoint{0, 0} : code_point_at(spellings[id], 0);
        require(c.bytes > 0 && c.bytes == spellings[id].size(), "%s: symbol %zu is '%s': expected one character; %s",
                path.c_str(), id, spellings[id].c_str(), kExpected);
        if (c.value >= tokenizer.id_of_code_point.size()) tokenizer.id_of_code_point.resize(c.value + 1, -1);
        tokenizer.id_of_code_point[c.value] = int32_t(id);
    }
    return tokenizer;
}
}  // namespace

Tokenizer read_tokenizer_json(std::string_view text, const std::string& path) {
    const Json json = parse_json(text);
    require(json.is_object(),
            "%s is not JSON: %s; or GPT-2's vocab.bpe, a file of tiktoken's ranks, or llm.c's tokenizer.bin",
            path.c_str(), kExpected);
    const std::string model = text_at(json, {"model", "type"}), decoder = text_at(json, {"decoder", "type"});
    // Early files, among them GPT-2's, have no type.
    require(model == "BPE" || (model.empty() && value_at(json, {"model", "merges"}).is_array()),
            "%s holds a tokenizer of type '%s': %s", path.c_str(), model.c_str(), kExpected);
    const Json& vocab = value_at(json, {"model", "vocab"});
    require(vocab.is_object() && !vocab.empty(), "%s has no vocabulary: %s", path.c_str(), kExpected);
    if (value_at(json, {"model", "byte_fallback"}) == true) return read_characters_bpe(json, path);
    const std::vector<Json> normalizers = normalizers_in(json);
    for (const Json& step : normalizers)
        require(text_at(step, {"type"}) == "NFC", "%s has a normalizer other than NFC: %s", path.c_str(), kExpected);
    const bool has_merges = !is_absent(json["model"], "merges"), has_added = !is_absent(json, "added_tokens");

    if (is_absent(json, "pre_tokenizer") && decoder == "Fuse") {
        require(!has_merges && !has_added, "%s has merges or added tokens, but no pre-tokenizer: %s", path.c_str(),
                kExpected);
        require(normalizers.empty(), "%s has a normalizer, which characters alone do not have here: %s", path.c_str(),
                kExpected);
        return read_chars(spellings_in(vocab, false, path), path);
    }
    const std::string pre_tokenizer = text_at(json, {"pre_tokenizer", "type"});
    require((pre_tokenizer == "ByteLevel" || pre_tokenizer == "Sequence") && decoder == "ByteLevel",
            "%s has pre-tokenizer '%s' and decoder '%s', which is not a supported combination: %s", path.c_str(),
            pre_tokenizer.c_str(), decoder.c_str(), kExpected);
    const bool bytes = pre_tokenizer == "ByteLevel" && value_at(json, {"pre_tokenizer", "use_regex"}) == false;
    if (!bytes || has_merges || has_added || !normalizers.empty()) return read_bpe(json, path);
    require(spellings_in(vocab, false, path) == gpt2_byte_spellings(),
            "%s has a vocabulary that is not the 256 bytes in order: %s", path.c_str(), kExpected);
    return byte_tokenizer();
}
