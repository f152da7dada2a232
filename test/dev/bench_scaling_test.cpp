// dev/results/bench_scaling.py and scripts/scaling_table.sh: tables and files from logs of several ranks, and that old
// results are kept.
#include <filesystem>
#include "llmc/base/file.h"  // read_file, write_file_atomically
#include "test/processes.h"  // free_port
#include "test/testing.h"

namespace {

// A program that logs what a run would: steps of 90 / ranks + 10 ms after two slow ones, the last one of a round an
// outlier. It checks that it is called as train_gpt would have to be.
const char* const kFake = R"(
import json, os, sys
flags = dict(word[2:].split("=", 1) for word in sys.argv[1:])
ranks, rank = int(flags.get("world-size", 1)), int(flags.get("rank", 0))
assert (flags["launcher"] == "none") == (ranks == 1) if "launcher" in flags else flags["master"].startswith("127.0.0.1:")
assert flags["total-batch-size"] == "768" and 768 % (int(flags["batch-size"]) * int(flags["seq-len"]) * ranks) == 0
assert flags["steps"] == "6" and flags["device"] in ("cpu", "cuda")
assert (flags.get("threads"), flags.get("dtype")) == (("1", "fp32") if flags["device"] == "cpu" else (None, None))
assert os.path.getsize(flags["train-data"].replace("*", "000000")) > 1024 + 2 * 768
if ranks == 4 and os.environ.get("FAIL"):
    print("out of luck")
    sys.exit(3 if rank == 2 else 0)
if rank > 0:
    sys.exit(0)
os.mkdir(flags["out-dir"])
with open(flags["out-dir"] + "/log.jsonl", "w") as log:
    log.write('{"type":"start"}\n')
    for step in range(1, 7):
        ms = 90 / ranks + 10 if 2 < step < 6 else 1000
        ms /= 10 if flags["device"] == "cuda" else 1
        line = {"type": "step", "step": step, "ms": ms}
        if ranks > 1:
            line.update(comm_ms=4 * ranks, comm_exposed_ms=3 * ranks, comm_predicted_ms=2 * ranks)
        log.write(json.dumps(line) + "\n")
)";

struct Bench {
    ScratchFolder folder;
    std::string page = folder / "page.md";

    Bench() {
        write_file_atomically(page, read_file("doc/performance.md"));
        write_file_atomically(folder / "fake.py", kFake);
    }
    Finished run_with(const std::string& flags, const std::string& variables = "") const {
        return run(variables + " python3 -B dev/results/bench_scaling.py --device cpu --page " + page + " --results " +
                   folder.path + " " + flags);
    }
    std::string fake() const {
        return "--program 'python3 " + folder / "fake.py" + "' --models small --steps 6 --warm-up 2 --rounds 2 ";
    }
    std::string line(const std::string& part) const {
        const std::string text = read_file(page);
        const size_t at = text.find(part);
        if (at == std::string::npos) return "";
        const size_t begin = text.rfind('\n', at) + 1;
        return text.substr(begin, text.find('\n', at) - begin);
    }
};

}  // namespace

TEST_CASE("bench_scaling writes speed, efficiency and the time of communication", "[bench_scaling]") {
    const Bench bench;
    const Finished written = bench.run_with(bench.fake() + "--ranks 1,2,4,5 --note 'In a test'");
    INFO(written.out << written.err);
    REQUIRE(written.exit_code == 0);
    // 768 tokens in 100, 55 and 32.5 ms; five ranks cannot share twelve sequences.
    CHECK(contains(bench.line("| 100.00 | 7680"), ", 768 | 1 | 100.00 | 7680 | 1.00 | 100 % |  |  |  |"));
    CHECK(contains(bench.line("| 55.00 | 13964"), "| 2 | 55.00 | 13964 | 1.82 | 91 % | 8.00 | 6.00 | 4.00 |"));
    CHECK(contains(bench.line("| 32.50 | 23631"), " | 32.50 | 23631 | 3.08 | 77 % | 16.00 | 12.00 | 8.00 |"));
    CHECK(contains(bench.line("Medians of 8 "), "Medians of 8 steps or more; meanwhile others used "));
    CHECK(contains(bench.line("Medians of 8 "), " In a test."));
    CHECK_FALSE(contains(read_file(bench.page), ", 768 | 5"));
    const std::string csv = read_file(bench.folder / "scaling-cpu.csv");
    CHECK(std::count(csv.begin(), csv.end(), '\n') == 4);
    CHECK(csv.starts_with("machine,date,model,tokens_a_step,ranks,hosts,device,"));
    CHECK(contains(csv, ",768,2,1,cpu,8,55.0000,13963.6,0.9091,8.0000,6.0000,4.0000,"));

    // The text around the tables stays, and writing again changes nothing.
    const std::string once = read_file(bench.page);
    CHECK(contains(once, "## How it is measured"));
    CHECK(contains(once, "<!-- end of scaling -->\n"));
    CHECK(bench.run_with("--check").exit_code == 0);
    CHECK(bench.run_with("--page-only").exit_code == 0);
    CHECK(read_file(bench.page) == once);
    std::string edited = once;
    edited.replace(edited.find("| 1.82 |"), 8, "| 1.99 |");
    write_file_atomically(bench.page, edited);
    CHECK(bench.run_with("--check").exit_code == 1);
    CHECK(bench.run_with("--page-only").exit_code == 0);
    CHECK(read_file(bench.page) == once);
}

