// Runs of train_gpt that score their model on tasks, train_gpt eval, and the scripts that make task files.
#include <filesystem>
#include "llmc/eval/task_file.h"
#include "test/eval/tasks_fixture.h"
#include "test/program.h"  // TinyRuns

namespace {
using namespace std::string_literals;

FlagMap with(FlagMap flags, const FlagMap& more) {
    for (const auto& [name, value] : more) flags[name] = value;
    return flags;
}

// All but how long it took.
std::string without_time(const std::string& record) { return record.substr(0, record.find(",\"ms\"")); }

// The line of a summary, "" if it has none.
std::string line_of(const std::string& text, const std::string& name) {
    const size_t begin = text.find("\n" + name + ":");
    return begin == std::string::npos ? "" : text.substr(begin + 1, text.find('\n', begin + 1) - begin - 1);
}

std::string text_of(const TaskFile& file, int64_t row, bool scored) {
    std::vector<int32_t> ids(size_t(file.row(row).length()));
    file.copy_row(row, ids.data());
    const auto first = ids.begin() + (scored ? file.row(row).start : 0);
    return std::string(first, scored ? ids.begin() + file.row(row).end : ids.end());
}

}  // namespace

TEST_CASE("a run scores its model when it is due, the same on any number of ranks; eval once more", "[score_runs]") {
    const TinyRuns runs;
    const std::string ours = runs.path("small.tasks"), theirs = runs.path("quiz.bin");
    write_file_atomically(ours, small_tasks(2, 8));
    write_file_atomically(theirs, questions());
    const FlagMap flags = {{"steps", "6"},
                           {"eval-tasks", ours + "," + theirs},
                           {"eval-tasks-every", "4"},
                           {"checkpoint-every", "3"},
                           {"batch-size", "1"},
                           {"total-batch-size", "64"},
                           {"grad-sum", "tree"}};  // the same weights on two ranks
    const Finished trained = run(command_of(runs.flags("one", flags)) + " --summary");
    must_succeed(trained);
    const std::vector<std::string> records = records_in(runs.path("one"), "tasks");
    REQUIRE(records.size() == 4);
    for (size_t i = 0; i < 4; i++) {
        CHECK(contains(records[i], i < 2 ? "\"step\":4," : "\"step\":6,"));
        CHECK(contains(records[i], i % 2 ? "quiz.bin\"" : "small.tasks\""));
        CHECK(contains(records[i], i % 2 ? "\"quiz\":{\"accuracy\":" : "\"words\":{\"accuracy\":"));
    }
    CHECK(contains(records[1], "\"examples\":3"));
    CHECK(contains(trained.out, "tasks at step 6:\ntask choices"));
    for (const char* name : {"accuracy_choices", "accuracy_words", "score_small", "accuracy_quiz"}) {
        CHECK(line_of(trained.out, name) != "");
        CHECK(trained.out.find(name) == trained.out.rfind(name));  // of the last state alone
    }

    must_succeed(runs.train("two", with(flags, {{"virtual-ranks", "2"}})));
    const std::vector<std::string> two = records_in(runs.path("two"), "tasks");
    REQUIRE(two.size() == 4);
    for (size_t i = 0; i < 4; i++) CHECK(without_time(two[i]) == without_time(records[i]));

    // Of the last state and of an older one: without the text that was learned from, and leaving no trace.
    std::filesystem::remove(runs.path("data/train_000000.bin"));
    const std::string log = read_file(runs.path("one/log.jsonl"));
    for (const std::string rank_flag : {"", " --virtual-ranks 2"}) {
        const Finished seen = run(command_of({{"resume", runs.path("one")}}, "eval") + " --summary" + rank_flag);
        must_succeed(seen);
        CHECK(!contains(seen.err, "warning"));
        for (const char* name : {"val_loss", "val_bpb", "accuracy_choices", "score_small", "accuracy_quiz"}) {
            INFO(name << rank_flag);
            CHECK(line_of(seen.out, name) != "");
            CHECK(line_of(seen.out, name) == line_of(trained.out, name));
        }
    }
    const Finished older =
        run(command_of({{"resume", step_folder(runs.path("one"), 3)}, {"val-data", ""}}, "eval") + " --summary");
    must_succeed(older);
    CHECK(contains(older.out, "model: " + step_folder(runs.path("one"), 3) + ", "));
    CHECK(contains(older.out, "tasks at step 3:"));
    CHECK(contains(older.out, "val_loss:           nan"));
    CHECK(read_file(runs.path("one/log.jsonl")) == log);

    // What cannot be: nothing to look at, and tasks that are not the model's.
    const Finished none = run(program("train_gpt") + " eval --val-data x");
    CHECK(none.exit_code == 2);
    CHECK(contains(none.err, "expected the model to evaluate: give --resume"));
    const auto refused = [&](const std::string& bytes) {
        write_file_atomically(ours, bytes);
        const Finished finished = run(command_of({{"resume", runs.path("one")}}, "eval"));
        CHECK(finished.exit_code == 2);
        return finished.err;
    };
    CHECK(contains(refused(small_tasks()), "has token 300, and the model's vocabulary ends at"));
    CHECK(contains(refused("nothing"), "small.tasks has 7 bytes"));
}

