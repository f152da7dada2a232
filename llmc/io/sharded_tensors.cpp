// See sharded_tensors.h.
#include "llmc/io/sharded_tensors.h"
#include <algorithm>
#include <charconv>
#include <cstring>
#include <filesystem>
#include "llmc/base/bf16.h"   // bf16, to_float
#include "llmc/base/check.h"  // require, format
#include "llmc/base/file.h"   // thread_read_bytes
#include "llmc/base/json.h"   // OrderedJson

std::string shard_file(const std::string& stem, int rank, int world_size) {
    return format("%s_%05d_of_%05d.safetensors", stem.c_str(), rank, world_size);
}

std::string part_name(const std::string& name, int64_t begin, int64_t end) {
    return format("%s[%ld:%ld]", name.c_str(), long(begin), long(end));
}

std::string shard_index(const std::string& stem, const std::vector<std::vector<Tensor>>& files) {
    OrderedJson index = {{"metadata", {{"total_size", 0}}}, {"weight_map", OrderedJson::object()}};
    uint64_t bytes = 0;
    for (size_t r = 0; r < files.size(); r++)
        for (const Tensor& tensor : files[r]) {
            index["weight_map"][tensor.name] = shard_file(stem, int(r), int(files.size()));
            bytes += tensor.size_bytes();
        }
    index["metadata"]["total_size"] = bytes;
    return json_text(index, 2) + "\n";
}

namespace {

// Parses "m.wte.weight[4096:8192]"; false if it has another form.
bool parse_part(const std::string& text, std::string& name, int64_t& begin, int64_t& end) {
    const size_t open = text.rfind('['), colon = text.rfind(':');
    if (open == std::string::npos || colon == std::string::npos || colon < open || !text.ends_with("]")) return false;
    const auto number = [](const char* from, const char* to, int64_t& value) {
        const auto [stop, error] = std::from_chars(from, to, value);
        return error == std::errc() && stop == to && value >= 0;
    };
    name = text.substr(0, open);
    const char* data = text.data();
    return number(data + open + 1, data + colon, begin) && number(data + colon + 1, data + text.size() - 1, end) &&
           begin <= end;
}

// `from` may be unaligned: parts in bf16 may leave later parts at odd addresses.
void copy_floats(float* to, const char* from, int64_t n, DType dtype) {
    if (dtype == DType::f32) {
        std::memcpy(to, from, size_t(n) * sizeof(float));
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        bf16 value;
        std::memcpy(&value, from + size_t(i) * sizeof value, sizeof value);
        to[i] = to_float(value);
    }
}

}  // namespace

ShardedTensors::ShardedTensors(const std::string& folder, const std::string& stem) : folder_(folder) {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
        const std::string name = entry.path().filename();
        if (name.starts_with(stem + "_") && name.ends_with(".safetensors")) names.push_back(name);
    }
    std::sort(names.begin(), names.end());
    require(!names.empty(), "%s: no files %s_*_of_*.safetensors in it", folder.c_str(), stem.c_str());
    for (size_t i = 0; i < names.size(); i++)
        require(names[i] == shard_file(stem, int(i), int(names.size())),
                "%s: found %s where %s was expected: one of the files is missing", folder.c_str(), names[i].c_str(),
                shard_file(stem, int(i), int(names.size())).c_str());
    for (const std::string& name : names) {
        const SafetensorsReader& file = files_.emplace_back(folder + "/" + name);
        for (const Tensor& tensor : file.tensors()) {
            std::string whole;
            int64_t begin = 0, end = 0;
            require(parse_part(tensor.name, whole, begin, end) &&
                        (tensor.dtype == DType::f32 || tensor.dtype == DType::bf16) && tensor.size() == end - begin,
                    "%s: tensor %s (%s %s): expected F32 or BF16 and a name that ends in [begin:end], with as many "
                    "elements",
                    file.path().c_str(), tensor.name.c_str(), name_of(tensor.dtype), text_of(tensor.shape).c_str());
            parts_[whole][begin] = {end, static_cast<const char*>(tensor.data), tensor.dtype};
        }
    }
}

void ShardedTensors::read(float* to, const std::string& name, int64_t begin, int64_t end,
                          const std::string& hint) const {
    const auto found = parts_.find(name);
    int64_t at = begin;
    while (at < end) {
        bool there = found != parts_.end();
        if (there) {
            auto part = found->second.upper_bound(at);  // the first that begins after `at`
            there = part != found->second.begin() && (--part)->second.end > at;
            if (there) {
                const int64_t n = std::min(end, part->second.end) - at;
                const size_t size = ::size_of(part->second.dtype);
                const char* const from = part->second.data + size_t(at - part->first) * size;
                thread_read_bytes += size_t(n) * size;
                copy_floats(to + (at - begin), from, n, part->second.dtype);
                at += n;
            }
        }
        require(there, "%s: element %ld of %s is in no file%s%s", folder_.c_str(), long(at), name.c_str(),
                hint.empty() ? "" : "; ", hint.c_str());
    }
}
