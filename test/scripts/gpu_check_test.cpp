/*
scripts/gpu_check.sh without a GPU: its message for that; its behavior with a GPU, with all programs replaced by fakes;
the results of a call that is killed at any moment; and its checks of ranks, with the real trainer on the CPU.
*/
#include <algorithm>
#include <filesystem>
#include <sstream>
#include "test/program.h"
#include "test/dev/predicted.h"  // predicted_rate
#include "test/test_clock.h"     // now_s

namespace {

namespace fs = std::filesystem;

// A repository whose programs are shell scripts, and a machine whose tools are.
struct FakeMachine {
    ScratchFolder folder;

    explicit FakeMachine(bool has_gpu = true) {
        for (const char* name : {"bin", "scripts", "test/cuda", "test/dev", "dev/bench", "dev/results",
                                 "build/cuda/bench", "data", "doc/results"})
            fs::create_directories(folder / name);
        fs::copy("scripts/gpu_check.sh", folder / "scripts/gpu_check.sh");
        for (const char* name : {"dev/results/perf_table.py", "dev/results/pages.py"}) fs::copy(name, folder / name);
        fs::copy("scripts/gpu_check", folder / "scripts/gpu_check", fs::copy_options::recursive);
        for (const std::string gpu : {"h100", "h200"})
            fs::copy("doc/results/predicted-" + gpu + ".json", folder / "doc/results");
        for (const char* name :
             {"dev/bench/gelu.cu", "dev/bench/matmul.cu", "dev/bench/attention.cu", "dev/bench/sustained.cu",
              "dev/bench/cross_entropy.cu", "dev/bench/launches.cu", "test/cuda/gelu_cuda_test.cu",
              "test/cuda/attention_cuda_test.cu", "test/dev/emulator_cuda_test.cu"})
            put_file(folder / name, "");
        put_file(folder / "Makefile",
                 "%: FORCE\n\t@echo $@ >>made; test -z '$(findstring $(BROKEN),$@)'\nMakefile FORCE: ;\n");
        script("bin/nvidia-smi", has_gpu ? R"(case $* in
            *compute-apps*) ;;
            *memory.used*) echo 1000 ;;
            *=name,*) echo "NVIDIA ${GPU:-H100 80GB HBM3}, 580.1, ${MEMORY:-81559}, 1980, 3201, 700.00" ;;
            *=name*) for _ in 1 $TWO_GPUS; do echo "NVIDIA ${GPU:-H100 80GB HBM3}"; done ;;
            *-lms*) echo '1755, 3201, 601.5'; exec sleep 60 ;;
            *memory.total*) echo "${MEMORY:-81559}" ;;
            *compute_cap*) echo "${COMPUTE_CAP:-9.0}" ;;
            esac)"
                                         : "exit 9");
        script("bin/nvcc", "echo 'release 13.0, V13'");
        script("bin/ncu", R"(while [ "${1#-}" != "$1" ]; do case $1 in --csv) shift ;; *) shift 2 ;; esac; done
            "$@" >/dev/null
            echo '"ID","Kernel Name","Metric Name","Metric Unit","Metric Value"'
            for id in 1 2; do
                echo "\"$id\",\"gelu_kernel\",\"gpu__time_duration.sum\",\"us\",\"1,500\""
                echo "\"$id\",\"gelu_kernel\",\"dram__bytes.sum\",\"Gbyte\",\"2\""
            done)");
        script("bin/compute-sanitizer",
               "echo \"$2\" >>sanitized; [ $3$4 = --error-exitcode9 ] || exit; \n"
               "[ $2 = racecheck ] || shift 2; shift 6; \"$@\"");
        script(
            "build/cuda/gpu-tests",
            "if [ $1 = --list-tests ]; then [ \"$2\" != '[emulator][gpu]' ] || echo '0 matching test cases'; exit "
            "0; fi\n"
            "echo \"$*\" >>tested\n"
            "case \" $FAILURES \" in *\" $1 \"*) echo '2 passed, 1 failed'; exit 1 ;; esac; echo '3 passed, 0 failed'");
        for (const std::string op : {"gelu", "matmul", "attention", "cross_entropy", "sustained", "launches"})
            script("build/cuda/bench/" + op,
                   "echo \"" + op + " ${ANVIL_HEAD_ROWS-} ${ANVIL_MATMUL_CACHE+tuned}\" >>benched\n" +
                       "echo '{\"type\": \"bench\", \"op\": \"" + op +
                       "\", \"what\": \"w\", \"shape\": \"s\", \"device\": \"'\"NVIDIA ${GPU:-H100 80GB HBM3}\"'\", "
                       "\"dtype\": \"bf16\", "
                       "\"bound\": "
                       "\"compute\", \"runs\": 5, \"median_ms\": 1, \"min_ms\": 1, \"p90_ms\": 1, \"bytes\": 1, "
                       "\"flops\": 1, \"peak\": 8e+14, \"percent\": '${PERCENT:-1}'}' >>$2\nexit ${BENCH_STATUS:-0}");
        script("data/tokenize", "exit 0");
        script("scripts/quickstart.sh", R"(mkdir -p "$OUT_DIR"; echo "$NO_BUILD $ANVIL_MIRROR" >quick
            printf '%s\n' '{"type":"step","step":1,"loss":4}' '{"type":"step","step":2,"loss":2}' \
                '{"type":"sample","step":2,"text":"'"${SAMPLE-a text}"'"}' >"$OUT_DIR/log.jsonl")");
        // Losses of the 124M model fall as those of the reference do; speeds are 500000 tokens per second after slow
        // first steps.
        script("train_gpt", R"(
            case $1 in
            --help-all) echo '  --attention auto|own|cudnn|mixed   which'; echo "${PROFILE-  --profile FILE   where}"
                echo '  --[no-]deterministic   or'; exit ;;
            doctor) exit ${DOCTOR:-0} ;;
            plan) echo "$*" >>planned
                for flag; do case $flag in --trace=*)
                    echo '{"otherData": {"calibration": {"rows": [{"what": "w", "shape": "s", "predicted_ms": 2,
                        "measured_ms": 3, "calibrated_ms": 3}]}}}' >"${flag#*=}" ;; esac; done; exit ${PLAN:-0} ;;
            esac
            echo "${ANVIL_HEAD_ROWS-} $*" >>trained
            trap 'echo late >>saved' TERM
            steps=20
            for flag; do
                case $flag in
                --out-dir=*) out=${flag#*=} ;;
                --steps=*) steps=${flag#*=} ;;
                --profile=*) echo '{"traceEvents": [{"ph": "M"},
                    {"ph": "X", "name": "step 3", "cat": "phase", "ts": 0, "dur": 3000, "tid": 0},
                    {"ph": "X", "name": "attention_forward", "cat": "op", "ts": 10, "dur": 1000, "tid": 0},
                    {"ph": "X", "name": "part_of_it", "cat": "op", "ts": 20, "dur": 100, "tid": 0}]}' >"${flag#*=}" ;;
                --attention=own) shift_by=${OWN_DIFFERS:-0} ;;
                --dtype=bf16) shift_by=${BF16_DIFFERS:-0} ;;
                esac
            done
            mkdir -p "$out/step_1"
            case $out in *-again) echo "${AGAIN-weights}" ;; *) echo weights ;; esac >"$out/step_1/model.safetensors"
            awk -v steps=$steps -v slow=${SLOWNESS:-4} -v by=${shift_by:-0} 'BEGIN { for (i = 1; i <= steps; i++)
                printf "{\"type\":\"step\",\"step\":%d,\"loss\":%.9g,\"norm\":1,\"ms\":1000,\"tokens_per_s\":%d}\n",
                    i, 11 - i / slow + by, (i > 5 || steps < 5 ? 500000 : 7) }' >"$out/log.jsonl"
            echo 'model: 124.48M parameters, 800.0 MFLOP per token'
            # It would write a checkpoint of 1558M now, and another one if it were asked to end.
            case $* in *gpt2-1558M*) sleep 20; echo late >>saved ;; esac)");
        put_file(folder / "doc/results/cpu-losses-124M.json",
                 R"({"tokens": 300, "tokens_sha256": "SHA", "flags": {"steps": 5}, "losses":
                     {"fp32": [10.75, 10.5, 10.25, 10, 9.75], "bf16": [10.75, 10.5, 10.25, 10, 9.76]}})");
        // The tokens' hash, as gpu_check makes them.
        const Finished sha = run("cd " + folder.path + "/scripts/gpu_check && RUNS=" + folder.path +
                                 " python3 -B -c 'from training import *; "
                                 "print(sha256(tokens_of(GPT2_VOCAB).parent / \"train_000000.bin\"))'");
        must_succeed(sha);
        std::string text = read_file(folder / "doc/results/cpu-losses-124M.json");
        text.replace(text.find("SHA"), 3, sha.out.substr(0, 64));
        put_file(folder / "doc/results/cpu-losses-124M.json", text);
    }

    void script(const std::string& name, const std::string& text) const {
        put_file(folder / name, "#!/bin/sh\n" + text + "\n");
        fs::permissions(folder / name, fs::perms::owner_all);
    }
    std::string command(const std::string& parts, const std::string& environment = "") const {
        return "env -u ANVIL_MATMUL_CACHE PATH=" + folder / "bin:$PATH" + " OUT=" + folder / "out" +
               " RUNS=" + folder.path + " " + environment + " " + folder / "scripts/gpu_check.sh " + parts;
    }
    Finished check(const std::string& parts, const std::string& environment = "") const {
        return run(command(parts, environment));
    }
    std::string read(const std::string& name) const {
        return fs::exists(folder / name) ? read_file(folder / name) : "";
    }
    // The row of a check in results.jsonl.
    std::string result(const std::string& check) const {
        std::istringstream text(read("out/results.jsonl"));
        for (std::string line; std::getline(text, line);)
            if (contains(line, "\"check\": \"" + check + "\"")) return line;
        return "no such row: " + check;
    }
    // perf_table reads every line of what was found, and makes a page of it.
    bool has_good_results() const {
        const Finished rows = run("python3 -B dev/results/perf_table.py --validate " + folder / "out/results.jsonl");
        const Finished page =
            run("cp doc/performance.md " + folder / "page.md" + " && python3 -B dev/results/perf_table.py " +
                folder / "out" + " --page " + folder / "page.md");
        INFO(rows.err << page.err);
        CHECK(rows.exit_code == 0);
        CHECK(page.exit_code == 0);
        return rows.exit_code == 0 && page.exit_code == 0;
    }
};

