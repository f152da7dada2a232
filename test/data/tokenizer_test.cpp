// Tokenizers: exact ids, exact decoding, files for Hugging Face's `tokenizers`, and what is refused.
#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include "llmc/base/file.h"  // read_file, write_file_atomically
#include "llmc/data/bpe.h"   // Bpe
#include "llmc/data/tokenizer.h"
#include "llmc/data/tokenizer_formats.h"  // read_tokenizer
#include "llmc/data/utf8.h"               // code_point_at, printable, ...
#include "test/testing.h"

namespace {
using Ids = std::vector<int32_t>;

Tokenizer char_tokenizer_of(const std::string& text) {
    Symbols symbols;
    symbols.add(text, "test");
    return char_tokenizer(symbols);
}

std::string all_bytes() {
    std::string text;
    for (int byte = 0; byte < 256; byte++) text += char(byte);
    return text;
}

// The error of loading a tokenizer.json changed by `edit`.
template <class F>
std::string refusal(const Tokenizer& tokenizer, F edit) {
    const ScratchFolder scratch;
    const std::string path = scratch / "tokenizer.json";
    save_tokenizer(tokenizer, path);
    auto json = nlohmann::ordered_json::parse(read_file(path));
    edit(json);
    write_file_atomically(path, json.dump());
    const std::string error = error_of([&] { load_tokenizer(path); });
    if (!error.empty()) CHECK(contains(error, "2: " + path));
    return error;
}
}  // namespace

TEST_CASE("every code point survives UTF-8, and nothing else passes", "[tokenizer]") {
    size_t wrong = 0;
    for (char32_t c = 0; c < kCodePoints; c++) {
        const std::string text = utf8(c);
        const CodePoint back = code_point_at(text, 0);
        const bool surrogate = c >= 0xD800 && c < 0xE000;
        if (surrogate ? back.bytes != 0 : back.value != c || back.bytes != text.size()) wrong++;
    }
    CHECK(wrong == 0);
    CHECK(utf8(U'é') == "\xc3\xa9");
    CHECK(utf8(U'€') == "\xe2\x82\xac");
    CHECK(utf8(U'😀') == "\xf0\x9f\x98\x80");
    for (const char* bad :
         {"\x80", "\xbf", "\xc0\x80", "\xc1\xbf", "\xc3", "\xc3(", "\xe0\x80\x80", "\xe2\x82", "\xe2(\xac",
          "\xf0\x80\x80\x80", "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xf0\x9f\x98", "\xff"})
        CHECK(code_point_at(bad, 0).bytes == 0);
}

TEST_CASE("the char tokenizer numbers the symbols of its text in order", "[tokenizer]") {
    const Tokenizer t = char_tokenizer_of("bad €é\n");
    CHECK(t.symbols == std::vector<std::string>{"\n", " ", "a", "b", "d", "é", "€"});
    CHECK(t.vocab_size() == 7);
    CHECK(t.separator() == -1);
    CHECK(std::string(t.name()) == "char");
    CHECK(t.encode("déb€\n") == Ids{4, 5, 3, 6, 0});
    CHECK(t.decode({4, 5, 3, 6, 0}) == "déb€\n");
    CHECK(t.encode("").empty());
    Symbols symbols;
    CHECK(symbols.add("déb€", "test") == 4);
}

TEST_CASE("symbols of several texts add up", "[tokenizer]") {
    Symbols symbols;
    symbols.add("cb", "one");
    symbols.add("ab", "two");
    CHECK(char_tokenizer(symbols).symbols == std::vector<std::string>{"a", "b", "c"});
}

TEST_CASE("the byte tokenizer takes any bytes", "[tokenizer]") {
    const Tokenizer t = byte_tokenizer();
    CHECK(t.vocab_size() == 256);
    CHECK(t.separator() == 0);
    CHECK(std::string(t.name()) == "byte");
    const Ids ids = t.encode(all_bytes());
    REQUIRE(ids.size() == 256);
    for (int byte = 0; byte < 256; byte++) CHECK(ids[size_t(byte)] == byte);
    CHECK(t.decode(ids) == all_bytes());
}

