// See manifest.h.
#include "llmc/io/manifest.h"
#include <filesystem>
#include "llmc/base/check.h"  // format
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

// Is `object` an object with a count under each of `keys`?
static bool has_counts(const Json& object, const std::vector<std::string>& keys) {
    if (!object.is_object()) return false;
    for (const std::string& key : keys)
        if (!object.contains(key) || !object[key].is_number_unsigned()) return false;
    return true;
}

static bool has_text(const Json& object, const std::string& key) {
    return object.is_object() && object.contains(key) && object[key].is_string();
}

// Which part of a file that differs from its checksum is damaged.
static std::string damaged_part(const std::string& name, const MappedFile& file, const Json& tensors) {
    if (!tensors.is_object()) return name + " is damaged (its checksum differs)";
    for (const auto& [tensor, record] : tensors.items()) {
        if (!has_counts(record, {"begin", "end"}) || !has_text(record, "xxh3")) return "manifest.json is malformed";
        const uint64_t begin = record["begin"], end = record["end"];
        if (begin > end || end > file.size()) return "manifest.json is malformed";
        if (hex64(xxh3(file.data() + begin, end - begin)) != record["xxh3"].get<std::string>())
            return name + ": tensor " + tensor + " is damaged (its checksum differs)";
    }
    return name + ": its header is damaged (its checksum differs)";
}

// A folder that may not be entered is not one that lacks files.
static std::string why_no_file(const std::string& path, const std::string& name) {
    std::error_code error;
    if (std::filesystem::is_regular_file(path, error)) return "";
    const bool is_missing =
        !error || error == std::errc::no_such_file_or_directory || error == std::errc::not_a_directory;
    return name + (is_missing ? " is missing" : " cannot be read: " + reason_of(error.value()));
}

static std::string why_file_differs(const std::string& folder, const std::string& name, const Json& record) {
    if (!has_counts(record, {"bytes"}) || !has_text(record, "xxh3") || name.empty() ||
        name.find('/') != std::string::npos)
        return "manifest.json is malformed";
    const std::string path = folder + "/" + name;
    if (const std::string why = why_no_file(path, name); !why.empty()) return why;
    const MappedFile file(path);
    const uint64_t bytes = record["bytes"];
    if (file.size() != bytes)
        return format("%s has %zu bytes, expected %llu%s", name.c_str(), file.size(),
                      static_cast<unsigned long long>(bytes), file.size() < bytes ? " (cut short)" : "");
    if (hex64(xxh3(file.data(), file.size())) == record["xxh3"].get<std::string>()) return "";
    return damaged_part(name, file, record.value("tensors", Json()));
}

Verified verify(const std::string& folder) {
    const std::string path = folder + "/manifest.json";
    if (const std::string why = why_no_file(path, "manifest.json"); !why.empty()) return {-1, why};
    const std::string text = read_file(path);
    Json manifest = parse_json(text);
    if (!has_counts(manifest, {"format_version"})) return {-1, "manifest.json is damaged or cut short"};
    // Before the checksum: a newer format may compute that in another way.
    const uint64_t version = manifest["format_version"];
    if (version != kCheckpointVersion)
        return {-1, format("it has format version %llu, this program reads version %d%s",
                           static_cast<unsigned long long>(version), kCheckpointVersion,
                           version > kCheckpointVersion ? "; use a newer program" : "")};
    const bool is_as_written = text == text_of(manifest);  // to the last space
    const Json expected = manifest.value("manifest_xxh3", Json());
    manifest.erase("manifest_xxh3");
    if (!is_as_written || expected != hash_of(manifest)) return {-1, "manifest.json is damaged or cut short"};
    if (!has_counts(manifest, {"step"}) || !manifest.value("files", Json()).is_object())
        return {-1, "manifest.json is malformed"};
    for (const auto& [name, record] : manifest["files"].items())
        if (const std::string why = why_file_differs(folder, name, record); !why.empty()) return {-1, why};
    return {manifest["step"].get<int64_t>(), ""};
}

std::vector<FileRecord> manifest_records(const std::string& folder) {
    const auto hash_in = [](const Json& record) {
        return std::stoull(record.at("xxh3").get<std::string>(), nullptr, 16);
    };
    const Json manifest = parse_json(read_file(folder + "/manifest.json"));
    std::vector<FileRecord> records;
    for (const auto& [name, file] : manifest.at("files").items()) {
        records.push_back({name, file.at("bytes"), hash_in(file)});
        const Json tensors = file.value("tensors", Json::object());  // outlives the loop over it
        for (const auto& [tensor, part] : tensors.items())
            records.back().tensors.push_back({tensor, part.at("begin"), part.at("end"), hash_in(part)});
    }
    return records;
}
