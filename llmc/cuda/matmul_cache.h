/*
The algorithms that tuning found fastest, in a text file, so that a later run does not time them again and computes the
same bits. One line each, with fields separated by ` | `:

  NVIDIA H200, driver 13000, cuBLASLt 131000 | BF16 (16384, 768) ld 768 x ... | 8 words in hex | 41.20 us | checksum

The first field says where the algorithm is valid: the library promises nothing for another version. The checksum is the
XXH3 of all that precedes its separator: a damaged algorithm must never reach the library. If two lines are for the same
GEMM, the later counts. Lines of other machines are kept and not used; damaged ones are dropped at the next write;
warnings() reports both. save() reads the file again and replaces it as a whole, so programs that share it lose at most
what another is saving at that moment, and time it again next time. If another program has saved the same GEMM
meanwhile, its line stays: whoever read that line computes the same bits when it resumes. Only a line that was found and
could not be used is replaced.
*/
#pragma once
#include <array>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

struct MatmulAlgorithm {
    std::array<uint64_t, 8> words;  // opaque to all but the library
    double us;                      // as timed

    bool operator==(const MatmulAlgorithm&) const = default;
};

class MatmulCache {
public:
    MatmulCache() = default;  // an empty one without a file
    // Reads PATH. A missing file counts as empty if its folder can be written; else throws an Error.
    // `machine`: "NVIDIA H200, driver 13000, cuBLASLt 131000"
    MatmulCache(std::string path, std::string machine);

    // `call` is text_of() a MatmulCall (matmul_call.h). find() returns null if it is not there.
    const MatmulAlgorithm* find(const std::string& call) const;
    void add(const std::string& call, const MatmulAlgorithm& algorithm);
    // Writes what was added since the last save to the file, if there is one, and keeps what other programs have
    // written there meanwhile. Throws an Error if it cannot be written.
    void save();

    size_t size() const;                              // of this machine
    int64_t num_added() const { return num_added_; }  // since the start

    const std::string& path() const { return path_; }
    // What the last read ignored, one line each.
    const std::vector<std::string>& warnings() const { return warnings_; }

private:
    using Entries = std::map<std::pair<std::string, std::string>, MatmulAlgorithm>;  // by machine and call

    void read();

    std::string path_, machine_;
    Entries entries_, added_;                                 // added_: not saved yet
    std::set<std::pair<std::string, std::string>> replaced_;  // those of added_ whose earlier line was of no use
    int64_t num_added_ = 0;
    std::vector<std::string> warnings_;
};

// The file for --tune-matmul; "": GEMMs are not timed. "auto" is matmul.txt in the user's cache folder (user_cache.h),
// which is created; if that fails, the path is "" and why_not says why, for a warning.
struct MatmulCachePath {
    std::string path, why_not;
};
MatmulCachePath matmul_cache_path(const std::string& asked, const std::string& user_folder);

// One line of the file without its end, and back; false if it is damaged.
std::string matmul_cache_line(const std::string& machine, const std::string& call, const MatmulAlgorithm& algorithm);
bool parse_matmul_cache_line(const std::string& line, std::string& machine, std::string& call,
                             MatmulAlgorithm& algorithm);
