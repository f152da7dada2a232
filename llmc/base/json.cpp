// See json.h.
#include "llmc/base/json.h"

Json parse_json(std::string_view text) { return Json::parse(text, nullptr, false); }
OrderedJson parse_ordered_json(std::string_view text) { return OrderedJson::parse(text, nullptr, false); }
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
