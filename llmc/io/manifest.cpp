// See manifest.h.
#include "llmc/io/manifest.h"
#include <algorithm>
#include <filesystem>
#include <utility>
#include "llmc/base/check.h"  // ensure, format
#include "llmc/base/hash.h"   // xxh3, hex64
#include "llmc/base/file.h"   // MappedFile, read_file
#include "llmc/base/json.h"   // Json

static std::string hash_of(const Json& body) {
    const std::string text = json_text(body);
    return hex64(xxh3(text.data(), text.size()));
}

static std::string text_of(const Json& manifest) { return json_text(manifest, 1) + "\n"; }

std::string to_json(const Manifest& manifest) {
    Json files = Json::object();
    for (const FileRecord& file : manifest.files) {
        Json& record = files[file.name] = {{"bytes", file.size_bytes}, {"xxh3", hex64(file.hash)}};
        for (const TensorRecord& tensor : file.tensors)
            record["tensors"][tensor.name] = {
                {"begin", tensor.begin_bytes}, {"end", tensor.end_bytes}, {"xxh3", hex64(tensor.hash)}};
    }
    Json body = {{"format_version", kCheckpointVersion}, {"step", manifest.step}, {"files", files}};
    body["manifest_xxh3"] = hash_of(body);
    return text_of(body);
}

std::string packed(const std::vector<FileRecord>& records) {
    Json all = Json::array();
    for (const FileRecord& file : records) {
        Json tensors = Json::array();
        for (const TensorRecord& t : file.tensors) tensors.push_back({t.name, t.begin_bytes, t.end_bytes, t.hash});
        all.push_back({file.name, file.size_bytes, file.hash, tensors});
    }
    const std::vector<uint8_t> bytes = Json::to_msgpack(all);
    return {bytes.begin(), bytes.end()};
}

std::optional<std::vector<FileRecord>> unpacked(const std::string& bytes) {
    try {
        std::vector<FileRecord> records;
        for (const Json& file : Json::from_msgpack(bytes)) {
            records.push_back({file.at(0), file.at(1), file.at(2)});
            for (const Json& t : file.at(3)) records.back().tensors.push_back({t.at(0), t.at(1), t.at(2), t.at(3)});
        }
        return records;
    } catch (const Json::exception&) {
        return std::nullopt;
    }
}

// Whether `object` is an object that has a nonnegative integer under each of `keys`.
static bool has_counts(const Json& object, const std::vector<std::string>& keys) {
    if (!object.is_object()) return false;
    for (const std::string& key : keys)
        if (!object.contains(key) || !object[key].is_number_unsigned()) return false;
    return true;
}

static bool has_text(const Json& object, const std::string& key) {
    return object.is_object() && object.contains(key) && object[key].is_string();
}

// Tells a folder without search permission from one that lacks files.
static std::string why_no_file(const std::string& path, const std::string& name) {
    std::error_code error;
    if (std::filesystem::is_regular_file(path, error)) return "";
    const bool is_missing =
        !error || error == std::errc::no_such_file_or_directory || error == std::errc::not_a_directory;
    return name + (is_missing ? " is missing" : " cannot be read: " + reason_of(error.value()));
}

static constexpr const char* kMalformed = "manifest.json is malformed";

// Whether the records cover a file without holes. (Older checkpoints have no record of the header.)
bool Verification::are_whole(const std::vector<Record>& records, uint64_t bytes) {
    uint64_t at = 0;
    for (const Record& record : records) {
        if (record.begin != at) return false;
        at = record.end;
    }
    return at == bytes && !records.empty();
}

Verification::Verification(const std::string& folder) : folder_(folder) { found_.why = look(); }