TEST_CASE("a symbol outside the vocabulary is named with its place", "[tokenizer]") {
    const Tokenizer t = char_tokenizer_of("abcé");
    std::string error = error_of([&] { t.encode("aéü", "--prompt"); });
    CHECK(contains(error, "2: --prompt: 'ü' (U+00FC) at byte 3 is not among the 4 symbols"));
    CHECK(contains(error, "--tokenizer byte"));
    CHECK(contains(error_of([&] { t.encode("a😀"); }), "the text: '😀' (U+1F600) at byte 1"));  // above all ids
    CHECK(contains(error_of([&] { t.encode("a\n"); }), "'?' (U+000A) at byte 1"));  // the message stays on one line
    CHECK(contains(error_of([&] { t.decode({0, 4}); }), "2: token id 4 is outside the vocabulary of 4"));
    CHECK(contains(error_of([&] { t.decode({-1}); }), "2: token id -1 is outside"));
}

TEST_CASE("text that is not UTF-8 is refused with file, offset and remedy", "[tokenizer]") {
    const std::string latin1 = "caf\xe9 au lait";
    Symbols symbols;
    const std::string error = error_of([&] { symbols.add(latin1, "menu.txt"); });
    CHECK(contains(error, "2: menu.txt is not UTF-8: the byte at offset 3 is 0xe9"));
    CHECK(contains(error, "--tokenizer byte"));
    CHECK(contains(error_of([&] { char_tokenizer_of("caf").encode(latin1, "menu.txt"); }), "menu.txt is not UTF-8"));
    CHECK(byte_tokenizer().decode(byte_tokenizer().encode(latin1)) == latin1);
}

TEST_CASE("tokenizer.json round trip", "[tokenizer]") {
    const ScratchFolder scratch;
    const std::string path = scratch / "tokenizer.json";
    std::string ascii;
    for (char c = 0; c < 127; c++) ascii += c;  // control characters and quotes, too
    for (const Tokenizer& t : {char_tokenizer_of(ascii + "é€😀"), byte_tokenizer()}) {
        save_tokenizer(t, path);
        const Tokenizer back = load_tokenizer(path);
        CHECK(back.kind == t.kind);
        CHECK(back.symbols == t.symbols);
        CHECK(back.id_of_code_point == t.id_of_code_point);
        CHECK(back.encode("x\"y\\") == t.encode("x\"y\\"));
    }
    CHECK_FALSE(std::filesystem::exists(path + ".tmp"));
}

TEST_CASE("the byte vocabulary has GPT-2's spelling", "[tokenizer]") {
    const ScratchFolder scratch;
    save_tokenizer(byte_tokenizer(), scratch / "tokenizer.json");
    const auto vocab = nlohmann::json::parse(read_file(scratch / "tokenizer.json"))["model"]["vocab"];
    CHECK(vocab.size() == 256);
    // From GPT-2's encoder.json: a space is G with a dot, a newline C with a dot.
    CHECK(vocab["Ġ"] == 32);
    CHECK(vocab["Ċ"] == 10);
    CHECK(vocab["Ā"] == 0);
    CHECK(vocab["ġ"] == 127);
    CHECK(vocab["Ń"] == 0xAD);
    CHECK(vocab["A"] == 65);
    CHECK(vocab["ÿ"] == 255);
}

TEST_CASE("a tokenizer.json that is not ours is refused", "[tokenizer]") {
    const Tokenizer chars = char_tokenizer_of("abc"), bytes = byte_tokenizer();
    using Json = nlohmann::ordered_json;
    CHECK(refusal(chars, [](Json&) {}) == "");
    CHECK(refusal(bytes, [](Json&) {}) == "");
    CHECK(contains(refusal(chars, [](Json& j) { j["model"]["type"] = "WordPiece"; }), "of type 'WordPiece'"));
    CHECK(contains(refusal(chars, [](Json& j) { j.erase("model"); }), "of type ''"));
    CHECK(contains(refusal(chars, [](Json& j) { j["model"]["merges"] = {"a b"}; }), "has merges or added tokens, but"));
    CHECK(contains(refusal(bytes, [](Json& j) { j["model"]["merges"] = {"a b"}; }), "does not split text into words"));
    CHECK(contains(refusal(chars, [](Json& j) { j["normalizer"] = {{"type", "NFC"}}; }), "has a normalizer, which"));
    CHECK(contains(refusal(chars, [](Json& j) { j["normalizer"] = {{"type", "NFKC"}}; }), "other than NFC"));
    CHECK(contains(refusal(chars, [](Json& j) { j["decoder"] = nullptr; }), "not a supported combination"));
    CHECK(contains(refusal(bytes, [](Json& j) { j["pre_tokenizer"] = nullptr; }), "not a supported combination"));
    CHECK(contains(refusal(chars, [](Json& j) { j["model"].erase("vocab"); }), "has no vocabulary"));
    CHECK(contains(refusal(chars, [](Json& j) { j["model"]["vocab"] = Json::object(); }), "has no vocabulary"));
    CHECK(contains(refusal(chars, [](Json& j) { j["model"]["vocab"]["c"] = 3; }),
                   "the id of 'c' is 3: expected each of 0 to 2"));
    CHECK(contains(refusal(chars, [](Json& j) { j["model"]["vocab"]["c"] = 1; }), "the id of 'c' is 1"));
    CHECK(contains(refusal(chars, [](Json& j) { j["model"]["vocab"]["c"] = "2"; }), "the id of 'c' is \"2\""));
    CHECK(
        contains(refusal(chars, [](Json& j) { j["model"]["vocab"]["de"] = 3; }), "symbol 3 is 'de': expected one ch"));
    CHECK(contains(refusal(bytes, [](Json& j) { std::swap(j["model"]["vocab"]["a"], j["model"]["vocab"]["b"]); }),
                   "not the 256 bytes in order"));

    const ScratchFolder scratch;
    write_file_atomically(scratch / "t.json", "{\"model\": ");
    CHECK(contains(error_of([&] { load_tokenizer(scratch / "t.json"); }),
                   "t.json is not JSON: expected a tokenizer.json"));
    CHECK(contains(error_of([&] { load_tokenizer(scratch / "none.json"); }), "none.json: No such file"));
}

