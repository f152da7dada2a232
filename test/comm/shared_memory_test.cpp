/*
Shared memory of two processes, and detecting whether a process is alive.
*/
#include "llmc/comm/host/shared_memory.h"
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cstdio>
#include <fstream>
#include <utility>
#include "llmc/base/file.h"  // read_file
#include "test/testing.h"

TEST_CASE("memory of one process is opened by another", "[shared_memory]") {
    SharedMemory mine = SharedMemory::create(5000);
    CHECK(mine.bytes() == 5000);
    CHECK(mine.data()[4999] == 0);
    const std::string record = mine.record();
    const pid_t child = fork();
    if (child == 0) {
        SharedMemory theirs = SharedMemory::open(record, 5000, "rank 0");
        theirs.data()[4999] = 'x';
        _exit(int(theirs.bytes() % 256));
    }
    int status = 0;
    REQUIRE(waitpid(child, &status, 0) == child);
    CHECK(WEXITSTATUS(status) == 5000 % 256);
    CHECK(mine.data()[4999] == 'x');
    mine.close();
    CHECK(mine.data()[4999] == 'x');  // mapped still
    CHECK(contains(error_of([&] { SharedMemory::open(record, 5000, "rank 0"); }),
                   "3: rank 0 names memory that this rank does not open: /proc/"));
    SharedMemory moved = std::move(mine);
    CHECK(mine.data() == nullptr);
    CHECK(moved.data()[4999] == 'x');
}

namespace {

// Why the memory that another process names is not opened; the record is PID FD BYTES.
std::string refusal(const std::string& record, size_t bytes = 5000) {
    return error_of([&] { SharedMemory::open(record, bytes, "rank 1 (10.0.0.2:41000)"); });
}
std::string record_of(pid_t pid, int fd, size_t bytes) {
    return std::to_string(pid) + " " + std::to_string(fd) + " " + std::to_string(bytes);
}
const std::string kRefused = "3: rank 1 (10.0.0.2:41000) names memory that this rank does not open: ";

int unsealed(size_t bytes) {
    const int fd = memfd_create("other", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    REQUIRE(ftruncate(fd, off_t(bytes)) == 0);
    return fd;
}

// A process of another user, with sealed memory of its own.
struct Impostor {
    pid_t pid = -1;
    int own = -1;
    Impostor() {
        int pipes[2];
        REQUIRE(pipe(pipes) == 0);
        pid = fork();
        if (pid == 0) {
            if (setgid(65534) != 0 || setuid(65534) != 0) _exit(1);
            static SharedMemory mine = SharedMemory::create(5000);  // its record names its descriptor
            const std::string record = mine.record();
            if (write(pipes[1], record.data(), record.size() + 1) < 0) _exit(1);
            pause();
            _exit(0);
        }
        char record[64] = "";
        REQUIRE(read(pipes[0], record, sizeof record) > 0);
        int its_pid = 0;
        REQUIRE(std::sscanf(record, "%d %d", &its_pid, &own) == 2);
        REQUIRE(its_pid == pid);
        close(pipes[0]), close(pipes[1]);
    }
    ~Impostor() {
        kill(pid, SIGKILL);
        waitpid(pid, nullptr, 0);
    }
};

}  // namespace

TEST_CASE("only memory that a rank has made is opened", "[shared_memory]") {
    const ScratchFolder scratch;
    const std::string path = scratch / "file", fifo = scratch / "fifo", before(5000, 'x');
    std::ofstream(path) << before;
    REQUIRE(mkfifo(fifo.c_str(), 0600) == 0);
    const auto named = [&](const char* what, int fd, const std::string& why) {
        INFO(what);
        REQUIRE(fd >= 0);
        CHECK(contains(refusal(record_of(getpid(), fd, 5000)), kRefused));
        CHECK(contains(refusal(record_of(getpid(), fd, 5000)), why));
        close(fd);
    };
    named("a file", open(path.c_str(), O_RDWR), " is a file, or memory that can shrink");
    named("a file that is only a path", open(path.c_str(), O_PATH), " is a file, or memory that can shrink");
    CHECK(read_file(path) == before);
    const std::string in_memory = "/dev/shm/anvil_test_" + std::to_string(getpid());
    const int in_shm = open(in_memory.c_str(), O_RDWR | O_CREAT | O_EXCL, 0600);
    unlink(in_memory.c_str());
    REQUIRE(ftruncate(in_shm, 5000) == 0);
    named("a file in memory", in_shm, " is a file, or memory that can shrink");
    named("memory that can shrink", unsealed(5000), " is a file, or memory that can shrink");
    named("a folder", open(scratch.path.c_str(), O_RDONLY), " is no memory of user ");
    named("a device", open("/dev/zero", O_RDWR), " is no memory of user ");
    named("a FIFO", open(fifo.c_str(), O_RDWR), " is no memory of user ");
    const int small = unsealed(4999);
    REQUIRE(fcntl(small, F_ADD_SEALS, F_SEAL_SHRINK) == 0);
    named("less than promised", small, " has 4999 bytes, expected 5000");

    const SharedMemory memory = SharedMemory::create(5000);
    CHECK(refusal(memory.record()) == "");
    CHECK(contains(refusal(memory.record(), 6000), kRefused + "expected 6000 bytes, found 5000"));
    for (const std::string record : {"", "1", "-1 3 5000", "1 -3 5000", "\x1b]0;owned", "1 2 5000 more"})
        CHECK(contains(refusal(record), kRefused + "expected "));
    CHECK_FALSE(contains(refusal("\x1b]0;owned"), "\x1b"));
}

TEST_CASE("memory cannot shrink while others have it mapped", "[shared_memory]") {
    const SharedMemory memory = SharedMemory::create(5000);
    const int fd = std::stoi(memory.record().substr(memory.record().find(' ')));
    CHECK(ftruncate(fd, 100) != 0);
}

TEST_CASE("another user's process and memory are refused", "[shared_memory]") {
    if (geteuid() != 0) {
        WARN("skipped: only root can become another user");
        return;
    }
    const Impostor impostor;
    // What it has made itself, and what it has inherited: memory of this user's.
    CHECK(contains(refusal(record_of(impostor.pid, impostor.own, 5000)), kRefused + "process "));
    const int inherited = open(
        ("/proc/" + std::to_string(impostor.pid) + "/fd/" + std::to_string(impostor.own)).c_str(), O_RDWR | O_CLOEXEC);
    REQUIRE(inherited >= 0);
    CHECK(contains(refusal(record_of(getpid(), inherited, 5000)), " is no memory of user 0"));
    close(inherited);
}

TEST_CASE("a process is alive until it ends, waited for or not", "[shared_memory]") {
    const Process self = Process::current();
    CHECK(self.pid == getpid());
    CHECK(self.alive());
    Process other = self;
    other.start++;  // the number of a process that is gone, given to another
    CHECK(!other.alive());

    int pipes[2];
    REQUIRE(pipe(pipes) == 0);
    const pid_t child = fork();
    if (child == 0) {
        const Process process = Process::current();
        if (write(pipes[1], &process, sizeof process) < 0) _exit(1);
        pause();
    }
    Process process;
    REQUIRE(read(pipes[0], &process, sizeof process) == ssize_t(sizeof process));
    close(pipes[0]), close(pipes[1]);
    CHECK(process.pid == child);
    CHECK(process.start >= self.start);
    CHECK(process.alive());
    kill(child, SIGKILL);
    for (int i = 0; i < 500 && process.alive(); i++) usleep(10'000);
    CHECK(!process.alive());  // a zombie
    waitpid(child, nullptr, 0);
    CHECK(!process.alive());  // gone
}