TEST_CASE("bench_scaling has a row for two hosts and one for a GPU", "[bench_scaling][plain]") {
    const Bench bench;
    const std::string hosts = bench.fake() + "--ranks 1 --master 127.0.0.1:29500 ";
    write_file_atomically(bench.folder / "nvidia-smi", "#!/bin/sh\necho 'GPU 0: Some Card (UUID: GPU-1)'\n");
    std::filesystem::permissions(bench.folder / "nvidia-smi", std::filesystem::perms::owner_all);
    const std::string with_gpu = "PATH=" + bench.folder.path + ":$PATH";
    const Finished first = bench.run_with(hosts + "--gpu", with_gpu);
    INFO(first.out << first.err);
    REQUIRE(first.exit_code == 0);
    CHECK(
        contains(bench.line("| 2 on 2 hosts |"), ", 768 | 2 on 2 hosts | 55.00 | 13964 | 1.82 | 91 % | 8.00 | 6.00 |"));
    // A GPU is no process more: it has a speed, and no efficiency.
    CHECK(contains(bench.line(", GPU |"), ", 768 | 1, GPU | 10.00 | 76800 | 10.00 |  |  |  |  |"));
    CHECK(contains(bench.line("; GPU Some Card, "), " cores, one thread per rank; GPU Some Card, "));
    CHECK(bench.run_with("--check").exit_code == 0);
    // The other host takes part, as often, and has no table.
    const std::string page = read_file(bench.page);
    const Finished second = bench.run_with(hosts + "--rank 1 --gpu", with_gpu);
    CHECK(second.exit_code == 0);
    CHECK(contains(second.out, "round 2, 2 ranks on 2 hosts: took part"));
    CHECK_FALSE(contains(second.out, "round 1, 1 rank:"));
    CHECK_FALSE(contains(second.out, "| ranks |"));
    CHECK(read_file(bench.page) == page);
    CHECK(bench.run_with(bench.fake() + "--rank 1").exit_code == 2);
    CHECK(bench.run_with(hosts + "--rank 2").exit_code == 2);
}

TEST_CASE("scaling_table fills its table by runs of the trainer, those of two hosts too", "[bench_scaling][plain]") {
    const std::string train = program("train_gpt");
    const std::string ours = "ANVIL_PROGRAMS=" + train.substr(0, train.size() - std::string("train_gpt").size());
    const std::string command = " timeout 120 scripts/scaling_table.sh --smoke --master 127.0.0.1:";
    const std::string master = std::to_string(free_port());
    const ScratchFolder scratch;
    const Finished ended =
        run(ours + " ANVIL_HOST=beta" + command + master + " --rank 1 >" + scratch / "beta" + " 2>&1 & " + ours +
            " ANVIL_HOST=alpha" + command + master + "; code=$?; wait $! && exit $code");
    INFO(ended.out << ended.err << read_file(scratch / "beta"));
    REQUIRE(ended.exit_code == 0);
    for (const char* row : {"| tiny, T 16, 64 | 1 | ", "| tiny, T 16, 64 | 2 | ", "| tiny, T 16, 64 | 2 on 2 hosts | "})
        CHECK(contains(ended.out, row));
    CHECK(run("ANVIL_PROGRAMS=/nowhere/ scripts/scaling_table.sh").exit_code == 2);
    CHECK(contains(run("scripts/scaling_table.sh --help").out, "scripts/scaling_table.sh --smoke"));
}

TEST_CASE("bench_scaling says which rank failed, and changes nothing then", "[bench_scaling]") {
    const Bench bench;
    const std::string before = read_file(bench.page);
    const Finished failed = bench.run_with(bench.fake() + "--ranks 1,4", "FAIL=1");
    CHECK(failed.exit_code == 1);
    CHECK(contains(failed.err, "4 ranks: rank 2 ended with exit code 3"));
    CHECK(contains(failed.err, "out of luck"));
    CHECK(read_file(bench.page) == before);
    CHECK(bench.run_with("--ranks two").exit_code == 2);
    CHECK(bench.run_with("--steps 5 --warm-up 5").exit_code == 2);
}

TEST_CASE("bench_scaling runs the trainer", "[bench_scaling]") {
    const Bench bench;
    const Finished ran = bench.run_with("--program " + program("train_gpt") +
                                        " --models tiny --ranks 1,2 --steps 4 --warm-up 1 --rounds 1 --limit 60");
    INFO(ran.out << ran.err);
    REQUIRE(ran.exit_code == 0);
    CHECK(contains(bench.line("tiny, T 16, 64 | 1"), "| 100 % |  |  |  |"));
    CHECK(contains(bench.line("tiny, T 16, 64 | 2"), " % | "));
}

TEST_CASE("doc/performance.md shows the scaling that was measured", "[bench_scaling]") {
    const Finished checked = run("python3 -B dev/results/bench_scaling.py --check");
    INFO(checked.err);
    CHECK(checked.exit_code == 0);
}