TEST_CASE("a character that is not complete is known by its beginning", "[tokenizer]") {
    for (const char32_t c : {U'a', U'\u00e9', U'\u20ac', U'\U0001F600'}) {
        const std::string text = "a" + utf8(c);
        for (size_t n = 1; n <= text.size(); n++) {
            INFO(n << " of the " << text.size() << " bytes of U+" << uint32_t(c));
            CHECK(unfinished_bytes(text.substr(0, n)) == (n == text.size() ? 0 : n - 1));
        }
    }
    // Nothing can make characters of these.
    for (const std::string text : {"", "\x80", "\x80\x80\x80\x80", "\xC1", "\xF5", "\xFF", "\xC3\xA9\x80"})
        CHECK(unfinished_bytes(text) == 0);
    CHECK(unfinished_bytes("\xF0\x9F\x98") == 3);
    CHECK(unfinished_bytes("\xE2\x82\xE2") == 1);
}

TEST_CASE("SentencePiece's tokenizers: a space before the text, bytes of what has no token, spaces in other words",
          "[tokenizer]") {
    // Expected: tokenizers 0.23.3.
    const Tokenizer legacy = load_tokenizer("test/fixtures/tokenizers/legacy.json");
    const Tokenizer metaspace = load_tokenizer("test/fixtures/tokenizers/metaspace.json");
    CHECK(legacy.encode("") == Ids{});
    CHECK(legacy.encode("hi") == Ids{303, 286, 287});
    CHECK(legacy.encode(" hi") == Ids{397, 286, 287});
    CHECK(legacy.encode("\u2581hi\u2581\u00e9") == Ids{397, 286, 287, 303, 198, 172});
    CHECK(metaspace.encode("") == Ids{});
    CHECK(metaspace.encode("hi") == Ids{303, 286, 287});
    CHECK(metaspace.encode(" hi") == Ids{303, 286, 287});
    CHECK(metaspace.encode("  hi") == Ids{397, 286, 287});
    CHECK(metaspace.encode("\u2581hi\u2581\u00e9") == Ids{303, 286, 287, 303, 198, 172});
    CHECK(metaspace.encode(" ") == Ids{303});
    // `tokenizers` has no text that is not UTF-8; here it is bytes, and a text's continuation gets no space.
    CHECK(legacy.encode("\xf0\x9f") == Ids{303, 243, 162});
    CHECK(legacy.encode("hi", "", 1, false) == Ids{286, 287});
    CHECK(legacy.decode({303, 286, 287, 243, 162, 156, 133, 13}) == " hi\U0001f642\n");
    CHECK(legacy.separator() == 1);  // <s>
    CHECK(legacy.token_bytes()[1] == 0);
    CHECK(legacy.token_bytes()[397] == 2);

    const auto refused = [&](const auto& edit) { return refusal(legacy, edit); };
    const auto merge = [](auto& json, const std::string& left, const std::string& right) {
        json["model"]["vocab"][left + right] = 500;
        json["model"]["merges"].push_back(left + " " + right);
    };
    CHECK(refused([&](auto& json) { merge(json, "\u2581", "i"); }) == "");
    CHECK(contains(refused([](auto& json) { json["model"]["vocab"].erase("<0x0A>"); }), "but no token <0x0A>"));
    CHECK(contains(refused([](auto& json) { json["model"]["ignore_merges"] = true; }), "merges characters"));
    CHECK(contains(refused([](auto& json) { json["model"]["dropout"] = 0.1; }), "dropout"));
    CHECK(refused([](auto& json) { json["model"]["dropout"] = 0.0; }) == "");
    // A sequence of one step is that step, and one of none is nothing.
    const auto sequence = [](const char* of, const auto& steps) {
        return nlohmann::ordered_json{{"type", "Sequence"}, {of, steps}};
    };
    const auto edited = [](const Tokenizer& tokenizer, const auto& edit) {
        auto json = nlohmann::ordered_json::parse(tokenizer_json(tokenizer));
        edit(json);
        return read_tokenizer(json.dump(), "", "t.json");
    };
    const Tokenizer replaced = edited(legacy, [&](auto& json) {
        json["normalizer"] =
            sequence("normalizers", nlohmann::ordered_json::array({json["normalizer"]["normalizers"][1]}));
    });
    CHECK(replaced.encode("hi hi") == Ids{286, 287, 303, 286, 287});
    const Tokenizer empty = edited(metaspace, [&](auto& json) {
        json["normalizer"] = sequence("normalizers", nlohmann::ordered_json::array());
        json["pre_tokenizer"] = sequence("pretokenizers", nlohmann::ordered_json::array({json["pre_tokenizer"]}));
    });
    CHECK(empty.encode("hi hi") == metaspace.encode("hi hi"));
    const Tokenizer qwen = load_tokenizer("test/fixtures/tokenizers/qwen2.json");
    const Tokenizer nfc = edited(qwen, [&](auto& json) {
        json["normalizer"] = sequence("normalizers", nlohmann::ordered_json::array({json["normalizer"]}));
    });
    CHECK(nfc.encode("cafe\u0301") == qwen.encode("cafe\u0301"));
    CHECK(nfc.encode("cafe\u0301") == nfc.encode("caf\u00e9"));
    const Tokenizer plain = edited(
        qwen, [&](auto& json) { json["normalizer"] = sequence("normalizers", nlohmann::ordered_json::array()); });
    CHECK(plain.encode("cafe\u0301") != qwen.encode("cafe\u0301"));
    CHECK(plain.encode("caf\u00e9") == qwen.encode("caf\u00e9"));
    CHECK(contains(refused([](auto& json) { json["normalizer"] = nullptr; }),
                   "neither the normalizers nor the Metaspace"));
    CHECK(contains(refusal(metaspace, [](auto& json) { json["pre_tokenizer"].erase("split"); }), "without \"split\""));
    const ScratchFolder scratch;
    CHECK(contains(error_of([&] { save_ranks(legacy, scratch / "x"); }), "this tokenizer merges characters"));
}

