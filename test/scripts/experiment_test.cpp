// scripts/experiment.py and --results: it finds the better of two configurations, and does not repeat finished runs.
#include "test/program.h"

namespace {
bool has_toml() { return run("python3 -c 'import tomllib'").exit_code == 0; }

int64_t lines_in(const std::string& path) {
    const std::string text = read_file(path);
    return std::count(text.begin(), text.end(), '\n');
}
}  // namespace

TEST_CASE("--results appends a line for each run, under one header", "[experiment]") {
    const TinyRuns runs;
    const std::string path = runs.path("results.tsv");
    must_succeed(runs.train("a", {{"results", path}, {"description", "the\tfirst"}}));
    must_succeed(runs.train("b", {{"results", path}, {"seed", "8"}}));
    must_succeed(runs.train("c", {{"results", path}, {"steps", "100000"}, {"time-budget", "0.01"}}));
    const FlagMap open = {{"results", path},
                          {"total-batch-size", "0"},
                          {"warmup-steps", "recipe"},
                          {"checkpoint-every", "10"},
                          {"keep", "9"}};
    must_succeed(runs.train("open", open));
    must_succeed(run(command_of(
        {{"resume", step_folder(runs.path("open"), 10)}, {"out-dir", runs.path("resumed")}, {"results", path}})));
    must_succeed(
        runs.resume("a", {{"steps", "21"}}));  // a checkpoint may be a stranger's: it does not say where to write
    const std::string text = read_file(path);
    CHECK(lines_in(path) == 6);
    CHECK(text.starts_with("commit\tconfig\tseed\tval_bpb\t"));
    CHECK(contains(text, "\tfinished\t" + runs.path("a") + "\tthe first\n"));
    CHECK(contains(text, "\ttime budget\t" + runs.path("c") + "\t\n"));
    const auto config = [&](const std::string& name) {
        const std::string before = text.substr(0, text.find("\t" + runs.path(name) + "\t"));
        const std::string line = before.substr(before.rfind('\n') + 1);
        const size_t at = line.find('\t') + 1;
        return line.substr(at, line.find('\t', at) - at);
    };
    CHECK(config("a") == config("b"));  // but for the seed
    CHECK(config("a") != config("c"));
    CHECK(config("resumed") == config("open"));  // whatever was left open

    put_file(path, "commit\tval_bpb\tmemory_gb\n");
    const Finished refused = runs.train("d", {{"results", path}});
    CHECK(refused.exit_code == 2);
    CHECK(contains(refused.err, "its first line is not that of this program's results"));
    CHECK(!std::filesystem::exists(runs.path("d/log.jsonl")));
}

