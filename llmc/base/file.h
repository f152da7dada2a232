/*
Files, with errors that name the file. Writing is never in place: a reader sees the old content or the new, whole.
*/
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

// The end of an error message: what errno means, and what to do about it where that is known.
std::string reason_of(int error);

// Whole content; an error if the file is missing or cannot be read.
std::string read_file(const std::string& path);

// Writes PATH.tmp, fsyncs it, renames it over PATH and fsyncs the folder.
void write_file_atomically(const std::string& path, std::string_view content);

// Opens /dev/null in place of a standard input, output or error that is closed. Must be the first thing a program does:
// otherwise the first files it opens get those numbers, and what it prints goes into them.
void open_standard_files();

// Reads a file and compares it with the size and the XXH3 of what was written to it; an Error if they differ. What
// Linux has in memory of the file is dropped before, so that a file on a local disk is read from there. That proves
// what the kernel and the disk give back now: it finds another writer, bytes lost on the way, bad memory. It cannot
// prove what a disk keeps that acknowledges a write before it is safe; and of tmpfs and some network file systems there
// is nothing to drop.
void check_written(const std::string& path, uint64_t size_bytes, uint64_t hash);

void make_folders(const std::string& path);
void sync_folder(const std::string& path);

// Bytes that this thread has read of checkpoints and models, headers left out, as their readers count them: what is
// read by too many ranks shows.
inline thread_local uint64_t thread_read_bytes = 0;

// A file being written front to back. Every failed write (a full disk, say) is an Error that names the path.
class FileWriter {
public:
    explicit FileWriter(const std::string& path);
    ~FileWriter();  // closes; keeps what was written
    FileWriter(const FileWriter&) = delete;
    FileWriter& operator=(const FileWriter&) = delete;
    void write(const void* data, size_t bytes);
    void sync_and_close();

private:
    std::string path_;
    int fd_;
};

// If another program truncates a mapped file, reading beyond its new end exits with code 2 and the file's name; or it
// reads zeros there, if the reader calls check_uncut() afterwards.
enum class IfCut { end, read_zeros };

// A file mapped read-only. An error for anything but a regular file: pipes and devices have no size, and may wait.
class MappedFile {
public:
    explicit MappedFile(const std::string& path, IfCut if_cut = IfCut::end);
    ~MappedFile();
    MappedFile(MappedFile&& other) noexcept;
    MappedFile& operator=(MappedFile&& other) noexcept;
    const char* data() const { return data_; }
    size_t size() const { return size_; }
    const std::string& path() const { return path_; }
    // An Error if the file is shorter now than it was when it was mapped: what was read may be zeros. (A file that
    // another one was renamed over is still there, whole. What is overwritten in place at its length nobody notices.)
    void check_uncut() const;

private:
    std::string path_;
    const char* data_ = nullptr;
    size_t size_ = 0;
    uint64_t device_ = 0, inode_ = 0;
    int slot_ = -1;  // in the list of mapped files that the handler of SIGBUS looks into; -1: it was full
};

// Installs the SIGBUS handler that keeps MappedFile's promise. Call it once, early in main().
void catch_cut_files();

// The files that a pattern such as data/train_*.bin matches, sorted. A path that exists is taken literally, even one
// like data[1].
std::vector<std::string> files_matching(const std::string& pattern);
