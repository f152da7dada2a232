/*
The options of a run. One list of fields per struct defines the flags, --help, the config file, the flags printed at the
start, doc/flags.md, the first record of the log, and JSON that reads back exactly.

  struct RunFlags {
      int batch_size = 12;
      std::string schedule = "cosine";
      bool resume = false;
      std::vector<Field> fields() {
          return {{"batch", "batch-size", &batch_size, "sequences per micro-step (B)", {}, 1},
                  {"optimizer", "schedule", &schedule, "of the learning rate", {"cosine", "linear"}},
                  {"files", "resume", &resume, "continue from the newest checkpoint"}};
      }
  };
  RunFlags config;
  if (parse_flags(config.fields(), argc, argv, "Trains a GPT.").help) return kExitOk;
  require(config.batch_size < 100 || ..., ...);         the caller checks for contradictions

On the command line: --batch-size 8 or --batch-size=8, also with underscores; --resume, --no-resume or --resume=false. A
flag given several times has its last value. In --config FILE, whose values the command line overrides:

  # a comment
  batch-size = 8            # sections are optional: [batch] or nothing
  prompt = "to be # or"     # quotes keep spaces and #; \" \\ \n \t inside

FILE may also be such fields in JSON, as a run's checkpoint has them.

A flag can be a file of its own: --model FILE gives the fields of its section, and only that file, --config and
checkpoints give those that are only_in("model"), which are no flags. Those only_in("config") are of --config and
checkpoints alone. The command line overrides --config, and that the file.

A field of a std::optional may have no value. On the command line the word Field::unset says so, in JSON null.

An unknown name, a repeated name in a file, and a value of the wrong type or out of range throw an Error that says where
it was, what was found and what is expected.
*/
#pragma once
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

struct Field {
    const char* section;  // the heading it is listed under: "batch"
    const char* name;     // "batch-size": the flag without its dashes, and the key in files
    // Points to the default at first. An optional may have no value.
    std::variant<bool*, int*, int64_t*, uint64_t*, double*, std::string*, std::optional<int>*, std::optional<int64_t>*,
                 std::optional<double>*>
        value;
    const char* help;  // one line, units included
    // Of a string; empty: any; "block:N" stands for block: and a number. Of a number: the word that means 0.
    std::vector<std::string> choices = {};
    double min = -std::numeric_limits<double>::infinity(), max = std::numeric_limits<double>::infinity();
    const char* unset = "";    // of an optional: the word for no value
    bool is_file = false;      // its value may be a file, with values of its section
    const char* in_file = "";  // no flag, but a name in the file of this flag

    Field one_of(std::vector<std::string> all) const {
        Field field = *this;
        field.choices = std::move(all);
        return field;
    }
    Field from(double lowest, double highest = std::numeric_limits<double>::infinity()) const {
        Field field = *this;
        field.min = lowest, field.max = highest;
        return field;
    }
    Field zero_is(const char* word) const { return one_of({word}); }
    Field or_else(const char* word) const {
        Field field = *this;
        field.unset = word;
        return field;
    }
    Field or_file() const {
        Field field = *this;
        field.is_file = true;
        return field;
    }
    Field only_in(const char* flag) const {
        Field field = *this;
        field.in_file = flag;
        return field;
    }
    bool is_flag() const { return !*in_file; }
    bool is_bool() const { return std::holds_alternative<bool*>(value); }
    bool is_text() const { return std::holds_alternative<std::string*>(value); }
    bool is_double() const {
        return std::holds_alternative<double*>(value) || std::holds_alternative<std::optional<double>*>(value);
    }
};

// The flags that the user gave.
struct Flags {
    struct Given {
        std::string text;
        std::string where;                  // begins a message: "--batch-size 12abc", "run.cfg:3: batch-size = 12abc"
        std::string file = {};              // empty: of the command line
        std::vector<std::string> all = {};  // of the command line: each time it was given
    };
    bool help = false;                     // -h, --help or --help-all was given and help was printed: exit
    std::map<std::string, Given> given;    // by name; the command line overrides the file
    std::vector<std::string> inputs = {};  // arguments that are no flags, if the program takes any
    bool has(const std::string& name) const { return given.count(name) > 0; }
};

// A flag's name in another program.
struct Alias {
    const char *name, *flag;    // "device-batch-size", "batch-size"; or with a value: "fp8", "dtype=fp8"
    const char* off = nullptr;  // the value for that program's -1; null: -1 has no other meaning
};

// The text of --help and of errors around the flags.
struct HelpText {
    std::string description, usage = "[--flag value]...";
    std::vector<std::string> common = {};  // the flags that --help shows; empty: all. --help-all shows all
    // What to say about an unknown name; "": nothing in particular.
    std::function<std::string(const std::string& name)> explain = {};
    std::vector<Alias> aliases = {};  // names that are accepted and not shown
    bool takes_inputs = false;        // arguments that are no flags
    // Renames what an older program wrote in JSON.
    std::function<std::string(const std::string& json)> by_new_names = {};
};

// Sets the fields from --config FILE, if given, and then from the command line.
Flags parse_flags(const std::vector<Field>& fields, int argc, const char* const* argv, const HelpText& help);
inline Flags parse_flags(const std::vector<Field>& fields, int argc, const char* const* argv,
                         const std::string& description) {
    return parse_flags(fields, argc, argv, HelpText{.description = description});
}
// Sets again the fields that are among the given ones.
void set_given(const std::vector<Field>& fields, const Flags& flags);

// A field's current value: "12", "0.001", "true", "cosine"; a double in the fewest digits that read back exactly.
std::string text_of(const Field& field);
// The beginning of a help text, up to a clause's end, in at most `width` characters.
std::string in_brief(const std::string& help, size_t width);
// The text of --help: a line of at most 80 characters for each flag in help.common, or without such flags every flag by
// section with its whole text. `all`: that, and the lines of files.
std::string help_text(const std::vector<Field>& fields, const std::string& program, const HelpText& help,
                      bool all = true);
// The tables of doc/flags.md.
std::string markdown_table(const std::vector<Field>& fields);
// For the start of a run: the fields named in `sources`, grouped by source, as flags on lines of at most 110
// characters: "from --depth: --steps 2520". "" if there are none.
std::string flags_by_source(const std::vector<Field>& fields, const std::map<std::string, std::string>& sources);

// {"batch-size":12,"schedule":"cosine",...} on one line, or on several if indent > 0. Numbers must be finite.
std::string to_json(const std::vector<Field>& fields, int indent = 0);
// The reverse. Throws an Error if a field is missing or has a wrong type or is out of range; other keys are ignored.
// `where` names the text in errors: the file's path.
void from_json(const std::vector<Field>& fields, const std::string& text, const std::string& where);
// The same for text that an older version may have written: a missing field keeps its default.
void from_older_json(const std::vector<Field>& fields, const std::string& text, const std::string& where);

// The values of such text as flags take them, by name: of those fields that it has and whose type it has.
std::map<std::string, std::string> values_in_json(const std::vector<Field>& fields, const std::string& text,
                                                  const std::string& where);

// Sets one field from text, as a flag does. `where` begins the message: "--batch-size 12abc".
void set_field(const Field& field, const std::string& text, const std::string& where);
// The field of this name. Throws an Error that names the nearest field if there is none.
const Field& field_named(const std::vector<Field>& fields, const std::string& name, const std::string& where);