TEST_CASE("experiment.py keeps the better configuration, and repeats nothing", "[experiment]") {
    if (!has_toml()) return;
    const TinyRuns runs(20000);
    const std::string spec = runs.path("spec.toml"), out = runs.path("experiment");
    const auto write_spec = [&](const std::string& budget, const std::string& trials) {
        put_file(spec, "[fixed]\nbudget = " + budget +
                           "\nmetric = 'val_loss'\nseeds = 2\nval-tokens = 640\ntrain-data = '" +
                           runs.path("data/train_*.bin") + "'\nval-data = '" + runs.path("data/val_*.bin") +
                           "'\n[base]\nnum-layers = 2\nnum_heads = 2\nchannels = 32\nseq-len = 16\nbatch-size = 8\n"
                           "learning-rate = 1e-7\nwarmup-steps = 0\nthreads = 1\ndtype = 'fp32'\n" +
                           trials);
    };
    const auto start = [&] {
        return run("python3 scripts/experiment.py " + spec + " --out " + out + " --train-gpt " + program("train_gpt"));
    };
    const std::string better = "[[trial]]\nname = 'learns'\nlearning-rate = 1e-2\n";
    write_spec("0.2", better + "[[trial]]\nname = 'cannot'\nnum-heads = 7\n");
    const Finished first = start();
    INFO(first.out << first.err);
    REQUIRE(first.exit_code == 0);
    CHECK(contains(first.out, "learns: "));
    CHECK(contains(first.out, "keep     val_loss"));
    CHECK(contains(first.out, "crash    val_loss -  cannot: error: "));
    CHECK(contains(first.out, "--learning-rate 0.01 "));
    CHECK(lines_in(out + "/results.tsv") == 5);  // with the header: two seeds each
    const std::string page = read_file(out + "/index.html");
    for (const char* part : {"better than", "Best of 3: <b>learns</b>", "<svg", "crash</text>", "twice that", "M</td>"})
        CHECK(contains(page, part));
    // Four runs that were kept, and the line that one trial had to beat.
    int64_t dots = 0;
    for (size_t at = 0; (at = page.find("<circle class=\"keep\"", at)) != std::string::npos; at++) dots++;
    CHECK(dots == 4);
    CHECK(contains(page, "stroke-width"));
    CHECK(contains(read_file(out + "/curves.html"), "<svg"));

    // Started again, all is there; a trial more is all that runs.
    write_spec("0.2", better + "[search]\ntrials = 1\nbeta2 = [0.9]\nadam_eps = [1e-9]\n");
    const Finished again = start();
    INFO(again.out << again.err);
    CHECK(again.exit_code == 0);
    CHECK(contains(again.out, "search 1: "));
    CHECK(lines_in(out + "/results.tsv") >= 6);
    CHECK(lines_in(out + "/results.tsv") <= 7);

    // A result belongs to its flags: not to a name that looks like another, nor to one that had other flags before.
    const auto two = [&](const std::string& rate) {
        write_spec("0.2", "[[trial]]\nname = 'lr=1'\nlearning-rate = " + rate +
                              "\n[[trial]]\nname = 'lr 1'\nlearning-rate = 1e-9\n");
        const Finished done = start();
        INFO(done.out << done.err);
        CHECK(done.exit_code == 0);
        return done.out;
    };
    const std::string apart = two("1e-2"), edited = two("1e-8");
    CHECK(contains(apart.substr(0, apart.find("lr=1:")), "\nkeep "));
    CHECK(contains(apart, "--learning-rate 0.01 "));
    CHECK(!contains(apart.substr(apart.find("lr=1:")), "\nkeep "));  // nor is the second given the first's result
    CHECK(!contains(edited.substr(edited.find('\n')), "\nkeep "));
    CHECK(contains(edited, "--learning-rate 1e-07 "));  // the baseline's
    for (const char* name : {"lr=1", "baseline"}) {
        write_spec("0.2", "[[trial]]\nname = 'lr=1'\nbeta2 = 0.9\n[[trial]]\nname = '" + std::string(name) +
                              "'\nbeta2 = 0.8\n");
        CHECK(contains(start().err, "called '" + std::string(name) + "': give it another name"));
    }
    const std::string help = run("python3 scripts/experiment.py --help").out;
    for (const char* part : {"[[trial]]", "[search]", "log = true", "the folder of all runs"})
        CHECK(contains(help, part));

    // With steps instead of seconds all runs are equally long, and what is kept is also run shorter.
    write_spec("0.2", better + "[[trial]]\nname = 'slow'\nlearning-rate = 1e-9\n");
    std::string text = read_file(spec);
    put_file(spec, text.replace(text.find("budget = 0.2"), 12, "steps = 8\nshorter = [0.25, 0.5]"));
    const std::string by_steps = out + "_steps";
    const Finished steps =
        run("python3 scripts/experiment.py " + spec + " --out " + by_steps + " --train-gpt " + program("train_gpt"));
    INFO(steps.out << steps.err);
    REQUIRE(steps.exit_code == 0);
    CHECK(contains(steps.out, "; at most 25.0 % of the steps reach the baseline's"));
    CHECK(contains(steps.out, "\ndiscard"));
    // Two seeds of the baseline at 8 and 4 steps, of the trial at 8, 4 and 2, of the discarded one at 8.
    CHECK(lines_in(by_steps + "/results.tsv") == 1 + 4 + 6 + 2);

    write_spec("0.3", better);
    CHECK(contains(start().err, "holds an experiment with another [fixed] part or base"));
    write_spec("0.2", "[[trial]]\nname = 'moves the goal'\nval-data = 'other'\n");
    CHECK(contains(start().err, "val-data is fixed for all trials"));
    write_spec("0.2", "");
    CHECK(contains(start().err, "nothing to try: give [[trial]] or [search]"));
}
