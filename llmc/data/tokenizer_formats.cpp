// Reads vocab.bpe, tiktoken's ranks and llm.c's tokenizer.bin; writes ranks.
#include "llmc/data/tokenizer_formats.h"
#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <unordered_map>
#include "llmc/base/check.h"  // require
#include "llmc/base/file.h"   // read_file, write_file_atomically
#include "llmc/base/json.h"   // OrderedJson
#include "llmc/data/bpe.h"    // Bpe
#include "llmc/data/split.h"  // split_pattern, name_of
#include "llmc/data/utf8.h"   // code_point_at, printable

namespace {

// Removes the text's first line and returns it without its end, \n or \r\n.
std::string_view take_line(std::string_view& text) {
    const size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    return line;
}

// The beginning of a line for a message, which may come from any file.
std::string shown(std::string_view line) { return printable(line.substr(0, 60)); }
}  // namespace

// ---- vocab.bpe -----------------------------------------------------------------------------------------------------

bool is_vocab_bpe(std::string_view text) { return text.starts_with("#version"); }

Tokenizer read_vocab_bpe(std::string_view text, const std::string& where) {
    std::vector<std::string> symbols;
    std::unordered_map<std::string, int32_t> id_of;
    const auto add = [&](const std::string& bytes) {
        const bool is_new = id_of.emplace(bytes, int32_t(symbols.size())).second;
        symbols.push_back(bytes);
        return is_new;
    };
    // Bytes in the order of their spellings: first those that are spelled as themselves.
    for (const bool as_itself : {true, false})
        for (size_t byte = 0; byte < 256; byte++)
            if ((code_point_at(gpt2_byte_spellings()[byte], 0).value == byte) == as_itself)
                add(std::string(1, char(byte)));

    Bpe bpe;
    take_line(text);
    for (int number = 2; !text.empty(); number++) {
        const std::string_view line = take_line(text);
        if (line.empty()) continue;
        const size_t space = line.find(' ');
        std::string left, right;
        require(space != std::string_view::npos && bytes_of_gpt2_spelling(line.substr(0, space), left) &&
                    bytes_of_gpt2_spelling(line.substr(space + 1), right) && id_of.count(left) && id_of.count(right),
                "%s:%d: '%s': expected two tokens with a space between, each a byte or made by a line before",
                where.c_str(), number, shown(line).c_str());
        require(bpe.merges.size() < size_t(kMaxBpeIds), "%s has more than %d merges", where.c_str(), kMaxBpeIds);
        bpe.merges.push_back({id_of[left], id_of[right], int32_t(symbols.size())});
        require(add(left + right), "%s:%d: '%s' makes a token that an earlier line makes, too", where.c_str(), number,
                shown(line).c_str());
    }
    require(!bpe.merges.empty(), "%s has no merges: expected a line for each, such as 'h e'", where.c_str());
    bpe.added = {{"<|endoftext|>", int32_t(symbols.size())}};
    symbols.push_back("<|endoftext|>");
    return make_bpe_tokenizer(std::move(symbols), std::move(bpe), where);
}

// ---- tiktoken's ranks ----------------------------------------------------------------------------------------------

