/*
The manifest of a checkpoint. manifest.json is written last and lists the folder's files with their sizes and the XXH3
of each file, each tensor and the header before the tensors. `xxhsum -H3 FILE` prints the same checksums.

  {"format_version": 2, "step": 1000,
   "files": {"model.safetensors": {"bytes": 3227648, "xxh3": "0f...", "tensors": {"wte": {"begin": 1272, ...}}}, ...},
   "manifest_xxh3": "..."}

manifest_xxh3 is the checksum of the same object without this key, printed without spaces and with sorted keys.
*/
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>
#include "llmc/io/safetensors.h"  // TensorRecord

inline constexpr int kCheckpointVersion = 2;  // the version that this program writes, and the newest that it reads
inline constexpr const char* kManifestFile = "/manifest.json";  // below a checkpoint's folder

struct FileRecord {
    std::string name;  // without a folder
    uint64_t size_bytes = 0, hash = 0;
    std::vector<TensorRecord> tensors = {};  // of a safetensors file
};

struct Manifest {
    int64_t step = 0;
    std::vector<FileRecord> files;
};

// The content of manifest.json, with its own checksum.
std::string to_json(const Manifest& manifest);

// Serializes records, to send them to another rank.
std::string packed(const std::vector<FileRecord>& records);
std::optional<std::vector<FileRecord>> unpacked(const std::string& bytes);  // nothing: not a result of packed()

// The records of the files in the manifest of a folder that verifies.
std::vector<FileRecord> manifest_records(const std::string& folder);

// The result of verify(): `why` is empty if the folder is complete and undamaged, else one line such as
// "model.safetensors: tensor wte is damaged".
struct Verified {
    int64_t step = -1;
    std::string why;
};

// Compares a checkpoint's files with its manifest, in shares:
//
//   const Verification check(folder);                       reads the manifest and compares the files' sizes
//   if (check.found().why.empty())
//       const std::string why = check.why_damaged(2, 8);    reads share 2 of the shares 0 to 7; "": undamaged
//
// Shares are consecutive. They have equally many bytes up to the size of one tensor, or of one file if that has no
// checksums of tensors and header, as text has none. Together they read every byte of all files once. The first
// nonempty result is the `why` of verify().
class Verification {
public:
    explicit Verification(const std::string& folder);
    const Verified& found() const { return found_; }  // without the shares
    std::string why_damaged(int share, int shares) const;

private:
    struct Record {
        std::string name;     // the tensor's, or kHeaderRecord; empty: the record covers the whole file
        uint64_t begin, end;  // bytes of the file
        std::string hash;     // as in the manifest
    };
    struct File {
        std::string name;
        std::vector<Record> records;  // in the order of their bytes
    };
    struct Part {
        size_t file;  // in files_
        Record of;
        uint64_t at;  // the total bytes of the parts before it
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
