/*
Files, with errors that name the file. write_file_atomically() does not write in place: a reader sees either the old
content or the new, complete.
*/
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

// The end of an error message: the meaning of errno and, where known, what to do about it.
std::string reason_of(int error);

// The whole content. Throws an Error if the file is missing or cannot be read.
std::string read_file(const std::string& path);

// Writes PATH.tmp, fsyncs it, renames it over PATH and fsyncs the folder.
void write_file_atomically(const std::string& path, std::string_view content);

// Opens /dev/null in place of a standard input, output or error that is closed. Must be the first call of a program:
// otherwise the first files it opens get those descriptors, and its output goes into them.
void open_standard_files();

// Reads a file back and compares it with the size and the XXH3 of what was written to it. Throws an Error if they
// differ. The file's pages are dropped from the page cache first, so that a file on a local disk is read from the disk.
// This finds another writer, bytes lost on the way and bad memory. It cannot find a disk that acknowledges a write
// before it is safe, and on tmpfs and some network file systems there are no pages to drop.
void check_written(const std::string& path, uint64_t size_bytes, uint64_t hash);

// Creates a folder with its parents, if it does not exist. Throws an Error if that fails.
void make_folders(const std::string& path);
// fsyncs a folder, so that renames in it are on the disk. Throws an Error if that fails.
void sync_folder(const std::string& path);

// Bytes of checkpoints and models that this thread has read, without headers, as counted by their readers. Shows when
// too many ranks read the same data.
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

// What happens if another program truncates a mapped file and its lost part is read. `end`: the program exits with code
// 2 and the file's name. `read_zeros`: the reader gets zeros and must call check_uncut() afterwards.
enum class IfCut { end, read_zeros };

// A file mapped read-only. Throws an Error for anything but a regular file: pipes and devices have no size, and opening
// or reading them may block.
class MappedFile {
public:
    explicit MappedFile(const std::string& path, IfCut if_cut = IfCut::end);
    ~MappedFile();
    MappedFile(MappedFile&& other) noexcept;
    MappedFile& operator=(MappedFile&& other) noexcept;
    const char* data() const { return data_; }
    size_t size() const { return size_; }
    const std::string& path() const { return path_; }
    // Throws an Error if the file is shorter now than when it was mapped, because what was read may be zeros. A mapped
    // file survives a rename of another file over it. Overwriting it in place without changing its length is not
    // detected.
    void check_uncut() const;

private:
    std::string path_;
    const char* data_ = nullptr;
    size_t size_ = 0;
    uint64_t device_ = 0, inode_ = 0;
    int slot_ = -1;  // in the table of mapped files that the SIGBUS handler searches; -1: the table was full
};

// Installs the SIGBUS handler that IfCut describes. Call it once, early in main().
void catch_cut_files();

// The files that a pattern such as data/train_*.bin matches, sorted. A path that exists is taken literally, even one
// like data[1].
std::vector<std::string> files_matching(const std::string& pattern);