int count(const std::string& text, const std::string& part) {
    int found = 0;
    for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) found++;
    return found;
}

}  // namespace

// [plain]: all but the last run scripts and false programs, which no sanitizer watches.
TEST_CASE("gpu_check without a GPU says of each part that it was not run", "[gpu_check][plain]") {
    const FakeMachine machine(false);
    const Finished finished = machine.check("");
    INFO(finished.out << finished.err);
    CHECK(finished.exit_code == 0);
    for (const char* part : {"first", "second", "third", "fourth", "comm"})
        CHECK(contains(machine.read("out/summary.txt"), std::string(part) + ": not run: no GPU here"));
    CHECK(machine.read("tested") == "");
    CHECK_FALSE(fs::exists(machine.folder / "out/machine.json"));
    CHECK(machine.check("build").exit_code == 0);
    CHECK(contains(machine.read("made"), "build/cuda/bench/gelu"));
    const Finished broken = machine.check("build", "BROKEN=bench/gelu");
    CHECK(broken.exit_code == 1);
    CHECK(contains(machine.result("build/cuda/bench/gelu"), "\"FAILED\""));
    CHECK(contains(machine.result("build/cuda/bench/matmul"), "\"ok\""));
    const Finished wrong = machine.check("tests");
    CHECK(wrong.exit_code == 2);
    CHECK(contains(wrong.err, "expected some of first, second"));
    CHECK(contains(machine.check("--help").out, "scripts/gpu_check.sh [PART...]"));
}

