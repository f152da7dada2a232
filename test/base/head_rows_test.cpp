// The number of rows in a chunk of logits, on the CPU and for GPUs of several sizes.
#include "llmc/base/head_rows.h"
#include "llmc/run/memory_plan.h"  // plan_head_rows
#include "test/testing.h"

constexpr size_t kGiB = size_t(1) << 30;

TEST_CASE("head_rows: the CPU's are of 64 MiB in fp32", "[head_rows]") {
    CHECK(cpu_head_rows(1 << 20, 50304) == 320);
    CHECK(cpu_head_rows(1 << 20, 32768) == 512);
    CHECK(cpu_head_rows(1 << 20, 128) == 131072);
    CHECK(cpu_head_rows(1 << 20, 300000) == 64);
    CHECK(cpu_head_rows(100, 50304) == 100);
}

TEST_CASE("head_rows: a GPU's are as many as suit its memory, and never few", "[head_rows]") {
    // 2^30 logits are 21345 rows of GPT-2: two even chunks.
    CHECK(gpu_head_rows(32768, 50304, 2, 141 * kGiB) == 16384);
    CHECK(gpu_head_rows(16384, 50304, 2, 141 * kGiB) == 16384);
    CHECK(gpu_head_rows(16384, 50304, 2, 24 * kGiB) == 8192);
    CHECK(gpu_head_rows(16384, 50304, 4, 24 * kGiB) == 8192);
    CHECK(gpu_head_rows(16384, 151936, 2, 141 * kGiB) == 8192);
    CHECK(gpu_head_rows(32768, 65, 2, 24 * kGiB) == 32768);
    CHECK(gpu_head_rows(20000, 50304, 2, 24 * kGiB) == 6720);  // three even chunks of at most 8192
    CHECK(gpu_head_rows(100, 50304, 2, 24 * kGiB) == 100);
}

TEST_CASE("head_rows: what the environment says is taken", "[head_rows]") {
    const auto rows = [](const char* text) {
        setenv("ANVIL_HEAD_ROWS", text, 1);
        struct Unset {
            ~Unset() { unsetenv("ANVIL_HEAD_ROWS"); }
        } unset;
        return std::pair(cpu_head_rows(32768, 50304), gpu_head_rows(32768, 50304, 2, 141 * kGiB));
    };
    using Both = std::pair<int64_t, int64_t>;
    CHECK(rows("320") == Both(320, 320));
    CHECK(rows("65536") == Both(32768, 32768));
    CHECK(rows("") == Both(320, 16384));
    for (const char* bad : {"0", "-64", "100", "8192 rows", "many"})
        CHECK(contains(error_of([&] { rows(bad); }), std::string("2: ANVIL_HEAD_ROWS=") + bad + ": expected"));
}

TEST_CASE("head_rows: chunks are even, and of whole tiles", "[head_rows]") {
    for (const int64_t N : {1, 63, 64, 65, 1000, 8192, 8193, 20000})
        for (const int64_t most : {64, 320, 8192}) {
            const int64_t rows = even_head_rows(N, most), chunks = (N + rows - 1) / rows;
            INFO(N << " rows, at most " << most << ": " << rows);
            CHECK(rows <= most);
            CHECK(rows % 64 == 0);
            CHECK(chunks <= (N + most - 1) / most);
            CHECK(even_head_rows(N, rows) == rows);
        }
}

TEST_CASE("head_rows: they are halved until the memory is enough", "[head_rows]") {
    const auto chosen = [](int64_t most, int64_t least, size_t available) {
        const HeadPlan plan = plan_head_rows(most, least, available, [](int64_t rows) {
            return MemoryPlan{{{"logits", "", size_t(rows)}, {"rest", "", 1000}}};
        });
        CHECK(plan.memory.lines[0].bytes == size_t(plan.head_rows));
        return plan.head_rows;
    };
    CHECK(chosen(8192, 64, 9192) == 8192);
    CHECK(chosen(8192, 64, 9191) == 4096);
    CHECK(chosen(8192, 64, 1500) == 256);
    CHECK(chosen(8192, 64, 10) == 64);
    CHECK(chosen(8192, 4096, 10) == 4096);
    CHECK(chosen(6720, 64, 5000) == 3328);  // whole tiles
    CHECK(chosen(20, 20, 10) == 20);
    setenv("ANVIL_HEAD_ROWS", "8192", 1);
    CHECK(chosen(8192, 64, 10) == 8192);
    unsetenv("ANVIL_HEAD_ROWS");
}
