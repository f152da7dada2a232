// The commands of README.md and the tutorials on a GPU, with its defaults. They are taken from the pages and only
// shortened, so that pages and test cannot diverge. On the emulated GPU a step takes a second.
#include <filesystem>
#include <set>
#include <sstream>
#include "llmc/cuda/device.cuh"
#include "test/cuda_testing.h"  // ON_DEVICE
#include "test/processes.h"     // has_mpi, mpirun_command
#include "test/program.h"       // ScratchFolder, steps_in

namespace {

namespace fs = std::filesystem;

// The indented lines of a page, those that go on after a backslash in one, without comments.
std::vector<std::string> commands_of(const std::string& path) {
    std::istringstream page(read_file(path));
    std::vector<std::string> commands;
    bool goes_on = false;
    for (std::string line; std::getline(page, line);) {
        if (!line.starts_with("    ")) continue;
        line.erase(std::min(line.find("  #"), line.size()));
        line.erase(line.find_last_not_of(' ') + 1);
        line.erase(0, std::min(line.find_first_not_of(' '), line.size()));
        if (goes_on)
            commands.back() += " " + line;
        else
            commands.push_back(line);
        goes_on = line.ends_with("\\");
        if (goes_on) commands.back().pop_back();
    }
    return commands;
}

// The one command of README.md and the tutorials that has these parts; it may stand on several pages.
std::string readme_command(const std::vector<std::string>& parts) {
    std::vector<std::string> pages = {"README.md", "doc/index.md"};
    for (const auto& entry : fs::directory_iterator("doc/tutorials")) pages.push_back(entry.path());
    std::set<std::string> found;
    for (const std::string& page : pages)
        for (const std::string& command : commands_of(page))
            if (std::all_of(parts.begin(), parts.end(), [&](const auto& part) { return contains(command, part); }))
                found.insert(command);
    INFO("in README.md or doc/tutorials/: a command with " << parts[0] << ", ...");
    REQUIRE(found.size() == 1);
    return *found.begin();
}

std::string replaced(std::string text, const std::string& what, const std::string& by) {
    const size_t at = text.find(what);
    INFO(what << " in " << text);
    REQUIRE(at != std::string::npos);
    return text.replace(at, what.size(), by);
}

// A clone after `make`: the scripts are those of the repository, and have nothing to install or to build. A little text
// stands for tiny Shakespeare's million characters.
struct BuiltClone {
    ScratchFolder scratch;

    BuiltClone() {
        for (const char* folder : {"data", "scripts"}) fs::create_directory(path(folder));
        for (const char* name : {"train_gpt", "data/tokenize"})
            fs::create_symlink(fs::absolute(program(name)), path(name));
        for (const char* name : {"scripts/report.py", "configs"}) fs::create_symlink(fs::absolute(name), path(name));
        const std::string script = read_file("scripts/quickstart.sh");
        put_script("scripts/quickstart.sh", replaced(script, "--sample-tokens 500", "--sample-tokens 9"));
        put_script("scripts/setup.sh", "#!/bin/sh\n");
        put_script("data/tinyshakespeare.sh",
                   "#!/bin/sh\ndata/tokenize --stories 9000 --tokenizer char --out data/tinyshakespeare\n");
        put_file(path("Makefile"), "all:\n");
    }
    std::string path(const std::string& name) const { return scratch / name; }
    void put_script(const std::string& name, const std::string& text) const {
        put_file(path(name), text);
        fs::permissions(path(name), fs::perms::owner_all);
    }
    Finished run(const std::string& command) const { return ::run("cd '" + scratch.path + "' && " + command); }
    // The lines that a GPU run prints at its start.
    Finished run_on_gpu(const std::string& command) const {
        const Finished finished = run(command);
        INFO(command << "\n" << finished.out);
        must_succeed(finished);
        CHECK(contains(finished.out + finished.err, "device: cuda, "));
        return finished;
    }
};

// A run that ends after the first steps, and prints all that a whole one would.
const std::string kShort = " --time-budget 0.001 --steps 20000";

}  // namespace