namespace {
constexpr std::string_view kBase64 = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

std::string to_base64(std::string_view bytes) {
    std::string text;
    for (size_t at = 0; at < bytes.size(); at += 3) {
        const size_t n = std::min<size_t>(3, bytes.size() - at);
        uint32_t bits = 0;
        for (size_t i = 0; i < 3; i++) bits = bits << 8 | (i < n ? static_cast<unsigned char>(bytes[at + i]) : 0);
        for (size_t i = 0; i < 4; i++) text += i <= n ? kBase64[bits >> (18 - 6 * i) & 63] : '=';
    }
    return text;
}

// Returns false if the text is not base64.
bool from_base64(std::string_view text, std::string& bytes) {
    static const std::array<int, 256> value_of = [] {
        std::array<int, 256> table;
        table.fill(-1);
        for (size_t i = 0; i < kBase64.size(); i++) table[static_cast<unsigned char>(kBase64[i])] = int(i);
        return table;
    }();
    bytes.clear();
    if (text.size() % 4 != 0) return false;
    const size_t padding = text.ends_with("==") ? 2 : text.ends_with('=') ? 1 : 0;
    for (size_t at = 0; at < text.size(); at += 4) {
        const size_t n = at + 4 == text.size() ? 3 - padding : 3;
        uint32_t bits = 0;
        for (size_t i = 0; i < 4; i++) {
            const int value = i <= n ? value_of[static_cast<unsigned char>(text[at + i])] : 0;
            if (value < 0) return false;
            bits = bits << 6 | uint32_t(value);
        }
        for (size_t i = 0; i < n; i++) bytes += char(bits >> (16 - 8 * i) & 0xFF);
    }
    return true;
}

// Parses "base64 rank". Returns false if the line has another form.
bool parse_rank(std::string_view line, std::string& bytes, int64_t& rank) {
    const size_t space = line.find(' ');
    if (space == std::string_view::npos || space == 0 || !from_base64(line.substr(0, space), bytes)) return false;
    const std::string_view digits = line.substr(space + 1);
    rank = 0;
    for (const char c : digits) {
        if (c < '0' || c > '9') return false;
        rank = std::min<int64_t>(rank * 10 + (c - '0'), kMaxBpeIds);
    }
    return !digits.empty();
}

// Sets the split pattern and the special tokens by the number of ranks if there is no PATH.json.
void take_known_rest(size_t num_ranks, Bpe& bpe, const std::string& where) {
    struct Known {
        size_t num_ranks;
        SplitPattern pattern;
        std::vector<AddedToken> specials;
    };
    // r50k_base (GPT-2), p50k_base, cl100k_base (GPT-4), o200k_base (GPT-4o), as in tiktoken_ext/openai_public.py.
    static const Known all_known[] = {
        {50256, SplitPattern::gpt2, {{"<|endoftext|>", 50256}}},
        {50280, SplitPattern::gpt2, {{"<|endoftext|>", 50256}}},
        {100256,
         SplitPattern::gpt4,
         {{"<|endoftext|>", 100257},
          {"<|fim_prefix|>", 100258},
          {"<|fim_middle|>", 100259},
          {"<|fim_suffix|>", 100260},
          {"<|endofprompt|>", 100276}}},
        {199998, SplitPattern::o200k, {{"<|endoftext|>", 199999}, {"<|endofprompt|>", 200018}}}};
    for (const Known& known : all_known) {
        if (known.num_ranks != num_ranks) continue;
        bpe.pattern = known.pattern;
        bpe.added = known.specials;
        return;
    }
    require(false,
            "%s has %zu ranks, neither GPT-2's 50256 nor GPT-4's 100256 nor GPT-4o's 199998, and they alone do not say "
            "how text is split: expected %s.json beside it, such as {\"pattern\": \"gpt2\", \"special_tokens\": "
            "{\"<|endoftext|>\": %zu}}",
            where.c_str(), num_ranks, where.c_str(), num_ranks);
}

void take_rest(const std::string& sidecar, Bpe& bpe, const std::string& where) {
    const OrderedJson json = parse_ordered_json(sidecar);
    const bool is_ours = json.is_object() && json.contains("pattern") && json["pattern"].is_string() &&
                         json.contains("special_tokens") && json["special_tokens"].is_object();
    require(is_ours, "%s.json: expected {\"pattern\": NAME, \"special_tokens\": {TEXT: ID}}", where.c_str());
    bpe.pattern = split_pattern(json["pattern"]);
    for (const auto& [text, id] : json["special_tokens"].items()) {
        require(id.is_number_unsigned() && id.get<uint64_t>() < uint64_t(kMaxBpeIds),
                "%s.json: the id of '%s' is %s: expected a number below %d", where.c_str(), text.c_str(),
                json_text(id).c_str(), kMaxBpeIds);
        bpe.added.push_back({text, id.get<int32_t>()});
    }
}
}  // namespace

bool is_ranks(std::string_view text) {
    std::string bytes;
    int64_t rank;
    return parse_rank(take_line(text), bytes, rank);
}

