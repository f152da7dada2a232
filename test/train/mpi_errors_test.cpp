// Ranks with mismatched settings: one error names the rank and the difference, and all ranks end.
#include "test/train/mpi_runs.h"

namespace fs = std::filesystem;

TEST_CASE("ranks that differ are told which one, and in what", "[mpi_errors][mpi]") {
    if (!has_mpi()) return;
    const TinyRuns runs;
    const TinyRuns other(3000);
    const FlagMap flags = runs.flags("a", kEight);
    const std::string good = command_of(flags);
    const auto differing = [&](const FlagMap& changes) { return command_of(with(flags, changes)); };
    const auto refused = [&](const std::vector<std::string>& commands, const std::vector<std::string>& parts) {
        check_ended(mpirun_each(commands), kExitUsage, parts);
        CHECK_FALSE(fs::exists(runs.path("a")));
    };
    refused({good, differing({{"seed", "8"}})},
            {"error: the ranks differ in --seed: it is 8 on rank 1, and 7 on rank 0"});
    // A flag that only one has been given must not send it another way before that is found out.
    refused({good, differing({{"resume", "auto"}})}, {"the ranks differ in --resume: it is auto on rank 1"});

    // The same flags in folders that hold different data: a command of its own, in a file, because of its quotes.
    const auto in_folder = [&](const TinyRuns& folder) {
        FlagMap relative = with(flags, {{"train-data", "data/train_*.bin"}, {"val-data", ""}});
        const std::string script = folder.path("command.sh"), ours = program("train_gpt");
        put_file(script, "cd '" + folder.scratch.path + "' && exec '" + fs::absolute(ours).string() + "'" +
                             command_of(relative).substr(ours.size()) + "\n");
        return "sh " + script;
    };
    refused({in_folder(runs), in_folder(other)}, {"error: the ranks differ in the tokenizer: it is "});

    // Another build: this one, called otherwise.
    const std::string version = run(program("train_gpt") + " --version").out;  // train_gpt 0.1.0 (build 08490cb)
    const std::string id = version.substr(version.find("(build ") + std::strlen("(build "));
    std::string program_text = read_file(program("train_gpt")), our_id = id.substr(0, id.find(')')), their_id = our_id;
    their_id[0] = their_id[0] == 'x' ? 'y' : 'x';
    REQUIRE(count(program_text, our_id) > 0);
    for (size_t at = 0; (at = program_text.find(our_id, at)) != std::string::npos;) program_text[at] = their_id[0];
    const std::string their_program = runs.path("train_gpt");
    put_file(their_program, program_text);
    fs::permissions(their_program, fs::perms::owner_all);
    refused({good, their_program + good.substr(program("train_gpt").size())},
            {"error: the ranks differ in the build: it is " + their_id + " on rank 1, and " + our_id + " on rank 0"});
}

TEST_CASE("what is wrong with every rank is said once", "[mpi_errors][mpi]") {
    if (!has_mpi()) return;
    const TinyRuns runs;
    const auto refused = [&](const FlagMap& changes, const std::string& part) {
        check_ended(mpirun(3, kImpatient + command_of(runs.flags("a", with(kEight, changes)))), kExitUsage,
                    {"error: " + part});
        CHECK_FALSE(fs::exists(runs.path("a")));
    };
    refused({{"batch-sise", "2"}}, "unknown flag --batch-sise, did you mean --batch-size?");
    refused({{"learning-rate", "0"}}, "--learning-rate 0 learns nothing");
    refused({{"train-data", runs.path("nowhere/train_*.bin")}}, "no file matches");
    refused({}, "--total-batch-size 256 is not a multiple of --batch-size 2 x --seq-len 16 x 3 ranks");
    refused({{"total-batch-size", "192"}, {"device", "cuda"}}, "--device cuda: ");
    refused({{"total-batch-size", "192"}, {"prompt", "~"}, {"sample-tokens", "5"}}, "--prompt: '~'");
    refused({{"resume", runs.path("nowhere")}}, "--resume " + runs.path("nowhere") + ": there is no checkpoint");
    // One rank's alone carries its number.
    const std::string good = command_of(runs.flags("a", kEight));
    check_ended(mpirun_each({good, good + " --batch-sise=2"}), kExitUsage,
                {"error: rank 1: unknown flag --batch-sise, did you mean --batch-size?"});
    CHECK_FALSE(fs::exists(runs.path("a")));
}

TEST_CASE("half a launch is an error", "[mpi_errors]") {
    const TinyRuns runs;
    const auto refused = [&](const std::string& variables, const FlagMap& flags, const std::string& part) {
        check_ended(run(variables + command_of(runs.flags("a", flags))), kExitUsage, {part});
        CHECK_FALSE(fs::exists(runs.path("a")));
    };
    refused("", {{"world-size", "2"}}, "--world-size 2 is given without --rank");
    refused("", {{"world-size", "2"}, {"rank", "1"}}, "--world-size 2 needs --master HOST:PORT");
    refused("RANK=1 ", {}, "RANK is set in the environment and WORLD_SIZE is not");
    refused("RANK=1 WORLD_SIZE=2 ", {}, "MASTER_ADDR is not");
    refused("OMPI_COMM_WORLD_SIZE=2 ", {}, "OMPI_COMM_WORLD_SIZE is set in the environment and OMPI_COMM_WORLD_RANK");
}
