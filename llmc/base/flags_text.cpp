// How the fields of config.h are shown and stored: help, tables, JSON.
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include "llmc/base/check.h"  // require, ensure
#include "llmc/base/flags.h"  // Field

using nlohmann::ordered_json;

std::string text_of(const Field& field) {
    return std::visit(
        [](const auto* value) -> std::string {
            using T = std::remove_cv_t<std::remove_pointer_t<decltype(value)>>;
            if constexpr (std::is_same_v<T, bool>) {
                return *value ? "true" : "false";
            } else if constexpr (std::is_same_v<T, std::string>) {
                return *value;
            } else {
                char text[32];
                return std::string(text, std::to_chars(text, text + sizeof text, *value).ptr);
            }
        },
        field.value);
}

// The value's place in --help: N for an integer, X for a number.
static std::string placeholder(const Field& field) {
    if (std::holds_alternative<bool*>(field.value)) return "";
    if (std::holds_alternative<double*>(field.value)) return " X";
    if (!std::holds_alternative<std::string*>(field.value)) return " N";
    if (field.choices.empty()) return " TEXT";
    std::string text;
    for (const std::string& choice : field.choices) text += (text.empty() ? " " : "|") + choice;
    return text;
}

static std::string padded(const std::string& text, size_t width) {
    return text + std::string(width > text.size() ? width - text.size() : 0, ' ');
}

std::string help_text(const std::vector<Field>& fields, const std::string& program, const std::string& description) {
    constexpr size_t kColumn = 36;
    const auto line = [](const std::string& flag, const std::string& help) {
        const std::string left = "  " + flag;
        return left.size() + 2 <= kColumn ? padded(left, kColumn) + help + "\n"
                                          : left + "\n" + std::string(kColumn, ' ') + help + "\n";
    };
    std::string text = description + "\n\nusage: " + program + " [--flag value]...     defaults are in brackets\n";
    std::string section;
    for (const Field& field : fields) {
        if (field.section != section) text += "\n" + (section = field.section) + "\n";
        const std::string now = text_of(field);
        const bool is_bool = std::holds_alternative<bool*>(field.value);
        const std::string flag = (is_bool ? "--[no-]" : "--") + std::string(field.name) + placeholder(field);
        text += line(flag, std::string(field.help) + (now.empty() ? "" : " [" + now + "]"));
    }
    text += "\ngeneral\n" + line("--config TEXT", "a file of name = value lines; the command line wins") +
            line("-h, --help", "print this and leave");
    return text;
}

// As --config takes it: bare if it can be, else quoted, on one line.
static std::string quoted(const Field& field) {
    const std::string text = text_of(field);
    if (!std::holds_alternative<std::string*>(field.value)) return text;
    if (!text.empty() && text.find_first_of(" \t\n\"\\#'") == std::string::npos) return text;
    std::string safe = "\"";
    for (const char c : text)
        safe += c == '\n' ? "\\n" : c == '\t' ? "\\t" : c == '"' ? "\\\"" : c == '\\' ? "\\\\" : std::string(1, c);
    return safe + "\"";
}

std::string changed_flags(const std::vector<Field>& fields, const std::vector<Field>& defaults) {
    constexpr size_t kWidth = 110;
    ensure(fields.size() == defaults.size());
    std::string text, line = "flags:";
    bool any = false;
    for (size_t i = 0; i < fields.size(); i++) {
        if (text_of(fields[i]) == text_of(defaults[i])) continue;
        any = true;
        const std::string item = std::string(" --") + fields[i].name + " " + quoted(fields[i]);
        if (line.size() + item.size() > kWidth) {
            text += line + "\n";
            line = "      ";
        }
        line += item;
    }
    return any ? text + line + "\n" : "";
}

std::string markdown_table(const std::vector<Field>& fields) {
    const auto escaped = [](const std::string& text) {
        std::string safe;
        for (char c : text) safe += c == '|' ? "\\|" : std::string(1, c);
        return safe;
    };
    std::string text, section;
    for (const Field& field : fields) {
        if (field.section != section) {
            text += (text.empty() ? "### " : "\n### ") + (section = field.section);
            text += "\n\n| flag | default | meaning |\n|---|---|---|\n";
        }
        const std::string now = text_of(field);
        const bool is_bool = std::holds_alternative<bool*>(field.value);
        const std::string flag = (is_bool ? "--[no-]" : "--") + std::string(field.name) + placeholder(field);
        text += "| `" + escaped(flag) + "` | " + (now.empty() ? "" : "`" + escaped(now) + "`") + " | " +
                escaped(field.help) + " |\n";
    }
    return text;
}

std::string to_json(const std::vector<Field>& fields, int indent) {
    ordered_json object = ordered_json::object();
    for (const Field& field : fields)
        std::visit(
            [&](const auto* value) {
                if constexpr (std::is_same_v<decltype(value), const double*>) ensure(std::isfinite(*value));
                object[field.name] = *value;
            },
            field.value);
    return object.dump(indent > 0 ? indent : -1, ' ', false, ordered_json::error_handler_t::replace);
}

static void read_fields(const std::vector<Field>& fields, const std::string& text, const std::string& where,
                        bool may_lack) {
    const ordered_json object = ordered_json::parse(text, nullptr, false);
    require(object.is_object(), "%s: not a JSON object; use another copy of it", where.c_str());
    for (const Field& field : fields) {
        if (may_lack && !object.contains(field.name)) continue;
        require(object.contains(field.name), "%s: \"%s\" is missing", where.c_str(), field.name);
        const ordered_json& value = object[field.name];
        const bool wants_string = std::holds_alternative<std::string*>(field.value);
        const std::string found = value.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
        const std::string message = where + ": \"" + field.name + "\": " + found;
        require(value.is_string() == wants_string, "%s: expected %s", message.c_str(),
                wants_string ? "text" : "a number, true or false");
        // Through text, so that types and ranges are checked in one place; the digits lose nothing on the way.
        set_field(field, wants_string ? value.get<std::string>() : found, message);
    }
}

void from_json(const std::vector<Field>& fields, const std::string& text, const std::string& where) {
    read_fields(fields, text, where, false);
}

void from_older_json(const std::vector<Field>& fields, const std::string& text, const std::string& where) {
    read_fields(fields, text, where, true);
}
