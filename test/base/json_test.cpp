// Reading JSON, with members in any order, and what is refused.
#include "llmc/base/json.h"
#include <string>
#include "test/testing.h"

TEST_CASE("json: values in their order, or by name", "[json]") {
    const char* const text =
        R"( {"b": [1, -2, 0.5, [], {}, null], "a": {"y": true, "x": "\u00e9\n"}, "B": 18446744073709551615} )";
    CHECK(json_text(parse_ordered_json(text)) ==
          R"({"b":[1,-2,0.5,[],{},null],"a":{"y":true,"x":"é\n"},"B":18446744073709551615})");
    const Json sorted = parse_json(text);
    CHECK(json_text(sorted) == R"({"B":18446744073709551615,"a":{"x":"é\n","y":true},"b":[1,-2,0.5,[],{},null]})");
    CHECK(sorted["b"][0].is_number_unsigned());
    CHECK_FALSE(sorted["b"][1].is_number_unsigned());
    CHECK(sorted["b"][1].is_number_integer());
    CHECK(sorted["b"][2].is_number_float());
    // A value may be all of a text, and nested deeply.
    CHECK(parse_json("7") == 7);
    CHECK(parse_json(R"("")") == "");
    const std::string deep = std::string(5000, '[') + std::string(5000, ']');
    CHECK(json_text(parse_ordered_json(deep)) == deep);
}

TEST_CASE("json: of two members of a name the last one stays, where the first one was", "[json]") {
    const char* const text = R"({"a": {"c": 1}, "b": 2, "a": [3]})";
    CHECK(json_text(parse_ordered_json(text)) == R"({"a":[3],"b":2})");
    CHECK(json_text(parse_json(text)) == R"({"a":[3],"b":2})");
}

TEST_CASE("json: what is not JSON is discarded, whole", "[json]") {
    for (const char* const text : {"", " ", "{", "[1, 2", "[1,]", "{\"a\" 1}", "{\"a\": 1} 2", "nul", "01", "1e999",
                                   "\"\xff\"", "\"a", "'a'", "// 1"}) {
        INFO(text);
        CHECK(parse_json(text).is_discarded());
        CHECK(parse_ordered_json(text).is_discarded());
    }
}
