/*
How a tokenizer's own chat template writes conversations. Templates are programs in Jinja, Python's language for them;
those of most models write one of our three forms (chat.h), with a system message of their own. A script renders a
few conversations with Python's jinja2 and says which form they have, or that it is none of ours.

  const ChatStyle style = find_chat_style(tokenizer, "hf/SmolLM2-135M-Instruct/tokenizer.json", "auto");
  const ChatTemplate chat(tokenizer, style);
  write(jinja_of(style, document_token_of(tokenizer)));   a template that says the same, known again without a script

A template is chat_template.jinja beside the tokenizer, or "chat_template" in tokenizer_config.json there.
*/
#pragma once
#include <optional>
#include <string>
#include "llmc/data/tokenizer.h"  // Tokenizer

inline const char* const kChatTemplateFile = "chat_template.jinja";

struct ChatStyle {
    std::string name = "auto";  // nanochat, chatml, llama3; auto: the one whose special tokens the tokenizer has
    bool begins = true;         // with the tokenizer's token between documents
    // The system's words where a conversation has none, whole; empty: then there is no such message. And what is put
    // before those that it has.
    std::string system = "", before_system = "";
    bool operator==(const ChatStyle&) const = default;
};

// `asked`: --chat-template. auto: what the template beside the tokenizer writes, an Error if that is none of ours;
// where there is none, or the tokenizer is no file, by its special tokens.
ChatStyle find_chat_style(const Tokenizer& tokenizer, const std::string& tokenizer_path, const std::string& asked);

// In Jinja, for a style whose name is known; and back, of a text that jinja_of has written.
std::string jinja_of(const ChatStyle& style, const std::string& document_token);
std::optional<ChatStyle> style_of_jinja(const std::string& jinja, const std::string& document_token);

// The text of the token between documents; empty: there is none.
std::string document_token_of(const Tokenizer& tokenizer);

// The template beside a tokenizer.json; empty: there is none.
std::string chat_template_beside(const std::string& tokenizer_path);
