// See flags.h. This file: converting text to a value, the command line and the config file. flags_text.cpp prints
// fields.
#include "llmc/base/flags.h"
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <map>
#include <set>
#include "llmc/base/check.h"        // require, ensure
#include "llmc/base/file.h"         // read_file
#include "llmc/base/number_text.h"  // number_from_chars
#include "llmc/base/script.h"       // with_installed_names

// The number type: int for both std::optional<int> and int.
template <class T>
struct NumberOf {
    using Type = T;
};
template <class T>
struct NumberOf<std::optional<T>> {
    using Type = T;
};

// What a field accepts, for errors: "an integer of at least 1".
static std::string expected(const Field& field) {
    if (field.is_bool()) return "true or false";
    if (field.is_text() && !field.choices.empty()) {
        std::string text = "one of";
        for (size_t i = 0; i < field.choices.size(); i++) text += (i ? ", " : " ") + field.choices[i];
        return text;
    }
    if (field.is_text()) return "text";
    std::string text = field.choices.empty() ? "" : field.choices[0] + " or ";
    if (*field.unset) text = std::string(field.unset) + (text.empty() ? " or " : ", ") + text;
    text += field.is_double() ? "a number" : "an integer";
    const bool is_unsigned = std::holds_alternative<uint64_t*>(field.value);
    const double min = is_unsigned ? std::max(field.min, 0.0) : field.min;
    if (std::isfinite(min) && std::isfinite(field.max)) return text + format(" from %.15g to %.15g", min, field.max);
    if (std::isfinite(min)) return text + format(" of at least %.15g", min);
    if (std::isfinite(field.max)) return text + format(" of at most %.15g", field.max);
    return text;
}

void set_field(const Field& field, const std::string& text, const std::string& where) {
    const auto check = [&](bool good, const char* why) {
        require(good, "%s: expected %s%s", where.c_str(), expected(field).c_str(), why);
    };
    std::visit(
        [&](auto* value) {
            using T = std::remove_pointer_t<decltype(value)>;
            if constexpr (std::is_same_v<T, bool>) {
                check(text == "true" || text == "false", "");
                *value = text == "true";
            } else if constexpr (std::is_same_v<T, std::string>) {
                const auto& choices = field.choices;
                const auto is_text = [&](const std::string& choice) {
                    const size_t stem = choice.size() - 1;  // of "block:N"
                    return choice == text || (choice.ends_with(":N") && text.size() > stem && text.size() < stem + 10 &&
                                              text.starts_with(choice.substr(0, stem)) &&
                                              text.find_first_not_of("0123456789", stem) == std::string::npos);
                };
                check(choices.empty() || std::any_of(choices.begin(), choices.end(), is_text), "");
                *value = text;
            } else {
                using Number = typename NumberOf<T>::Type;
                if constexpr (!std::is_same_v<T, Number>)
                    if (text == field.unset) return value->reset();
                Number number{};
                if (!field.choices.empty() && text == field.choices[0]) {
                    *value = number;
                    return;
                }
                const char* const end = text.data() + text.size();
                const auto [stop, error] = number_from_chars(text.data(), end, number);
                const bool fits = error != std::errc::result_out_of_range;
                check(fits,
                      std::is_same_v<Number, double> ? "; it does not fit a double" : "; it does not fit the type");
                check(error == std::errc() && stop == end && std::isfinite(double(number)), "");
                check(double(number) >= field.min && double(number) <= field.max, "");
                // Kernels take floats, so the value must fit one.
                check(std::isfinite(float(number)), "; numbers go up to 3.4e38");
                *value = number;
            }
        },
        field.value);
}

