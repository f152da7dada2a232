// See answer.h.
#include "llmc/commands/answer.h"
#include "llmc/base/json.h"  // Json, parse_json, json_text

std::vector<AnswerRequest> read_requests(std::string_view content, const std::string& path, int64_t vocab_size,
                                         int64_t context) {
    std::vector<AnswerRequest> all;
    for (size_t begin = 0, end; begin < content.size(); begin = end + 1) {
        end = std::min(content.find('\n', begin), content.size());
        const Json line = parse_json(content.substr(begin, end - begin));
        const bool is_scored = line.is_object() && line.contains("start");
        AnswerRequest request;
        bool is_good = line.is_object() && line.contains("tokens") && line["tokens"].is_array();
        const auto number = [&](const Json& value, int64_t below) {
            is_good = is_good && value.is_number_unsigned() && value.get<uint64_t>() < uint64_t(below);
            return is_good ? value.get<int32_t>() : 0;
        };
        if (is_good)
            for (const Json& id : line["tokens"]) request.tokens.push_back(number(id, vocab_size));
        const auto length = int64_t(request.tokens.size());
        if (is_scored) request.start = number(line["start"], length);
        const Json until = is_good && line.contains("until") ? line["until"] : Json::array();
        for (const Json& text : until)
            if (is_good = is_good && text.is_string() && text != ""; is_good) request.until.push_back(text);
        require(is_good && length > 0 && until.is_array() && is_scored == (request.start > 0),
                "%s:%zu: expected {\"tokens\": [...], \"start\": S} with ids below %ld and S from 1 to below their "
                "number, or {\"tokens\": [...], \"until\": [...]} with texts",
                path.c_str(), all.size() + 1, vocab_size);
        require(length <= context + is_scored,
                "%s:%zu: %ld tokens, and the model reads %ld: shorten them by their beginning", path.c_str(),
                all.size() + 1, length, context);
        all.push_back(std::move(request));
    }
    return all;
}

std::string scored_answer(double logprob, bool is_greedy) {
    return json_text(Json{{"logprob", logprob}, {"is_greedy", is_greedy}});
}

std::string continued_answer(const std::string& text) { return json_text(Json{{"text", text}}); }