std::string Verification::look() {
    const std::string path = folder_ + kManifestFile;
    if (const std::string why = why_no_file(path, "manifest.json"); !why.empty()) return why;
    const std::string text = read_file(path);
    Json manifest = parse_json(text);
    if (!has_counts(manifest, {"format_version"})) return "manifest.json is damaged or cut short";
    // Before the checksum, which a newer format may compute in another way.
    const uint64_t version = manifest["format_version"];
    if (version != kCheckpointVersion)
        return format("it has format version %lu, this program reads version %d%s", version, kCheckpointVersion,
                      version > kCheckpointVersion ? "; use a newer program" : "");
    const bool is_in_form = text == text_of(manifest);  // byte for byte
    const Json expected = manifest.value("manifest_xxh3", Json());
    manifest.erase("manifest_xxh3");
    if (!is_in_form || expected != hash_of(manifest)) return "manifest.json is damaged or cut short";
    if (!has_counts(manifest, {"step"}) || !manifest.value("files", Json()).is_object()) return kMalformed;
    for (const auto& [name, record] : manifest["files"].items()) {
        if (!has_counts(record, {"bytes"}) || !has_text(record, "xxh3") || name.empty() ||
            name.find('/') != std::string::npos)
            return kMalformed;
        if (const std::string why = why_no_file(folder_ + "/" + name, name); !why.empty()) return why;
        const uint64_t bytes = record["bytes"];
        const size_t size = MappedFile(folder_ + "/" + name).size();
        if (size != bytes)
            return format("%s has %zu bytes, expected %lu%s", name.c_str(), size, bytes,
                          size < bytes ? " (cut short)" : "");
        File file{name, {}};
        const Json tensors = record.value("tensors", Json::object());
        for (const auto& [tensor, of] : tensors.items()) {
            if (!has_counts(of, {"begin", "end"}) || !has_text(of, "xxh3") || of["begin"] > of["end"] ||
                of["end"] > bytes)
                return kMalformed;
            file.records.push_back({tensor, of["begin"], of["end"], of["xxh3"]});
        }
        std::sort(file.records.begin(), file.records.end(), [](const Record& a, const Record& b) {
            return a.begin != b.begin ? a.begin < b.begin : a.end < b.end;
        });
        if (are_whole(file.records, bytes))
            for (const Record& r : file.records) parts_.push_back({files_.size(), r, all_bytes_ + r.begin});
        else
            parts_.push_back({files_.size(), {"", 0, bytes, record["xxh3"]}, all_bytes_});
        all_bytes_ += bytes;
        files_.push_back(std::move(file));
    }
    found_.step = manifest["step"].get<int64_t>();
    return "";
}

bool Verification::is_as_written(const Record& record, const MappedFile& file) {
    return hex64(xxh3(file.data() + record.begin, record.end - record.begin)) == record.hash;
}

std::string Verification::why_damaged(int share, int shares) const {
    ensure(share >= 0 && share < shares);
    // In double: bytes times ranks may exceed 64 bits, and the exact beginning of a share does not matter.
    const auto begin_of = [&](int of) { return double(all_bytes_) * of / shares; };
    std::optional<MappedFile> file;
    size_t opened = 0;
    for (const Part& part : parts_) {
        if (double(part.at) < begin_of(share) || (share + 1 < shares && double(part.at) >= begin_of(share + 1)))
            continue;
        const std::string& name = files_[part.file].name;
        if (!file || opened != part.file) {
            file.emplace(folder_ + "/" + name);
            opened = part.file;
        }
        if (file->size() < part.of.end) return name + " is cut short";  // truncated since its size was compared
        thread_read_bytes += part.of.end - part.of.begin;
        if (!is_as_written(part.of, *file)) return why_differs(part, *file);
    }
    return "";
}

std::string Verification::why_differs(const Part& part, const MappedFile& file) const {
    const auto& [name, records] = files_[part.file];
    const auto damaged = [&name = name](const std::string& tensor) {
        return name + (tensor == kHeaderRecord ? ": its header" : ": tensor " + tensor) +
               " is damaged (its checksum differs)";
    };
    if (!part.of.name.empty()) return damaged(part.of.name);
    if (records.empty()) return name + " is damaged (its checksum differs)";
    for (const Record& record : records)
        if (!is_as_written(record, file)) return damaged(record.name);
    return damaged(kHeaderRecord);
}

Verified verify(const std::string& folder) {
    const Verification check(folder);
    Verified found = check.found();
    if (found.why.empty()) found.why = check.why_damaged(0, 1);
    if (!found.why.empty()) found.step = -1;
    return found;
}

std::vector<FileRecord> manifest_records(const std::string& folder) {
    const auto hash_in = [](const Json& record) {
        return std::stoull(record.at("xxh3").get<std::string>(), nullptr, 16);
    };
    const Json manifest = parse_json(read_file(folder + kManifestFile));
    std::vector<FileRecord> records;
    for (const auto& [name, file] : manifest.at("files").items()) {
        records.push_back({name, file.at("bytes"), hash_in(file)});
        const Json tensors = file.value("tensors", Json::object());  // must outlive the loop
        for (const auto& [tensor, part] : tensors.items())
            records.back().tensors.push_back({tensor, part.at("begin"), part.at("end"), hash_in(part)});
    }
    return records;
}
