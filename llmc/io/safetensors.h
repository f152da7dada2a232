/*
The safetensors format (https://github.com/huggingface/safetensors): named tensors in one file. Used for checkpoints and
for the tests' fixtures.

  bytes 0..7       N, the length of the header in bytes, unsigned little-endian
  bytes 8..8+N     JSON: {"wte": {"dtype": "F32", "shape": [128, 64], "data_offsets": [0, 32768]}, ...}, and
                   optionally "__metadata__": {string: string}; padded with spaces so that the data starts at a
                   multiple of 8
  the rest         the data, little-endian, row-major; data_offsets count from here, [begin, end)

  SafetensorsReader file("model.safetensors");
  const Tensor& wte = file.at("wte");            points into the mapped file

  SafetensorsWriter out("model.safetensors", {{"wte", DType::f32, {128, 64}}, {"wpe", DType::f32, {32, 64}}});
  out.write(wte, bytes);                         the data in the order of the list, each tensor whole or in pieces
  out.write(wpe, bytes);
  out.finish();                                  on the disk (fsync) when this returns
*/
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>
#include "llmc/base/file.h"    // MappedFile, FileWriter
#include "llmc/base/tensor.h"  // Tensor
#include "llmc/base/hash.h"    // Hasher

using Metadata = std::map<std::string, std::string>;

// Maps a file and checks its whole header. Any inconsistency throws an Error that names file and tensor. The tensors'
// values are not checked. Tensors of types that Anvil does not support, such as BOOL masks, are checked like the others
// and skipped.
class SafetensorsReader {
public:
    explicit SafetensorsReader(const std::string& path);

    // In the order of the data. The pointers live as long as this reader (also when it is moved) and are read-only.
    // They are aligned to the element only if the writer aligned them: SafetensorsWriter does unless an odd number of
    // 2-byte elements precedes 4-byte ones. So copy the data instead of casting the pointer.
    const std::vector<Tensor>& tensors() const { return tensors_; }
    const Metadata& metadata() const { return metadata_; }
    const std::string& path() const { return file_.path(); }

    const Tensor* find(const std::string& name) const;  // null: there is none
    // By name, the types of those that were skipped.
    const std::map<std::string, std::string>& passed_over() const { return passed_over_; }
    const Tensor& at(const std::string& name) const;  // throws an Error if there is none

    // Copies a tensor to `to`. Throws an Error unless it has exactly this type and shape; `hint` ends the message and
    // says which flags to look at.
    void copy(void* to, const std::string& name, DType dtype, const Shape& shape, const std::string& hint = "") const;

private:
    MappedFile file_;
    std::vector<Tensor> tensors_;
    std::map<std::string, size_t> index_;
    std::map<std::string, std::string> passed_over_;  // unsupported tensors: the type by the name
    Metadata metadata_;
};

// The byte range of one tensor's data in the file, and its XXH3. The bytes before the first tensor have a record of
// their own, kHeaderRecord.
inline constexpr const char* kHeaderRecord = "__header__";
struct TensorRecord {
    std::string name;
    uint64_t begin_bytes, end_bytes;  // from the start of the file
    uint64_t hash;
};

// Receives the next bytes of a file.
using ByteSink = std::function<void(const void* data, size_t bytes)>;

class SafetensorsWriter {
public:
    // `tensors` gives names, types and shapes; its data pointers are not used.
    SafetensorsWriter(const std::string& path, const std::vector<Tensor>& tensors, const Metadata& metadata = {});
    // The same for a file that is written by other code: its bytes go to `sink`.
    SafetensorsWriter(const ByteSink& sink, const std::vector<Tensor>& tensors, const Metadata& metadata = {});

    // Writes the next bytes. A piece never spans two tensors.
    void write(const void* data, size_t bytes);
    // Ends the file and fsyncs it; every tensor must be complete.
    void finish();

    // After finish(): the data of a manifest.
    size_t size_bytes() const { return size_bytes_; }
    uint64_t hash() const { return file_hasher_.digest(); }
    const std::vector<TensorRecord>& records() const { return records_; }

private:
    void begin(const Metadata& metadata);
    void close_full_tensors();
    void put(const void* data, size_t bytes);

    std::optional<FileWriter> file_;
    ByteSink sink_;
    std::vector<Tensor> tensors_;
    std::vector<TensorRecord> records_;  // of the header and the complete tensors
    size_t complete_ = 0;                // the number of complete tensors
    Hasher file_hasher_, tensor_hasher_;
    size_t size_bytes_ = 0, tensor_bytes_ = 0;  // written so far: to the file, to the tensor being written
};

// [128, 64]
std::string text_of(const Shape& shape);
// A name from a file, quoted and escaped for one line of an error message.
std::string in_quotes(const std::string& name);
