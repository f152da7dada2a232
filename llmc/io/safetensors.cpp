// See safetensors.h. The header is untrusted: everything in it is checked before it is used.
#include "llmc/io/safetensors.h"
#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <optional>
#include <unordered_set>
#include "llmc/base/check.h"  // require, ensure
#include "llmc/base/json.h"   // Json, OrderedJson

static_assert(std::endian::native == std::endian::little, "safetensors are little-endian, and so is all we run on");

static constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // the limit of the reference implementation

std::string text_of(const Shape& shape) {
    std::string text = "[";
    for (size_t i = 0; i < shape.size(); i++) text += (i ? ", " : "") + std::to_string(shape[i]);
    return text + "]";
}

std::string in_quotes(const std::string& name) {
    const std::string start = name.size() > 100 ? name.substr(0, 100) + "..." : name;
    return json_ascii(Json(start));
}

namespace {
struct Entry {
    Tensor tensor;
    std::string other_type;  // the name of a type that DType lacks; empty: tensor.dtype
    uint64_t begin, end;     // data_offsets
};

// The types of the format that DType lacks, with the bytes per element.
struct OtherType {
    const char* name;
    uint64_t bytes;
};
constexpr OtherType kOtherTypes[] = {{"BOOL", 1}, {"U8", 1},  {"I8", 1},  {"F8_E4M3", 1}, {"F8_E5M2", 1},
                                     {"I16", 2},  {"U32", 4}, {"I64", 8}, {"U64", 8},     {"F64", 8}};
}  // namespace

// Formats an Error: the file, what is wrong with it and what to do.
static Error damaged(const std::string& path, const std::string& what) {
    return Error(kExitUsage, path + ": not a valid safetensors file: " + what + "; use another copy of it");
}

namespace {
// Scans a header without building a value and finds a tensor name that occurs twice, where parse_json() would silently
// keep the last one. (parse_json() with a callback could find it, but takes quadratic time.)
struct RepeatedName : nlohmann::json_sax<Json> {
    std::unordered_set<std::string> names;
    std::optional<std::string> repeated;
    int depth = 0;

    bool key(string_t& name) override {
        if (depth != 1 || names.insert(name).second) return true;
        repeated = name;
        return false;
    }
    bool start_object(size_t) override { return ++depth, true; }
    bool end_object() override { return --depth, true; }
    bool start_array(size_t) override { return ++depth, true; }
    bool end_array() override { return --depth, true; }
    bool null() override { return true; }
    bool boolean(bool) override { return true; }
    bool number_integer(number_integer_t) override { return true; }
    bool number_unsigned(number_unsigned_t) override { return true; }
    bool number_float(number_float_t, const string_t&) override { return true; }
    bool string(string_t&) override { return true; }
    bool binary(Json::binary_t&) override { return true; }
    bool parse_error(size_t, const std::string&, const nlohmann::detail::exception&) override { return false; }
};
}  // namespace

static Json parse_header(const std::string& path, const char* begin, const char* end) {
    RepeatedName watch;
    const bool parses = scan_json({begin, size_t(end - begin)}, watch);
    if (watch.repeated) throw damaged(path, "two tensors named " + in_quotes(*watch.repeated));
    Json header = parses ? parse_json({begin, size_t(end - begin)}) : Json();
    if (!header.is_object()) throw damaged(path, "the header is not a JSON object");
    return header;
}

