// dev/bench/against_pytorch.py and cpu_steps.py: tables from measurements on the CPU, and their arithmetic.
#include <array>
#include <filesystem>
#include "llmc/base/file.h"  // read_file, write_file_atomically
#include "test/testing.h"

namespace {

// Three rounds of each. PyTorch's best over all of them is not the best of each.
const char* const kTurns =
    R"([{"config": "small", "isa": "", "class": "A class", "machine": "A machine", "cores": 2, "threads": 2, "date": "2026-11-21",
"note": "In a test", "torch": "2.13.0", "rounds": 3, "turns": {
"Anvil fp32": {"ms": [30, 20, 25], "others": [0, 0, 0.25]}, "Anvil bf16": {"ms": [10, 10, 20], "others": [0, 0, 0]},
"PyTorch fp32 eager": {"ms": [39, 60, 38], "others": [0, 0, 0]},
"PyTorch fp32 compiled": {"ms": [38, 38, 38], "others": [0, 0, 0]},
"PyTorch bf16 eager": {"ms": [30, 20, 25], "others": [0, 0, 0]},
"PyTorch bf16 compiled": {"ms": [50, 19, 50], "others": [0, 0, 0]}}},
{"config": "small", "isa": "avx2", "class": "A class", "machine": "A machine", "cores": 2, "threads": 2, "date": "2026-11-21", "note": "",
"torch": "2.13.0", "rounds": 3, "turns": {"Anvil fp32": {"ms": [30, 20, 25], "others": [0, 0, 0]},
"PyTorch fp32 eager": {"ms": [39, 60, 38], "others": [0, 0, 0]},
"PyTorch fp32 compiled": {"ms": [27, 18, 38], "others": [0, 0, 0]}}},
{"config": "shakespeare bf16", "isa": "", "class": "A class", "machine": "A machine", "cores": 2, "threads": 2, "date": "2026-11-21", "note": "",
"seconds": 41.6, "val_loss": 1.87654, "others": 0.5}])";

const char* const kProducts =
    R"([{"machine": "A machine", "cores": 2, "threads": 2, "date": "2026-11-21", "note": "", "torch": "2.13.0",
"onednn": "oneDNN v3", "blas": "mkl", "model": "small", "dtype": "fp32", "layers": [
{"what": "matmul_forward attn.c_attn", "times": 4, "flops": 3e6, "anvil": 0.03, "pytorch": 0.05},
{"what": "matmul_forward head", "times": 1, "flops": 1e8, "anvil": 1, "pytorch": 2}]}])";

// A cpu_steps whose steps take 20, 10 and 16 ms in its first three runs, with a roofline of 8.
const char* const kFake = R"(
import json, os, sys
flags = dict(word[2:].split("=", 1) for word in sys.argv[1:])
assert flags["model"] == "mid" and flags["dtype"] == "fp32" and flags["threads"] == os.environ["OMP_NUM_THREADS"] == "2"
runs = sys.argv[0] + ".runs"
open(runs, "a").write("x")
ms = [20, 10, 16][os.path.getsize(runs) - 1]
ops = [("matmul_forward 1x2 -> 3", 4, 2e6), ("matmul_backward 1x2 -> 3", 4, 2e6), ("attention_forward", 4, 1e6),
       ("adamw_update", 2, 0), ("fill_zero", 1, 0)]
json.dump({"config": "mid", "dtype": "fp32", "threads": 2, "tokens": 2048, "ms": ms, "peak": 1e9, "copy": 30e9,
           "update": 20e9, "arithmetic_ms": 4, "update_ms": 1, "copy_ms": 3,
           "ops": [{"op": op, "ms": t, "flops": f} for op, t, f in ops]}, open(flags["json"], "w"))
)";

struct Page {
    ScratchFolder folder;
    std::string path = folder / "page.md";

    Page() { write_file_atomically(path, read_file("doc/performance.md")); }
    Finished written_by(const std::string& script, const std::string& flags) const {
        return run("python3 -B dev/bench/" + script + " --page " + path + " --json " + folder / "results.json" + " " +
                   flags);
    }
    // The rest of its line from there on.
    std::string from(const std::string& part) const {
        const std::string text = read_file(path);
        const size_t at = text.find(part);
        return at == std::string::npos ? "" : text.substr(at, text.find('\n', at) - at);
    }
    // The script tells when a number of its table was edited, and leaves the rest of the page alone.
    void check_kept(const std::string& script, const std::string& number) const {
        const std::string once = read_file(path);
        CHECK(contains(once, "\n## Text\n"));
        CHECK(written_by(script, "--check").exit_code == 0);
        std::string edited = once;
        edited.replace(edited.find(number), 1, "9");
        write_file_atomically(path, edited);
        CHECK(written_by(script, "--check").exit_code == 1);
        CHECK(written_by(script, "--page-only").exit_code == 0);
        CHECK(read_file(path) == once);
    }
};

}  // namespace

