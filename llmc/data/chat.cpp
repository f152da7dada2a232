// See chat.h.
#include "llmc/data/chat.h"
#include <algorithm>
#include "llmc/base/check.h"  // require, ensure
#include "llmc/base/json.h"   // Json, from_python_json
#include "llmc/data/bpe.h"    // AddedToken, Bpe

namespace {

const char* name_of(Role role) { return role == Role::system ? "system" : role == Role::user ? "user" : "assistant"; }

Role role_of(const Json& message, const std::string& where) {
    const auto found = message.find("role");
    const std::string name = found != message.end() && found->is_string() ? found->get<std::string>() : "";
    for (const Role role : {Role::system, Role::user, Role::assistant})
        if (name == name_of(role)) return role;
    require(false, "%s: a message with the role \"%.40s\": expected system, user or assistant", where.c_str(),
            name.c_str());
    return {};
}

MessagePart part_of(const Json& part, const std::string& where) {
    const char* const expected = R"(expected {"type": "text", "text": "..."}, or of type python or python_output)";
    const bool is_whole = part.is_object() && part.contains("type") && part["type"].is_string() &&
                          part.contains("text") && part["text"].is_string();
    require(is_whole, "%s: a part of a message that is not text: %s", where.c_str(), expected);
    const std::string type = part["type"];
    using Kind = MessagePart::Kind;
    const Kind kind = type == "python" ? Kind::python : type == "python_output" ? Kind::python_output : Kind::text;
    require(kind != Kind::text || type == "text", "%s: a part of the type \"%.40s\": %s", where.c_str(), type.c_str(),
            expected);
    return {kind, part["text"]};
}

Message message_of(const Json& json, const std::string& where) {
    require(json.is_object(), R"(%s: a message that is not an object: expected {"role": "user", "content": "..."})",
            where.c_str());
    Message message{role_of(json, where), {}};
    const auto content = json.find("content");
    require(content != json.end() && (content->is_string() || content->is_array()),
            R"(%s: a message of the %s without "content": expected a string, or an array of parts)", where.c_str(),
            name_of(message.role));
    if (content->is_string()) {
        message.parts.push_back({MessagePart::Kind::text, *content});
        return message;
    }
    for (const Json& part : *content) message.parts.push_back(part_of(part, where));
    return message;
}

std::string trimmed(const std::string& text) {
    const char* const blanks = " \t\r\n\v\f";
    const size_t begin = text.find_first_not_of(blanks);
    return begin == std::string::npos ? "" : text.substr(begin, text.find_last_not_of(blanks) + 1 - begin);
}

// The text of a message; throws an Error if it has parts that are not text.
std::string text_of(const Message& message, const std::string& where, const char* template_name) {
    std::string all;
    for (const MessagePart& part : message.parts) {
        require(part.kind == MessagePart::Kind::text,
                "%s: the %s's message has a part that the template %s does not know: expected text alone",
                where.c_str(), name_of(message.role), template_name);
        all += part.text;
    }
    return all;
}

}  // namespace

Conversation parse_conversation(std::string_view line, const std::string& where) {
    Json json = parse_json(line);
    if (json.is_discarded()) json = parse_json(from_python_json(line));
    const char* const expected = R"(expected {"messages": [{"role": "user", "content": "..."}, ...]})";
    require(!json.is_discarded(), "%s: not valid JSON: %s", where.c_str(), expected);
    const bool has_messages = json.is_object() && json.contains("messages");
    const Json& messages = has_messages ? json["messages"] : json;
    require(messages.is_array() && !messages.empty(), "%s: no messages: %s", where.c_str(), expected);
    Conversation conversation;
    for (const Json& message : messages) conversation.push_back(message_of(message, where));
    return conversation;
}

// Collects tokens, each learned or not.
class ChatTemplate::Writer {
public:
    explicit Writer(const ChatTemplate& chat) : chat_(chat) {}
    void special(const char* text, bool is_learned = false) { add(chat_.special(text), is_learned); }
    void text(const std::string& text, const std::string& where, bool is_learned = false) {
        for (const int32_t id : chat_.tokenizer_.encode(text, where, 1)) add(id, is_learned);
    }
    void add(int32_t id, bool is_learned) { ids.push_back(is_learned ? id : ~id); }

