/*
The measurements and output of `bench-comm`, between virtual ranks, and as a program with each kind of rank.
*/
#include "llmc/comm/bench_comm.h"
#include <algorithm>
#include <cstdlib>
#include "llmc/comm/local.h"  // LocalGroup, LocalRanks, LocalComm
#include "test/processes.h"   // mpirun, has_mpi, free_port
#include "test/testing.h"

namespace {

const std::string kFlags = " bench-comm --mib 1 --device cpu --threads 1 --comm-timeout 100";

// One table of 1 KB to 1 MB, each number above zero, under a line that ends with `how`.
void check_table(const Finished& ended, const std::string& how) {
    INFO(ended.out << ended.err);
    REQUIRE(ended.exit_code == 0);
    CHECK(contains(ended.out, how + "\n\n| collective |"));
    size_t rows = 0;
    for (const char* what : {"all-reduce", "reduce-scatter", "all-to-all", "all-gather"})
        for (const char* size : {"1", "4", "16", "64", "256", "1024"}) {
            const std::string begin = format("\n| %s | %s | ", what, size);
            const size_t at = ended.out.find(begin);
            REQUIRE(at != std::string::npos);
            CHECK(ended.out.find(begin, at + 1) == std::string::npos);
            CHECK(std::atof(ended.out.c_str() + at + begin.size()) > 0);
            rows++;
        }
    CHECK(std::count(ended.out.begin() + long(ended.out.find("| collective")), ended.out.end(), '\n') ==
          long(rows) + 2);
}

}  // namespace

TEST_CASE("bandwidths are as NCCL's tests define them", "[bench_comm]") {
    const CommTiming timing = {"all-reduce", 4000, 3, 1e-6, 1.5};
    CHECK(timing.bandwidth() == Approx(4e9));
    CHECK(timing.bus_bandwidth() == Approx(6e9));
    CHECK(CommTiming{}.bus_bandwidth() == 0);
    CHECK(comm_table({{"all-gather", 4096, 3, 2e-6, 0.5}}) ==
          "| collective | KB | us | algorithm GB/s | bus GB/s |\n|---|---:|---:|---:|---:|\n"
          "| all-gather | 4 | 2.0 | 2.048 | 1.024 |\n");
    CHECK(comm_csv({{"all-gather", 4096, 3, 2e-6, 0.5}}) ==
          "collective,bytes,calls,us,algorithm_bytes_per_s,bus_bytes_per_s\n"
          "all-gather,4096,3,2.000,2.048e+09,1.024e+09\n");
    CHECK(
        comm_rows({{"all-gather", 4096, 3, 2e-6, 0.5}, {"all-reduce", 4096, 3, 4e-6, 1}}, "H100", "NCCL 2, 2 ranks", 2,
                  1) ==
        R"({"type": "comm", "what": "all-gather", "device": "H100", "how": "NCCL 2, 2 ranks", "ranks": 2, "hosts": 1, )"
        R"("buffer": 4096, "calls": 3, "us": 2, "bus_gb_per_s": 1.024})"
        "\n"
        R"({"type": "comm", "what": "all-reduce", "device": "H100", "how": "NCCL 2, 2 ranks", "ranks": 2, "hosts": 1, )"
        R"("buffer": 4096, "calls": 3, "us": 4, "bus_gb_per_s": 1.024})"
        "\n");
}

TEST_CASE("collectives are timed on all ranks alike", "[bench_comm]") {
    LocalGroup group(3);
    std::vector<std::string> tables(3);
    group.run([&](int rank) {
        Cpu cpu(1);
        LocalRanks ranks(group, rank);
        LocalComm<Cpu> comm(group, rank, cpu);
        const std::vector<CommTiming> timings = time_collectives<Cpu>(comm, cpu, ranks, 20'000, 0);
        REQUIRE(timings.size() == 12);  // 1, 4 and 16 KB
        const char* const names[] = {"all-reduce", "reduce-scatter", "all-to-all", "all-gather"};
        const double shares[] = {4. / 3, 2. / 3, 2. / 3, 2. / 3};
        for (size_t i = 0; i < timings.size(); i++) {
            CHECK(timings[i].what == std::string(names[i % 4]));
            CHECK(timings[i].bytes == (size_t(1024) << (2 * (i / 4))) / 12 * 12);  // whole floats on each rank
            CHECK(timings[i].ring_share == Approx(shares[i % 4]));
            CHECK(timings[i].seconds > 0);
            CHECK(timings[i].calls == 3);
        }
        tables[size_t(rank)] = comm_table(timings);
        CHECK(measure_bandwidth<Cpu>(comm, cpu, ranks) > 0);
        CHECK(contains(bench_comm<Cpu>(comm, cpu, ranks, 1024), "3 virtual ranks\n\n| collective |"));
    });
    CHECK(std::count(tables[0].begin(), tables[0].end(), '\n') == 14);
    CHECK(tables[1] == tables[0]);
    CHECK(tables[2] == tables[0]);
}

TEST_CASE("one rank has nothing to measure", "[bench_comm]") {
    Cpu cpu(1);
    OneRank ranks;
    NoComm<Cpu> comm(cpu);
    CHECK(measure_bandwidth<Cpu>(comm, cpu, ranks) == 0);
}

TEST_CASE("bench-comm with virtual ranks, and with ranks over TCP", "[bench_comm]") {
    const ScratchFolder rows;
    check_table(run(program("train_gpt") + kFlags + " --virtual-ranks 2 --json " + (rows / "json")),
                "\n2 virtual ranks");
    const std::string json = read_file(rows / "json");
    CHECK(std::count(json.begin(), json.end(), '\n') == 24);
    CHECK(contains(json, R"("device": "cpu", "how": "2 virtual ranks", "ranks": 2, "hosts": 1, "buffer": 1024, )"));
    const Finished denied = run(program("train_gpt") + kFlags + " --virtual-ranks 2 --json " + rows.path);
    CHECK(denied.exit_code == 2);
    CHECK(contains(denied.err, "--json " + rows.path + ": cannot be written: "));
    const std::string master = " --world-size 2 --master 127.0.0.1:" + std::to_string(free_port());
    const auto rank = [&](int r) { return program("train_gpt") + kFlags + master + " --rank " + std::to_string(r); };
    const ScratchFolder scratch;
    const std::string other = scratch / "other";
    check_table(run(rank(1) + " >" + other + " & " + rank(0) + "; status=$?; wait; exit $status"),
                "\nshared memory, 2 ranks");
    CHECK(read_file(other).empty());
}

TEST_CASE("bench-comm under mpirun", "[bench_comm][mpi]") {
    if (!has_mpi()) return;
    check_table(mpirun(3, program("train_gpt") + kFlags), "\nshared memory, 3 ranks");
}

TEST_CASE("bench-comm of ranks that would not do the same, or of one", "[bench_comm]") {
    const Finished alone = run(program("train_gpt") + kFlags);
    CHECK(alone.exit_code == 2);
    CHECK(contains(alone.err, "--virtual-ranks"));
    const std::string master = " --world-size 2 --master 127.0.0.1:" + std::to_string(free_port());
    const std::string both = program("train_gpt") + " bench-comm --device cpu --comm-timeout 100" + master;
    const Finished unlike =
        run(both + " --rank 1 --mib 2 2>&1 & " + both + " --rank 0 --mib 1; status=$?; wait; exit $status");
    CHECK(unlike.exit_code == 2);
    CHECK(contains(unlike.out + unlike.err, "--mib"));
}
