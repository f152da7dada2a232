// scripts/gpu_check.sh without a GPU: that it says so, and, with everything it calls replaced, what it does on one.
#include <filesystem>
#include "llmc/base/file.h"  // read_file, write_file_atomically
#include "test/testing.h"

namespace {

// A repository whose programs are shell scripts, and a machine whose tools are.
struct FakeMachine {
    ScratchFolder folder;

    explicit FakeMachine(bool has_gpu = true) {
        for (const char* name : {"bin", "scripts", "test", "dev/bench", "build/cuda/bench"})
            std::filesystem::create_directories(folder / name);
        for (const char* name : {"scripts/gpu_check.sh", "scripts/perf_table.py"})
            std::filesystem::copy(name, folder / name);
        for (const char* name :
             {"dev/bench/gelu.cu", "dev/bench/matmul.cu", "test/gelu_cuda_test.cu", "test/emulator_cuda_test.cu"})
            write_file_atomically(folder / name, "");
        write_file_atomically(folder / "Makefile",
                              "%: FORCE\n\t@test -z '$(findstring $(BROKEN),$@)'\nMakefile FORCE: ;\n");
        script("bin/nvidia-smi", has_gpu ? R"(case $* in
            *=name,*) echo 'NVIDIA H200, 580.1, 143771 MiB, 1980 MHz, 3201 MHz, 700.00 W' ;;
            *=name*) echo 'NVIDIA H200' ;;
            *-lms*) echo '1755, 3201, 601.5'; sleep 60 ;;
            *memory.total*) echo 143771 ;;
            *compute_cap*) echo "${COMPUTE_CAP:-9.0}" ;;
            esac)"
                                         : "exit 9");
        script("bin/nvcc", "echo 'release 13.0, V13'");
        script("bin/compute-sanitizer",
               "echo \"$2\" >>sanitized; [ $3$4 = --error-exitcode9 ] || exit; \n"
               "[ $2 = racecheck ] || shift 2; shift 6; \"$@\"");
        script("build/cuda/gpu-tests",
               "if [ $1 = --list-tests ]; then [ \"$2\" = '[gelu][gpu]' ] || echo '0 matching test cases'; exit 0; fi\n"
               "echo \"$*\" >>tested; echo \"3 passed, ${FAILURES:-0} failed\"; exit ${FAILURES:-0}");
        for (const std::string op : {"gelu", "matmul"})
            script("build/cuda/bench/" + op,
                   "[ $1 = --json ] || shift 2\n"
                   "echo '{\"type\": \"bench\", \"op\": \"" +
                       op +
                       "\", \"what\": \"w\", \"shape\": \"s\", \"device\": \"d\", \"dtype\": \"bf16\", \"bound\": "
                       "\"compute\", \"runs\": 5, \"median_ms\": 1, \"min_ms\": 1, \"p90_ms\": 1, \"bytes\": 1, "
                       "\"flops\": 1, \"peak\": 8e+14, \"percent\": '${PERCENT:-1}'}' >>$2\nexit ${BENCH_STATUS:-0}");
        script("train_gpt", R"(
            [ "$1" != --help ] || { echo '  --attention auto|own|cudnn   which'; exit; }
            echo "$*" >>trained
            while [ $# -gt 0 ]; do [ "$1" != --out-dir ] || out=$2; shift; done
            mkdir -p "$out"
            for i in $(seq 20); do
                # Ten slow steps, which do not count, then 500000 tokens a second.
                echo "{\"type\":\"step\",\"loss\":$((11 - i / ${SLOWNESS:-4})),\"ms\":1000,\"tokens_per_s\":$((i > 10 ? 500000 : 7))}"
            done >"$out/log.jsonl"
            echo 'model: 124.48M parameters, 800.0 MFLOP a token')");
    }

    void script(const std::string& name, const std::string& text) {
        write_file_atomically(folder / name, "#!/bin/sh\n" + text + "\n");
        std::filesystem::permissions(folder / name, std::filesystem::perms::owner_all);
    }
    Finished check(const std::string& parts, const std::string& environment = "") const {
        return run("env PATH=" + folder / "bin:$PATH" + " OUT=" + folder / "out" + " " + environment + " " +
                   folder / "scripts/gpu_check.sh " + parts);
    }
    std::string read(const std::string& name) const {
        return std::filesystem::exists(folder / name) ? read_file(folder / name) : "";
    }
};

int count(const std::string& text, const std::string& part) {
    int found = 0;
    for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) found++;
    return found;
}

}  // namespace

TEST_CASE("gpu_check without a GPU says of each part that it was not run", "[gpu_check]") {
    const FakeMachine machine(false);
    const Finished finished = machine.check("");
    INFO(finished.out << finished.err);
    CHECK(finished.exit_code == 0);
    for (const char* part : {"conformance", "test", "comm", "sanitize", "bench", "train", "modern"})
        CHECK(contains(machine.read("out/summary.txt"), std::string(part) + ": not run: no GPU here"));
    CHECK(contains(machine.read("out/summary.txt"), "s  ok\n"));  // build
    CHECK(machine.read("tested") == "");
    CHECK_FALSE(std::filesystem::exists(machine.folder / "out/machine.json"));
    CHECK(machine.check("build", "BROKEN=bench/gelu").exit_code == 1);
    const Finished wrong = machine.check("tests");
    CHECK(wrong.exit_code == 2);
    CHECK(contains(wrong.err, "expected some of build conformance"));
}

