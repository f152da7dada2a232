// See bench_rows.h.
#include "llmc/plan/bench_rows.h"
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <utility>
#include "llmc/base/check.h"  // format, require
#include "llmc/base/file.h"   // read_file
#include "llmc/base/json.h"   // Json, parse_json
#include "llmc/plan/gpus.h"   // kGpusPerServer

namespace {

namespace fs = std::filesystem;

[[noreturn]] void refuse(const std::string& where, const std::string& what) {
    throw Error(kExitUsage, where + ": " + what);
}

std::string text_in(const Json& row, const char* key, const std::string& where) {
    if (!row.contains(key) || !row[key].is_string() || row[key].get<std::string>().empty())
        refuse(where, format("%s: expected text, found %s", key,
                             row.contains(key) ? json_ascii(row[key]).c_str() : "nothing"));
    return row[key];
}
double number_in(const Json& row, const char* key, const std::string& where) {
    const bool is_number = row.contains(key) && row[key].is_number();
    const double value = is_number ? row[key].get<double>() : 0;
    if (!(value > 0) || !std::isfinite(value))
        refuse(where, format("%s: expected a number above zero, found %s", key,
                             row.contains(key) ? json_ascii(row[key]).c_str() : "nothing"));
    return value;
}
int64_t size_in(const Json& row, const char* key, const std::string& where) {
    return row.contains(key) ? int64_t(number_in(row, key, where)) : 0;
}

std::vector<std::string> files_of(const std::string& paths) {
    std::vector<std::string> files;
    for (size_t begin = 0; begin <= paths.size();) {
        const size_t end = std::min(paths.find(',', begin), paths.size());
        const std::string path = paths.substr(begin, end - begin);
        begin = end + 1;
        std::error_code error;
        require(fs::exists(path, error), "--calibrate %s: no such file or folder", path.c_str());
        if (!fs::is_directory(path, error)) {
            files.push_back(path);
            continue;
        }
        std::vector<std::string> found;
        for (fs::recursive_directory_iterator it(path, error), last; !error && it != last; it.increment(error))
            if (it->path().filename() == "results.jsonl") found.push_back(it->path().string());
        require(!found.empty(), "--calibrate %s: no results.jsonl in it: expected what scripts/gpu_check.sh left",
                path.c_str());
        std::sort(found.begin(), found.end());
        files.insert(files.end(), found.begin(), found.end());
    }
    return files;
}

// The last one counts of those that are the `same`.
template <class Row, class Same>
void add_row(std::vector<Row>& rows, Row row, Same&& same) {
    const auto found = std::find_if(rows.begin(), rows.end(), same);
    if (found == rows.end())
        rows.push_back(std::move(row));
    else
        *found = std::move(row);
}

CommRow comm_row(const Json& row, const std::string& where) {
    CommRow one{text_in(row, "what", where),   text_in(row, "device", where),      size_in(row, "ranks", where),
                size_in(row, "buffer", where), number_in(row, "us", where) * 1e-6, 0};
    const int64_t hosts = size_in(row, "hosts", where);
    // The model has full servers, and NCCL.
    const bool is_modeled = text_in(row, "how", where).rfind("NCCL ", 0) == 0 && one.ranks > 1 &&
                            hosts == (one.ranks + kGpusPerServer - 1) / kGpusPerServer;
    if (is_modeled) one.passes = one.what == "all-reduce" ? 2 : one.what == "all-to-all" ? 0 : 1;
    return one;
}

}  // namespace

MeasuredRows read_rows(const std::string& paths) {
    MeasuredRows rows;
    for (const std::string& path : files_of(paths)) {
        const std::string text = read_file(path);
        int number = 0;
        for (size_t begin = 0; begin < text.size();) {
            const size_t end = std::min(text.find('\n', begin), text.size());
            const std::string line = text.substr(begin, end - begin);
            const std::string where = format("--calibrate %s:%d", path.c_str(), ++number);
            begin = end + 1;
            const Json row = parse_json(line);
            if (!row.is_object()) refuse(where, "not a row: expected a JSON object as dev/bench writes with --json");
            const std::string type = text_in(row, "type", where);
            if (type == "comm") {
                const CommRow one = comm_row(row, where);
                add_row(rows.comm, one, [&](const CommRow& other) {
                    return other.what == one.what && other.device == one.device && other.ranks == one.ranks &&
                           other.bytes == one.bytes;
                });
            }
            if (type != "bench") continue;
            if (row.value("smoke", Json(false)) == Json(true)) refuse(where, "a --smoke run measures nothing");
            const std::string bound = text_in(row, "bound", where);
            if (bound != "memory" && bound != "compute")
                refuse(where, "bound: expected memory or compute, found " + bound);
            const bool has_rival = row.contains("rival");
            const BenchRow one{text_in(row, "what", where),
                               text_in(row, "shape", where),
                               text_in(row, "device", where),
                               text_in(row, "dtype", where),
                               bound == "memory",
                               number_in(row, "median_ms", where) * 1e-3,
                               number_in(row, "bytes", where),
                               number_in(row, "flops", where),
                               number_in(row, "peak", where),
                               has_rival ? number_in(row, "rival_ms", where) * 1e-3 : 0,
                               has_rival ? text_in(row, "rival", where) : "",
                               size_in(row, "rows", where),
                               size_in(row, "in", where),
                               size_in(row, "out", where),
                               size_in(row, "keys", where),
                               size_in(row, "head_size", where)};
            add_row(rows.bench, one, [&](const BenchRow& other) {
                return other.what == one.what && other.shape == one.shape && other.device == one.device &&
                       other.dtype == one.dtype;
            });
        }
    }
    return rows;
}
