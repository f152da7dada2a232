// Files are written completely or not at all, and errors name them.
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>
#include <csignal>
#include <filesystem>
#include "llmc/base/file.h"
#include "llmc/base/hash.h"  // Hasher, xxh3
#include "llmc/base/host_limits.h"
#include "llmc/platform/platform.h"  // given_cores
#include "test/processes.h"          // in_processes
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
    // A process that has the old file open still sees its whole content.
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
          "2: cannot write " + path +
              ".tmp: No space left on device; delete what is not needed there, "
              "or use another disk");
    CHECK(read_file(path) == "old");
    CHECK(contains(error_of([&] { write_file_atomically(scratch / "none/a", "x"); }),
                   "2: cannot write " + scratch / "none/a.tmp: No such file"));
    make_folders(scratch / "folder");
    CHECK(error_of([&] { write_file_atomically(scratch / "folder", "x"); }) ==
          "2: cannot write " + scratch / "folder" + ": it is a folder, not a regular file");
    const std::string pipe = scratch / "pipe";
    REQUIRE(mkfifo(pipe.c_str(), 0600) == 0);
    CHECK(error_of([&] { write_file_atomically(pipe, "x"); }) ==
          "2: cannot write " + pipe + ": it is a pipe, not a regular file");
    CHECK(fs::is_fifo(pipe));
    CHECK(fs::is_directory(scratch / "folder"));
}

TEST_CASE("what cannot be read is named", "[file]") {
    const ScratchFolder scratch;
    CHECK(error_of([&] { read_file(scratch / "none"); }) ==
          "2: cannot read " + scratch / "none" + ": No such file or directory");
    CHECK(error_of([&] { read_file(scratch.path); }) ==
          "2: cannot read " + scratch.path + ": it is a folder, not a regular file; copy what it holds to a file");
    CHECK(contains(error_of([&] { read_file(scratch / std::string(300, 'x')); }), "too long; use a shorter path"));
    write_file_atomically(scratch / "a", "");
    CHECK(contains(error_of([&] { read_file(scratch / "a/b"); }), "2: cannot read " + scratch / "a/b"));
    CHECK(error_of([&] { make_folders(scratch / "a/b"); }) ==
          "2: cannot create the folder " + scratch / "a/b" + ": Not a directory");
    CHECK(contains(error_of([&] { sync_folder(scratch / "a"); }), "2: cannot open the folder"));
    make_folders(scratch / "b/c/d");
    make_folders(scratch / "b/c/d");
    CHECK(fs::is_directory(scratch / "b/c/d"));
}

