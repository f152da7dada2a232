/*
What makes a checkpoint trustworthy: manifest.json, written last, says which files the folder holds, how long each is,
and the XXH3 of each file and tensor. The same numbers come from `xxhsum -H3 FILE`.

  {"format_version": 2, "step": 1000,
   "files": {"model.safetensors": {"bytes": 3227648, "xxh3": "0f...", "tensors": {"wte": {"begin": 1272, ...}}}, ...},
   "manifest_xxh3": "..."}

manifest_xxh3 is that of the same object without this key, printed without spaces and with sorted keys.
*/
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>
#include "llmc/io/safetensors.h"  // TensorRecord

inline constexpr int kCheckpointVersion = 2;  // what this program writes and the newest it reads

struct FileRecord {
    std::string name;  // without a folder
    uint64_t size_bytes = 0, hash = 0;
    std::vector<TensorRecord> tensors = {};  // of a safetensors file
};

struct Manifest {
    int64_t step = 0;
    std::vector<FileRecord> files;
};

std::string to_json(const Manifest& manifest);

// Records on their way from one rank to another: any bytes.
std::string packed(const std::vector<FileRecord>& records);
std::optional<std::vector<FileRecord>> unpacked(const std::string& bytes);  // nothing: it is not what packed() makes

// What the manifest of a folder that verifies says of its files.
std::vector<FileRecord> manifest_records(const std::string& folder);

// What verify() found: a folder is whole if `why` is empty, else `why` is one line such as
// "model.safetensors: tensor wte is damaged".
struct Verified {
    int64_t step = -1;
    std::string why;
};

// Reads all of a checkpoint's files and compares them with its manifest.
Verified verify(const std::string& folder);
