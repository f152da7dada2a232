/*
Conversations: their file format and their tokens.

  {"messages": [{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "4."}]}       a line of .jsonl

A line may also be only the array, as nanochat writes it. Roles: at most one `system`, which comes first, then `user`
and `assistant` in turn. Content is a string or an array of parts: {"type": "text", "text": ...}. Assistant messages of
nanochat may also have parts of type `python` and `python_output`.

A template converts a conversation to tokens. Text between the special tokens never becomes special tokens, nor tokens
that mark turns, even if the tokenizer's file says that they are not special. Brackets
mark the targets that are learned, which is what the assistant writes:

  nanochat   <|bos|> then turns <|user_start|>CONTENT<|user_end|> and <|assistant_start|>[CONTENT<|assistant_end|>]; the
             system's text is put before the first user's, with an empty line between. Karpathy, 2026, tokenizer.py.
  chatml     turns <|im_start|>ROLE\nCONTENT<|im_end|>\n, the assistant's [CONTENT<|im_end|>] learned. SmolLM2, Qwen.
  llama3     turns <|start_header_id|>ROLE<|end_header_id|>\n\nCONTENT<|eot_id|>, content without white space around it,
             the assistant's [CONTENT<|eot_id|>] learned. Llama 3.

All begin with the tokenizer's token between documents: <|bos|>, <|endoftext|> or <|begin_of_text|>. A tokenizer with a
template of its own may omit that token in prompts and may have a default system message (chat_style.h).

  const ChatTemplate chat(tokenizer);                       the template whose special tokens the tokenizer has
  chat.encode(parse_conversation(line, "chats.jsonl:7"))    ids; ~id if the token is not learned (llmc/data/shards.h)
  chat.prompt(conversation)                                 ids up to the beginning of the assistant's answer
*/
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>
#include "llmc/data/chat_style.h"  // ChatStyle
#include "llmc/data/tokenizer.h"   // Tokenizer

struct MessagePart {
    enum class Kind { text, python, python_output } kind = Kind::text;
    std::string text;
};

enum class Role { system, user, assistant };

struct Message {
    Role role;
    std::vector<MessagePart> parts;
};

using Conversation = std::vector<Message>;

// Throws an Error that begins with `where` if the line has another format.
Conversation parse_conversation(std::string_view line, const std::string& where);

class ChatTemplate {
public:
    // Throws an Error if the tokenizer lacks the template's special tokens.
    explicit ChatTemplate(const Tokenizer& tokenizer, const ChatStyle& style = {});
    const char* name() const;
    const ChatStyle& style() const { return style_; }  // the name is never "auto"

    // The tokens of a whole conversation, whose last message must be the assistant's. `where` names it in errors.
    std::vector<int32_t> encode(const Conversation& conversation, const std::string& where) const;
    // The tokens of the conversation so far and the beginning of the assistant's turn.
    std::vector<int32_t> prompt(const Conversation& conversation, const std::string& where) const;
    // Whether this token ends the assistant's turn.
    bool ends_turn(int32_t token) const { return token == end_of_turn_ || token == document_token_; }
    int32_t document_token() const { return document_token_; }

private:
    enum class Kind { nanochat, chatml, llama3 };
    class Writer;
    void write(Writer& to, const Conversation& conversation, const std::string& where) const;
    void write_turn(Writer& to, const Message& message, const std::string& where) const;
    void begin_turn(Writer& to, Role role) const;
    void check(const Conversation& conversation, const std::string& where) const;
    int32_t special(const char* text) const;
    void never_make_markers();

    Tokenizer tokenizer_;  // its tokens that mark turns are special
    ChatStyle style_;
    Kind kind_;
    int32_t document_token_, end_of_turn_;
};
