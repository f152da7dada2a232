/*
What a run can be asked: one list of fields per struct gives the flags, --help, the config file, the flags printed at
the start, doc/flags.md, the first record of the log, and JSON that reads back exactly.

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
  require(config.batch_size < 100 || ..., ...);         contradictions are the caller's to find

On the command line: --batch-size 8 or --batch-size=8; --resume, --no-resume or --resume=false. In --config FILE, whose
values the command line overrides:

  # a comment
  batch-size = 8            # sections are optional: [batch] or nothing
  prompt = "to be # or"     # quotes keep spaces and #; \" \\ \n \t inside

A field of a std::optional may have no value: its word for that (Field::unset) on the command line, null in JSON.

An unknown or repeated name, a value of the wrong type or out of range: an Error that says where, what was found and
what is expected.
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
    // Holds the default at first. An optional may have no value.
    std::variant<bool*, int*, int64_t*, uint64_t*, double*, std::string*, std::optional<int>*, std::optional<int64_t>*,
                 std::optional<double>*>
        value;
    const char* help;                       // one line, units included
    std::vector<std::string> choices = {};  // of a string; empty: any. Of a number: the word that means 0
    double min = -std::numeric_limits<double>::infinity(), max = std::numeric_limits<double>::infinity();
    const char* unset = "";  // of an optional: the word for no value, on the command line, too

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
};

// What the user wrote.
struct Flags {
    struct Given {
        std::string text;
        std::string where;  // begins a message: "--batch-size 12abc", "run.cfg:3: batch-size = 12abc"
        bool in_file;
    };
    bool help = false;                   // -h, --help or --help-all was given, and the help printed: leave
    std::map<std::string, Given> given;  // by name; what the command line says wins
    bool has(const std::string& name) const { return given.count(name) > 0; }
};

// The text of --help and of errors around the flags.
struct HelpText {
    std::string description, usage = "[--flag value]...";
    std::vector<std::string> common = {};  // the flags that --help shows; empty: all. --help-all shows all
    // What to say about a name that is no flag here; "": nothing in particular.
    std::function<std::string(const std::string& name)> explain = {};
};

// Sets the fields from --config FILE, if given, and then from the command line.
Flags parse_flags(const std::vector<Field>& fields, int argc, const char* const* argv, const HelpText& help);
inline Flags parse_flags(const std::vector<Field>& fields, int argc, const char* const* argv,
                         const std::string& description) {
    return parse_flags(fields, argc, argv, HelpText{.description = description});
}
// Sets those fields again that are among the given ones.
void set_given(const std::vector<Field>& fields, const Flags& flags);

// The values as they are now: "12", "0.001", "true", "cosine"; a double in the fewest digits that read back exactly.
std::string text_of(const Field& field);
// --help, and the body of doc/flags.md.
std::string help_text(const std::vector<Field>& fields, const std::string& program, const HelpText& help,
                      bool all = true);
std::string markdown_table(const std::vector<Field>& fields);
// For the start of a run: the fields that `sources` names, as flags on lines of at most 110 characters, those of one
// source after another: "from --depth: --steps 2520". "" if there are none.
std::string flags_by_source(const std::vector<Field>& fields, const std::map<std::string, std::string>& sources);

// {"batch-size":12,"schedule":"cosine",...} on one line or, with indent > 0, on several. Numbers must be finite.
std::string to_json(const std::vector<Field>& fields, int indent = 0);
// The reverse. Every field must be there with its type and range; other keys are ignored. `where` names the text in
// errors: the file's path.
void from_json(const std::vector<Field>& fields, const std::string& text, const std::string& where);
// The same for text that an older version may have written: a field that it did not have keeps its default.
void from_older_json(const std::vector<Field>& fields, const std::string& text, const std::string& where);

// Sets one field from text, as a flag does. `where` begins the message: "--batch-size 12abc".
void set_field(const Field& field, const std::string& text, const std::string& where);
// Which field has this name; an Error that names the nearest one if none has.
const Field& field_named(const std::vector<Field>& fields, const std::string& name, const std::string& where);
