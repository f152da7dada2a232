// Prints and stores the fields of flags.h: help, tables, JSON.
#include <algorithm>
#include <charconv>
#include <cmath>
#include "llmc/base/check.h"  // require, ensure
#include "llmc/base/flags.h"  // Field
#include "llmc/base/json.h"   // OrderedJson

std::string text_of(const Field& field) {
    return std::visit(
        [&](const auto* value) -> std::string {
            const auto digits = [](auto number) {
                char text[32];
                return std::string(text, std::to_chars(text, text + sizeof text, number).ptr);
            };
            using T = std::remove_cv_t<std::remove_pointer_t<decltype(value)>>;
            if constexpr (std::is_same_v<T, bool>)
                return *value ? "true" : "false";
            else if constexpr (std::is_same_v<T, std::string>)
                return *value;
            else if constexpr (std::is_arithmetic_v<T>)
                return digits(*value);
            else
                return *value ? digits(**value) : field.unset;
        },
        field.value);
}

// The placeholder of a value in --help: N for an integer, X for a number.
static std::string placeholder(const Field& field) {
    if (field.is_bool()) return "";
    if (!field.is_text()) return field.is_double() ? " X" : " N";
    if (field.choices.empty()) return " TEXT";
    std::string text;
    for (const std::string& choice : field.choices) text += (text.empty() ? " " : "|") + choice;
    return text + (field.is_file ? "|FILE" : "");
}

// A default for a table, on one line.
static std::string shown(const Field& field) {
    std::string text;
    for (const char c : text_of(field)) text += c == '\n' ? "\\n" : std::string(1, c);
    return text;
}

static std::string padded(const std::string& text, size_t width) {
    return text + std::string(width > text.size() ? width - text.size() : 0, ' ');
}

std::string in_brief(const std::string& help, size_t width) {
    // "auto: a GPU if there is one" is no clause and its explanation.
    std::string text = help.substr(0, std::min(help.find("; "), help.find(" (")));
    if (const size_t at = text.find(": "); at != std::string::npos && at >= 12) text.resize(at);
    if (text.size() <= width) return text;
    const size_t comma = text.find(", ");  // an early one is of a list
    if (comma > width / 2 && comma <= width) return text.substr(0, comma);
    return text.substr(0, text.rfind(' ', width - 4)) + " ...";
}

// A flag, or a line of a file, with the placeholder of its value.
static std::string usage_of(const Field& field) {
    if (!field.is_flag())
        return std::string(field.name) + "=" + (field.is_bool() ? "true|false" : placeholder(field).substr(1));
    return (field.is_bool() ? "--[no-]" : "--") + std::string(field.name) + placeholder(field);
}

// The heading of a field.
static std::string heading_of(const Field& field) {
    return field.is_flag() ? field.section : std::string("in a file for --") + field.in_file;
}

// Flags first, then what is set in files.
static std::vector<Field> flags_first(std::vector<Field> fields) {
    std::stable_sort(fields.begin(), fields.end(), [](const Field& a, const Field& b) {
        return std::string_view(a.in_file) < std::string_view(b.in_file);
    });
    return fields;
}

static std::string brief_help(const std::vector<Field>& fields, const HelpText& help) {
    constexpr size_t kColumn = 31, kWidth = 80;
    std::string text;
    for (const Field& field : fields) {
        if (std::find(help.common.begin(), help.common.end(), field.name) == help.common.end()) continue;
        std::string flag = "  " + usage_of(field);
        if (flag.size() >= kColumn) flag = "  --" + std::string(field.name) + " NAME";
        const std::string said = in_brief(field.help, kWidth - kColumn), now = " [" + shown(field) + "]";
        const bool has_room = now.size() > 3 && said.size() + now.size() <= kWidth - kColumn;
        text += padded(flag, kColumn) + said + (has_room ? now : "") + "\n";
    }
    return text + padded("  --config FILE", kColumn) + "name = value lines; the command line wins\n" +
           padded("  --help-all", kColumn) +
           format("all %zu flags, with all that they say\n",
                  size_t(std::count_if(fields.begin(), fields.end(), [](const Field& f) { return f.is_flag(); })));
}

std::string help_text(const std::vector<Field>& fields, const std::string& program, const HelpText& help, bool all) {
    constexpr size_t kColumn = 36;
    const auto line = [](const std::string& flag, const std::string& help) {
        const std::string left = "  " + flag;
        return left.size() + 2 <= kColumn ? padded(left, kColumn) + help + "\n"
                                          : left + "\n" + std::string(kColumn, ' ') + help + "\n";
    };
    std::string text = help.description + "\n\nusage: " + program.substr(program.rfind('/') + 1) + " " + help.usage +
                       "     defaults are in brackets\n";
    if (!all && !help.common.empty()) return text + "\n" + brief_help(fields, help);
    std::string section;
    for (const Field& field : flags_first(fields)) {
        if (!all && !field.is_flag()) continue;
        if (heading_of(field) != section) text += "\n" + (section = heading_of(field)) + "\n";
        const std::string now = shown(field);
        text += line(usage_of(field), std::string(field.help) + (now.empty() ? "" : " [" + now + "]"));
    }
    return text + "\ngeneral\n" + line("--config TEXT", "a file of name = value lines; the command line wins") +
           line("-h, --help", "the most used flags, a line each");
}