static Entry parse_entry(const std::string& path, const std::string& name, const Json& item) {
    const auto fail = [&](const std::string& what) { return damaged(path, "tensor " + in_quotes(name) + ": " + what); };
    if (!item.is_object() || !item.contains("dtype") || !item.contains("shape") || !item.contains("data_offsets"))
        throw fail("expected dtype, shape and data_offsets");

    Entry entry;
    entry.tensor.name = name;
    const Json &dtype = item["dtype"], &shape = item["shape"], &offsets = item["data_offsets"];
    if (!dtype.is_string()) throw fail("dtype is not a string");
    uint64_t bytes = 0;
    for (const OtherType& type : kOtherTypes)
        if (dtype == type.name) entry.other_type = type.name, bytes = type.bytes;
    if (bytes == 0) try {
            entry.tensor.dtype = dtype_named(dtype.get<std::string>());
            bytes = size_of(entry.tensor.dtype);
        } catch (const Error& error) {
            throw Error(kExitUsage, path + ": tensor " + in_quotes(name) + ": " + error.what());
        }

    if (!shape.is_array()) throw fail("shape is not a list");
    bool empty = false;
    for (const Json& extent : shape) {
        if (!extent.is_number_unsigned() || extent.get<uint64_t>() > uint64_t(std::numeric_limits<int64_t>::max()))
            throw fail("the extent " + json_text(extent) + " is not a count");
        const uint64_t n = extent.get<uint64_t>();
        entry.tensor.shape.push_back(int64_t(n));
        empty |= n == 0;
        // A zero in a later dimension does not excuse an overflow before it: count() multiplies from the left.
        if (n != 0 && bytes > uint64_t(std::numeric_limits<int64_t>::max()) / n) throw fail("the shape overflows");
        bytes *= std::max<uint64_t>(n, 1);
    }
    if (empty) bytes = 0;

    if (!offsets.is_array() || offsets.size() != 2 || !offsets[0].is_number_unsigned() ||
        !offsets[1].is_number_unsigned())
        throw fail("data_offsets are not two counts");
    entry.begin = offsets[0].get<uint64_t>();
    entry.end = offsets[1].get<uint64_t>();
    if (entry.end < entry.begin) throw fail("data_offsets run backwards");
    if (entry.end - entry.begin != bytes)
        throw fail(dtype.get<std::string>() + " " + text_of(entry.tensor.shape) + " is " + std::to_string(bytes) +
                   " bytes, its data_offsets span " + std::to_string(entry.end - entry.begin));
    return entry;
}

SafetensorsReader::SafetensorsReader(const std::string& path) : file_(path) {
    const size_t size = file_.size();
    uint64_t header_bytes = 0;
    if (size < 8) throw damaged(path, "it has " + std::to_string(size) + " bytes, the header alone needs more");
    std::memcpy(&header_bytes, file_.data(), 8);
    if (header_bytes > kMaxHeaderBytes || header_bytes > size - 8)
        throw damaged(path, "it says its header has " + std::to_string(header_bytes) + " bytes, the file has " +
                                std::to_string(size));

    const char* const data = file_.data() + 8 + header_bytes;
    const uint64_t data_bytes = size - 8 - header_bytes;
    const Json header = parse_header(path, file_.data() + 8, data);
    std::vector<Entry> entries;
    for (const auto& [name, item] : header.items()) {
        if (name != "__metadata__") {
            entries.push_back(parse_entry(path, name, item));
            continue;
        }
        if (!item.is_object()) throw damaged(path, "__metadata__ is not an object");
        for (const auto& [key, value] : item.items()) {
            if (!value.is_string()) throw damaged(path, "__metadata__ " + in_quotes(key) + " is not a string");
            metadata_[key] = value.get<std::string>();
        }
    }

    // There are no holes or overlaps if each tensor begins where the one before it ends.
    std::sort(entries.begin(), entries.end(),
              [](const Entry& a, const Entry& b) { return a.begin != b.begin ? a.begin < b.begin : a.end < b.end; });
    uint64_t expected = 0;
    for (Entry& entry : entries) {
        const std::string tensor = "tensor " + in_quotes(entry.tensor.name);
        if (entry.end > data_bytes)
            throw damaged(path, tensor + " ends at byte " + std::to_string(entry.end) + " of the data, which has " +
                                    std::to_string(data_bytes) + " (cut short?)");
        if (entry.begin != expected)
            throw damaged(path, tensor + " begins at byte " + std::to_string(entry.begin) + " of the data, expected " +
                                    std::to_string(expected) + " (a hole or an overlap)");
        expected = entry.end;
        if (!entry.other_type.empty()) {
            passed_over_[entry.tensor.name] = entry.other_type;
            continue;
        }
        entry.tensor.data = const_cast<char*>(data + entry.begin);
        index_[entry.tensor.name] = tensors_.size();
        tensors_.push_back(entry.tensor);
    }
    if (expected != data_bytes)
        throw damaged(path, std::to_string(data_bytes - expected) + " bytes follow the last tensor");
}

