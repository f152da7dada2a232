/*
Memory of two processes, and whether a process is alive.
*/
#include "llmc/comm/shared_memory.h"
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>
#include <utility>
#include "test/testing.h"

TEST_CASE("memory of one process is opened by another", "[shared_memory]") {
    SharedMemory mine = SharedMemory::create(5000);
    CHECK(mine.bytes() == 5000);
    CHECK(mine.data()[4999] == 0);
    const std::string record = mine.record();
    const pid_t child = fork();
    if (child == 0) {
        SharedMemory theirs = SharedMemory::open(record);
        theirs.data()[4999] = 'x';
        _exit(int(theirs.bytes() % 256));
    }
    int status = 0;
    REQUIRE(waitpid(child, &status, 0) == child);
    CHECK(WEXITSTATUS(status) == 5000 % 256);
    CHECK(mine.data()[4999] == 'x');
    mine.close();
    CHECK(mine.data()[4999] == 'x');  // mapped still
    CHECK(contains(error_of([&] { SharedMemory::open(record); }), "cannot be opened: "));
    SharedMemory moved = std::move(mine);
    CHECK(mine.data() == nullptr);
    CHECK(moved.data()[4999] == 'x');
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