TEST_CASE("gpu_check first does all of it with programs as they lie there", "[gpu_check][plain]") {
    const FakeMachine machine;
    const bool is_h200 = GENERATE(false, true);  // of the two cards with predictions
    const std::string gpu = is_h200 ? "h200" : "h100";
    const Finished finished = machine.check("first", is_h200 ? "NO_BUILD=1 GPU=H200 MEMORY=143771" : "NO_BUILD=1");
    INFO(finished.out << finished.err);
    CHECK(finished.exit_code == 0);
    CHECK(machine.read("made") == "");
    // In this order: what never ran is tested before anything is trained with it.
    size_t at = 0;
    for (const char* check : {"doctor",
                              "conformance",
                              "test hopper",
                              "test attention",
                              "test attention, cuDNN",
                              "peak",
                              "train 124M, cudnn",
                              "train 124M, mixed",
                              "train 124M, own",
                              "own and cuDNN's losses",
                              "train 1558M",
                              "five losses as on a CPU, fp32",
                              "five losses as on a CPU, bf16",
                              "the same bits twice, cudnn",
                              "the same bits twice, own",
                              "bench matmul",
                              "bench attention",
                              "model beside it",
                              "profile",
                              "kernels by ncu",
                              "quickstart",
                              "train 124M auto, cudnn",
                              "train 124M auto, mixed",
                              "head in chunks of 320",
                              "head in chunks of 8192",
                              "losses at both chunks",
                              "train 124M, --no-deterministic",
                              "test gelu"}) {
        INFO(check);
        const std::string result = machine.result(check), rows = machine.read("out/results.jsonl");
        CHECK((contains(result, "\"result\": \"ok\"") || contains(result, "\"result\": \"measured\"")));
        CHECK(rows.find("\"check\": \"" + std::string(check) + "\"", at) != std::string::npos);
        at = std::min(rows.size(), rows.find("\"check\": \"" + std::string(check) + "\""));
    }
    CHECK(contains(machine.result("model beside it"), "1 rows"));
    CHECK(contains(machine.read("planned"), is_h200 ? "plan --gpu=H200 " : "plan --gpu=H100 "));
    CHECK(contains(machine.read("planned"), "--calibrate=" + machine.folder / "out/results.jsonl"));
    CHECK(contains(machine.result("kernels by ncu"), "2 launches of 1 kernels, 3.0 ms"));
    CHECK(contains(machine.read("out/first.log"), "--cache-control none"));
    CHECK(contains(machine.result("profile"), "1 ops in trace.json.gz, 1.0 ms of each of 1 steps"));
    // What only the emulator has is left out.
    CHECK(machine.read("tested") ==
          "[conformance]\n[hopper][gpu]\n[attention][gpu]~[cudnn]\n[attention][cudnn][gpu]\n[gelu][gpu]\n");
    CHECK(machine.read("benched") == "matmul  \nmatmul  tuned\nattention  tuned\n");
    CHECK(count(machine.read("trained"), "\n320 ") == 1);
    CHECK(count(machine.read("trained"), "\n8192 ") == 1);
    CHECK(count(machine.read("trained"), "--deterministic=false") == 1);
    CHECK(count(machine.read("trained"), "--batch-size=auto --total-batch-size=524288") == 2);
    CHECK(count(machine.read("trained"), "--out-dir=" + machine.folder / "gpu_check_run/") ==
          count(machine.read("trained"), "--out-dir="));
    CHECK(machine.read("saved") == "");  // what is only timed ends with its last step
    CHECK(contains(machine.read("quick"), "1 /"));
    // 500000 tokens per second at 800 MFLOP each are half of 8e14.
    CHECK(contains(finished.out, "500000 tok/s, MFU 50.0 %"));
    CHECK(contains(machine.read("out/machine.json"), "\"CUDA\": \"13.0\""));
    int files = 0;
    for (const auto& entry : fs::recursive_directory_iterator(machine.folder / "out")) files += entry.is_regular_file();
    CHECK(files <= 7);
    CHECK(machine.has_good_results());
    // Whatever was predicted was run, with the same batches: half of the first ten steps are slow, and do not count.
    const std::string page = machine.read("page.md"), predicted = read_file("doc/results/predicted-" + gpu + ".json");
    CHECK(count(page, " tok/s | not measured |") == 0);
    for (const std::string run :
         {"GPT-2 124M, B 32, cuDNN", "GPT-2 124M, --batch-size auto, --attention mixed", "GPT-2 1558M, B 16"})
        CHECK(contains(page, "| " + run + " | " + predicted_rate(run, gpu) + " | 500000 tok/s | " +
                                 beside_predicted(run, "mid", 500000, gpu) + " |"));
    const std::string attention = "attention forward, cuDNN";
    CHECK(contains(page, "| " + attention + format(" | %g ms | 1 ms | ", predicted_number(attention, "ms", gpu)) +
                             beside_predicted(attention, "ms", 1, gpu) + " |"));
    CHECK(contains(page, format("| layernorm backward | %g ms | not measured |",
                                predicted_number("layernorm backward", "ms", gpu))));
    CHECK(contains(page, "| w, s | 2 | 3 | 1.50 | 1.00 |"));
    CHECK(contains(page, "| gelu_kernel | 2 | 3.000 | 100.0 % | 1333 |"));

    // What is expected was said before, for every step, and leaves a third of the time for what takes longer.
    std::istringstream said(finished.out.substr(finished.out.find("expected seconds")));
    std::string line;
    std::getline(said, line);
    CHECK(contains(line, is_h200 ? "predicts for H200:" : "predicts for H100:"));
    double sum = 0, whole = 0, trained = 0;
    int steps = 0;
    for (; whole == 0 && std::getline(said, line); steps++) {
        const double seconds = std::strtod(line.substr(line.find_first_of("0123456789", 24)).c_str(), nullptr);
        if (contains(line, "in all"))
            whole = seconds;
        else if (!contains(line, "if time is left"))
            sum += seconds;
        if (contains(line, "    each attention ")) trained = seconds;
    }
    CHECK(steps == 18);  // tests take what is left then
    CHECK(std::abs(sum - whole) <= 6);
    CHECK(whole < 420);
    double tokens_s = 0;
    for (const char* run :
         {"GPT-2 124M, B 32, cuDNN", "GPT-2 124M, B 32, own attention", "GPT-2 124M, B 32, --attention mixed"})
        tokens_s += 10 * 524288 / predicted_number(run, "mid", gpu);
    CHECK(std::abs(trained - tokens_s - 3 * 8) <= 0.51);
}

