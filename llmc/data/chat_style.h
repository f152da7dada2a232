/*
The style in which a tokenizer's own chat template writes conversations. Chat templates are programs in Jinja, a
template language for Python. Those of most models write one of the three forms of chat.h, with a system message of
their own. A script renders a few conversations with Python's jinja2 and tells which form the template has, or that it
has another one.

  const ChatStyle style = find_chat_style(tokenizer, "hf/SmolLM2-135M-Instruct/tokenizer.json", "auto");
  const ChatTemplate chat(tokenizer, style);
  write(jinja_of(style, document_token_of(tokenizer)));   an equivalent template; recognizing it needs no script

The template is in chat_template.jinja beside the tokenizer, or under "chat_template" in tokenizer_config.json there.
*/
#pragma once
#include <optional>
#include <string>
#include "llmc/data/tokenizer.h"  // Tokenizer

inline const char* const kChatTemplateFile = "chat_template.jinja";

struct ChatStyle {
    std::string name = "auto";  // nanochat, chatml, llama3; auto: the one whose special tokens the tokenizer has
    bool begins = true;         // prompts begin with the tokenizer's token between documents
    // `system`: the system message of conversations that have none; empty: no such message. `before_system`: text
    // before a conversation's own system message.
    std::string system = "", before_system = "";
    bool operator==(const ChatStyle&) const = default;
};

// The style for `asked` (--chat-template). auto: the style of the template beside the tokenizer, an Error if that has
// another form. If there is no template, or the tokenizer is not a file, its special tokens decide.
ChatStyle find_chat_style(const Tokenizer& tokenizer, const std::string& tokenizer_path, const std::string& asked);

// A Jinja template for a style whose name is not auto, and the style of such a template; nothing for other templates.
std::string jinja_of(const ChatStyle& style, const std::string& document_token);
std::optional<ChatStyle> style_of_jinja(const std::string& jinja, const std::string& document_token);

// The text of the token between documents; "": there is none.
std::string document_token_of(const Tokenizer& tokenizer);

// The template beside a tokenizer.json; "": there is none.
std::string chat_template_beside(const std::string& tokenizer_path);
