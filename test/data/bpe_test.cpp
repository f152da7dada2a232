// Byte-pair tokenizers: splitting, merging, training, the files of other programs, and what is refused. Comparison with
// other programs: tokenizer_reference_test.cpp.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include "llmc/base/file.h"  // read_file, write_file_atomically
#include "llmc/data/bpe.h"
#include "llmc/data/bpe_training.h"
#include "llmc/data/tokenizer_formats.h"
#include "test/testing.h"

namespace {
using Ids = std::vector<int32_t>;

// The pieces of a text with bars between them.
std::string split(SplitPattern pattern, std::string_view text) {
    std::string shown;
    for_each_piece(pattern, text,
                   [&](std::string_view piece) { shown += (shown.empty() ? "" : "|") + std::string(piece); });
    return shown;
}

// A tokenizer whose bytes are their own ids, with these merges.
Tokenizer tokenizer_of(const std::vector<Merge>& merges) {
    std::vector<std::string> symbols = byte_tokenizer().symbols;
    for (const Merge& m : merges) symbols.push_back(symbols[size_t(m.left)] + symbols[size_t(m.right)]);
    Bpe bpe;
    bpe.merges = merges;
    return make_bpe_tokenizer(symbols, bpe, "test");
}

Tokenizer trained(const std::string& text, int vocab_size, const std::string& pattern = "nanochat") {
    PieceCounts counts(pattern);
    counts.add(text);
    return train_bpe(counts, {.vocab_size = vocab_size, .special_tokens = {"<|bos|>", "<|é x|>"}});
}

// Random letters, each one of the first few of the alphabet.
std::string word_of(Rng& rng, uint64_t letters, size_t n) {
    std::string word;
    while (word.size() < n) word += char('a' + rng.below(letters));
    return word;
}

// What a piece becomes, by the definition: the pair of the lowest rank, the leftmost of several, until there is none.
// Bytes are their own ids.
Ids merged_plainly(const std::vector<Merge>& merges, const std::string& piece) {
    std::map<std::pair<int32_t, int32_t>, size_t> ranks;
    for (size_t rank = 0; rank < merges.size(); rank++) ranks[{merges[rank].left, merges[rank].right}] = rank;
    Ids ids;
    for (const char byte : piece) ids.push_back(static_cast<unsigned char>(byte));
    for (;;) {
        size_t best = merges.size(), at = 0;
        for (size_t i = 0; i + 1 < ids.size(); i++) {
            const auto found = ranks.find({ids[i], ids[i + 1]});
            if (found != ranks.end() && found->second < best) best = found->second, at = i;
        }
        if (best == merges.size()) return ids;
        ids[at] = merges[best].result;
        ids.erase(ids.begin() + int64_t(at) + 1);
    }
}

// The merges of words, by the definition: all pairs are counted anew for each.
std::vector<Merge> learned_plainly(const std::vector<std::pair<std::string, int64_t>>& words, int merges) {
    std::vector<std::pair<Ids, int64_t>> texts;
    for (const auto& [word, count] : words) texts.push_back({Ids(word.begin(), word.end()), count});
    std::vector<Merge> learned;
    while (int(learned.size()) < merges) {
        std::map<std::pair<int32_t, int32_t>, int64_t> counts;  // in the order of the ids
        for (const auto& [ids, count] : texts)
            for (size_t i = 0; i + 1 < ids.size(); i++) counts[{ids[i], ids[i + 1]}] += count;
        if (counts.empty()) break;
        const auto best = std::max_element(counts.begin(), counts.end(),
                                           [](const auto& a, const auto& b) { return a.second < b.second; });
        const Merge merge = {best->first.first, best->first.second, int32_t(256 + learned.size())};
        learned.push_back(merge);
        for (auto& [ids, count] : texts)
            for (size_t i = 0; i + 1 < ids.size(); i++)
                if (ids[i] == merge.left && ids[i + 1] == merge.right) {
                    ids[i] = merge.result;
                    ids.erase(ids.begin() + int64_t(i) + 1);
                }
    }
    return learned;
}

const std::string kText =
    "the cat sat on the mat; the other cats sat on the other mats, as cats do. It's 12345!\n\n the end";

// A file of llm.c's with these tokens.
std::string llmc_file(const std::vector<std::string>& symbols, int32_t version, int32_t separator) {
    std::vector<int32_t> header(256);
    header[0] = 20240328;
    header[1] = version;
    header[2] = int32_t(symbols.size());
    header[3] = separator;
    std::string text(reinterpret_cast<const char*>(header.data()), 1024);
    for (const std::string& symbol : symbols) text += char(symbol.size()) + symbol;
    return text;
}

std::string ranks_of(const std::vector<std::string>& lines) {
    std::string text;
    for (const std::string& line : lines) text += line + "\n";
    return text;
}
}  // namespace