TEST_CASE("gpu_check peers measures llm.c where it is told where that is, and PyTorch where it has a GPU",
          "[gpu_check][plain]") {
    const FakeMachine machine;
    machine.script("peer",
                   "echo \"$*\" >peered\nfor step in 1 2 3 4 5 6; do echo '| lr 6e-4 | 1048.576 ms | MFU'; done");
    const Finished finished = machine.check("peers", "NO_BUILD=1 LLMC_COMMIT=f1e2ace LLMC=" + machine.folder / "peer");
    INFO(finished.out << finished.err);
    CHECK(finished.exit_code == 0);
    CHECK(contains(machine.result("train 124M, llm.c"), "500000 tok/s"));
    CHECK(contains(machine.read("out/results.jsonl"), "llm.c (f1e2ace)"));
    CHECK(contains(machine.read("peered"), "-e d12 -b 32 -t 1024 -d 524288 -x 10"));
    CHECK(contains(machine.result("pytorch"), "python3 has no PyTorch that sees a GPU"));
    CHECK(machine.has_good_results());
    CHECK(contains(machine.check("peers", "NO_BUILD=1").out, "$LLMC names no train_gpt2cu"));
}

TEST_CASE("gpu_check trains with no attention whose tests have failed", "[gpu_check][plain]") {
    const FakeMachine machine;
    CHECK(machine.check("first", "NO_BUILD=1 FAILURES='[hopper][gpu]'").exit_code == 1);
    CHECK(contains(machine.read("out/first.log"), "left out of what follows: --attention mixed, own\n"));
    for (const char* attention : {"mixed", "own"}) {
        CHECK(contains(machine.result(std::string("train 124M, ") + attention), "\"not run\", \"note\": \"its tests"));
        CHECK(count(machine.read("trained"), std::string("--attention=") + attention) == 0);
    }
    CHECK(contains(machine.result("train 124M, cudnn"), "\"ok\""));
    CHECK(contains(machine.read("trained"), "--model=gpt2-1558M"));
    CHECK(machine.has_good_results());

    REQUIRE(run("rm " + machine.folder / "trained").exit_code == 0);
    CHECK(machine.check("first", "NO_BUILD=1 FAILURES='[attention][cudnn][gpu]'").exit_code == 1);
    CHECK(count(machine.read("trained"), "--attention=") == count(machine.read("trained"), "--attention=own"));
    CHECK(count(machine.read("trained"), "--out-dir=") == count(machine.read("trained"), "--attention=own"));
    CHECK(contains(machine.result("train 1558M"), "\"ok\""));

    REQUIRE(run("rm " + machine.folder / "trained").exit_code == 0);
    CHECK(machine.check("first", "NO_BUILD=1 FAILURES='[attention][gpu]~[cudnn] [attention][cudnn][gpu]'").exit_code ==
          1);
    CHECK(machine.read("trained") == "");
    CHECK(contains(machine.result("each attention"), "the tests of every attention have failed"));
    CHECK(contains(machine.result("test gelu"), "\"ok\""));
}