const Tensor* SafetensorsReader::find(const std::string& name) const {
    const auto found = index_.find(name);
    return found == index_.end() ? nullptr : &tensors_[found->second];
}

const Tensor& SafetensorsReader::at(const std::string& name) const {
    const Tensor* tensor = find(name);
    const auto other = passed_over_.find(name);
    require(other == passed_over_.end(), "%s: tensor %s is of type %s, expected F32, F16, BF16, I32 or U16",
            path().c_str(), in_quotes(name).c_str(), other->second.c_str());
    require(tensor, "%s: no tensor named %s among its %zu", path().c_str(), in_quotes(name).c_str(), tensors_.size());
    return *tensor;
}

void SafetensorsReader::copy(void* to, const std::string& name, DType dtype, const Shape& shape,
                             const std::string& hint) const {
    const Tensor& tensor = at(name);
    require(tensor.dtype == dtype && tensor.shape == shape, "%s: tensor %s is %s %s, expected %s %s%s%s",
            path().c_str(), in_quotes(name).c_str(), name_of(tensor.dtype), text_of(tensor.shape).c_str(),
            name_of(dtype), text_of(shape).c_str(), hint.empty() ? "" : "; ", hint.c_str());
    if (tensor.size_bytes() > 0) std::memcpy(to, tensor.data, tensor.size_bytes());
}

SafetensorsWriter::SafetensorsWriter(const std::string& path, const std::vector<Tensor>& tensors,
                                     const Metadata& metadata)
    : file_(path), sink_([this](const void* data, size_t bytes) { file_->write(data, bytes); }), tensors_(tensors) {
    begin(metadata);
}

SafetensorsWriter::SafetensorsWriter(const ByteSink& sink, const std::vector<Tensor>& tensors, const Metadata& metadata)
    : sink_(sink), tensors_(tensors) {
    begin(metadata);
}

void SafetensorsWriter::begin(const Metadata& metadata) {
    OrderedJson header = OrderedJson::object();
    if (!metadata.empty()) header["__metadata__"] = metadata;
    uint64_t offset = 0;
    for (const Tensor& tensor : tensors_) {
        ensure(!header.contains(tensor.name));
        const uint64_t end = offset + tensor.size_bytes();
        header[tensor.name] = {
            {"dtype", name_of(tensor.dtype)}, {"shape", tensor.shape}, {"data_offsets", {offset, end}}};
        offset = end;
    }
    std::string text = json_text(header);
    text.resize((text.size() + 7) / 8 * 8, ' ');
    const uint64_t header_bytes = text.size();
    put(&header_bytes, sizeof header_bytes);
    put(text.data(), text.size());
    records_.push_back({kHeaderRecord, 0, size_bytes_, file_hasher_.digest()});
    close_full_tensors();
}

void SafetensorsWriter::put(const void* data, size_t bytes) {
    sink_(data, bytes);
    file_hasher_.update(data, bytes);
    size_bytes_ += bytes;
}

// Advances to the next tensor that still needs data; empty tensors need none.
void SafetensorsWriter::close_full_tensors() {
    while (complete_ < tensors_.size() && tensor_bytes_ == tensors_[complete_].size_bytes()) {
        records_.push_back(
            {tensors_[complete_++].name, size_bytes_ - tensor_bytes_, size_bytes_, tensor_hasher_.digest()});
        tensor_hasher_.reset();
        tensor_bytes_ = 0;
    }
}

void SafetensorsWriter::write(const void* data, size_t bytes) {
    if (bytes == 0) return;
    ensure(complete_ < tensors_.size());
    ensure(tensor_bytes_ + bytes <= tensors_[complete_].size_bytes());
    put(data, bytes);
    tensor_hasher_.update(data, bytes);
    tensor_bytes_ += bytes;
    close_full_tensors();
}

void SafetensorsWriter::finish() {
    ensure(complete_ == tensors_.size());
    if (file_) file_->sync_and_close();
}