// The Levenshtein distance: how many letters to insert, delete or replace.
static size_t edit_distance(const std::string& a, const std::string& b) {
    std::vector<size_t> row(b.size() + 1);
    for (size_t j = 0; j <= b.size(); j++) row[j] = j;
    for (size_t i = 0; i < a.size(); i++) {
        size_t diagonal = row[0];
        row[0] = i + 1;
        for (size_t j = 0; j < b.size(); j++) {
            const size_t replaced = diagonal + (a[i] != b[j]);
            diagonal = row[j + 1];
            row[j + 1] = std::min({replaced, row[j] + 1, diagonal + 1});
        }
    }
    return row[b.size()];
}

static std::string nearest(const std::vector<std::string>& names, const std::string& name) {
    return *std::min_element(names.begin(), names.end(), [&](const std::string& a, const std::string& b) {
        return edit_distance(a, name) < edit_distance(b, name);
    });
}

static const Field* find_field(const std::vector<Field>& fields, const std::string& name) {
    for (const Field& field : fields)
        if (field.name == name) return &field;
    return nullptr;
}

const Field& field_named(const std::vector<Field>& fields, const std::string& name, const std::string& where) {
    if (const Field* const field = find_field(fields, name)) return *field;
    std::vector<std::string> names;
    for (const Field& field : fields) names.push_back(field.name);
    ensure(!names.empty());
    throw Error(kExitUsage, where + ": unknown name '" + name + "', did you mean '" + nearest(names, name) + "'?");
}

void set_given(const std::vector<Field>& fields, const Flags& flags) {
    for (const Field& field : fields)
        if (const auto found = flags.given.find(field.name); found != flags.given.end())
            set_field(field, found->second.text, found->second.where);
}

static void check_unique(const std::vector<Field>& fields) {
    std::set<std::string> names = {"help", "help-all", "config"};
    for (const Field& field : fields) ensure(names.insert(field.name).second);
}

// The value of `name = value`: quoted, or bare up to a comment.
static std::string config_value(const std::string& text, const std::string& where) {
    const auto check_rest = [&](size_t from) {
        const size_t next = text.find_first_not_of(" \t", from);
        require(next == std::string::npos || text[next] == '#', "%s: unexpected '%s' after the value", where.c_str(),
                text.substr(next).c_str());
    };
    if (text.empty() || (text[0] != '"' && text[0] != '\'')) {
        const std::string bare = text.substr(0, text.find('#'));
        return bare.substr(0, bare.find_last_not_of(" \t") + 1);
    }
    std::string value;
    for (size_t i = 1; i < text.size(); i++) {
        if (text[i] == text[0]) {
            check_rest(i + 1);
            return value;
        }
        if (text[0] == '"' && text[i] == '\\' && i + 1 < text.size()) {
            const char letter = text[++i];
            require(letter == '"' || letter == '\\' || letter == 'n' || letter == 't',
                    "%s: unknown escape \\%c, expected \\\" \\\\ \\n or \\t", where.c_str(), letter);
            value += letter == 'n' ? '\n' : letter == 't' ? '\t' : letter;
        } else {
            value += text[i];
        }
    }
    throw Error(kExitUsage, where + ": the closing " + text[0] + " is missing");
}

// Replaces another program's name of a flag by the flag's own, and the value with it. False: it takes no value.
static bool own_name(const std::vector<Field>& fields, const std::vector<Alias>& aliases, std::string& name,
                     std::string& value) {
    std::string dashed = name;
    std::replace(dashed.begin(), dashed.end(), '_', '-');
    for (const Alias& alias : aliases) {
        const std::string own = alias.flag;
        const size_t equals = own.find('=');
        const bool takes_value = equals == std::string::npos;
        if (dashed != alias.name || find_field(fields, dashed) || (!takes_value && value == "false")) continue;
        name = own.substr(0, equals);
        if (!takes_value) value = own.substr(equals + 1);
        if (alias.off && value == "-1") value = alias.off;
        return takes_value;
    }
    if (find_field(fields, dashed) || (dashed.starts_with("no-") && find_field(fields, dashed.substr(3))))
        name = dashed;
    return true;
}

using Values = std::map<std::string, Flags::Given>;

