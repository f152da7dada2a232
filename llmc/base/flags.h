/*
What a run can be asked: one list of fields per struct gives the flags, --help, the config file, the flags printed at
the start, doc/flags.md, the first record of the log, and JSON that reads back exactly.

  struct TrainConfig {
      int batch_size = 12;
      std::string schedule = "cosine";
      bool resume = false;
      std::vector<Field> fields() {
          return {{"batch", "batch-size", &batch_size, "sequences per micro-step (B)", {}, 1},
                  {"optimizer", "schedule", &schedule, "of the learning rate", {"cosine", "linear"}},
                  {"files", "resume", &resume, "continue from the newest checkpoint"}};
      }
  };
  TrainConfig config;
  if (parse_flags(config.fields(), argc, argv, "Trains a GPT.").help) return kExitOk;
  require(config.batch_size < 100 || ..., ...);         contradictions are the caller's to find

On the command line: --batch-size 8 or --batch-size=8; --resume, --no-resume or --resume=false. In --config FILE, whose
values the command line overrides:

  # a comment
  batch-size = 8            # sections are optional: [batch] or nothing
  prompt = "to be # or"     # quotes keep spaces and #; \" \\ \n \t inside

An unknown or repeated name, a value of the wrong type or out of range: an Error that says where, what was found and
what is expected.
*/
#pragma once
#include <cstdint>
#include <limits>
#include <set>
#include <string>
#include <variant>
#include <vector>

struct Field {
    const char* section;  // the heading it is listed under: "batch"
    const char* name;     // "batch-size": the flag without its dashes, and the key in files
    std::variant<bool*, int*, int64_t*, uint64_t*, double*, std::string*> value;  // holds the default at first
    const char* help;                                                             // one line, units included
    std::vector<std::string> choices = {};  // of a string; empty: any. Of a number: the word that means 0
    double min = -std::numeric_limits<double>::infinity(), max = std::numeric_limits<double>::infinity();
};

// What the user wrote.
struct Flags {
    bool help = false;            // -h or --help was given, and the help printed: leave
    std::set<std::string> given;  // the names set by a flag or by the config file
    bool has(const std::string& name) const { return given.count(name) > 0; }
};

// Sets the fields from --config FILE, if given, and then from the command line.
Flags parse_flags(const std::vector<Field>& fields, int argc, const char* const* argv, const std::string& description);

// The values as they are now: "12", "0.001", "true", "cosine"; a double in the fewest digits that read back exactly.
std::string text_of(const Field& field);
// --help, and the body of doc/flags.md.
std::string help_text(const std::vector<Field>& fields, const std::string& program, const std::string& description);
std::string markdown_table(const std::vector<Field>& fields);
// For the start of a run: the fields whose values are not those of `defaults`, the same list, as flags on lines of at
// most 110 characters; "" if there are none.
std::string changed_flags(const std::vector<Field>& fields, const std::vector<Field>& defaults);

// {"batch-size":12,"schedule":"cosine",...} on one line or, with indent > 0, on several. Numbers must be finite.
std::string to_json(const std::vector<Field>& fields, int indent = 0);
// The reverse. Every field must be there with its type and range; other keys are ignored. `where` names the text in
// errors: the file's path.
void from_json(const std::vector<Field>& fields, const std::string& text, const std::string& where);
// The same of what an older program may have written: a field that it did not know yet keeps its default.
void from_older_json(const std::vector<Field>& fields, const std::string& text, const std::string& where);

// Sets one field from text, as a flag does. `where` begins the message: "--batch-size 12abc".
void set_field(const Field& field, const std::string& text, const std::string& where);
// Which field has this name; an Error that names the nearest one if none has.
const Field& field_named(const std::vector<Field>& fields, const std::string& name, const std::string& where);