TEST_CASE("gpu_check's runs lie in memory where there is room", "[gpu_check][plain]") {
    const FakeMachine machine;
    CHECK(machine.check("train", "NO_BUILD=1 RUNS=").exit_code == 0);
    std::error_code ignored;
    std::string runs = fs::canonical(machine.folder.path).string() + "/build/cuda/gpu_check_run";
    if (double(fs::space("/dev/shm", ignored).free) > 8e9 && !ignored) {
        runs = "/dev/shm/gpu_check" + fs::canonical(machine.folder.path).string();
        std::replace(runs.begin() + 18, runs.end(), '/', '-');
    }
    CHECK(contains(machine.read("trained"), "--out-dir=" + runs + "/train-124M-own"));
    CHECK_FALSE(fs::exists(runs));
}

TEST_CASE("gpu_check: what should not be so is told, and stops nothing else", "[gpu_check][plain]") {
    const FakeMachine machine;
    const Finished finished =
        machine.check("first",
                      "NO_BUILD=1 DOCTOR=2 OWN_DIFFERS=0.05 BF16_DIFFERS=0.03 AGAIN=others SAMPLE= "
                      "FAILURES='[conformance] [gelu][gpu]' BENCH_STATUS=1 PROFILE= PLAN=2");
    INFO(finished.out << finished.err);
    CHECK(finished.exit_code == 1);
    for (const char* check :
         {"doctor", "conformance", "peak", "own and cuDNN's losses", "five losses as on a CPU, bf16",
          "the same bits twice, own", "quickstart", "bench attention", "model beside it", "test gelu"})
        CHECK(contains(machine.result(check), "\"result\": \"FAILED\""));
    for (const char* check :
         {"train 124M, own", "five losses as on a CPU, fp32", "losses at both chunks", "train 1558M"})
        CHECK(contains(machine.result(check), "\"result\": \"ok\""));
    CHECK(contains(machine.result("profile"), "\"not run\", \"note\": \"this train_gpt has no --profile\""));
    CHECK(contains(machine.result("the same bits twice, own"), "the weights differ after 10 steps"));
    CHECK(machine.has_good_results());

    CHECK(machine.check("train", "NO_BUILD=1 SLOWNESS=100").exit_code == 1);
    CHECK(contains(machine.result("train 124M, own"), "it should have fallen"));
    CHECK(machine.check("third", "NO_BUILD=1 PERCENT=NaN").exit_code == 1);
    CHECK(contains(machine.result("bench gelu"), "percent: expected a number above zero"));
    CHECK(machine.check("conformance", "BROKEN=gpu-tests").exit_code == 1);
    CHECK(contains(machine.result("conformance"), "cannot be built"));
    REQUIRE(run("rm " + machine.folder / "build/cuda/gpu-tests").exit_code == 0);
    CHECK(machine.check("conformance", "NO_BUILD=1").exit_code == 1);
    CHECK(contains(machine.result("conformance"), "run make VARIANT=cuda build/cuda/gpu-tests"));
}