    std::vector<int32_t> ids;

private:
    const ChatTemplate& chat_;
};

int32_t ChatTemplate::special(const char* text) const {
    const std::vector<AddedToken>& all = tokenizer_.bpe->added;
    const auto found = std::find_if(all.begin(), all.end(), [=](const AddedToken& one) { return one.text == text; });
    require(found != all.end(), "the tokenizer has no token %s, which the chat template %s needs", text, name());
    return found->id;
}

const char* ChatTemplate::name() const {
    return kind_ == Kind::nanochat ? "nanochat" : kind_ == Kind::chatml ? "chatml" : "llama3";
}

ChatTemplate::ChatTemplate(const Tokenizer& tokenizer, const ChatStyle& style) : tokenizer_(tokenizer), style_(style) {
    const std::string& name = style.name;
    const auto has = [&](const char* text) {
        return tokenizer.kind == TokenizerKind::bpe &&
               std::any_of(tokenizer.bpe->added.begin(), tokenizer.bpe->added.end(),
                           [=](const AddedToken& one) { return one.text == text; });
    };
    struct Known {
        const char *name, *first, *last;
        Kind kind;
    };
    static constexpr Known kKnown[] = {{"nanochat", "<|assistant_start|>", "<|assistant_end|>", Kind::nanochat},
                                       {"chatml", "<|im_start|>", "<|im_end|>", Kind::chatml},
                                       {"llama3", "<|start_header_id|>", "<|eot_id|>", Kind::llama3}};
    for (const Known& known : kKnown) {
        if (name != "auto" ? name != known.name : !has(known.first)) continue;
        require(has(known.first),
                "the tokenizer has no token %s, which the chat template %s needs: take --chat-template auto, or a "
                "tokenizer for conversations",
                known.first, known.name);
        kind_ = known.kind;
        end_of_turn_ = special(known.last);
        document_token_ = tokenizer.separator();
        ensure(document_token_ >= 0);  // if there is no other, the first added token
        never_make_markers();
        style_.name = known.name;
        return;
    }
    require(name == "auto", "--chat-template %s: expected auto, nanochat, chatml or llama3", name.c_str());
    require(
        false,
        "the tokenizer (%s) has no tokens for conversations, such as <|user_start|> or <|im_start|>: train one with "
        "data/tokenize --train-tokenizer, which brings nanochat's, or take that of a chat model",
        tokenizer.name());
}

// Some models' files say of <|im_start|> that it is made from text. A message could then begin another's turn.
void ChatTemplate::never_make_markers() {
    static constexpr const char* kMarkers[] = {
        "<|user_start|>",      "<|user_end|>",      "<|assistant_start|>", "<|assistant_end|>", "<|python_start|>",
        "<|python_end|>",      "<|output_start|>",  "<|output_end|>",      "<|im_start|>",      "<|im_end|>",
        "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"};
    const auto is_made = [this](const AddedToken& token) {
        return !token.special && (token.id == document_token_ || std::find(std::begin(kMarkers), std::end(kMarkers),
                                                                           token.text) != std::end(kMarkers));
    };
    const std::vector<AddedToken>& added = tokenizer_.bpe->added;
    if (std::none_of(added.begin(), added.end(), is_made)) return;
    Bpe bpe = *tokenizer_.bpe;
    for (AddedToken& token : bpe.added) token.special = token.special || is_made(token);
    bpe.prepare_added("the tokenizer");
    tokenizer_.bpe = std::make_shared<const Bpe>(std::move(bpe));
}

void ChatTemplate::check(const Conversation& conversation, const std::string& where) const {
    Role expected = Role::user;
    for (size_t i = 0; i < conversation.size(); i++) {
        const Role role = conversation[i].role;
        if (i == 0 && role == Role::system) continue;
        require(role == expected,
                "%s: message %zu is the %s's: expected the %s's, system at most first and then user "
                "and assistant by turns",
                where.c_str(), i + 1, name_of(role), name_of(expected));
        expected = role == Role::user ? Role::assistant : Role::user;
    }
}