TEST_CASE("README: the quickstart, and what comes after it, on a GPU with their defaults",
          "[readme][once][plain][slow]" ON_DEVICE) {
    const BuiltClone clone;
    const Finished quickstart = clone.run_on_gpu(readme_command({"./scripts/quickstart.sh"}) + " --minutes 0.0001");
    CHECK(contains(quickstart.out, "sample at step "));
    CHECK(contains(quickstart.out, "loss curve   run/quickstart/"));
    CHECK(steps_in(clone.path("run/quickstart")).size() >= 1);

    // Four heads of 32, in bf16.
    const Finished bare = clone.run_on_gpu("./train_gpt" + kShort + " --sample-tokens 5");
    CHECK(contains(bare.out, "val "));
    CHECK(contains(bare.out, "sample at step "));
    const auto steps = steps_in(clone.path("run/default"));
    REQUIRE(steps.size() >= 1);
    CHECK(contains(read_file(step_folder(clone.path("run/default"), steps.back().step) + "/config.json"), "bfloat16"));

    const std::string generate =
        replaced(readme_command({"--resume run/my_book --prompt 'Once upon a time'"}), "run/my_book", "run/default");
    const Finished text = clone.run(replaced(generate, "--sample-tokens 500", "--sample-tokens 5") + " --device cuda");
    must_succeed(text);
    CHECK(text.out.size() >= 5);

    const std::string eval = readme_command({"./train_gpt eval --resume RUN"});
    const Finished score = clone.run_on_gpu(
        replaced(replaced(eval, "RUN", "run/default"), "--eval-tasks hellaswag.bin,core.tasks", "--threads 2"));
    CHECK(contains(score.out, "val "));

    put_file(clone.path("windows.conf"), "window-warmup-steps = 2\n");
    clone.run_on_gpu(
        "./train_gpt --steps 2 --warmup-steps 1 --recipe windows.conf --val-every 1 --sample-tokens 5 "
        "--seq-len 160 --batch-size 2 --model configs/nanogpt.conf --out-dir run/windows");
    CHECK(steps_in(clone.path("run/windows")).size() == 2);
}

TEST_CASE("README: a text of your own on a GPU", "[readme][once][plain][slow]" ON_DEVICE) {
    const BuiltClone clone;
    std::string book;
    for (int i = 0; i < 400; i++) book += "Chapter " + std::to_string(i) + "\n\nIt was a dark and stormy night.\n\n";
    put_file(clone.path("my_book.txt"), book);
    must_succeed(clone.run(readme_command({"data/tokenize my_book.txt --out"}) + " --val-fraction 0.2"));
    const std::string train = readme_command({"--num-layers 6", "--out-dir run/my_book"});
    clone.run_on_gpu(replaced(train, "--num-layers 6", "--num-layers 1") + kShort + " --sample-tokens 0");
    clone.run_on_gpu(readme_command({"./train_gpt --resume run/my_book --steps 20000"}) + kShort);
    CHECK(steps_in(clone.path("run/my_book")).size() >= 1);

    // The text again in the tokens of a model that is there, which this one stands for.
    const auto model_at = [](const std::string& command, const std::string& path) {
        return replaced(command, "path/to/gpt2", path);
    };
    const std::string last = step_folder("run/my_book", checkpoint_steps(clone.path("run/my_book")).back());
    must_succeed(clone.run(model_at(readme_command({"data/tokenize my_book.txt --tokenizer path/to/gpt2"}), last) +
                           " --val-fraction 0.2"));
    const std::string tune = readme_command({"./train_gpt --init-from path/to/gpt2", "--out-dir run/tuned"});
    clone.run_on_gpu(model_at(replaced(tune, "--seq-len 256", "--seq-len 128"), last) + kShort + " --sample-tokens 0");
    CHECK(steps_in(clone.path("run/tuned")).size() >= 1);
}

// With a GPU for each, over NCCL; where there is one GPU, the second rank is told.
TEST_CASE("README: mpirun with a GPU for each process", "[readme][mpi][once]" ON_DEVICE) {
    if (!has_mpi()) return;
    const BuiltClone clone;
    must_succeed(clone.run("data/tinyshakespeare.sh"));
    std::string command = replaced(readme_command({"mpirun -np 8", "run/eight"}), "-np 8", "-np 2");
    command =
        replaced(command, "--oversubscribe ./train_gpt", "--oversubscribe ./train_gpt --sample-tokens 0" + kShort);
    // What Open MPI wants in a container.
    const std::string allowed = mpirun_command(2, ""), container = allowed.substr(0, allowed.find("mpirun -np"));
    int gpus = 0;
    cuda_check(cudaGetDeviceCount(&gpus), "counting GPUs");
#ifdef ANVIL_EMULATED
    gpus = 2;
    const Finished one = clone.run("ANVIL_EMULATOR_GPUS=1 " + container + command);
    CHECK(one.exit_code == 2);
    CHECK(contains(one.err,
                   "no GPU for every rank of this host: GPU 1 was asked for, and there are 1; start fewer ranks"));
#endif
    if (gpus < 2) return;
    const Finished both = clone.run_on_gpu("ANVIL_EMULATOR_GPUS=2 " + container + command);
    CHECK(contains(both.out, "2 ranks, by Open MPI's mpirun"));
    CHECK(steps_in(clone.path("run/eight")).size() >= 1);
}