TEST_CASE("gpu_check's later calls: tests, benchmarks, fp8, sanitizers", "[gpu_check][plain]") {
    const FakeMachine machine;
    const Finished finished = machine.check("second third fourth");
    INFO(finished.out << finished.err);
    CHECK(finished.exit_code == 0);
    CHECK(contains(machine.read("made"), "build/cuda/gpu-tests\n"));  // made by make, which knows what is new
    CHECK(machine.read("sanitized") == "memcheck\nmemcheck\nracecheck\nracecheck\n");
    CHECK(contains(machine.result("bench gelu"), "\"sm_mhz\": 1755.0"));
    CHECK(contains(machine.read("trained"), "--depth=12 --vocab-size=32768 --batch-size=auto"));
    CHECK(contains(machine.result("train nanochat d12, fp8"), "\"ok\""));
    CHECK(count(machine.read("trained"), "--dtype=fp8") == 1);
    CHECK(machine.has_good_results());
    CHECK(machine.check("modern", "COMPUTE_CAP=8.6").exit_code == 0);
    CHECK(contains(machine.result("train nanochat d12, fp8"), "FP8 begins with sm_89"));
    CHECK(count(machine.read("trained"), "--dtype=fp8") == 1);
}

TEST_CASE("gpu_check that is cut off at any moment has lost nothing of what was over", "[gpu_check][plain][slow]") {
    const FakeMachine machine;
    const double begin_s = now_s();
    must_succeed(machine.check("first", "NO_BUILD=1"));
    const double whole_s = now_s() - begin_s;
    Rng rng(1, Stream::tests);
    int cut = 0, rows = 0;
    // More calls if a busy machine ends all of these before their first row, or none of them in time.
    for (int i = 0; i < 6 || (i < 60 && (cut == 0 || rows == 0)); i++) {
        const Started call(machine.command("first modern", "NO_BUILD=1"), machine.folder / "call");
        usleep(useconds_t(rng.uniform() * whole_s * 1e6));
        const bool polite = i % 2;
        const Finished finished = call.finish(polite ? SIGTERM : SIGKILL);
        // What it said to be over is there.
        std::istringstream text(finished.out);
        for (std::string line; std::getline(text, line);) {
            if (line.substr(0, 2) != "  " || !contains(line, " s  ")) continue;
            INFO(line);
            CHECK(contains(machine.read("out/summary.txt"), line.substr(2)));
            const std::string check = line.substr(2, line.find("  ", 2) - 2);
            CHECK(contains(machine.result(check), "\"part\": "));
            rows++;
        }
        cut += finished.exit_code != 0;
        if (polite && finished.exit_code == 1) {
            CHECK(finished.err == "error: stopped by a signal\n");
            const size_t at = finished.out.rfind("stopped by a signal");  // none: it came before the first part
            if (at != std::string::npos) CHECK(count(finished.out.substr(at), "==== ") == 1);  // no part after it
        }
        if (fs::exists(machine.folder / "out/results.jsonl") && fs::exists(machine.folder / "out/machine.json"))
            CHECK(machine.has_good_results());
    }
    CHECK(cut > 0);
    CHECK(rows > 0);
}

TEST_CASE("gpu_check takes no longer than its limit", "[gpu_check][plain]") {
    const FakeMachine machine;
    machine.script("build/cuda/gpu-tests", "sleep 60");
    const double begin_s = now_s();
    const Finished finished = machine.check("second", "NO_BUILD=1 LIMIT=6");
    INFO(finished.out << finished.err);
    CHECK(finished.exit_code == 1);
    CHECK(now_s() - begin_s < 30);
    CHECK(contains(machine.read("out/summary.txt"), "not reached"));
}

TEST_CASE("gpu_check takes programs that were carried along, where there are none", "[gpu_check][plain]") {
    const FakeMachine machine;
    machine.script("build/cuda/gpu-tests", "echo \"libraries $LD_LIBRARY_PATH\"; echo '5 passed, 0 failed'");
    const auto carry = [&] {
        must_succeed(run("cd " + machine.folder.path +
                         " && mkdir -p .deps && python3 -m tarfile -c .deps/carried.tar.xz "
                         "train_gpt data/tokenize build/cuda && rm -r train_gpt data/tokenize build/cuda"));
    };
    carry();
    const Finished finished = machine.check("conformance", "NVIDIA_WHEELS=/nowhere LD_LIBRARY_PATH=/before");
    INFO(finished.out << finished.err);
    CHECK(finished.exit_code == 0);
    CHECK(contains(machine.result("conformance"), "5 passed, 0 failed"));
    CHECK(contains(finished.out, "libraries " + fs::canonical(machine.folder.path).string() + "/build/carried/lib:"));
    CHECK(contains(finished.out, ":/before\n"));
    CHECK(machine.read("made") == "");
    // A second call finds them where the first one put them.
    CHECK(machine.check("conformance").exit_code == 0);
    CHECK(machine.read("made") == "");

    // What does not run here is built here.
    machine.script("train_gpt", "exit 127");
    REQUIRE(run("cd " + machine.folder.path + " && rm -r build/carried").exit_code == 0);
    carry();
    const Finished others = machine.check("conformance");
    INFO(others.out << others.err);
    CHECK(others.exit_code == 0);
    CHECK(contains(machine.result("programs carried along"), "they do not run here, and are built anew"));
    CHECK(machine.read("made") == "build/cuda/gpu-tests\n");
}