// Reads the values of a file, as text, and checks them.
static Values values_in_file(const std::vector<Field>& fields, const std::string& path, const HelpText& help) {
    Values values;
    const auto add = [&](const Field& field, const std::string& text, const std::string& where) {
        if (!field.is_file) set_field(field, text, where);
        values[field.name] = {text, where, path};
    };
    std::string content = read_file(path);
    if (content.starts_with("\xEF\xBB\xBF")) content.erase(0, 3);  // Windows editors' byte-order mark
    if (content.starts_with("{")) {
        if (help.by_new_names) content = help.by_new_names(content);
        for (const auto& [name, text] : values_in_json(fields, content, path))
            add(field_named(fields, name, path), text, path + ": \"" + name + "\": " + text);
        return values;
    }
    std::map<std::string, int> lines;  // name -> where it was set
    std::string section;
    int line_number = 0;
    for (size_t begin = 0; begin < content.size();) {
        const size_t end = std::min(content.find('\n', begin), content.size());
        std::string line = content.substr(begin, end - begin);
        begin = end + 1;
        const std::string where = path + ":" + std::to_string(++line_number);
        line.erase(line.find_last_not_of(" \t\r") + 1);
        line.erase(0, line.find_first_not_of(" \t"));
        if (line.empty() || line[0] == '#' || line[0] == ';') continue;
        if (line[0] == '[') {
            const size_t close = line.find(']');
            require(close != std::string::npos, "%s: the closing ] is missing", where.c_str());
            section = line.substr(1, close - 1);
            continue;
        }
        const size_t equals = line.find('=');
        require(equals != std::string::npos, "%s: expected name = value, found '%s'", where.c_str(), line.c_str());
        std::string name = line.substr(0, equals);
        name.erase(name.find_last_not_of(" \t") + 1);
        std::string text = line.substr(equals + 1);
        text.erase(0, text.find_first_not_of(" \t"));
        text = config_value(text, where);
        own_name(fields, help.aliases, name, text);
        if (help.explain && !find_field(fields, name)) {
            const std::string why = help.explain(name);
            require(why.empty(), "%s: %s", where.c_str(), why.c_str());
        }
        const Field& field = field_named(fields, name, where);
        require(section.empty() || section == field.section, "%s: '%s' stands under [%s], it belongs to [%s]",
                where.c_str(), name.c_str(), section.c_str(), field.section);
        const auto [earlier, is_new] = lines.insert({name, line_number});
        require(is_new, "%s: '%s' is already set in line %d; remove one", where.c_str(), name.c_str(), earlier->second);
        add(field, text, where + ": " + name + " = " + text);
    }
    return values;
}

// Replaces a flag whose value is a file by the values in that file. The field itself keeps its default, unless the file
// gives another.
static void open_files(const std::vector<Field>& fields, const HelpText& help, Values& given) {
    for (const Field& field : fields) {
        const auto found = given.find(field.name);
        if (!field.is_file || found == given.end()) continue;
        const auto [path, where, file, all] = found->second;
        if (std::find(field.choices.begin(), field.choices.end(), path) != field.choices.end()) continue;
        std::error_code ignored;
        require(std::filesystem::is_regular_file(path, ignored), "%s: expected %s, or a file; there is no such file",
                where.c_str(), expected(field).c_str());
        std::vector<Field> inside;
        for (const Field& other : fields)
            if (other.section == std::string(field.section) || other.in_file == std::string(field.name))
                inside.push_back(other);
        HelpText within = help;
        within.explain = [&](const std::string& name) {
            const Field* const other = find_field(fields, name);
            if (!other) return help.explain ? help.explain(name) : "";
            return format("'%s' is no line of a --%s file, but %s", name.c_str(), field.name,
                          other->is_flag() ? "a flag" : format("of a --%s file", other->in_file).c_str());
        };
        given.erase(found);
        Values values = values_in_file(inside, path, within);
        values.insert({field.name, {text_of(field), where, path}});
        const Flags::Given& own = values[field.name];
        set_field(field, own.text, own.where);
        given.merge(values);
    }
}

