// See json.h.
#include "llmc/base/json.h"
#include <algorithm>
#include <utility>
#include <vector>

namespace {

// Builds a value from a parser's events. The library has such a class, too, but it compiles the whole parser again for
// each type of value, and twice for filters that are not used here. This one shares the parser of scan_json() between
// all types.
template <class Value>
class Builder : public nlohmann::json_sax<Json> {
public:
    bool null() override { return put(nullptr); }
    bool boolean(bool value) override { return put(value); }
    bool number_integer(number_integer_t value) override { return put(value); }
    bool number_unsigned(number_unsigned_t value) override { return put(value); }
    bool number_float(number_float_t value, const string_t&) override { return put(value); }
    bool string(string_t& value) override { return put(std::move(value)); }
    bool binary(binary_t&) override { return false; }  // does not occur in text
    bool start_object(std::size_t) override { return open(Value::value_t::object); }
    bool start_array(std::size_t) override { return open(Value::value_t::array); }
    bool end_object() override { return close(); }
    bool end_array() override { return close(); }
    // If a name occurs twice, the last member counts.
    bool key(string_t& name) override {
        member_ = &(*open_.back())[name];
        return true;
    }
    bool parse_error(std::size_t, const std::string&, const nlohmann::detail::exception&) override { return false; }

    // Discarded if the text is not JSON.
    static Value read(std::string_view text) {
        Builder builder;
        return scan_json(text, builder) ? std::move(builder.root_) : Value(Value::value_t::discarded);
    }

private:
    template <class T>
    Value* put(T&& value) {
        Value* const place = open_.empty()              ? &root_
                             : open_.back()->is_array() ? (open_.back()->push_back(nullptr), &open_.back()->back())
                                                        : member_;
        *place = Value(std::forward<T>(value));
        return place;
    }
    bool open(typename Value::value_t type) {
        open_.push_back(put(type));
        return true;
    }
    bool close() {
        open_.pop_back();
        return true;
    }

    Value root_;
    std::vector<Value*>
        open_;  // objects and arrays, outermost first: none gets another member before the last is closed
    Value* member_ = nullptr;  // of the last one, if that is an object
};

}  // namespace

Json parse_json(std::string_view text) { return Builder<Json>::read(text); }
OrderedJson parse_ordered_json(std::string_view text) { return Builder<OrderedJson>::read(text); }
bool scan_json(std::string_view text, nlohmann::json_sax<Json>& events) { return Json::sax_parse(text, &events); }

std::string json_text(const Json& value, int indent) {
    return value.dump(indent, ' ', false, Json::error_handler_t::replace);
}
std::string json_text(const OrderedJson& value, int indent) {
    return value.dump(indent, ' ', false, OrderedJson::error_handler_t::replace);
}
std::string json_ascii(const Json& value) { return value.dump(-1, ' ', true, Json::error_handler_t::replace); }
std::string json_ascii(const OrderedJson& value) {
    return value.dump(-1, ' ', true, OrderedJson::error_handler_t::replace);
}

namespace {

// The length of the number at `at`; 0: there is none.
size_t number_at(std::string_view text, size_t at) {
    const size_t begin = at;
    const auto is = [&](std::string_view characters) {
        return at < text.size() && characters.find(text[at]) != std::string_view::npos;
    };
    const auto digits = [&] {
        const size_t first = at;
        while (is("0123456789")) at++;
        return at > first;
    };
    if (is("-")) at++;
    if (is("0"))
        at++;
    else if (!digits())
        return 0;
    size_t end = at;
    if (is(".") && (at++, digits())) end = at;
    at = end;
    if (is("eE")) {
        at++;
        if (is("+-")) at++;
        if (digits()) end = at;
    }
    return end - begin;
}

// The number of the escape \uXXXX at `at`; -1: there is none.
int escape_at(std::string_view text, size_t at) {
    if (text.substr(at, 2) != "\\u" || at + 6 > text.size()) return -1;
    int value = 0;
    for (const char c : text.substr(at + 2, 4)) {
        const int digit = c >= '0' && c <= '9'                 ? c - '0'
                          : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10
                                                               : -1;
        if (digit < 0) return -1;
        value = value * 16 + digit;
    }
    return value;
}

}  // namespace

std::string from_python_json(std::string_view text) {
    std::string json(text);
    bool in_string = false;
    for (size_t at = 0; at < text.size();) {
        if (text[at] == '"') {
            in_string = !in_string;
            at++;
        } else if (in_string) {
            const int value = escape_at(text, at), next = escape_at(text, std::min(at + 6, text.size()));
            const bool high = value >= 0xD800 && value < 0xDC00, low = value >= 0xDC00 && value < 0xE000;
            const bool pair = high && next >= 0xDC00 && next < 0xE000;
            if ((high && !pair) || low) json.replace(at, 6, "\\ufffd");
            at += pair ? 12 : value >= 0 ? 6 : text[at] == '\\' ? 2 : 1;
        } else {
            size_t length = number_at(text, at);
            for (const std::string_view word : {"NaN", "Infinity", "-Infinity"})
                if (text.substr(at).starts_with(word)) length = word.size();
            if (length > 0) json.replace(at, length, "0" + std::string(length - 1, ' '));
            at += std::max<size_t>(length, 1);
        }
    }
    return json;
}
