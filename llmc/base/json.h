/*
JSON values of nlohmann's library. Parser and printer are compiled once, in json.cpp, because they take longer to
compile than most of the files that use them.

  const Json value = parse_json(text);          value.is_discarded() if the text is not JSON
  const std::string line = json_text(value);    json_text(value, 2): several lines, indented by 2

A Json sorts its members by name. An OrderedJson keeps the order of its members, and looking one up takes linear time.
*/
#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;

// A discarded value if the text is not JSON: value.is_discarded().
Json parse_json(std::string_view text);
OrderedJson parse_ordered_json(std::string_view text);
// Reports what the text contains to `events` and builds no value. False if it is not JSON or `events` returned false.
bool scan_json(std::string_view text, nlohmann::json_sax<Json>& events);

// On one line if indent is negative. Bytes that are not UTF-8 become U+FFFD.
std::string json_text(const Json& value, int indent = -1);
std::string json_text(const OrderedJson& value, int indent = -1);
// In ASCII, for messages; other characters as \uXXXX.
std::string json_ascii(const Json& value);
std::string json_ascii(const OrderedJson& value);

/*
What Python's json module reads and writes, but JSON does not have, made JSON of the same length: NaN, infinities and
all numbers become 0, a surrogate without its other half U+FFFD. For text that no parser of JSON takes, to be parsed
once more.

  from_python_json(R"({"a": NaN, "b": "\ud83d"})")       {"a": 0  , "b": "\ufffd"}
*/
std::string from_python_json(std::string_view text);