static std::string where_to_write(const Field& field, const std::string& text) {
    return format("--%s is no flag: write `%s = %s` into a file, and give that as --%s FILE (doc/flags.md)", field.name,
                  field.name, text.c_str(), field.in_file);
}

Flags parse_flags(const std::vector<Field>& fields, int argc, const char* const* argv, const HelpText& help) {
    check_unique(fields);
    Flags flags;
    bool all_help = false;
    std::optional<std::string> config;
    std::vector<std::string> unknown;
    for (int i = 1; i < argc; i++) {
        const std::string argument = argv[i];
        if (argument[0] != '-' || argument == "-") {
            flags.inputs.push_back(argument);
            continue;
        }
        if (argument == "--") {
            flags.inputs.insert(flags.inputs.end(), argv + i + 1, argv + argc);
            break;
        }
        const size_t equals = argument.find('=');
        bool has_value = equals != std::string::npos;
        const std::string typed = argument.substr(0, equals);
        std::string name = typed.starts_with("--") ? typed.substr(2) : typed;
        std::string text = has_value ? argument.substr(equals + 1) : i + 1 < argc ? argv[i + 1] : "";
        has_value |= typed.starts_with("--") && !own_name(fields, help.aliases, name, text);
        if (name == "help" || name == "help-all" || name == "-h") {
            flags.help = true, all_help |= name == "help-all";
            continue;
        }
        const Field* field = find_field(fields, name);
        const bool is_opposite = !field && name.starts_with("no-");
        if (is_opposite) field = find_field(fields, name.substr(3));
        const bool is_bool = field && field->is_bool();
        if ((!field && name != "config") || (is_opposite && !is_bool)) {
            unknown.push_back(typed.starts_with("--") ? "--" + name : typed);
            continue;
        }
        if (is_bool && !has_value) text = "true";
        if (is_opposite && (text == "true" || text == "false")) text = text == "true" ? "false" : "true";
        if (!is_bool && !has_value) require(++i < argc, "%s: expected a value after it; see --help", typed.c_str());
        if (field) {
            require(field->is_flag(), "%s", where_to_write(*field, text).c_str());
            Flags::Given& given = flags.given[field->name];
            given.all.push_back(given.text = text);
            given.where = format("--%s %s", field->name, text.empty() ? "''" : text.c_str());
        } else {
            config = text;
        }
    }
    if (flags.help) {
        const std::string program = argc > 0 ? argv[0] : "";
        std::fputs(with_installed_names(help_text(fields, program, help, all_help)).c_str(), stdout);
        return flags;
    }
    std::vector<std::string> names = {"--help", "--help-all", "--config"};
    for (const Field& field : fields) {
        if (!field.is_flag()) continue;
        names.push_back(std::string("--") + field.name);
        if (field.is_bool()) names.push_back(std::string("--no-") + field.name);
    }
    for (const std::string& name : unknown) {
        const std::string why = help.explain ? help.explain(name.starts_with("--") ? name.substr(2) : name) : "";
        require(why.empty(), "%s", why.c_str());
        require(false, "unknown flag %s, did you mean %s?", name.c_str(), nearest(names, name).c_str());
    }
    if (config) {
        Values values = values_in_file(fields, *config, help);
        flags.given.merge(values);
    }
    open_files(fields, help, flags.given);
    set_given(fields, flags);
    // After the values: for `--batch-size --steps 3` an error about --batch-size says more than one about the 3.
    if (flags.inputs.empty() || help.takes_inputs) return flags;
    const std::string& extra = flags.inputs[0];
    require(!extra.ends_with(".bin"),
            "unexpected argument '%s': the shell has replaced a pattern by the names that match it; quote the pattern: "
            "--train-data 'FOLDER/train_*.bin'",
            extra.c_str());
    require(false, "unexpected argument '%s': expected --flag value pairs; see --help", extra.c_str());
    return flags;
}