TEST_CASE("text is split as the patterns say", "[bpe][tokenizer]") {
    using enum SplitPattern;
    CHECK(split(gpt2, "I'll can't  go\n\n x12345 (hi)!?\n ") == "I|'ll| can|'t| | go|\n\n| x|12345| (|hi|)!?|\n ");
    CHECK(split(gpt2, "I'LL 'sat \tx") == "I|'|LL| '|sat| |\t|x");
    CHECK(split(gpt4, "I'LL 'sat\n \tx") == "I|'LL| '|sat|\n| |\tx");
    CHECK(split(gpt4, "x12345 67(hi)!\r\n\n  y\n  ") == "x|123|45| |67|(hi|)!\r\n\n| | y|\n  ");
    CHECK(split(llama3, "x12345  \n  ") == "x|123|45|  \n|  ");
    CHECK(split(nanochat, "x12345\n  ") == "x|12|34|5|\n|  ");
    CHECK(split(nanochat,
                "a\xc2\xa0"
                "b 'ſx \xe2\x80\x83 c") ==
          "a|\xc2\xa0"
          "b| '|ſx| \xe2\x80\x83| c");
    CHECK(split(nanochat, "'ſx'S") == "'ſ|x|'S");
    // A mark is neither letter nor number nor space; neither is a byte that is not UTF-8.
    CHECK(split(gpt2, "e\xcc\x81l \xff\xc3z") == "e|\xcc\x81|l| \xff\xc3|z");
    CHECK(split(gpt4, "a\nb\n\rc") == "a|\n|b|\n\r|c");
    CHECK(split(gpt4, "") == "");
}

TEST_CASE("merges go by rank, and of the same from the left", "[bpe][tokenizer]") {
    const Tokenizer t =
        tokenizer_of({{'l', 'o', 256}, {'e', 'r', 257}, {256, 'w', 258}, {'a', 'a', 259}, {'a', 259, 260}});
    CHECK(t.encode("lower") == Ids{258, 257});
    CHECK(t.encode("low er") == Ids{258, ' ', 257});
    CHECK(t.encode("aaaaa") == Ids{259, 259, 'a'});  // (a, aa) never stands there
    CHECK(t.encode("aaa") == Ids{259, 'a'});
    CHECK(t.encode("<|bos|>") == Ids{'<', '|', 'b', 'o', 's', '|', '>'});
    // The same for a piece so long that merge_short() does not take it.
    std::string text;
    Ids want;
    for (int i = 0; i < 1000; i++) {
        text += "loweraaaaa";
        for (const int32_t id : {258, 257, 259, 259, int32_t('a')}) want.push_back(id);
    }
    CHECK(t.encode(text) == want);
    CHECK(t.separator() == -1);
}

TEST_CASE("pieces of any length are merged as the definition says", "[bpe][tokenizer]") {
    Rng rng(3, Stream::tests);
    for (int round = 0; round < 40; round++) {
        PieceCounts counts("gpt2");
        const uint64_t letters = 1 + rng.below(4);
        counts.add(word_of(rng, letters, 500));
        Bpe bpe = *train_bpe(counts, {.vocab_size = 300, .special_tokens = {}}).bpe;
        // In odd rounds merges have any order, so that some make pairs of lower ranks than their own.
        if (round % 2) {
            for (size_t i = bpe.merges.size(); i > 1; i--) std::swap(bpe.merges[i - 1], bpe.merges[rng.below(i)]);
            bpe.ranks.reset(bpe.merges.size());
            for (size_t i = 0; i < bpe.merges.size(); i++)
                bpe.ranks.add(bpe.merges[i].left, bpe.merges[i].right, uint32_t(i));
        }
        for (const size_t n : {size_t(1), size_t(2), size_t(3), 4 + size_t(rng.below(100)), size_t(127), size_t(128),
                               size_t(129), 130 + size_t(rng.below(300))}) {
            const std::string piece = word_of(rng, letters, n);
            Ids ids;
            bpe.merge_piece(piece, ids);
            CHECK(ids == merged_plainly(bpe.merges, piece));
        }
    }
}