// Opening a pipe without a writer would wait forever.
TEST_CASE("pipes, sockets and devices are refused at once", "[file]") {
    const ScratchFolder scratch;
    const std::string pipe = scratch / "pipe", socket_path = scratch / "socket";
    REQUIRE(mkfifo(pipe.c_str(), 0600) == 0);
    CHECK(contains(error_of([&] { read_file(pipe); }), "2: cannot read " + pipe + ": it is a pipe, not a regular"));
    sockaddr_un address = {AF_UNIX, ""};
    socket_path.copy(address.sun_path, sizeof address.sun_path - 1);
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    REQUIRE(bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
    CHECK(contains(error_of([&] { read_file(socket_path); }), ": it is a socket, not a regular file"));
    close(fd);
    CHECK(contains(error_of([&] { read_file("/dev/null"); }), "/dev/null: it is a device, not a regular file"));
}

TEST_CASE("no file is put where a device or a pipe is", "[file]") {
    const ScratchFolder scratch;
    const std::string pipe = scratch / "pipe";
    REQUIRE(mkfifo(pipe.c_str(), 0600) == 0);
    CHECK(error_of([&] { write_file_atomically(pipe, "x"); }) ==
          "2: cannot write " + pipe + ": it is a pipe, not a regular file");
    CHECK(fs::is_fifo(pipe));
    CHECK_FALSE(fs::exists(pipe + ".tmp"));
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

    // Brackets in the name of a folder that exists are not a pattern.
    for (const char* folder : {"d[1]", "d1", "d\\*"}) {
        make_folders(scratch / folder);
        write_file_atomically(scratch / folder + "/a[2]_1.bin", "");
    }
    CHECK(files_matching(scratch / "d[1]/a*_[0-9].bin") == std::vector<std::string>{scratch / "d[1]/a[2]_1.bin"});
    CHECK(files_matching(scratch / "d[1]/a[2]_1.bin") == std::vector<std::string>{scratch / "d[1]/a[2]_1.bin"});
    CHECK(files_matching(scratch / "d\\*/a*") == std::vector<std::string>{scratch / "d\\*/a[2]_1.bin"});
    CHECK(files_matching(scratch / "d?/a*") == std::vector<std::string>{scratch / "d1/a[2]_1.bin"});
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

TEST_CASE("what was written is read back", "[file]") {
    const ScratchFolder scratch;
    const std::string path = scratch / "a", content(3000000, 'x');
    write_file_atomically(path, content);
    check_written(path, content.size(), xxh3(content.data(), content.size()));
    CHECK(contains(error_of([&] { check_written(path, content.size(), 1); }),
                   "2: " + path +
                       " holds something else than was written to it just now (3000000 bytes, expected "
                       "3000000 with the checksum 0000000000000001)"));
    CHECK(contains(error_of([&] { check_written(path, 5, xxh3(content.data(), content.size())); }), "expected 5 with"));
    CHECK(contains(error_of([&] { check_written(scratch / "none", 5, 1); }),
                   "cannot read " + scratch / "none" + " back"));
}

TEST_CASE("a file that is cut short while it is mapped", "[file]") {
    const ScratchFolder scratch;
    const std::string path = scratch / "a", content(100000, 'x');
    catch_cut_files();
    for (const off_t left : {5000, 99999, 0}) {  // of which the second ends in its last page, where there is no signal
        write_file_atomically(path, content);
        const MappedFile file(path, IfCut::read_zeros);
        write_file_atomically(scratch / "b", content);
        const MappedFile other(scratch / "b", IfCut::read_zeros);
        file.check_uncut();
        REQUIRE(truncate(path.c_str(), left) == 0);
        CHECK(file.data()[99999] == 0);
        CHECK(contains(error_of([&] { file.check_uncut(); }), "2: " + path + " was cut short"));
        CHECK(other.data()[99999] == 'x');
        other.check_uncut();
        // Nor is it whole again for who has it open.
        if (left == 5000) {
            FileWriter(path).write(content.data(), content.size());
            CHECK(contains(error_of([&] { file.check_uncut(); }), path + " was cut short"));
        }
    }
    // Renamed over is not cut.
    write_file_atomically(path, content);
    const MappedFile file(path, IfCut::read_zeros);
    write_file_atomically(path, "short");
    file.check_uncut();
    CHECK(file.data()[99999] == 'x');

    const std::vector<Finished> ended = in_processes(1, [&](int) {
        const MappedFile trusting(scratch / "b");
        if (truncate((scratch / "b").c_str(), 5000) != 0) throw Error(77, "cannot truncate");
        volatile char byte = trusting.data()[50000];
        static_cast<void>(byte);
    });
    CHECK(ended[0].exit_code == 2);
    CHECK(contains(ended[0].err, "error: " + scratch / "b" + " was cut short"));
    std::signal(SIGBUS, SIG_DFL);
}

TEST_CASE("the memory of a host is what its control groups leave of it", "[file]") {
    const ScratchFolder root;
    const auto put = [&](const std::string& path, const std::string& content) {
        make_folders(fs::path(root / path).parent_path());
        write_file_atomically(root / path, content);
    };
    CHECK(host_memory_bytes(root.path) == 0);
    put("proc/meminfo", "MemTotal:       16000 kB\nMemFree: 1 kB\nSwapTotal:       1000 kB\n");
    CHECK(host_memory_bytes(root.path) == 17000 * 1024);
    put("proc/self/cgroup", "0::/slice/job\n");
    put("sys/fs/cgroup/slice/job/memory.max", "max\n");
    CHECK(host_memory_bytes(root.path) == 17000 * 1024);
    put("sys/fs/cgroup/slice/memory.max", "8192000\n");  // of the group above, and swap has no limit
    CHECK(host_memory_bytes(root.path) == 8192000 + 1000 * 1024);
    put("sys/fs/cgroup/slice/memory.swap.max", "0\n");
    CHECK(host_memory_bytes(root.path) == 8192000);
    put("sys/fs/cgroup/slice/job/memory.max", "4096000\n");
    put("sys/fs/cgroup/slice/job/memory.swap.max", "1000\n");
    CHECK(host_memory_bytes(root.path) == 4097000);
    // v1: in a container the path is one of the host, and the container's own group the top of what it sees.
    put("proc/self/cgroup", "5:cpu:/docker/f00\n4:blkio,memory:/docker/f00\n1:name=systemd:/docker/f00\n");
    CHECK(host_memory_bytes(root.path) == 17000 * 1024);
    put("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");  // none
    CHECK(host_memory_bytes(root.path) == 17000 * 1024);
    put("sys/fs/cgroup/memory/memory.limit_in_bytes", "2048000\n");
    CHECK(host_memory_bytes(root.path) == 2048000 + 1000 * 1024);
    put("sys/fs/cgroup/memory/memory.memsw.limit_in_bytes", "2048001\n");
    CHECK(host_memory_bytes(root.path) == 2048001);
    CHECK(host_memory_bytes() > 0);  // of this one

    // What may be pinned has no swap.
    CHECK(free_host_memory(root.path) == 2048000);
    put("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    put("sys/fs/cgroup/memory/memory.memsw.limit_in_bytes", "9223372036854771712\n");
    put("proc/meminfo", "MemTotal:       16000 kB\nMemAvailable: 1500 kB\nSwapTotal:       1000 kB\n");
    CHECK(free_host_memory(root.path) == 1500 * 1024);
    put("sys/fs/cgroup/memory/memory.limit_in_bytes", "1024000\n");
    CHECK(free_host_memory(root.path) == 1024000);
    CHECK((free_host_memory() > 0 && free_host_memory() <= host_memory_bytes()));
}

TEST_CASE("the cores of a host are what its control groups, its launcher and other ranks leave of it", "[file]") {
    const ScratchFolder root;
    const auto put = [&](const std::string& path, const std::string& content) {
        make_folders(fs::path(root / path).parent_path());
        write_file_atomically(root / path, content);
    };
    CHECK(cpu_quota(root.path) == 0);
    put("proc/self/cgroup", "0::/slice/job\n");
    CHECK(cpu_quota(root.path) == 0);
    put("sys/fs/cgroup/slice/job/cpu.max", "max 100000\n");
    CHECK(cpu_quota(root.path) == 0);
    put("sys/fs/cgroup/slice/cpu.max", "350000 100000\n");  // of the group above
    CHECK(cpu_quota(root.path) == 3.5);
    put("sys/fs/cgroup/slice/job/cpu.max", "100000 50000\n");
    CHECK(cpu_quota(root.path) == 2);
    put("sys/fs/cgroup/cpu.max", "50000 100000\n");  // the container's own group is the top of what it sees
    CHECK(cpu_quota(root.path) == 0.5);
    put("proc/self/cgroup", "5:cpu,cpuacct:/docker/f00\n4:memory:/docker/f00\n");
    CHECK(cpu_quota(root.path) == 0);
    put("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
    put("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n");
    CHECK(cpu_quota(root.path) == 0);
    put("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "400000\n");
    CHECK(cpu_quota(root.path) == 4);

    CHECK(core_list({}) == "");
    CHECK(core_list({0, 1, 2, 5, 8, 9}) == "0-2,5,8-9");
    CHECK(cores_in("0-2,5,8-9") == std::vector<int>{0, 1, 2, 5, 8, 9});
    for (const char* wrong : {"x", "3-1", "-1", "0-99999"}) CHECK(cores_in(wrong).empty());
    CHECK(core_list(given_cores()) == core_list(cores_in(core_list(given_cores()))));
    CHECK(usable_cores() >= 1);

    using Masks = std::vector<std::vector<int>>;
    CHECK(share_of_cores({0, 1, 2, 3}, Masks{{0, 1, 2, 3}}) == 4);
    CHECK(share_of_cores({0, 1, 2, 3}, Masks{{0, 1, 2, 3}, {0, 1, 2, 3}}) == 2);
    CHECK(share_of_cores({2, 3}, Masks{{0, 1}, {2, 3}}) == 2);  // bound by a launcher
    CHECK(share_of_cores({0, 1}, Masks{{0, 1}, {1}}) == 1.5);
    CHECK(share_of_cores({7}, Masks{{7}, {7}, {7}, {7}}) == 0.25);
}