TEST_CASE("against_pytorch takes the median of the rounds' ratios", "[cpu_speed]") {
    const Page page;
    write_file_atomically(page.folder / "results.json", kTurns);
    const Finished written = page.written_by("against_pytorch.py", "--page-only");
    INFO(written.err);
    REQUIRE(written.exit_code == 0);
    // Against bf16 eager 1, 1, 1 and 3, 2, 1.25; against fp32 compiled 1.27, 1.9, 1.52 and 3.8, 3.8, 1.9.
    CHECK(page.from("| small: 12 x 64 tokens | fp32") ==
          "| small: 12 x 64 tokens | fp32 | 30720 | 25.0 | 39.0, 38.0 | 25.0, 50.0 | 1.00 | 1.52 | 1.5: met |");
    CHECK(page.from("| small: 12 x 64 tokens | bf16") ==
          "| small: 12 x 64 tokens | bf16 | 76800 | 10.0 | 39.0, 38.0 | 25.0, 50.0 | 2.00 | 3.80 | 2: met |");
    CHECK(
        page.from("| 2 threads, AVX2 alone") ==
        "| 2 threads, AVX2 alone | small: 12 x 64 tokens | fp32 | 30720 | 25.0 | 39.0, 27.0 | 0.90 | 1: **missed** |");
    CHECK(page.from("Medians of 3 rounds") ==
          "Medians of 3 rounds or more; meanwhile others used 0.25 cores of 2 at most. In a test.");
    CHECK(contains(page.from("nanoGPT's shakespeare_char"),
                   "steps in bf16 and eight validations: 42 s from start to end, "
                   "validation loss 1.8765 "));
    page.check_kept("against_pytorch.py", "76800");
    CHECK(page.written_by("against_pytorch.py", "--configs huge").exit_code == 2);

    // What was measured in one type has no numbers in the other's columns.
    for (const auto& [dtype, other, row] :
         {std::array{"fp32", "bf16", " | 30720 | 25.0 | 39.0, 38.0 | - | 1.52 | 1.52 | 1.5: met |"},
          std::array{"bf16", "fp32", " | 76800 | 10.0 | - | 25.0, 50.0 | 2.00 | - | 2: met |"}}) {
        std::string results = kTurns;
        for (const std::string program : {"\"Anvil ", "\"PyTorch "})
            for (size_t at; (at = results.find(program + other)) != std::string::npos;)
                results.replace(at, program.size(), "\"not ");
        write_file_atomically(page.folder / "results.json", results);
        CHECK(page.written_by("against_pytorch.py", "--page-only").exit_code == 0);
        const std::string begin = format("| small: 12 x 64 tokens | %s", dtype);
        CHECK(page.from(begin) == begin + row);
    }
}

TEST_CASE("against_pytorch keeps the results of other processors, and none of a machine that changes", "[cpu_speed]") {
    const Page page;
    write_file_atomically(page.folder / "results.json", kTurns);
    const auto python = [&](const std::string& code) {
        return run(
            "python3 -B -c 'import json, pathlib, sys; sys.path.insert(0, \"dev/bench\")\n"
            "import against_pytorch as a\npath = pathlib.Path(\"" +
            page.folder / "results.json" + "\")\nresults = json.loads(path.read_text())\n" + code + "'");
    };
    const Finished saved = python(
        "new = json.loads(json.dumps(results[0])) | {\"class\": \"Other\", \"date\": \"2026-11-26\", \"note\": \"\"}\n"
        "for turn in new[\"turns\"].values(): turn[\"stolen\"] = [0, 0.5, 0]\n"
        "a.save(path, results, new)\na.save(path, results, new)\nassert len(results) == 4");
    INFO(saved.err);
    REQUIRE(saved.exit_code == 0);
    REQUIRE(page.written_by("against_pytorch.py", "--page-only").exit_code == 0);
    CHECK(page.from("A class (A machine), ") == "A class (A machine), 2026-11-21, PyTorch 2.13.0, 2 threads:");
    CHECK(page.from("Other (A machine), ") == "Other (A machine), 2026-11-26, PyTorch 2.13.0, 2 threads:");
    CHECK(page.from("of which the host took") == "of which the host took 0.50.");
    CHECK(python("a.check_peaks([100e9, 114e9])").exit_code == 0);
    const Finished refused = python("a.check_peaks([100e9, 116e9])");
    CHECK(refused.exit_code == 1);
    CHECK(contains(refused.err, "100, 116 GFLOP/s in the rounds: expected a change of less than 15%"));
    const auto class_of = [&](const std::string& family, const std::string& flags) {
        return python("print(a.processor_class(\"vendor_id\\t: AuthenticAMD\\ncpu family\\t: " + family +
                      "\\nflags\\t\\t: fpu " + flags + "\\n\"))")
            .out;
    };
    CHECK(class_of("26", "avx2 avx512f avx512_bf16") == "AMD Zen 5\n");
    CHECK(class_of("25", "avx2 avx512f avx512_bf16") == "AMD Zen 4\n");
    CHECK(class_of("25", "avx2") == "AMD, AVX2\n");
}