TEST_CASE("a long word costs a small multiple of its length", "[bpe][tokenizer]") {
    constexpr size_t kBytes = 200000;
    Rng rng(4, Stream::tests);
    for (const uint64_t letters : {1, 2, 26}) {
        const std::string word = word_of(rng, letters, kBytes);
        PieceCounts counts("gpt2");
        counts.add(word);
        Bpe bpe = *train_bpe(counts, {.vocab_size = 2000, .special_tokens = {}}).bpe;
        // At most n pairs to begin with, and two new ones for each of fewer than n merges; fewer than 2^11 runs come to
        // the heap and leave it, by 2 log2(2^11) comparisons at most each. A heap of the pairs would compare 17 n times
        // and more, a search for each merge n^2 / 2 times.
        Ids ids;
        const size_t steps = bpe.merge_piece(word, ids);
        CHECK(steps >= kBytes - 1);
        CHECK(steps <= 3 * kBytes + (2 * 11 * 2) * 2048);
        // Merges in the opposite order: as many runs as pairs at worst, so O(n log n).
        std::reverse(bpe.merges.begin(), bpe.merges.end());
        bpe.ranks.reset(bpe.merges.size());
        for (size_t i = 0; i < bpe.merges.size(); i++)
            bpe.ranks.add(bpe.merges[i].left, bpe.merges[i].right, uint32_t(i));
        CHECK(bpe.merge_piece(word, ids) <= 3 * kBytes * (1 + 4 * 20));
    }
}

TEST_CASE("any bytes go there and back", "[bpe][tokenizer]") {
    const Tokenizer t = trained(kText, 300);
    Rng rng(1, Stream::tests);
    for (int round = 0; round < 50; round++) {
        std::string text;
        for (uint64_t i = rng.below(400); i > 0; i--)
            text += rng.below(3) ? char(rng.below(256)) : " the\r\n1"[rng.below(7)];
        CHECK(t.decode(t.encode(text)) == text);
    }
    CHECK(t.encode("").empty());
}

TEST_CASE("text may be cut where cut() says, and threads do", "[bpe][tokenizer]") {
    const Tokenizer t = trained(kText, 400);
    std::string text;
    for (Rng rng(2, Stream::tests); text.size() < (3 << 20);)
        text += kText.substr(rng.below(40)) + std::string(rng.below(3), ' ') + std::string(rng.below(3), '\n');
    const Ids whole = t.encode(text, "", 1);
    const bool same = t.encode(text, "", 5) == whole;
    CHECK(same);
    for (size_t at = 1; at < 300; at += 7) {
        const size_t cut = t.cut(text, at);
        CHECK(cut >= at);
        Ids ids = t.encode(text.substr(0, cut)), rest = t.encode(text.substr(cut, 1000 - cut));
        ids.insert(ids.end(), rest.begin(), rest.end());
        CHECK(ids == t.encode(text.substr(0, 1000)));
    }
    CHECK(t.cut("a  b", 1) == 1);
    CHECK(t.cut("a  b", 2) == 4);
    CHECK(t.cut("!\n\n1\nb", 1) == 4);
    CHECK(byte_tokenizer().cut("aé", 2) == 3);
}

TEST_CASE("a BPE learns the most frequent pairs", "[bpe][tokenizer]") {
    // (a, a) stands 3 + 2 times, overlapping; then (b, c) and (c, d) stand as often, and (b, c) has the smaller ids.
    PieceCounts counts("gpt2"), more("gpt2");
    counts.add("aaaa");
    more.add("aaa");
    more.add("bcd");
    counts.add(more);
    counts.add("bcd");
    Tokenizer t = train_bpe(counts, {.vocab_size = 261, .special_tokens = {"<|endoftext|>"}});
    CHECK(std::vector<std::string>(t.symbols.begin() + 256, t.symbols.end()) ==
          std::vector<std::string>{"aa", "bc", "bcd", "aaa", "<|endoftext|>"});
    CHECK(t.separator() == 260);
    CHECK(t.decode({260}) == "<|endoftext|>");
    CHECK(t.token_bytes()[260] == 0);
    CHECK(t.token_bytes()[258] == 3);
    // All there is to merge: aa aa -> aaaa is the last.
    CHECK(train_bpe(counts, {.vocab_size = 300, .special_tokens = {"<|endoftext|>"}}).vocab_size() == 262);

    t = train_bpe(counts, {.vocab_size = 256, .special_tokens = {}});
    CHECK(t.encode("aa\xff") == Ids{'a', 'a', 255});

    PieceCounts many("gpt2");
    for (int round = 0; round < 2; round++)
        for (int i = 0; i < 3000; i++) many.add("x" + std::to_string(i));
    CHECK(many.size() == 3001);
    CHECK(many.count(0) == 6000);

    t = trained(kText, 280);
    CHECK(t.vocab_size() == 280);
    CHECK(t.separator() == 278);
    CHECK(t.token_bytes()[279] == 0);
    CHECK(std::string(t.name()) == "bpe");
}