Tokenizer read_ranks(std::string_view text, const std::string& sidecar, const std::string& where) {
    std::vector<std::string> symbols;
    std::unordered_map<std::string, int64_t> rank_of;
    std::string bytes;
    for (int number = 1; !text.empty(); number++) {
        const std::string_view line = take_line(text);
        if (line.empty()) continue;
        int64_t rank;
        require(parse_rank(line, bytes, rank), "%s:%d: '%s': expected a token in base64, a space and its rank",
                where.c_str(), number, shown(line).c_str());
        require(rank < kMaxBpeIds && !bytes.empty(), "%s:%d: '%s': expected at least one byte and a rank below %d",
                where.c_str(), number, shown(line).c_str(), kMaxBpeIds);
        if (symbols.size() <= size_t(rank)) symbols.resize(size_t(rank) + 1);
        require(symbols[size_t(rank)].empty(), "%s:%d: rank %ld is that of an earlier line, too", where.c_str(), number,
                rank);
        const auto [there, is_new] = rank_of.emplace(bytes, rank);
        require(is_new, "%s:%d: the token of rank %ld has rank %ld too", where.c_str(), number, rank, there->second);
        symbols[size_t(rank)] = bytes;
    }
    Bpe bpe;
    if (sidecar.empty())
        take_known_rest(rank_of.size(), bpe, where);
    else
        take_rest(sidecar, bpe, where);
    const size_t num_ranks = symbols.size();
    // tiktoken looks up whole pieces first. That matters only if some tokens cannot be reached by merges.
    bpe.whole_pieces = recover_merges(symbols, bpe) > 0;
    for (const AddedToken& special : bpe.added) {
        if (symbols.size() <= size_t(special.id)) symbols.resize(size_t(special.id) + 1);
        require(symbols[size_t(special.id)].empty(), "%s.json: the id of '%s' is %d, which another token has",
                where.c_str(), special.text.c_str(), special.id);
        symbols[size_t(special.id)] = special.text;
    }
    // In p50k_base a special token stands among the ranks.
    const size_t missing = size_t(std::find(symbols.begin(), symbols.end(), "") - symbols.begin());
    require(missing >= num_ranks, "%s: rank %zu is missing: expected each of 0 to %zu once; is the file whole?",
            where.c_str(), missing, num_ranks - 1);
    return make_bpe_tokenizer(std::move(symbols), std::move(bpe), where);
}

void save_ranks(const Tokenizer& tokenizer, const std::string& path) {
    require(tokenizer.kind == TokenizerKind::bpe && tokenizer.bpe->encodes,
            "%s: only a bpe tokenizer has ranks, and this is a %s tokenizer%s", path.c_str(), tokenizer.name(),
            tokenizer.kind == TokenizerKind::bpe ? " without merges" : "");
    const Bpe& bpe = *tokenizer.bpe;
    require(!bpe.of_characters, "%s: ranks are of bytes, and this tokenizer merges characters", path.c_str());
    // Reading the ranks must give the same merges.
    std::vector<std::string> symbols = tokenizer.symbols;
    OrderedJson specials = OrderedJson::object();
    for (const AddedToken& token : bpe.added) {
        require(token.special,
                "%s: ranks have special tokens only, and '%s' is made from text: save this tokenizer as a "
                "tokenizer.json",
                path.c_str(), token.text.c_str());
        symbols[size_t(token.id)].clear();
        specials[token.text] = token.id;
    }
    while (!symbols.empty() && symbols.back().empty()) symbols.pop_back();
    std::string text;
    for (size_t rank = 0; rank < symbols.size(); rank++) {
        require(!tokenizer.symbols[rank].empty(),
                "%s: id %zu is not used, and ranks have no holes: save this tokenizer as a tokenizer.json",
                path.c_str(), rank);
        if (!symbols[rank].empty()) text += to_base64(symbols[rank]) + " " + std::to_string(rank) + "\n";
    }
    Bpe back;
    const bool whole_pieces = recover_merges(symbols, back) > 0;
    const bool same = whole_pieces == bpe.whole_pieces && back.merges.size() == bpe.merges.size() &&
                      std::equal(back.merges.begin(), back.merges.end(), bpe.merges.begin(), [](Merge a, Merge b) {
                          return a.left == b.left && a.right == b.right && a.result == b.result;
                      });
    require(
        same,
        "%s: the merges of this tokenizer are not in the order of their tokens' ids, so ranks cannot hold them: save "
        "it as a tokenizer.json",
        path.c_str());
    write_file_atomically(path, text);
    const OrderedJson rest = {{"pattern", name_of(bpe.pattern)}, {"special_tokens", specials}};
    write_file_atomically(path + ".json", json_text(rest, 1) + "\n");
}

