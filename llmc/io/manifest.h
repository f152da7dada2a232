/*
What makes a checkpoint trustworthy: manifest.json, written last, says which files the folder holds, how long each is,
and the XXH3 of each file, of each tensor and of the header before them. The same numbers come from `xxhsum -H3 FILE`.

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

// Records as bytes, to send them from one rank to another.
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

// A checkpoint's files against its manifest, in shares:
//
//   const Verification check(folder);                       reads the manifest, and looks how large the files are
//   if (check.found().why.empty())
//       const std::string why = check.why_damaged(2, 8);    reads the third of eight shares; "": it is as written
//
// Shares are consecutive, and of as many bytes up to a tensor (or a file: text, and what has no checksums of tensors
// and header). All of them together are every byte of all files, once; the first that has a `why` has that of verify().
class Verification {
public:
    explicit Verification(const std::string& folder);
    const Verified& found() const { return found_; }  // so far
    std::string why_damaged(int share, int shares) const;

private:
    struct Record {
        std::string name;     // the tensor's, or kHeaderRecord; empty: it is of the whole file
        uint64_t begin, end;  // bytes of the file
        std::string hash;     // as the manifest has it
    };
    struct File {
        std::string name;
        std::vector<Record> records;  // in the order of the bytes
    };
    struct Part {
        size_t file;  // in files_
        Record of;
        uint64_t at;  // bytes of all parts before it
    };
    std::string folder_;
    Verified found_;
    std::vector<File> files_;
    std::vector<Part> parts_;
    uint64_t all_bytes_ = 0;

    std::string look();
    static bool is_as_written(const Record& record, const MappedFile& file);
    static bool are_whole(const std::vector<Record>& records, uint64_t bytes);
    std::string why_differs(const Part& part, const MappedFile& file) const;
};

// Reads all of a checkpoint's files and compares them with its manifest.
Verified verify(const std::string& folder);
