// dev/results/perf_table.py: the measurements of a GPU run become a table, and nothing else does.
#include "llmc/base/file.h"      // read_file, write_file_atomically
#include "test/dev/predicted.h"  // predicted_rate
#include "test/testing.h"

namespace {

std::string bench_row(const std::string& what, const std::string& bound, double median_ms, const std::string& more) {
    return format(R"({"type": "bench", "op": "x", "what": "%s", "shape": "124M", "device": "NVIDIA H100", )"
                  R"("dtype": "bf16", "bound": "%s", "runs": 50, "median_ms": %g, "min_ms": %g, "p90_ms": %g, )"
                  R"("bytes": 4e9, "flops": 8e11, "peak": %s%s})",
                  what.c_str(), bound.c_str(), median_ms, median_ms - 0.1, median_ms + 0.1,
                  bound == "memory" ? "4e12" : "8e14", more.c_str()) +
           "\n";
}

const std::string kMachine = R"({"GPU": "NVIDIA H100", "driver": "580.1"})";

// A folder of results and a page to write them into.
struct Results {
    ScratchFolder folder;
    std::string page = folder / "page.md";

    explicit Results(const std::string& rows) {
        write_file_atomically(folder / "machine.json", kMachine);
        write_file_atomically(folder / "results.jsonl", rows);
        write_file_atomically(page, read_file("doc/performance.md"));
    }
    Finished table(const std::string& flags = "") const {
        return run("python3 -B dev/results/perf_table.py " + folder.path + " --page " + page + " " + flags);
    }
    // After writing it: the line of the table that begins so.
    std::string line(const std::string& begin) const {
        const std::string text = read_file(page);
        const size_t at = text.find("| " + begin);
        return at == std::string::npos ? "" : text.substr(at, text.find('\n', at) - at);
    }
};

}  // namespace

TEST_CASE("perf_table writes rates, percentages and goals, met and missed", "[perf_table]") {
    const Results results(
        bench_row("gelu_forward", "memory", 1.25, R"(, "percent": 80, "rival": "copy", "rival_ms": 1)") +
        bench_row("layernorm_backward", "memory", 1.25, R"(, "percent": 80)") +
        bench_row("matmul_forward, a model", "compute", 1, R"(, "percent": 88)") +
        bench_row("attention_forward", "compute", 2, R"(, "percent": 50, "rival": "cuDNN", "rival_ms": 1.25)") +
        bench_row("attention_backward", "compute", 2, R"(, "percent": 50, "rival": "cuDNN", "rival_ms": 1.5)") +
        bench_row("cudnn_attention_backward", "compute", 2, R"(, "percent": 50, "rival": "other", "rival_ms": 1)") +
        bench_row("attention_forward (window)", "compute", 2, R"(, "percent": 50)") +
        bench_row("launch, short kernels", "memory", 0.12345,
                  R"(, "op": "launches", "percent": 80, "rival": "one launch", "rival_ms": 0.1)"));
    write_file_atomically(
        results.folder / "results.jsonl",
        read_file(results.folder / "results.jsonl") +
            R"({"type": "train", "run": "124M", "what": "GPT-2 124M", "attention": "own", "batch": "32 x 16",)"
            R"( "tokens_per_second": 561234.5, "step_ms": 934.1, "mfu_percent": 60.25})"
            "\n"
            R"({"type": "train", "run": "124M", "what": "GPT-2 124M, B 8", "attention": "cudnn", "batch": "8 x 2",)"
            R"( "tokens_per_second": 1, "step_ms": 1})"
            "\n"
            R"({"type": "comm", "what": "all-reduce", "device": "NVIDIA H100", "how": "NCCL 2", "ranks": 8, )"
            R"("hosts": 1, "buffer": 4096, "calls": 9, "us": 30.25, "bus_gb_per_s": 0.238})"
            "\n"
            R"({"type": "check", "part": "first", "check": "doctor", "result": "FAILED", "note": "a | b", "seconds": 1})"
            "\n");
    write_file_atomically(results.folder / "notes.json", R"({"GPT-2 124M, B 32, own attention": "a cooler card"})");
    CHECK(results.table("--check").exit_code == 1);
    const Finished written = results.table();
    INFO(written.err);
    REQUIRE(written.exit_code == 0);
    CHECK(results.table("--check").exit_code == 0);

    CHECK(results.line("GPU | N") == "| GPU | NVIDIA H100 |");
    CHECK(results.line("gelu_forward") ==
          "| gelu_forward, 124M, bf16 | 1250.0 | 1150.0 to 1350.0 | 3200 GB/s | 80 % | "
          "copy 1000.0 us (1.25 x) | 85 %: **missed** |");
    CHECK(contains(results.line("layernorm_backward"), "| 80 % |  | 75 %: met |"));
    CHECK(contains(results.line("matmul_forward, a model"), "| 800.0 TFLOP/s | 88 % |  | 88 %: met |"));
    CHECK(contains(results.line("attention_forward,"), "(1.60 x) | 1.5 x cuDNN: **missed** |"));
    CHECK(contains(results.line("attention_backward,"), "(1.33 x) | 1.5 x cuDNN: met |"));
    CHECK(contains(results.line("cudnn_attention_backward,"), "| other 1000.0 us (2.00 x) |  |"));
    CHECK(contains(results.line("attention_forward (window)"), "| 50 % |  |  |"));
    // What a launch costs is no rate, and has no goal.
    CHECK(results.line("launch, short kernels, 124M") ==
          "| launch, short kernels, 124M, bf16 | 123.45 | 23.45 to 223.45 |  |  | one launch 100.0 us (1.23 x) |  |");
    CHECK(results.line("GPT-2 124M |") == "| GPT-2 124M | own | 561234 | 934.10 | 60.2 % |");
    CHECK(results.line("all-reduce") == "| all-reduce, 8 ranks | 4 | 30.2 | 0.238 |");
    CHECK(results.line("doctor") == "| doctor | **FAILED** | a \\| b |");
    // Row by row with the prediction and the reason for the deviation; rows without a measurement are marked.
    const std::string own = "GPT-2 124M, B 32, own attention", cudnn = "GPT-2 124M, B 32, cuDNN";
    CHECK(results.line(own) == "| " + own + " | " + predicted_rate(own) + " | 561234 tok/s | " +
                                   beside_predicted(own, "mid", 561234.5) + " | a cooler card |");
    // Another batch is no measurement of what was predicted.
    CHECK(results.line(cudnn) == "| " + cudnn + " | " + predicted_rate(cudnn) + " | not measured |  |  |");
    CHECK(contains(read_file(results.page), "4000 GB/s copied, 800 TFLOP/s in bf16"));
    // The text around the table stays, and writing again changes nothing.
    CHECK(contains(read_file(results.page), "## How it is measured"));
    CHECK(contains(read_file(results.page), "<!-- end of results -->\n"));
    const std::string once = read_file(results.page);
    CHECK(results.table().exit_code == 0);
    CHECK(read_file(results.page) == once);
}