void ChatTemplate::begin_turn(Writer& to, Role role) const {
    switch (kind_) {
        case Kind::nanochat:
            return to.special(role == Role::user ? "<|user_start|>" : "<|assistant_start|>");
        case Kind::chatml:
            to.special("<|im_start|>");
            return to.text(std::string(name_of(role)) + "\n", "the role");
        case Kind::llama3:
            to.special("<|start_header_id|>");
            to.text(name_of(role), "the role");
            to.special("<|end_header_id|>");
            return to.text("\n\n", "the header");
    }
}

void ChatTemplate::write_turn(Writer& to, const Message& message, const std::string& where) const {
    const bool is_learned = message.role == Role::assistant;
    if (kind_ == Kind::nanochat) {
        begin_turn(to, message.role);
        for (const MessagePart& part : message.parts) {
            const bool is_code = part.kind == MessagePart::Kind::python, is_text = part.kind == MessagePart::Kind::text;
            require(is_text || is_learned, "%s: a part of a user's message that is not text", where.c_str());
            if (!is_text) to.special(is_code ? "<|python_start|>" : "<|output_start|>", is_code);
            to.text(part.text, where, is_learned && (is_text || is_code));
            if (!is_text) to.special(is_code ? "<|python_end|>" : "<|output_end|>", is_code);
        }
        return to.special(is_learned ? "<|assistant_end|>" : "<|user_end|>", is_learned);
    }
    const std::string text = text_of(message, where, name());
    if (kind_ == Kind::chatml) {
        if (is_learned) {  // tokenized in two parts, as in a prompt: the model writes the second
            begin_turn(to, message.role);
            to.text(text, where, true);
        } else {
            to.special("<|im_start|>");
            to.text(std::string(name_of(message.role)) + "\n" + text, where);
        }
        to.special("<|im_end|>", is_learned);
        return to.text("\n", where);
    }
    begin_turn(to, message.role);
    to.text(text, where, is_learned);
    to.special("<|eot_id|>", is_learned);
}

void ChatTemplate::write(Writer& to, const Conversation& conversation, const std::string& where) const {
    check(conversation, where);
    const bool has_system = conversation[0].role == Role::system;
    const bool merges = kind_ == Kind::nanochat && has_system;
    require(!merges || conversation.size() > 1, "%s: a system message alone: expected a user's after it",
            where.c_str());
    const auto as_text = [](const std::string& text) { return MessagePart{MessagePart::Kind::text, text}; };
    if (!has_system && !style_.system.empty()) write_turn(to, {Role::system, {as_text(style_.system)}}, where);
    for (size_t i = merges ? 1 : 0; i < conversation.size(); i++) {
        Message message = conversation[i];
        if (merges && i == 1)
            message.parts.insert(message.parts.begin(), as_text(text_of(conversation[0], where, name()) + "\n\n"));
        if (merges && i == 1) message.parts = {as_text(text_of(message, where, name()))};
        if (kind_ == Kind::llama3) message.parts = {as_text(trimmed(text_of(message, where, name())))};
        if (!merges && message.role == Role::system)
            message.parts.insert(message.parts.begin(), as_text(style_.before_system));
        write_turn(to, message, where);
    }
}

std::vector<int32_t> ChatTemplate::encode(const Conversation& conversation, const std::string& where) const {
    require(!conversation.empty() && conversation.back().role == Role::assistant,
            "%s: the conversation ends with the %s: expected the assistant's answer last", where.c_str(),
            conversation.empty() ? "system" : name_of(conversation.back().role));
    Writer to(*this);
    to.add(document_token_, false);  // as between documents in a data set
    write(to, conversation, where);
    return std::move(to.ids);
}

std::vector<int32_t> ChatTemplate::prompt(const Conversation& conversation, const std::string& where) const {
    require(!conversation.empty() && conversation.back().role == Role::user,
            "%s: expected a user's message last, for the assistant to answer", where.c_str());
    Writer to(*this);
    if (style_.begins) to.add(document_token_, false);
    write(to, conversation, where);
    begin_turn(to, Role::assistant);
    for (int32_t& id : to.ids) id = id < 0 ? ~id : id;
    return std::move(to.ids);
}