TEST_CASE("scripts/make_hellaswag.py writes contexts and endings", "[score_runs]") {
    const ScratchFolder scratch;
    write_file_atomically(scratch / "in.jsonl",
                          "{\"ctx\": \"A cat\", \"label\": 1, \"endings\": [\"sits.\", \"is \\u00e9.\"]}\n"
                          "{\"ctx\": \"B\", \"label\": \"0\", \"endings\": [\"x\", \"y\"]}\n");
    must_succeed(run("python3 scripts/make_hellaswag.py --tokenizer bytes " + scratch / "in.jsonl" + " " +
                     (scratch / "out.bin")));
    const TaskFile file(scratch / "out.bin");
    REQUIRE(file.rows().size() == 4);
    CHECK((file.examples()[0].gold == 1 && file.examples()[1].gold == 0));
    CHECK((text_of(file, 0, false) == "A cat sits." && text_of(file, 0, true) == " sits."));
    CHECK(text_of(file, 1, true) == " is \u00e9.");
    CHECK(text_of(file, 2, false) == "B x");
}

TEST_CASE("scripts/make_core.py renders the bundle's tasks", "[score_runs]") {
    if (run("python3 -c 'import yaml'").exit_code != 0) {
        WARN("skipped: python3 has no module yaml (apt install python3-yaml)");
        return;
    }
    const ScratchFolder scratch;
    make_folders(scratch / "bundle/eval_data/a");
    const auto put = [&](const std::string& name, const std::string& content) {
        write_file_atomically(scratch / ("bundle/" + name), content);
    };
    put("core.yaml",
        "icl_tasks:\n-\n  label: quiz\n  dataset_uri: a/quiz.jsonl\n  num_fewshot: [1]\n  icl_task_type: "
        "multiple_choice\n"
        "  continuation_delimiter: \"\\nAnswer: \"\n-\n  label: who\n  dataset_uri: who.jsonl\n  num_fewshot: [0]\n"
        "  icl_task_type: schema\n-\n  label: ends\n  dataset_uri: ends.jsonl\n  num_fewshot: [1]\n"
        "  icl_task_type: language_modeling\n");
    put("eval_meta_data.csv", "Eval Task,Random baseline\nquiz,25.0\nwho,50\nends,0.0\nother,10\n");
    put("eval_data/a/quiz.jsonl",
        "{\"query\": \"Q1\", \"choices\": [\"ab\", \"ac\"], \"gold\": 1}\n"
        "{\"query\": \"Q2\", \"choices\": [\"x\", \"xy\"], \"gold\": 0}\n");
    put("eval_data/who.jsonl",
        "{\"context_options\": [\"Tom\", \"the dog\"], \"continuation\": \"runs\", \"gold\": 1}\n");
    put("eval_data/ends.jsonl",
        "{\"context\": \" one \", \"continuation\": \"two\"}\n"
        "{\"context\": \"red\", \"continuation\": \"blue\"}\n");
    must_succeed(
        run("python3 scripts/make_core.py --tokenizer bytes " + scratch / "bundle" + " " + (scratch / "core.tasks")));
    const TaskFile file(scratch / "core.tasks");
    REQUIRE(file.tasks().size() == 3);
    CHECK((file.tasks()[0].baseline == 0.25 && file.tasks()[1].type == TaskType::schema &&
           file.tasks()[2].name == "ends"));
    REQUIRE((file.examples().size() == 5 && file.rows().size() == 8));
    // Each quiz question after the other one, whichever the shuffle puts first.
    for (int64_t e = 0; e < 2; e++) {
        const TaskExample& example = file.examples()[size_t(e)];
        const std::string text = text_of(file, example.first_row, false),
                          other = text_of(file, example.first_row + 1, false);
        if (contains(text, "\n\nQ1")) {
            CHECK((text == "\0Q2\nAnswer: x\n\nQ1\nAnswer: ab"s && example.gold == 1));
            CHECK((text_of(file, example.first_row, true) == "b" && text_of(file, example.first_row + 1, true) == "c"));
        } else {
            CHECK((text == "\0Q1\nAnswer: ac\n\nQ2\nAnswer: x"s && example.gold == 0));
            // One choice begins like the other: of each at least the last token counts.
            CHECK((text_of(file, example.first_row, true) == "x" && text_of(file, example.first_row + 1, true) == "y"));
        }
    }
    CHECK((text_of(file, 4, false) == "\0Tom runs"s && text_of(file, 4, true) == " runs"));
    CHECK((text_of(file, 5, true) == " runs" && file.examples()[2].gold == 1));
    const bool one_first = contains(text_of(file, 6, false), "red blue\n\none two");
    CHECK(text_of(file, 6, false) == (one_first ? "\0red blue\n\none two"s : "\0one two\n\nred blue"s));
    CHECK(text_of(file, 6, true) == (one_first ? " two" : " blue"));

    must_succeed(run("python3 scripts/make_core.py --tokenizer bytes --max-tokens 6 " + scratch / "bundle" + " " +
                     (scratch / "short.tasks")));
    const TaskFile shorter(scratch / "short.tasks");
    shorter.check(256, 6);
    CHECK((text_of(shorter, 5, false) == "g runs" && text_of(shorter, 5, true) == " runs"));
}