TEST_CASE("a BPE learns what the definition says", "[bpe][tokenizer]") {
    Rng rng(5, Stream::tests);
    for (int round = 0; round < 30; round++) {
        const uint64_t letters = 1 + rng.below(4);
        PieceCounts counts("gpt2");
        for (uint64_t words = 1 + rng.below(8); words > 0; words--) {
            const std::string word = word_of(rng, letters, 1 + rng.below(60));
            for (uint64_t times = 1 + rng.below(3); times > 0; times--) counts.add(word);
        }
        std::vector<std::pair<std::string, int64_t>> words;
        for (size_t i = 0; i < counts.size(); i++) words.push_back({std::string(counts.piece(i)), counts.count(i)});
        const std::vector<Merge> want = learned_plainly(words, 60);
        const Tokenizer t = train_bpe(counts, {.vocab_size = 256 + 60, .special_tokens = {}});
        REQUIRE(t.bpe->merges.size() == want.size());
        for (size_t i = 0; i < want.size(); i++) {
            CHECK(t.bpe->merges[i].left == want[i].left);
            CHECK(t.bpe->merges[i].right == want[i].right);
            CHECK(t.bpe->merges[i].result == want[i].result);
        }
    }
}

TEST_CASE("what cannot be learned from is refused", "[bpe][tokenizer]") {
    PieceCounts empty("gpt2");
    CHECK(contains(error_of([&] { train_bpe(empty); }), "2: there is no text to train a tokenizer on"));
    CHECK(contains(error_of([] { trained("x", 257); }),
                   "2: a vocabulary of 257 tokens: expected 258 (the 256 bytes and 2 spec"));
    CHECK(contains(error_of([] { trained("x", 1 << 21); }), "to 1048576"));
    CHECK(contains(error_of([] { PieceCounts("gpt5"); }),
                   "2: the split pattern 'gpt5' is not known: expected one of gpt2, "));
    PieceCounts counts("gpt2");
    counts.add("the the");
    CHECK(contains(error_of([&] { train_bpe(counts, {.special_tokens = {"a", "a"}}); }),
                   "must not be empty, and must differ"));
    CHECK(contains(error_of([&] { train_bpe(counts, {.special_tokens = {"the"}}); }), "is spelled like token 257"));
}

TEST_CASE("every file of a BPE gives the same tokenizer", "[bpe][tokenizer]") {
    const ScratchFolder scratch;
    for (const char* pattern : {"gpt2", "gpt4", "llama3", "nanochat"}) {
        const Tokenizer t = trained(kText, 330, pattern);
        const std::string json = scratch / "tokenizer.json", ranks = scratch / "x.tiktoken";
        save_tokenizer(t, json);
        save_ranks(t, ranks);
        for (const Tokenizer& back : {load_tokenizer(json), load_tokenizer(ranks)}) {
            CHECK(back.kind == TokenizerKind::bpe);
            CHECK(back.bpe->pattern == t.bpe->pattern);
            CHECK(back.symbols == t.symbols);
            CHECK(back.separator() == t.separator());
            CHECK(back.token_bytes() == t.token_bytes());
            CHECK(back.encode(kText) == t.encode(kText));
            CHECK(tokenizer_json(back) == read_file(json));
        }
        CHECK(tokenizer_json_of(load_tokenizer(ranks), ranks) == read_file(json));
        write_file_atomically(json, " " + read_file(json));
        CHECK(tokenizer_json_of(t, json) == read_file(json));
        write_file_atomically(scratch / "t.bin", llmc_file(t.symbols, 2, t.separator()));
        const Tokenizer llmc = load_tokenizer(scratch / "t.bin");
        CHECK(llmc.symbols == t.symbols);
        CHECK(llmc.separator() == t.separator());
        CHECK(llmc.decode(t.encode(kText)) == kText);
    }
    CHECK(contains(error_of([&] { save_ranks(byte_tokenizer(), scratch / "b"); }), "only a bpe tokenizer has ranks"));
}