// ---- llm.c's tokenizer.bin -----------------------------------------------------------------------------------------

namespace {
constexpr int32_t kLlmcMagic = 20240328;
constexpr size_t kLlmcHeaderBytes = 256 * sizeof(int32_t);

int32_t int32_at(std::string_view text, size_t i) {
    int32_t value;
    std::memcpy(&value, text.data() + i * sizeof value, sizeof value);
    return value;
}
}  // namespace

bool is_llmc_tokenizer(std::string_view text) { return text.size() >= 4 && int32_at(text, 0) == kLlmcMagic; }

Tokenizer read_llmc_tokenizer(std::string_view text, const std::string& where) {
    require(text.size() >= kLlmcHeaderBytes, "%s is too short for the header of llm.c's tokenizer.bin: %zu bytes",
            where.c_str(), text.size());
    const int32_t version = int32_at(text, 1), num_tokens = int32_at(text, 2);
    require(version == 1 || version == 2, "%s is a tokenizer.bin of version %d: expected 1 or 2", where.c_str(),
            version);
    const int32_t separator = version == 1 ? 50256 : int32_at(text, 3);
    require(num_tokens > 0 && num_tokens <= kMaxBpeIds && separator >= 0 && separator < num_tokens,
            "%s has %d tokens and separates documents by %d: expected 1 to %d tokens, and one of them", where.c_str(),
            num_tokens, separator, kMaxBpeIds);
    std::vector<std::string> symbols;
    size_t at = kLlmcHeaderBytes;
    for (int32_t id = 0; id < num_tokens; id++) {
        const size_t bytes = at < text.size() ? static_cast<unsigned char>(text[at]) : 0;
        require(at < text.size() && bytes <= text.size() - at - 1, "%s ends inside token %d of %d: is the file whole?",
                where.c_str(), id, num_tokens);
        symbols.push_back(std::string(text.substr(at + 1, bytes)));
        at += 1 + bytes;
    }
    require(at == text.size(), "%s has %zu bytes after its %d tokens", where.c_str(), text.size() - at, num_tokens);
    require(!symbols[size_t(separator)].empty(), "%s: token %d, which separates documents, has no text", where.c_str(),
            separator);

    Bpe bpe;
    bpe.added = {{symbols[size_t(separator)], separator}};
    bpe.encodes = recover_merges(symbols, bpe) == 0;
    if (!bpe.encodes) bpe.merges.clear();
    return make_bpe_tokenizer(std::move(symbols), std::move(bpe), where);
}

// ---- which is it? --------------------------------------------------------------------------------------------------

Tokenizer read_tokenizer(std::string_view text, const std::string& sidecar, const std::string& where) {
    if (is_vocab_bpe(text)) return read_vocab_bpe(text, where);
    if (is_llmc_tokenizer(text)) return read_llmc_tokenizer(text, where);
    if (is_ranks(text)) return read_ranks(text, sidecar, where);
    return read_tokenizer_json(text, where);
}

Tokenizer load_tokenizer(const std::string& path) {
    const std::string beside = path + ".json";
    return read_tokenizer(read_file(path), std::filesystem::exists(beside) ? read_file(beside) : "", path);
}

std::string tokenizer_json_of(const Tokenizer& tokenizer, const std::string& path) {
    const std::string text = read_file(path);
    if (!is_vocab_bpe(text) && !is_llmc_tokenizer(text) && !is_ranks(text)) return text;
    return tokenizer.bpe->encodes ? tokenizer_json(tokenizer) : "";
}