TEST_CASE("tokens with a carriage return inside, as SentencePiece's vocabularies have them", "[tokenizer]") {
    auto json = nlohmann::ordered_json::parse(read_file("test/fixtures/tokenizers/legacy.json"));
    const auto add = [&](const std::string& left, const std::string& right) {
        for (const std::string& text : {right, left + right})
            if (!json["model"]["vocab"].contains(text))
                json["model"]["vocab"][text] = 500 + json["model"]["vocab"].size();
        json["model"]["merges"].push_back(left + " " + right);
        return json["model"]["vocab"][left + right].get<int32_t>();
    };
    const int32_t both = add("i", "\r");
    const Tokenizer t = read_tokenizer(json.dump(), "", "t.json");
    CHECK(t.encode("hi\r\nhi") == Ids{303, 286, both, 13, 286, 287});
    // The same in parts, which are cut before spaces and line feeds only.
    const std::string line = "hi\rhi\r\r\nhi ";
    std::string text;
    while (text.size() < (3 << 19)) text += line;
    const Ids whole = t.encode(text, "", 1), parts = t.encode(text, "", 3);
    CHECK((whole == parts));
    CHECK(t.cut("hi\rhi\n", 2) == 5);
    CHECK(t.bpe->blanks == " \n");
    // Tokens that reach into a line feed, and into a space after one: no words, and the same ids by the same merges.
    const int32_t ends_line = add("\r", "\n");
    const Tokenizer lines = read_tokenizer(json.dump(), "", "t.json");
    CHECK(lines.bpe->blanks == " ");
    CHECK(lines.encode("h\r\nh i") == Ids{303, 286, ends_line, 286, 303, 287});
    const int32_t indented = add("\r\n", "\u2581");
    const Tokenizer none = read_tokenizer(json.dump(), "", "t.json");
    CHECK(none.bpe->blanks == "");
    CHECK(none.encode("h\r\n i") == Ids{303, 286, indented, 287});
    // Tokens of several words: nothing is cut.
    const int32_t words = add("h", "\u2581");
    const Tokenizer superwords = read_tokenizer(json.dump(), "", "t.json");
    CHECK(superwords.encode("h h i") == Ids{303, words, words, 287});
    CHECK(superwords.cut("h h i", 1) == 5);
    const Ids alone = superwords.encode(text, "", 1);
    CHECK((superwords.encode(text, "", 3) == alone));
}

