// Files: whole or untouched, and errors that name them.
#include <filesystem>
#include "llmc/base/file.h"
#include "llmc/base/hash.h"  // Hasher
#include "test/testing.h"

namespace fs = std::filesystem;

TEST_CASE("a file is replaced whole", "[file]") {
    const ScratchFolder scratch;
    const std::string path = scratch / "a", content("one\0two\n", 8);
    write_file_atomically(path, content);
    CHECK(read_file(path) == content);
    const MappedFile before(path);
    write_file_atomically(path, "");
    CHECK(read_file(path) == "");
    // Whoever has the old file open still sees all of it.
    CHECK(std::string(before.data(), before.size()) == content);
    CHECK_FALSE(fs::exists(path + ".tmp"));

    const std::string big(3 << 20, 'x');
    write_file_atomically(path, big);
    CHECK(read_file(path) == big);
}

TEST_CASE("a failed write leaves the old file", "[file]") {
    const ScratchFolder scratch;
    const std::string path = scratch / "a";
    write_file_atomically(path, "old");
    fs::create_symlink("/dev/full", path + ".tmp");
    CHECK(error_of([&] { write_file_atomically(path, "new"); }) ==
          "2: cannot write " + path + ".tmp: No space left on device");
    CHECK(read_file(path) == "old");
    CHECK(contains(error_of([&] { write_file_atomically(scratch / "none/a", "x"); }),
                   "2: cannot write " + scratch / "none/a.tmp: No such file"));
    make_folders(scratch / "folder");
    CHECK(contains(error_of([&] { write_file_atomically(scratch / "folder", "x"); }), "2: cannot rename"));
    CHECK(fs::is_directory(scratch / "folder"));
}

TEST_CASE("what cannot be read is named", "[file]") {
    const ScratchFolder scratch;
    CHECK(error_of([&] { read_file(scratch / "none"); }) ==
          "2: cannot read " + scratch / "none" + ": No such file or directory");
    CHECK(error_of([&] { read_file(scratch.path); }) == "2: cannot read " + scratch.path + ": not a regular file");
    write_file_atomically(scratch / "a", "");
    CHECK(contains(error_of([&] { read_file(scratch / "a/b"); }), "2: cannot read " + scratch / "a/b"));
    CHECK(error_of([&] { make_folders(scratch / "a/b"); }) ==
          "2: cannot create the folder " + scratch / "a/b" + ": Not a directory");
    CHECK(contains(error_of([&] { sync_folder(scratch / "a"); }), "2: cannot open the folder"));
    make_folders(scratch / "b/c/d");
    make_folders(scratch / "b/c/d");
    CHECK(fs::is_directory(scratch / "b/c/d"));
}

TEST_CASE("an empty file maps to nothing, and maps move", "[file]") {
    const ScratchFolder scratch;
    write_file_atomically(scratch / "empty", "");
    const MappedFile empty(scratch / "empty");
    CHECK(empty.size() == 0);
    write_file_atomically(scratch / "a", "abc");
    MappedFile first(scratch / "a");
    const char* const data = first.data();
    MappedFile second = std::move(first);
    CHECK(second.data() == data);
    CHECK(second.path() == scratch / "a");
    second = MappedFile(scratch / "empty");
    CHECK(second.size() == 0);
}

TEST_CASE("a pattern names the files in order", "[file]") {
    const ScratchFolder scratch;
    for (const char* name : {"train_2.bin", "train_1.bin", "val_1.bin"}) write_file_atomically(scratch / name, "");
    CHECK(files_matching(scratch / "train_*.bin") ==
          std::vector<std::string>{scratch / "train_1.bin", scratch / "train_2.bin"});
    CHECK(files_matching(scratch / "val_1.bin") == std::vector<std::string>{scratch / "val_1.bin"});
    CHECK(files_matching(scratch / "test_*.bin").empty());
}

TEST_CASE("checksums are XXH3's, in one piece or in many", "[file]") {
    // The values of `xxhsum -H3` for nothing and for "abc".
    CHECK(hex64(xxh3("", 0)) == "2d06800538d394c2");
    CHECK(hex64(xxh3("abc", 3)) == "78af5f94892f3950");
    CHECK(hex64(1) == "0000000000000001");
    const Floats x = randn(10000, 1);
    const char* const bytes = reinterpret_cast<const char*>(x.data());
    const size_t size = x.size() * sizeof(float);
    for (const size_t piece : {size_t(1), size_t(7), size_t(256), size_t(1000), size}) {
        Hasher hasher;
        for (size_t at = 0; at < size; at += piece) hasher.update(bytes + at, std::min(piece, size - at));
        CHECK(hasher.digest() == xxh3(bytes, size));
    }
    Hasher hasher;
    hasher.update("x", 1);
    hasher.reset();
    hasher.update("abc", 3);
    CHECK(hex64(hasher.digest()) == "78af5f94892f3950");
}