TEST_CASE("llm.c's tokenizer.bin", "[bpe][tokenizer]") {
    std::vector<std::string> symbols = byte_tokenizer().symbols;
    for (const char* symbol : {"th", "the", "<|endoftext|>"}) symbols.push_back(symbol);
    Tokenizer t = read_tokenizer(llmc_file(symbols, 2, 258), "", "t.bin");
    CHECK(t.encode("the th") == Ids{257, ' ', 256});
    CHECK(t.separator() == 258);

    symbols[256] = "zz";  // the merges that lead to "the" are not among the tokens
    t = read_tokenizer(llmc_file(symbols, 2, 258), "", "t.bin");
    CHECK(t.decode({257, 256, 258}) == "thezz<|endoftext|>");
    CHECK(
        contains(error_of([&] { t.encode("the", "--prompt"); }), "2: --prompt cannot be encoded: the file of the tok"));
    CHECK(contains(error_of([&] { tokenizer_json(t); }), "the merges of this tokenizer are not known"));
    const ScratchFolder scratch;
    write_file_atomically(scratch / "t.bin", llmc_file(symbols, 2, 258));
    CHECK(tokenizer_json_of(t, scratch / "t.bin") == "");

    const std::string file = llmc_file(symbols, 2, 258);
    const auto refused = [](std::string text) { return error_of([&] { read_tokenizer(text, "", "t.bin"); }); };
    CHECK(contains(refused(file.substr(0, 1000)), "2: t.bin is too short for the header"));
    CHECK(contains(refused(file.substr(0, file.size() - 1)), "2: t.bin ends inside token 258 of 259"));
    CHECK(contains(refused(file + "x"), "2: t.bin has 1 bytes after its 259 tokens"));
    CHECK(contains(refused(llmc_file(symbols, 3, 258)), "of version 3: expected 1 or 2"));
    CHECK(contains(refused(llmc_file(symbols, 1, 258)), "separates documents by 50256"));
    CHECK(contains(refused(llmc_file(symbols, 2, 259)), "separates documents by 259"));
    symbols[258] = "\xff";
    CHECK(
        contains(refused(llmc_file(symbols, 2, 258)), "2: t.bin: the special token 258 occurs twice or is not UTF-8"));
    symbols[258] = "";
    CHECK(contains(refused(llmc_file(symbols, 2, 258)), "token 258, which separates documents, has no text"));
}

TEST_CASE("vocab.bpe numbers bytes and merges", "[bpe][tokenizer]") {
    const Tokenizer t = read_tokenizer("#version: 0.2\nt h\r\nth e\nĠ the\n", "", "vocab.bpe");
    CHECK(t.vocab_size() == 260);
    CHECK(t.encode("the the!") == Ids{257, 258, 0});
    CHECK(t.encode("\n") == Ids{198});
    CHECK(t.decode({259}) == "<|endoftext|>");
    CHECK(t.separator() == 259);
    const auto refused = [](const std::string& lines) {
        return error_of([&] { read_tokenizer("#version: 0.2\n" + lines, "", "v"); });
    };
    CHECK(contains(refused(""), "2: v has no merges"));
    CHECK(contains(refused("t h\nthe\n"), "2: v:3: 'the': expected two tokens with a space between"));
    CHECK(contains(refused("t h\n\x1B[2J\x7F\xC2\x9B\xC4\xA0\xFFx\n"),
                   "2: v:3: '\\x1B[2J\\x7F\\xC2\\x9B\xC4\xA0\\xFFx': expected two tokens"));
    CHECK(contains(refused("t h\nth ee\n"), "2: v:3: 'th ee': expected two tokens"));
    CHECK(contains(refused("t €\n"), "2: v:2: "));
    CHECK(contains(refused("t h\nt h\n"), "2: v:3: 't h' makes a token that an earlier line makes, too"));
}

