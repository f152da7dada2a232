/*
What Python's json module reads and writes, but JSON does not have, made JSON of the same length: NaN, infinities and
all numbers become 0, a surrogate without its other half U+FFFD. For text that no parser of JSON takes, to be parsed
once more.

  from_python_json(R"({"a": NaN, "b": "\ud83d"})")       {"a": 0  , "b": "\ufffd"}
*/
#pragma once
#include <string>
#include <string_view>

std::string from_python_json(std::string_view text);
