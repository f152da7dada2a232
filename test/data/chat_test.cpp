// Conversations: what a model sees of them in each template, what of it is learned, and what is refused.
#include "llmc/data/chat.h"
#include "llmc/data/bpe_training.h"     // train_bpe
#include "test/data/dataset_testing.h"  // tokenize, refusal

namespace {
Tokenizer tokenizer_with(const std::vector<std::string>& specials) {
    PieceCounts counts("gpt2");
    counts.add("user\nassistant\nsystem\nWhat is 2 + 2? It is 4. What is it? It is a dog.\n\n");
    return train_bpe(counts, {.vocab_size = 300, .special_tokens = specials});
}

Tokenizer nanochat() { return tokenizer_with(nanochat_special_tokens()); }
Tokenizer chatml() { return tokenizer_with({"<|endoftext|>", "<|im_start|>", "<|im_end|>"}); }
Tokenizer llama3() {
    return tokenizer_with({"<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"});
}

// As text, with [ ] around what is learned.
std::string marked(const Tokenizer& tokenizer, const std::vector<int32_t>& ids) {
    std::string text;
    bool is_learned = false;
    for (const int32_t id : ids) {
        if ((id >= 0) != is_learned) text += is_learned ? "]" : "[";
        is_learned = id >= 0;
        text += tokenizer.decode({id < 0 ? ~id : id});
    }
    return text + (is_learned ? "]" : "");
}

std::string encoded(const Tokenizer& tokenizer, const std::string& line) {
    return marked(tokenizer, ChatTemplate(tokenizer).encode(parse_conversation(line, "a.jsonl:1"), "a.jsonl:1"));
}

std::string prompted(const Tokenizer& tokenizer, const std::string& line) {
    return tokenizer.decode(ChatTemplate(tokenizer).prompt(parse_conversation(line, "a.jsonl:1"), "a.jsonl:1"));
}

const char* const kTwoTurns = R"({"messages": [{"role": "system", "content": "Be brief."},
    {"role": "user", "content": "What is 2 + 2?"}, {"role": "assistant", "content": " 4. "},
    {"role": "user", "content": "And 3?\n"}, {"role": "assistant", "content": "3"}], "id": 7})";
}  // namespace

TEST_CASE("conversations are written as the templates say, and the assistant's words are learned", "[chat]") {
    CHECK(encoded(nanochat(), kTwoTurns) ==
          "<|bos|><|user_start|>Be brief.\n\nWhat is 2 + 2?<|user_end|><|assistant_start|>[ 4. <|assistant_end|>]"
          "<|user_start|>And 3?\n<|user_end|><|assistant_start|>[3<|assistant_end|>]");
    CHECK(encoded(chatml(), kTwoTurns) ==
          "<|endoftext|><|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nWhat is 2 + 2?<|im_end|>\n"
          "<|im_start|>assistant\n[ 4. <|im_end|>]\n<|im_start|>user\nAnd 3?\n<|im_end|>\n"
          "<|im_start|>assistant\n[3<|im_end|>]\n");
    const auto header = [](const std::string& role) { return "<|start_header_id|>" + role + "<|end_header_id|>\n\n"; };
    CHECK(encoded(llama3(), kTwoTurns) == "<|begin_of_text|>" + header("system") + "Be brief.<|eot_id|>" +
                                              header("user") + "What is 2 + 2?<|eot_id|>" + header("assistant") +
                                              "[4.<|eot_id|>]" + header("user") + "And 3?<|eot_id|>" +
                                              header("assistant") + "[3<|eot_id|>]");
}

TEST_CASE("a prompt is what a conversation is up to the assistant's next words", "[chat]") {
    const char* const asked = R"([{"role": "user", "content": "What is 2 + 2?"}])";
    const char* const answered =
        R"([{"role": "user", "content": "What is 2 + 2?"}, {"role": "assistant", "content": "It is 4."}])";
    CHECK(prompted(nanochat(), asked) == "<|bos|><|user_start|>What is 2 + 2?<|user_end|><|assistant_start|>");
    CHECK(prompted(chatml(), asked) ==
          "<|endoftext|><|im_start|>user\nWhat is 2 + 2?<|im_end|>\n<|im_start|>assistant\n");
    for (const Tokenizer& tokenizer : {nanochat(), chatml(), llama3()}) {
        const ChatTemplate chat(tokenizer);
        INFO(chat.name());
        const std::vector<int32_t> prompt = chat.prompt(parse_conversation(asked, "a"), "a");
        std::vector<int32_t> whole = chat.encode(parse_conversation(answered, "a"), "a");
        REQUIRE(prompt.size() < whole.size());
        // Token by token: the first learned one is the first that the model has to write.
        CHECK(std::all_of(whole.begin(), whole.begin() + ptrdiff_t(prompt.size()), [](int32_t id) { return id < 0; }));
        CHECK(whole[prompt.size()] >= 0);
        for (int32_t& id : whole) id = id < 0 ? ~id : id;
        CHECK(std::equal(prompt.begin(), prompt.end(), whole.begin()));
        const auto end = std::find_if(whole.begin() + 1, whole.end(), [&](int32_t id) { return chat.ends_turn(id); });
        CHECK(end != whole.end());
        CHECK((chat.ends_turn(chat.document_token()) && whole[0] == chat.document_token()));
    }
}

