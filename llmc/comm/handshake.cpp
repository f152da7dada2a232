// See handshake.h.
#include "llmc/comm/handshake.h"
#include <algorithm>
#include <map>
#include "llmc/base/check.h"     // ensure, format
#include "llmc/base/hash.h"      // xxh3
#include "llmc/base/terminal.h"  // peer_text

void check_connected(Ranks& ranks) {
    const std::string answer =
        ranks.ask_first(std::to_string(ranks.rank), [&](const std::vector<std::string>& numbers) {
            ensure(int(numbers.size()) == ranks.world_size);
            for (int r = 0; r < ranks.world_size; r++)
                ranks.require_sense(numbers[size_t(r)] == std::to_string(r), r, "its number");
            return std::to_string(ranks.world_size);
        });
    ranks.require_sense(answer == std::to_string(ranks.world_size), 0, "the number of ranks");
}

namespace {

// Names and values, each terminated by a zero byte, so that any other build can read them, whatever names it compares.
std::string pack(const std::vector<std::pair<std::string, std::string>>& values) {
    std::string record;
    for (const auto& [name, value] : values) record += name + '\0' + value + '\0';
    return record;
}

std::vector<std::pair<std::string, std::string>> unpack(const std::string& record) {
    std::vector<std::string> words;
    for (size_t begin = 0, end; (end = record.find('\0', begin)) != std::string::npos; begin = end + 1)
        words.push_back(record.substr(begin, end - begin));
    std::vector<std::pair<std::string, std::string>> values;
    for (size_t i = 0; i + 1 < words.size(); i += 2) values.emplace_back(words[i], words[i + 1]);
    return values;
}

}  // namespace

void check_alike(Ranks& ranks, const std::vector<std::pair<std::string, std::string>>& values) {
    const std::string mine = pack(values);
    const std::string same =
        ranks.ask_first(Ranks::bytes_of(xxh3(mine.data(), mine.size())), [](const std::vector<std::string>& hashes) {
            const auto is_first = [&](const std::string& hash) { return hash == hashes[0]; };
            return std::string(std::all_of(hashes.begin(), hashes.end(), is_first) ? "yes" : "no");
        });
    ranks.require_sense(same == "yes" || same == "no", 0, "whether all have the same");
    if (same == "yes") return;
    std::vector<std::string> names;  // of all ranks, in the order of their first occurrence
    std::vector<std::map<std::string, std::string>> of_rank;
    for (const std::string& record : ranks.all_gather(mine)) {
        of_rank.emplace_back();
        for (const auto& [name, value] : unpack(record)) {
            of_rank.back()[name] = value;
            if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
        }
    }
    const auto value = [&](int r, const std::string& name) {
        const auto found = of_rank[size_t(r)].find(name);
        return found == of_rank[size_t(r)].end() ? std::string("unknown") : found->second;
    };
    // The lowest rank with the most frequent value of each name
    std::map<std::string, int> model;
    for (const std::string& name : names) {
        std::map<std::string, int> count;
        for (int r = 0; r < ranks.world_size; r++) count[value(r, name)]++;
        int best = 0;
        for (int r = 1; r < ranks.world_size; r++)
            if (count[value(r, name)] > count[value(best, name)]) best = r;
        model[name] = best;
    }
    for (int r = 0; r < ranks.world_size; r++)
        for (const std::string& name : names) {
            const int other = model[name];
            if (value(r, name) == value(other, name)) continue;
            throw SharedError(
                kExitUsage,
                format("the ranks differ in %s: it is %s on rank %d, and %s on rank %d; start all ranks with the same "
                       "program, flags and data",
                       peer_text(name).c_str(), peer_text(value(r, name)).c_str(), r,
                       peer_text(value(other, name)).c_str(), other));
        }
}