TEST_CASE("added tokens that are not special are made from text", "[tokenizer]") {
    // Ids of all kinds: tokenizer_reference_test.cpp.
    auto json = nlohmann::ordered_json::parse(read_file("test/fixtures/tokenizers/added_gpt2.json"));
    const Tokenizer t = read_tokenizer(json.dump(), "", "t.json");
    const auto id_of = [&](const std::string& text) {
        for (const AddedToken& token : t.bpe->added)
            if (token.text == text) return token.id;
        return -1;
    };
    const int32_t think = id_of("<think>"), special = id_of("[<think>]");
    CHECK(t.encode("<think>") == Ids{think});
    CHECK(t.token_bytes()[size_t(think)] == 7);
    CHECK(t.token_bytes()[size_t(special)] == 0);
    const Ids spelled = t.encode("[<think>]");
    CHECK(std::find(spelled.begin(), spelled.end(), think) == spelled.end());
    CHECK(std::find(spelled.begin(), spelled.end(), special) == spelled.end());
    CHECK(t.separator() == id_of("<|endoftext|>"));
    const ScratchFolder scratch;
    CHECK(
        contains(error_of([&] { save_ranks(t, scratch / "x"); }), "ranks have special tokens only, and '<think>' is"));

    const auto refused = [&](const std::string& flag, const std::string& text, const std::string& file = "added_gpt2") {
        auto edited = nlohmann::ordered_json::parse(read_file("test/fixtures/tokenizers/" + file + ".json"));
        for (auto& token : edited["added_tokens"])
            if (token["content"] == "<think>") token[flag] = true, token["content"] = text;
        return error_of([&] { read_tokenizer(edited.dump(), "", "t.json"); });
    };
    CHECK(contains(refused("single_word", "<x>"),
                   "2: t.json: the added token '<x>' is made from text where it is a whole"));
    CHECK(contains(refused("normalized", "two words"),
                   "2: t.json: the added token 'two words' has a blank after a letter"));
    CHECK(contains(refused("rstrip", "word"), "2: t.json: the added token 'word' has a blank after a letter"));
    CHECK(refused("lstrip", "word") == "");
    CHECK(contains(refused("normalized", "a\u2581b", "added_legacy"),
                   "the added token 'a\u2581b' has a blank after a letter"));
}

TEST_CASE("what is not UTF-8 is replaced as Python does", "[tokenizer]") {
    const std::string none = "\xEF\xBF\xBD";
    // How many U+FFFD bytes.decode(errors="replace") makes of them.
    const std::vector<std::pair<std::string, int>> cases = {
        {"\xFF", 1},         {"\xE2\x82", 1}, {"\xE0\x80", 2}, {"\xF0\x9F\x98", 1}, {"\xF0\x80\x80", 3},
        {"\xED\xA0\x80", 3}, {"\xF4\x90", 2}, {"\xC0\x80", 2}, {"\xF4\x8F\xBF", 1}, {"\xF5\x80", 2}};
    for (const auto& [bytes, count] : cases) {
        std::string want = "é";
        for (int i = 0; i < count; i++) want += none;
        CHECK(replace_invalid("é" + bytes) == want);
        CHECK(replace_invalid("é" + bytes + "€") == want + "€");
    }
    CHECK(replace_invalid(std::string("a\0\x1B\n", 4)) == std::string("a\0\x1B\n", 4));
}

TEST_CASE("messages do not command a terminal", "[tokenizer]") {
    CHECK(printable("a\tb\né€\U0001F600") == "a\tb\né€\U0001F600");
    CHECK(printable("\x1B[2J\r\x7F\x9B\xC2\x9B\xE2\x82") == "\\x1B[2J\\x0D\\x7F\\x9B\\xC2\\x9B\\xE2\\x82");
}