TEST_CASE("what looks like a special token in a message is text, and parts may be code", "[chat]") {
    const Tokenizer tokenizer = nanochat();
    const std::string line = R"([{"role": "user", "content": [{"type": "text", "text": "<|assistant_end|>"}]},
        {"role": "assistant", "content": [{"type": "text", "text": "It is "}, {"type": "python", "text": "2 + 2"},
        {"type": "python_output", "text": "4"}, {"type": "text", "text": "."}]}])";
    const std::vector<int32_t> ids = ChatTemplate(tokenizer).encode(parse_conversation(line, "a"), "a");
    CHECK(marked(tokenizer, ids) ==
          "<|bos|><|user_start|><|assistant_end|><|user_end|><|assistant_start|>[It is <|python_start|>2 + "
          "2<|python_end|>]<|output_start|>4<|output_end|>[.<|assistant_end|>]");
    const ChatTemplate chat(tokenizer);
    CHECK(std::count_if(ids.begin() + 1, ids.end(), [&](int32_t id) { return chat.ends_turn(id < 0 ? ~id : id); }) ==
          1);
    const Tokenizer other = chatml();
    CHECK(contains(error_of([&] { ChatTemplate(other).encode(parse_conversation(line, "a"), "a:3"); }),
                   "2: a:3: the assistant's message has a part that the template chatml does not know"));
}

TEST_CASE("what is no conversation is refused with its place", "[chat]") {
    const Tokenizer tokenizer = nanochat();
    const auto error = [&](const std::string& line) {
        return error_of([&] { ChatTemplate(tokenizer).encode(parse_conversation(line, "a.jsonl:3"), "a.jsonl:3"); });
    };
    const std::string user = R"({"role": "user", "content": "a"})",
                      assistant = R"({"role": "assistant", "content": "b"})";
    CHECK(error("[" + user + "," + assistant + "]") == "");
    CHECK(contains(error("{"), "2: a.jsonl:3: no valid JSON: expected {\"messages\""));
    for (const char* line : {"{}", "[]", "3", R"({"messages": []})", R"({"messages": "a"})"})
        CHECK(contains(error(line), "a.jsonl:3: no messages"));
    CHECK(contains(error("[3]"), "a message that is no object"));
    CHECK(contains(error(R"([{"role": "tool", "content": "a"}])"),
                   "a message with the role \"tool\": expected system, user or assistant"));
    CHECK(contains(error(R"([{"role": "user"}])"), "a message of the user without \"content\""));
    CHECK(contains(error(R"([{"role": "user", "content": [{"type": "image"}]}])"),
                   "a part of a message that is no text"));
    CHECK(contains(error(R"([{"role": "user", "content": [{"type": "x", "text": ""}]}])"), "a part of the type \"x\""));
    CHECK(
        contains(error("[" + user + "]"), "the conversation ends with the user: expected the assistant's answer last"));
    CHECK(contains(error("[" + user + "," + user + "," + assistant + "]"),
                   "message 2 is the user's: expected the assistant's"));
    CHECK(contains(error("[" + assistant + "]"), "message 1 is the assistant's: expected the user's"));
    const std::string system = R"({"role": "system", "content": "s"})";
    CHECK(contains(error("[" + user + "," + system + "," + assistant + "]"), "message 2 is the system's"));
    const Tokenizer bytes = byte_tokenizer();
    CHECK(contains(error_of([&] { ChatTemplate none(bytes); }), "has no tokens for conversations"));
    CHECK(contains(error_of([&] { ChatTemplate none(tokenizer, "chatml"); }), "has no token <|im_start|>, which"));
    CHECK(contains(error_of([&] { ChatTemplate none(tokenizer, "x"); }), "--chat-template x: expected auto"));
}

TEST_CASE("data/tokenize makes masked shards of conversations", "[chat]") {
    const ScratchFolder scratch;
    const std::string in = scratch / "chats.jsonl", out = scratch / "data";
    std::string lines;
    for (int i = 0; i < 40; i++)
        lines += format(R"({"messages": [{"role": "user", "content": "What is %d?"}, )"
                        R"({"role": "assistant", "content": "It is %d."}]})"
                        "\n",
                        i, i);
    write_file_atomically(in, lines);
    tokenize(in + " --format chat --train-tokenizer --vocab-size 300 --out " + out);
    CHECK(contains(read_file(out + "/dataset.json"), "\"chat_template\": \"nanochat\""));
    const Tokenizer tokenizer = load_tokenizer(out + "/tokenizer.json");
    int64_t found = 0;
    for (const char* split : {"/train_*.bin", "/val_*.bin"})
        for (const TokenShard& shard : open_shards(out + split)) {
            REQUIRE(shard.has_mask());
            std::vector<int32_t> ids(size_t(shard.num_tokens()));
            shard.read(0, shard.num_tokens(), ids.data(), tokenizer.vocab_size());
            const std::string text = marked(tokenizer, ids);
            for (int i = 0; i < 40; i++)
                found += contains(text, format("<|bos|><|user_start|>What is %d?<|user_end|><|assistant_start|>[It is "
                                               "%d.<|assistant_end|>]",
                                               i, i));
        }
    CHECK(found == 40);
    // Of the same tokenizer again, named: the same files.
    tokenize(in + " --format chat --tokenizer " + out + "/tokenizer.json --out " + scratch / "again");
    CHECK(read_file(scratch / "again/train_000000.bin") == read_file(out + "/train_000000.bin"));

    CHECK(contains(refusal(in + " --format chat --out " + scratch / "none"), "--format chat needs a tokenizer with"));
    CHECK(contains(refusal(in + " --chat-template chatml --out " + scratch / "none"), "is of --format chat"));
    write_file_atomically(in, lines + "{\"messages\": [{\"role\": \"user\", \"content\": \"?\"}]}\n");
    CHECK(contains(refusal(in + " --format chat --tokenizer " + out + "/tokenizer.json --out " + scratch / "none"),
                   "chats.jsonl:41: the conversation ends with the user"));
}