TEST_CASE("perf_table: of a benchmark that ran twice the later row counts", "[perf_table]") {
    const Results results(bench_row("gelu_forward", "memory", 5, R"(, "percent": 20)") +
                          bench_row("gelu_forward", "memory", 2, R"(, "percent": 50)"));
    REQUIRE(results.table().exit_code == 0);
    CHECK(contains(results.line("gelu_forward"), "| 2000.0 |"));
}

TEST_CASE("perf_table takes a folder for each call, the later one where both have a row", "[perf_table]") {
    const Results results("");
    REQUIRE(run("rm " + results.folder / "machine.json" + " " + results.folder / "results.jsonl").exit_code == 0);
    for (const auto& [call, ms] : {std::pair<const char*, double>{"third", 2}, {"first", 5}}) {
        REQUIRE(run("mkdir " + results.folder / call).exit_code == 0);
        write_file_atomically(results.folder / call + "/machine.json", kMachine);
        write_file_atomically(results.folder / call + "/results.jsonl",
                              bench_row("gelu_forward", "memory", ms, R"(, "percent": 50)"));
    }
    REQUIRE(results.table().exit_code == 0);
    CHECK(contains(results.line("gelu_forward"), "| 2000.0 |"));
}

TEST_CASE("perf_table refuses what is no measurement", "[perf_table]") {
    const std::string good = bench_row("gelu_forward", "memory", 2, R"(, "percent": 50)");
    const auto replaced = [&](const std::string& from, const std::string& to) {
        std::string row = good;
        const size_t at = row.find(from);
        REQUIRE(at != std::string::npos);
        return row.replace(at, from.size(), to);
    };
    const std::pair<std::string, const char*> cases[] = {
        {replaced("50}", "NaN}"), "percent: expected a number above zero"},
        {replaced("\"median_ms\": 2", "\"median_ms\": 0"), "median_ms: expected a number above zero"},
        {replaced("\"median_ms\": 2", "\"median_ms\": 3"), "min_ms <= median_ms <= p90_ms"},
        {replaced("\"op\": \"x\"", "\"op\": \"\""), "op: expected text"},
        {replaced("\"bound\": \"memory\"", "\"bound\": \"disk\""), "expected memory or compute"},
        {replaced("50}", "50, \"rival\": \"copy\"}"), "both or none of rival"},
        {replaced("50}", "50, \"smoke\": true}"), "--smoke run are no measurements"},
        {good.substr(0, good.size() / 2), "not a line of JSON"},
        {"[]\n", "expected an object"},
        {"{\"type\": \"other\"}\n", "whose type is one of bench"},
    };
    for (const auto& [rows, message] : cases) {
        INFO(rows);
        const Results results(rows);
        const std::string before = read_file(results.page);
        const Finished refused = results.table();
        CHECK(refused.exit_code == 1);
        CHECK(contains(refused.err, message));
        CHECK(read_file(results.page) == before);
    }
    const Results no_machine(good);
    REQUIRE(run("rm " + no_machine.folder / "machine.json").exit_code == 0);
    CHECK(contains(no_machine.table().err, "machine.json"));
    const Results no_markers(good);
    write_file_atomically(no_markers.page, "text\n");
    CHECK(contains(no_markers.table().err, "end of results"));
}