TEST_CASE("ranks are each there once", "[bpe][tokenizer]") {
    const ScratchFolder scratch;
    save_ranks(trained("ab", 259), scratch / "r");
    const std::string ranks = read_file(scratch / "r"), rest = read_file(scratch / "r.json");
    CHECK(ranks.substr(0, 14) == "AA== 0\nAQ== 1\n");
    CHECK(ranks.substr(ranks.size() - 9) == "YWI= 256\n");
    const auto refused = [&](const std::string& text, const std::string& sidecar) {
        return error_of([&] { read_tokenizer(text, sidecar, "r"); });
    };
    CHECK(refused(ranks, rest) == "");
    CHECK(contains(refused(ranks, ""), "2: r has 257 ranks, neither GPT-2's 50256 nor GPT-4's 100256"));
    // As in p50k_base, a special token may stand among the ranks.
    const char* const one_special = R"({"pattern": "gpt2", "special_tokens": {"<|x|>": 257}})";
    const Tokenizer with_hole = read_tokenizer(ranks + "YWJj 258\n", one_special, "r");
    CHECK(with_hole.encode("abc") == Ids{258});
    CHECK(with_hole.separator() == 257);
    save_ranks(with_hole, scratch / "hole");
    CHECK(read_file(scratch / "hole") == ranks + "YWJj 258\n");
    CHECK(contains(refused(ranks + "YWJj 256\n", rest), "2: r:258: rank 256 is that of an earlier line, too"));
    CHECK(contains(refused(ranks + "YWI= 257\n", rest), "2: r:258: the token of rank 257 has rank 256 too"));
    CHECK(contains(refused(ranks + "YWJj 258\n", rest),
                   "2: r.json: the id of '<|é x|>' is 258, which another token has"));
    CHECK(contains(refused(ranks + "YWJj 260\n", one_special), "2: r: rank 258 is missing: expected each of 0 to 260"));
    CHECK(contains(refused(ranks + "YWJj x\n", rest), "2: r:258: 'YWJj x': expected a token in base64"));
    CHECK(contains(refused(ranks + "YWJ 257\n", rest), "2: r:258: "));
    CHECK(contains(refused(ranks + "YWJj 99999999999999999999\n", rest), "a rank below 1048576"));
    CHECK(contains(refused(ranks_of({"YQ== 0", "Yg== 1"}), rest), "2: r lacks tokens for some of the 256 bytes"));
    CHECK(contains(refused(ranks, "{}"), "2: r.json: expected {\"pattern\": NAME"));
    CHECK(contains(refused(ranks, R"({"pattern": "x", "special_tokens": {}})"), "the split pattern 'x' is not known"));
    CHECK(contains(refused(ranks, R"({"pattern": "gpt2", "special_tokens": {"s": 3}})"),
                   "the id of 's' is 3, which ano"));
    CHECK(contains(refused(ranks, R"({"pattern": "gpt2", "special_tokens": {"s": -3}})"), "the id of 's' is -3"));

    // Ranks need not be in the order of learning, as those of Llama 3 are not: "abc" comes before its part "bc".
    const Tokenizer mixed = read_tokenizer(ranks_of({ranks.substr(0, ranks.size() - 10), "YWJj 256", "YmM= 257"}),
                                           R"({"pattern": "gpt2", "special_tokens": {}})", "r");
    CHECK(mixed.encode("abc xabcx xbc") == Ids{256, ' ', 'x', 256, 'x', ' ', 'x', 257});

    // tiktoken finds a token that no merges lead to as a whole piece, and so do we.
    const Tokenizer t = read_tokenizer(ranks + "eHl6 257\n", R"({"pattern": "gpt2", "special_tokens": {}})", "r");
    CHECK(t.encode("xyz xyz") == Ids{257, ' ', 'x', 'y', 'z'});
    CHECK(t.separator() == -1);
    save_tokenizer(t, scratch / "t.json");
    CHECK(load_tokenizer(scratch / "t.json").encode("xyz xyz") == t.encode("xyz xyz"));
}

TEST_CASE("GPT-2's own ids", "[bpe][tokenizer]") {
    const char* mirror = std::getenv("ANVIL_MIRROR");
    if (!mirror || !std::filesystem::exists(std::string(mirror) + "/vocab.bpe")) {
        WARN("not tested: ANVIL_MIRROR is not set to a folder with vocab.bpe");
        return;
    }
    const Tokenizer t = load_tokenizer(std::string(mirror) + "/vocab.bpe");
    CHECK(t.vocab_size() == 50257);
    CHECK(t.separator() == 50256);
    CHECK(t.encode("Hello, world!") == Ids{15496, 11, 995, 0});
    CHECK(t.encode(read_file(std::string(mirror) + "/tinyshakespeare.txt")).size() == 338025);
}