// A value as --config takes it, on one line: bare if possible, else quoted.
static std::string quoted(const Field& field) {
    const std::string text = text_of(field);
    if (!field.is_text()) return text;
    if (!text.empty() && text.find_first_of(" \t\n\"\\#'") == std::string::npos) return text;
    std::string safe = "\"";
    for (const char c : text)
        safe += c == '\n' ? "\\n" : c == '\t' ? "\\t" : c == '"' ? "\\\"" : c == '\\' ? "\\\\" : std::string(1, c);
    return safe + "\"";
}

std::string flags_by_source(const std::vector<Field>& fields, const std::map<std::string, std::string>& sources) {
    constexpr size_t kWidth = 110;
    std::vector<std::string> order;  // in the order of the fields
    std::map<std::string, std::string> lines;
    for (const Field& field : fields) {
        const auto found = sources.find(field.name);
        if (found == sources.end()) continue;
        std::string& line = lines[found->second];
        if (line.empty()) {
            order.push_back(found->second);
            line = "from " + found->second + ":";
        }
        const std::string item =
            (field.is_flag() ? std::string(" --") + field.name + " " : std::string(" ") + field.name + "=") +
            quoted(field);
        const size_t begin = line.rfind('\n') + 1;  // 0: only one line so far
        line += (line.size() - begin + item.size() > kWidth ? "\n   " : "") + item;
    }
    std::string text;
    for (const std::string& source : order) text += lines[source] + "\n";
    return text;
}

std::string markdown_table(const std::vector<Field>& fields) {
    // Markdown takes a pair of asterisks as emphasis, but not in code.
    const auto escaped = [](const std::string& text, bool is_code) {
        std::string safe;
        for (char c : text)
            safe += c == '|' ? "\\|" : c == '\n' ? "\\n" : c == '*' && !is_code ? "\\*" : std::string(1, c);
        return safe;
    };
    std::string text, section;
    for (const Field& field : flags_first(fields)) {
        if (heading_of(field) != section) {
            text += (text.empty() ? "### " : "\n### ") + (section = heading_of(field));
            text += format("\n\n| %s | default | meaning |\n|---|---|---|\n", field.is_flag() ? "flag" : "line");
        }
        const std::string now = shown(field);
        text += "| `" + escaped(usage_of(field), true) + "` | " + (now.empty() ? "" : "`" + escaped(now, true) + "`") +
                " | " + escaped(field.help, false) + " |\n";
    }
    return text;
}

std::string to_json(const std::vector<Field>& fields, int indent) {
    OrderedJson object = OrderedJson::object();
    for (const Field& field : fields)
        std::visit(
            [&](const auto* value) {
                using T = std::remove_cv_t<std::remove_pointer_t<decltype(value)>>;
                if constexpr (std::is_same_v<T, double>) ensure(std::isfinite(*value));
                if constexpr (std::is_arithmetic_v<T> || std::is_same_v<T, std::string>)
                    object[field.name] = *value;
                else if (*value)
                    object[field.name] = **value;
                else
                    object[field.name] = nullptr;
            },
            field.value);
    return json_text(object, indent > 0 ? indent : -1);
}

// A JSON value as a flag takes it. Older versions wrote -1 for no value (`may_lack`).
static std::string flag_text(const Field& field, const OrderedJson& value, bool may_lack) {
    if (*field.unset && (value.is_null() || (may_lack && value.is_number() && value == -1 && field.min >= 0)))
        return field.unset;
    if (value.is_string()) return value.get<std::string>();
    const bool has_word_for_zero = !field.is_text() && !field.choices.empty();
    return has_word_for_zero && value == 0 ? field.choices[0] : json_text(value);
}

static OrderedJson object_in(const std::string& text, const std::string& where) {
    const OrderedJson object = parse_ordered_json(text);
    require(object.is_object(), "%s: not a JSON object; use another copy of it", where.c_str());
    return object;
}

std::map<std::string, std::string> values_in_json(const std::vector<Field>& fields, const std::string& text,
                                                  const std::string& where) {
    const OrderedJson object = object_in(text, where);
    std::map<std::string, std::string> values;
    for (const Field& field : fields)
        if (object.contains(field.name) && object[field.name].is_string() == field.is_text())
            values[field.name] = flag_text(field, object[field.name], true);
    return values;
}

static void read_fields(const std::vector<Field>& fields, const std::string& text, const std::string& where,
                        bool may_lack) {
    const OrderedJson object = object_in(text, where);
    for (const Field& field : fields) {
        if (may_lack && !object.contains(field.name)) continue;
        require(object.contains(field.name), "%s: \"%s\" is missing", where.c_str(), field.name);
        const OrderedJson& value = object[field.name];
        const std::string found = json_text(value);
        const std::string message = where + ": \"" + field.name + "\": " + found;
        require(value.is_string() == field.is_text() || (value.is_null() && *field.unset), "%s: expected %s",
                message.c_str(), field.is_text() ? "text" : "a number, true or false");
        // Converted to text and back, so that types and ranges are checked in one place. No digits are lost.
        set_field(field, flag_text(field, value, may_lack), message);
    }
}

void from_json(const std::vector<Field>& fields, const std::string& text, const std::string& where) {
    read_fields(fields, text, where, false);
}

void from_older_json(const std::vector<Field>& fields, const std::string& text, const std::string& where) {
    read_fields(fields, text, where, true);
}
