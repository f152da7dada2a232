// See matmul_cache.h.
#include "llmc/cuda/matmul_cache.h"
#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <sstream>
#include <utility>
#include "llmc/base/check.h"  // require, format
#include "llmc/base/file.h"   // read_file, reason_of, write_file_atomically
#include "llmc/base/hash.h"   // xxh3, hex64

namespace {

constexpr const char* kSeparator = " | ";
constexpr const char* kTitle =
    "# Matrix products: the fastest algorithms found by --tune-matmul. Delete to time again.";

std::vector<std::string> split(const std::string& text, const std::string& separator) {
    std::vector<std::string> parts;
    size_t begin = 0;
    for (size_t end; (end = text.find(separator, begin)) != std::string::npos; begin = end + separator.size())
        parts.push_back(text.substr(begin, end - begin));
    parts.push_back(text.substr(begin));
    return parts;
}

std::string checksum_of(const std::string& text) { return hex64(xxh3(text.data(), text.size())); }

}  // namespace

std::string matmul_cache_line(const std::string& machine, const std::string& call, const MatmulAlgorithm& algorithm) {
    for (const std::string* field : {&machine, &call})
        ensure(!field->empty() && field->find_first_of("|\n") == std::string::npos);
    std::string words;
    for (const uint64_t word : algorithm.words) words += (words.empty() ? "" : " ") + hex64(word);
    const std::string line =
        machine + kSeparator + call + kSeparator + words + kSeparator + format("%.2f us", algorithm.us);
    return line + kSeparator + checksum_of(line);
}

bool parse_matmul_cache_line(const std::string& line, std::string& machine, std::string& call,
                             MatmulAlgorithm& algorithm) {
    const std::vector<std::string> fields = split(line, kSeparator);
    if (fields.size() != 5) return false;
    const size_t before_checksum = line.size() - fields[4].size() - std::strlen(kSeparator);
    if (fields[4] != checksum_of(line.substr(0, before_checksum))) return false;
    // The checksum is right, so the rest is what matmul_cache_line() wrote.
    const std::vector<std::string> words = split(fields[2], " ");
    if (words.size() != algorithm.words.size()) return false;
    for (size_t i = 0; i < words.size(); i++) algorithm.words[i] = std::strtoull(words[i].c_str(), nullptr, 16);
    algorithm.us = std::strtod(fields[3].c_str(), nullptr);
    machine = fields[0];
    call = fields[1];
    return true;
}

MatmulCachePath matmul_cache_path(const std::string& asked, const std::string& user_folder) {
    if (asked.empty() || asked == "off") return {};
    if (asked != "auto") return {asked, ""};
    if (user_folder.empty()) return {"", "neither XDG_CACHE_HOME nor HOME is set"};
    std::error_code error;
    std::filesystem::create_directories(user_folder, error);
    if (!error && access(user_folder.c_str(), W_OK) == 0) return {user_folder + "/matmul.txt", ""};
    return {"", "cannot write " + user_folder + ": " + (error ? error.message() : reason_of(errno))};
}

MatmulCache::MatmulCache(std::string path, std::string machine) : path_(std::move(path)), machine_(std::move(machine)) {
    read();
    // Fails before anything is timed.
    const size_t slash = path_.rfind('/');
    const std::string folder = slash == std::string::npos ? "." : path_.substr(0, slash + 1);
    require(access(folder.c_str(), W_OK) == 0, "cannot write %s: %s: %s", path_.c_str(), folder.c_str(),
            reason_of(errno).c_str());
}

const MatmulAlgorithm* MatmulCache::find(const std::string& call) const {
    const auto found = entries_.find({machine_, call});
    return found == entries_.end() ? nullptr : &found->second;
}

void MatmulCache::add(const std::string& call, const MatmulAlgorithm& algorithm) {
    if (find(call) && !added_.contains({machine_, call})) replaced_.insert({machine_, call});
    entries_[{machine_, call}] = algorithm;
    added_[{machine_, call}] = algorithm;
    num_added_++;
}

void MatmulCache::save() {
    const Entries added = std::exchange(added_, {});
    const auto replaced = std::exchange(replaced_, {});
    if (path_.empty() || added.empty()) return;
    read();
    for (const auto& key : replaced) entries_[key] = added.at(key);
    std::string text = std::string(kTitle) + "\n";
    for (const auto& [key, value] : entries_) text += matmul_cache_line(key.first, key.second, value) + "\n";
    // A name with the process's id, because ranks may write at the same time.
    const std::string own = path_ + format(".%d", int(getpid()));
    write_file_atomically(own, text);
    require(std::rename(own.c_str(), path_.c_str()) == 0, "cannot rename %s to %s: %s", own.c_str(), path_.c_str(),
            reason_of(errno).c_str());
}

size_t MatmulCache::size() const {
    return size_t(std::count_if(entries_.begin(), entries_.end(),
                                [&](const auto& entry) { return entry.first.first == machine_; }));
}

// Adds the entries of the file.
void MatmulCache::read() {
    warnings_.clear();
    if (access(path_.c_str(), F_OK) != 0) return;
    std::istringstream text(read_file(path_));
    int number = 0, foreign = 0;
    for (std::string line; std::getline(text, line);) {
        number++;
        if (line.empty() || line[0] == '#') continue;
        std::string machine, call;
        MatmulAlgorithm algorithm;
        if (!parse_matmul_cache_line(line, machine, call, algorithm)) {
            warnings_.push_back(format("%s:%d: damaged, ignored", path_.c_str(), number));
            continue;
        }
        foreign += machine != machine_;
        entries_[{machine, call}] = algorithm;
    }
    if (foreign > 0)
        warnings_.push_back(format("%s: %d %s of another GPU, driver or version of cuBLASLt, not used", path_.c_str(),
                                   foreign, foreign == 1 ? "line" : "lines"));
}
