// The Cpu's loops: every index is visited once, by any thread, and no thread waits for work that it could do itself.
// Its memory: aligned to huge pages, and all of it returned.
#include "llmc/cpu/device.h"
#include <atomic>
#include <chrono>
#include <fstream>
#include <thread>
#include "test/testing.h"

// Not inlined into a test case: g++ 12 breaks on OpenMP in Catch2's macros.
template <class Loop>
__attribute__((noinline)) static std::vector<int> times_taken(int64_t n, Loop&& loop) {
    std::vector<std::atomic<int>> times(static_cast<size_t>(n));
    loop([&](int64_t i) { times[size_t(i)]++; });
    return {times.begin(), times.end()};
}

TEST_CASE("parallel loops take every index once", "[device]") {
    const int threads = GENERATE(1, 2, 3, 5);
    Cpu cpu(threads);
    for (const int64_t n : {0, 1, 2, 4, 5, 6, 97, 10000}) {
        const std::vector<int> once(size_t(n), 1);
        CHECK(times_taken(n, [&](auto&& body) { parallel_for(cpu, n, body); }) == once);
        for (int repeat = 0; repeat < 20; repeat++)
            CHECK(times_taken(n, [&](auto&& body) { parallel_tasks(cpu, n, body); }) == once);
        CHECK(times_taken(n, [&](auto&& body) {
                  parallel_chunks(cpu, n, 7, [&](int64_t begin, int64_t end) {
                      for (int64_t i = begin; i < end; i++) body(i);
                  });
              }) == once);
    }
}

TEST_CASE("a run of indices is taken from both ends", "[device]") {
    IndexRun run;
    CHECK(run.take_first() == -1);
    CHECK(run.take_last() == -1);
    run.set(3, 6);
    CHECK(run.take_last() == 5);
    CHECK(run.take_first() == 3);
    CHECK(run.take_last() == 4);
    CHECK(run.take_first() == -1);
    CHECK(run.take_last() == -1);
    run.set(0, 1);
    CHECK(run.take_first() == 0);
    CHECK(run.take_last() == -1);
    run.set(0xFFFFFFFE, 0xFFFFFFFF);
    CHECK(run.take_first() == 0xFFFFFFFE);
    CHECK(run.take_first() == -1);
}

#ifdef _OPENMP
// Index 0 is not done before all others are, which the thread that has it can then not have done.
__attribute__((noinline)) static bool others_do_all_but_the_first(Cpu& cpu, int64_t n) {
    std::atomic<int64_t> done{0};
    std::atomic<bool> in_time{true};
    parallel_tasks(cpu, n, [&](int64_t i) {
        const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
        while (i == 0 && done < n - 1 && in_time) {
            std::this_thread::yield();
            if (std::chrono::steady_clock::now() > until) in_time = false;
        }
        done++;
    });
    return in_time;
}

TEST_CASE("tasks of a thread that is held up are done by the others", "[device]") {
    Cpu two(2), three(3);
    CHECK(others_do_all_but_the_first(two, 100));
    CHECK(others_do_all_but_the_first(three, 100));
}
#endif

// Pages that this process has mapped; 0 where the system does not tell
static long mapped_pages() {
    long pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    return pages;
}

TEST_CASE("memory that huge pages fit is aligned to them, and is returned whole", "[device]") {
    Cpu cpu(1);
    constexpr size_t kHuge = size_t(2) << 20;
    const long before = mapped_pages(), mapped_beyond = kHuge / 4096 - 1;  // the heap may grow a little meanwhile
    for (const size_t bytes : {kHuge / 8, kHuge - 1, kHuge, kHuge + 1, 5 * kHuge / 2}) {
        auto* const first = static_cast<unsigned char*>(cpu.allocate(bytes));
        auto* const second = static_cast<unsigned char*>(cpu.allocate(bytes));
        for (unsigned char* data : {first, second}) {
            CHECK(reinterpret_cast<size_t>(data) % kHuge == 0);
            CHECK(data[0] == 0xFF);
            CHECK(data[bytes - 1] == 0xFF);
        }
        cpu.release(first, bytes);
        cpu.release(second, bytes);
        CHECK(mapped_pages() - before < mapped_beyond);
    }
}