TEST_CASE("gpu_check runs all parts and leaves what perf_table reads", "[gpu_check]") {
    const FakeMachine machine;
    const Finished finished = machine.check("all");
    INFO(finished.out << finished.err);
    CHECK(finished.exit_code == 0);
    CHECK(count(machine.read("out/summary.txt"), "s  ok\n") == 8);
    CHECK(machine.read("tested") ==
          "[conformance]\n[gpu]\n[sum_ranks][gpu],[local_comm][gpu],[nccl_comm][gpu]\n[gelu][gpu]\n[gelu][gpu]\n");
    CHECK(machine.read("sanitized") == "memcheck\nracecheck\n");
    CHECK(count(machine.read("out/bench.jsonl"), "\n") == 2);
    CHECK(contains(machine.read("out/machine.json"), "\"CUDA\": \"13.0\""));
    CHECK(contains(machine.read("out/machine.json"), "SM 1755 MHz, memory 3201 MHz, 602 W"));
    CHECK(count(machine.read("trained"), "--batch-size 64 --total-batch-size 524288") == 3);
    CHECK(contains(machine.read("trained"), "--depth 12 --vocab-size 32768 --batch-size auto"));
    CHECK(contains(machine.read("out/train.jsonl"), "nanochat d12, T 2048, SSSL, B auto, bf16, 20 steps"));
    CHECK(contains(machine.read("out/train.jsonl"), "nanochat d12, T 2048, SSSL, B auto, fp8, 20 steps"));
    CHECK(count(machine.read("trained"), "--dtype bf16") == 4);
    CHECK(count(machine.read("trained"), "--dtype fp8") == 1);
    CHECK(count(machine.read("trained"), "--attention") == 2);
    CHECK(contains(machine.read("trained"), "--attention cudnn"));
    // 500000 tokens a second at 800 MFLOP each are half of 8e14.
    CHECK(contains(machine.read("out/train.jsonl"), "\"tokens_per_second\": 500000.0"));
    CHECK(contains(machine.read("out/train.jsonl"), "\"mfu_percent\": 50.0"));
    CHECK(contains(finished.out, "500000 tok/s, 1000.0 ms a step, MFU 50.0 %, loss 11.00 to 6.00"));
    int files = 0;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(machine.folder / "out"))
        files += entry.is_regular_file();
    CHECK(files <= 9);
    CHECK(run("cp doc/performance.md " + machine.folder / "page.md" + " && python3 -B scripts/perf_table.py " +
              machine.folder / "out" + " --page " + machine.folder / "page.md")
              .exit_code == 0);
    CHECK(contains(machine.read("page.md"), "| cudnn | 500000 | 1000.00 | 50.0 % |"));
}

TEST_CASE("gpu_check trains without the benchmarks' results", "[gpu_check]") {
    const FakeMachine machine;
    const Finished finished = machine.check("train");
    INFO(finished.out << finished.err);
    CHECK(finished.exit_code == 0);
    CHECK(count(machine.read("out/train.jsonl"), "\"mfu_percent\": 50.0") == 2);
}

TEST_CASE("gpu_check asks no GPU from before Ada for fp8", "[gpu_check]") {
    const FakeMachine machine;
    CHECK(machine.check("modern", "COMPUTE_CAP=8.6").exit_code == 0);
    CHECK(count(machine.read("trained"), "--dtype bf16") == 2);
    CHECK_FALSE(contains(machine.read("trained"), "fp8"));
}

TEST_CASE("gpu_check: a part that fails is told and does not stop the others", "[gpu_check]") {
    const FakeMachine machine;
    const auto summary_after = [&](const std::string& parts, const std::string& environment) {
        const Finished finished = machine.check(parts, environment);
        INFO(finished.out << finished.err);
        CHECK(finished.exit_code == 1);
        return machine.read("out/summary.txt");
    };
    const std::string tests = summary_after("test sanitize bench", "FAILURES=1");
    CHECK(count(tests, "FAILED") == 2);
    CHECK(count(tests, "s  ok\n") == 1);
    CHECK(contains(summary_after("bench", "BENCH_STATUS=1"), "FAILED"));
    CHECK(contains(summary_after("bench", "PERCENT=NaN"), "FAILED"));
    CHECK(contains(summary_after("bench", "BROKEN=bench/gelu"), "FAILED"));
    CHECK(contains(summary_after("conformance", "BROKEN=gpu-tests"), "FAILED"));
    CHECK(contains(summary_after("train", "SLOWNESS=100"), "FAILED"));  // the loss does not fall
}