TEST_CASE("cpu_steps takes the round in the middle, and says where its time went", "[cpu_speed]") {
    const Page page;
    write_file_atomically(page.folder / "fake.py", kFake);
    const Finished written = page.written_by(
        "cpu_steps.py", "--threads 2 --models mid --dtypes fp32 --program 'python3 " + page.folder / "fake.py" + "'");
    INFO(written.err);
    REQUIRE(written.exit_code == 0);
    CHECK(page.from("| mid | fp32") ==
          "| mid | fp32 | 128000 | 16.0 | 50 %, **missed** | GEMMs 50 % at 50 % of the peak, attention 25 % at 25 %, "
          "optimizer 19 % |");
    CHECK(contains(page.from("Limits in the same minutes"),
                   "1 to 1 GFLOP/s in fp32, 30 to 30 GB/s copied, 20 to 20 GB/s updated in place."));
    page.check_kept("cpu_steps.py", "128000");
    // What another run finds of the same model replaces this one, and a run that fails changes nothing.
    const std::string before = read_file(page.path);
    CHECK(page.written_by("cpu_steps.py",
                          "--models mid --dtypes fp32 --threads 2 --program 'python3 " + page.folder / "fake.py" + "'")
              .exit_code == 1);
    CHECK(read_file(page.path) == before);
    // What another class of processors reached stays beside it.
    run("sed -i 's/\"class\": \"[^\"]*\"/\"class\": \"Another class\"/' " + page.folder / "results.json");
    write_file_atomically(page.folder / "new.py", kFake);
    CHECK(page.written_by("cpu_steps.py",
                          "--threads 2 --models mid --dtypes fp32 --program 'python3 " + page.folder / "new.py" + "'")
              .exit_code == 0);
    CHECK(contains(page.from("Another class ("), "2 threads"));
    const std::string text = read_file(page.path), row = "| mid | fp32 | 128000 |";
    CHECK((text.find(row) != text.rfind(row)));
}

TEST_CASE("cpu_steps compares two programs in turns", "[cpu_speed]") {
    const Page page;
    const std::string before = read_file(page.path);
    for (const char* name : {"old.py", "new.py"}) write_file_atomically(page.folder / name, kFake);
    run("sed -i 's/20, 10, 16/10, 15, 24/' " + page.folder / "new.py");
    const std::string flags = "--threads 2 --models mid --dtypes fp32 --rounds 3 --before 'python3 " +
                              page.folder / "old.py" + "' --program 'python3 ";
    const Finished compared = page.written_by("cpu_steps.py", flags + page.folder / "new.py" + "'");
    INFO(compared.err);
    REQUIRE(compared.exit_code == 0);
    // 20 / 10, 10 / 15 and 16 / 24
    CHECK(compared.out == "mid, fp32: 16.00 -> 15.00 ms, 0.667 times as fast (0.667 to 2.000 in 3 rounds)\n");
    CHECK(read_file(page.path) == before);
    CHECK_FALSE(std::filesystem::exists(page.folder / "results.json"));
    CHECK(page.written_by("cpu_steps.py", flags + page.folder / "old.py" + "'").exit_code == 2);
}

TEST_CASE("products_against_pytorch adds up a step's products", "[cpu_speed]") {
    const Page page;
    write_file_atomically(page.folder / "results.json", kProducts);
    const Finished written = page.written_by("products_against_pytorch.py", "--page-only");
    INFO(written.err);
    REQUIRE(written.exit_code == 0);
    // 4 * 3e6 + 1e8 FLOPs in 4 * 0.03 + 1 and 4 * 0.05 + 2 milliseconds
    CHECK(page.from("| small | fp32 | 100 |") == "| small | fp32 | 100 | 51 | 1.96 | 1.67 to 2.00 |");
    page.check_kept("products_against_pytorch.py", "100 | 51");
}

TEST_CASE("doc/performance.md shows what was measured on the CPU", "[cpu_speed]") {
    for (const char* script : {"against_pytorch.py", "cpu_steps.py", "products_against_pytorch.py"}) {
        const Finished checked = run(std::string("python3 -B dev/bench/") + script + " --check");
        INFO(checked.err);
        CHECK(checked.exit_code == 0);
    }
}
