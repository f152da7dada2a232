// See chat_style.h.
#include "llmc/data/chat_style.h"
#include <filesystem>
#include "llmc/base/check.h"   // require
#include "llmc/base/file.h"    // read_file
#include "llmc/base/json.h"    // Json, OrderedJson
#include "llmc/base/script.h"  // find_script, script_lines
#include "llmc/data/bpe.h"     // Bpe

namespace fs = std::filesystem;

namespace {

// Templates that Anvil writes begin with this and the style as JSON, in a comment.
const char* const kMark = "{#- anvil ";

void replace_all(std::string& text, const std::string& from, const std::string& to) {
    for (size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size())
        text.replace(at, from.size(), to);
}

std::optional<ChatStyle> style_of(const Json& json) {
    ChatStyle style;
    if (!json.is_object() || !json.contains("begins") || !json["begins"].is_boolean()) return {};
    style.begins = json["begins"];
    for (const auto& [key, to] : {std::pair("template", &style.name), std::pair("system", &style.system),
                                  std::pair("before_system", &style.before_system)}) {
        if (!json.contains(key) || !json[key].is_string()) return {};
        *to = json[key].get<std::string>();
    }
    return style;
}

}  // namespace

std::string document_token_of(const Tokenizer& tokenizer) {
    if (tokenizer.bpe)
        for (const AddedToken& token : tokenizer.bpe->added)
            if (token.id == tokenizer.separator()) return token.text;
    return "";
}

std::string jinja_of(const ChatStyle& style, const std::string& document_token) {
    const OrderedJson json = {{"template", style.name},
                              {"begins", style.begins},
                              {"system", style.system},
                              {"before_system", style.before_system}};
    std::string said = json_text(json);
    replace_all(said, "#", "\\u0023");  // otherwise it might end the comment
    std::string text = kMark + said + " -#}\n";
    const auto quoted = [](const std::string& words) { return json_text(Json(words)); };
    const std::string first_is_system = "messages[0]['role'] == 'system'";
    if (style.begins) text += "{{ " + quoted(document_token) + " }}";
    if (style.name == "nanochat")
        return text + "{% set system = " + first_is_system + " %}" +
               "{% for message in (messages[1:] if system else messages) %}"
               "{% if message['role'] == 'user' %}<|user_start|>"
               "{{ messages[0]['content'] + '\\n\\n' if system and loop.first else '' }}"
               "{{ message['content'] }}<|user_end|>"
               "{% else %}<|assistant_start|>{{ message['content'] }}<|assistant_end|>{% endif %}{% endfor %}"
               "{% if add_generation_prompt %}<|assistant_start|>{% endif %}";
    const bool is_chatml = style.name == "chatml";
    const auto turn = [&](const std::string& role, const std::string& words) {
        // Jinja removes a line break after a tag, but not one in a string.
        return is_chatml ? "<|im_start|>" + role + "{{ \"\\n\" }}" + words
                         : "<|start_header_id|>" + role + "<|end_header_id|>{{ \"\\n\\n\" }}" + words;
    };
    const std::string end = is_chatml ? "<|im_end|>{{ \"\\n\" }}" : "<|eot_id|>";
    const std::string words = is_chatml ? "message['content']" : "message['content'] | trim";
    if (!style.system.empty())
        text += "{% if not " + first_is_system + " %}" + turn("system", "{{ " + quoted(style.system) + " }}") + end +
                "{% endif %}";
    text += "{% for message in messages %}" + turn("{{ message['role'] }}", "");
    if (!style.before_system.empty())
        text += "{{ " + quoted(style.before_system) + " if message['role'] == 'system' else '' }}";
    return text + "{{ " + words + " }}" + end + "{% endfor %}{% if add_generation_prompt %}" + turn("assistant", "") +
           "{% endif %}";
}

std::optional<ChatStyle> style_of_jinja(const std::string& jinja, const std::string& document_token) {
    const std::string mark = kMark, end = " -#}\n";
    const size_t stop = jinja.find(end);
    if (!jinja.starts_with(mark) || stop == std::string::npos) return {};
    const std::optional<ChatStyle> style = style_of(parse_json(jinja.substr(mark.size(), stop - mark.size())));
    // If the rest was edited, the comment may no longer be true.
    if (!style || jinja_of(*style, document_token) != jinja) return {};
    return style;
}

std::string chat_template_beside(const std::string& tokenizer_path) {
    if (tokenizer_path.empty()) return "";
    std::error_code ignored;
    const fs::path folder = fs::path(tokenizer_path).parent_path();
    if (fs::exists(folder / kChatTemplateFile, ignored)) return read_file(folder / kChatTemplateFile);
    if (!fs::exists(folder / "tokenizer_config.json", ignored)) return "";
    const Json config = parse_json(read_file(folder / "tokenizer_config.json"));
    if (!config.is_object() || !config.contains("chat_template")) return "";
    const Json& text = config["chat_template"];
    if (text.is_string()) return text;
    if (text.is_array())
        for (const Json& named : text)
            if (named.is_object() && named.value("name", Json()) == "default" && named.contains("template") &&
                named["template"].is_string())
                return named["template"];
    return "";
}

ChatStyle find_chat_style(const Tokenizer& tokenizer, const std::string& tokenizer_path, const std::string& asked) {
    std::error_code ignored;
    if (asked != "auto" || !fs::is_regular_file(tokenizer_path, ignored)) return {.name = asked};
    const std::string jinja = chat_template_beside(tokenizer_path);
    if (jinja.empty()) return {};
    if (const std::optional<ChatStyle> ours = style_of_jinja(jinja, document_token_of(tokenizer))) return *ours;
    const char* const instead = "say how conversations are written: --chat-template chatml, llama3 or nanochat";
    const std::string script = find_script("data/chat_template.py");
    require(!script.empty(), "%s has a chat template, and data/chat_template.py is missing, which reads it; %s",
            tokenizer_path.c_str(), instead);
    const std::vector<std::string> lines =
        script_lines(script, {fs::absolute(tokenizer_path).parent_path(), document_token_of(tokenizer)});
    const Json said = lines.empty() ? Json() : parse_json(lines.back());
    const std::optional<ChatStyle> style = style_of(said);
    const std::string why = said.is_object() && said.contains("error") && said["error"].is_string()
                                ? said["error"].get<std::string>()
                                : "data/chat_template.py does not say what it is";
    require(style.has_value(), "the chat template of %s: %s; %s", tokenizer_path.c_str(), why.c_str(), instead);
    return *style;
}