namespace {

// Programs as make builds them, but small: linked with a library of which the path is only known where they are built.
struct BuiltPrograms : FakeMachine {
    std::string site = folder / "site", cudnn = site + "/nvidia/cudnn/lib";

    BuiltPrograms() {
        fs::copy("scripts/carry_deps.sh", folder / "scripts/carry_deps.sh");
        for (const std::string header : {"catch2/catch.hpp", "nlohmann/json.hpp", "xxhash.h"}) {
            fs::create_directories(fs::path(folder / ("include/" + header)).parent_path());
            put_file(folder / ("include/" + header), "");
        }
        fs::create_directories(cudnn);
        fs::create_directory(site + "/nvidia_cudnn_cu13-9.19.0.56.dist-info");
        compile("int cudnn(void) { return 0; }", cudnn + "/libcudnn.so.9", "-shared -fPIC -Wl,-soname,libcudnn.so.9");
        compile("int MPI_Init(void) { return 0; }", folder / "libmpi.so.40", "-shared -fPIC -Wl,-soname,libmpi.so.40");
        fs::remove_all(folder / "build/cuda");
        fs::create_directories(folder / "build/cuda/bench");
        build("train_gpt");
        build("data/tokenize");
    }
    void compile(const std::string& source, const std::string& to, const std::string& flags) const {
        put_file(folder / "program.c", source + "\n");
        must_succeed(run("${CXX:-g++} -x c " + folder / "program.c" + " -x none -o " + to + " " + flags));
    }
    // The trainer is the real one. All others find no driver.
    void build(const std::string& name, const std::string& more = "") const {
        compile("#include <stdio.h>\n#include <unistd.h>\nint cudnn(void);\nint main(int n, char** words) {\n" +
                    (name == "train_gpt" ? "execv(\"" + fs::absolute(program("train_gpt")).string() + "\", words);\n"
                                         : "") +
                    "puts(\"error: no CUDA-capable device is detected\"); return words[0] && n ? 2 : cudnn(); }",
                folder / name, cudnn + "/libcudnn.so.9 -Wl,-rpath," + cudnn + " " + more);
    }
    Finished carry(const std::string& environment = "") const {
        return run("cd " + folder.path + " && " + environment +
                   " CPATH=include DEPS_DIR=.deps scripts/carry_deps.sh --programs");
    }
};

}  // namespace

TEST_CASE("programs that would not start elsewhere are not carried", "[gpu_check][plain]") {
    const BuiltPrograms here;
    const auto refused = [&](const std::string& why) {
        const Finished finished = here.carry();
        INFO(finished.out << finished.err);
        CHECK(finished.exit_code == 2);
        CHECK(contains(finished.err, why));
        CHECK_FALSE(fs::exists(here.folder / ".deps/carried.tar.xz"));
    };
    here.build("build/cuda/bench/matmul");
    refused("make -j VARIANT=cuda USE_MPI=0 build/cuda/gpu-tests build/cuda/bench/attention\n");
    here.build("build/cuda/gpu-tests");
    here.build("build/cuda/bench/attention");
    here.build("train_gpt", "-Wl,--no-as-needed " + here.folder / "libmpi.so.40");
    refused("train_gpt is linked with libmpi, which is not carried: build with USE_MPI=0");
    here.build("train_gpt");
    fs::rename(here.site + "/nvidia_cudnn_cu13-9.19.0.56.dist-info",
               here.site + "/nvidia_cudnn_cu13-9.23.0.1.dist-info");
    refused("train_gpt is linked with " + here.cudnn + "/libcudnn.so.9, expected that of nvidia-cudnn-cu13==9.19.0.56");
    must_succeed(here.carry("NVIDIA_VERSIONS=nvidia-cudnn-cu13==9.23.0.1"));
    CHECK(run("scripts/carry_deps.sh --versions").out ==
          "nvidia-cublas==13.1.0.3 nvidia-cudnn-cu13==9.19.0.56 nvidia-nccl-cu13==2.28.9\n");
}

TEST_CASE("gpu_check first with carried programs and no driver says so of each step", "[gpu_check][plain]") {
    const BuiltPrograms here;
    for (const std::string name : {"gpu-tests", "bench/matmul", "bench/attention"}) here.build("build/cuda/" + name);
    must_succeed(here.carry());
    const FakeMachine there;
    for (const char* name : {"train_gpt", "data/tokenize", "build/cuda"}) fs::remove_all(there.folder / name);
    fs::copy(here.folder / ".deps", there.folder / ".deps", fs::copy_options::recursive);
    fs::rename(here.site, there.folder / "site");  // the programs know another path
    const Finished finished = there.check("first", "NVIDIA_WHEELS=" + there.folder / "site/nvidia");
    INFO(finished.out << finished.err);
    CHECK(finished.exit_code == 1);
    CHECK(contains(finished.out, " failed, 0 not reached; results are in "));
    CHECK(there.read("made") == "");  // nothing is compiled there
    CHECK(contains(there.result("libraries are there"), "\"ok\", \"note\": \"libcudnn.so.9\""));
    for (const char* check : {"conformance", "test hopper", "test attention", "test attention, cuDNN", "peak",
                              "bench matmul", "bench attention"})
        CHECK(contains(there.result(check), "error: no CUDA-capable device is detected"));
    CHECK(contains(there.result("doctor"), "FAILED"));
    // What was not tested is not trained with.
    for (const char* step : {"each attention", "gpt2 1558M", "same bits", "largest batch", "not deterministic",
                             "profile", "kernels by ncu", "five losses as on a CPU, bf16", "head in chunks of 320"})
        CHECK(contains(there.result(step), "the tests of every attention have failed"));
    CHECK(contains(there.result("model beside it"), "\"result\""));
    CHECK(contains(there.result("quickstart"), "\"ok\""));
    CHECK(there.has_good_results());
}

TEST_CASE("gpu_check comm: ranks that end well, die and hang, with the real trainer on the CPU", "[gpu_check][slow]") {
    const FakeMachine machine;
    const auto nccl_is = [&](int version) {
        put_file(machine.folder / "nccl.c", format("int ncclGetVersion(int* v) { *v = %d; return 0; }", version));
        must_succeed(run("cd " + machine.folder.path + " && ${CXX:-g++} -shared -fPIC -x c nccl.c -o libnccl.so.2"));
    };
    nccl_is(23203);
    machine.script("bin/ldd", "echo 'libnccl.so.2 => " + machine.folder / "libnccl.so.2" + " (0x0)'");
    // A hundredth of the model, and the CPU.
    machine.script("train_gpt", R"(for flag; do
            shift
            case $flag in
            --device=cuda) flag=--device=cpu ;;
            --num-layers=*) flag=--num-layers=1 ;;
            --channels=*) flag=--channels=32 ;;
            --seq-len=*) flag=--seq-len=16 ;;
            --total-batch-size=*) flag=--total-batch-size=256 ;;
            --comm-timeout=*) flag=--comm-timeout=6 ;;
            --json=*) set -- "$@" --mib=1 ;;
            esac
            set -- "$@" "$flag"
        done
        case $* in *--local-rank=*) echo "$NCCL_MULTI_RANK_GPU_ENABLE $NCCL_MAX_CTAS --local-rank=${*#*--local-rank=}" >>nccl_variables ;; esac
        exec )" + fs::absolute(program("train_gpt")).string() +
                                    R"( "$@" --threads=1)");
    const Finished finished = machine.check("comm", "NO_BUILD=1 RANKS=2");
    INFO(finished.out << finished.err);
    CHECK(finished.exit_code == 0);
    for (const char* check : {"fp32 gradients", "bf16 gradients", "Muon"})
        CHECK(contains(machine.result(std::string("2 ranks, ") + check), "all weights have the same bits"));
    for (const char* check : {"one is killed", "one hangs"})
        CHECK(contains(machine.result(std::string("2 ranks, ") + check), "the others ended with 3"));
    CHECK(contains(machine.result("2 ranks, resumed by 1"), "\"ok\""));
    CHECK(contains(machine.result("2 ranks, memory of NCCL"), "\"measured\""));
    CHECK(contains(machine.result("mpirun -np 1"), "one GPU"));
    CHECK(contains(machine.result("bench-comm of 1 ranks"), "one GPU"));
    // One GPU for all ranks, and the flags that the names of the checks promise.
    const std::string log = machine.read("out/comm.log");
    for (const char* flag : {"--grad-sum=bf16", "--optimizer=muon"}) CHECK(count(log, flag) == 2);
    CHECK(count(log, "--resume=") == 1);
    CHECK(contains(machine.read("nccl_variables"), "1 8 --local-rank=0"));
    CHECK_FALSE(contains(machine.read("nccl_variables"), "--local-rank=1"));
    CHECK(machine.has_good_results());

    // With two GPUs. Three ranks have no batch of their own here.
    machine.check("comm", "NO_BUILD=1 RANKS=3 TWO_GPUS=1");
    CHECK(contains(machine.result("bench-comm of 2 ranks"), "24 rows, "));
    CHECK(count(machine.read("out/results.jsonl"), R"("type": "comm", "what": "all-reduce", "device": "cpu")") == 6);
    CHECK(machine.has_good_results());

    nccl_is(23002);
    CHECK(machine.check("comm", "NO_BUILD=1").exit_code == 0);
    CHECK(contains(machine.result("ranks"), "NCCL 23002 takes one rank per GPU"));
}
