// train_gpt chat: a model that was trained on conversations answers new questions, and the loop around it.
#include <set>
#include "llmc/base/file.h"  // write_file_atomically
#include "test/program.h"    // run, program

namespace {
struct Question {
    std::string text, answer;
};

// A model that was taught all questions but every sixth.
struct Taught {
    ScratchFolder scratch;
    std::vector<Question> held_out;
    std::string folder = scratch / "run", questions = scratch / "held_out.jsonl";

    // scripts/tiny_world.py with three people instead of 24, and a smaller model than its tutorial's.
    Taught() {
        succeed("python3 scripts/tiny_world.py make " + scratch.path + " --people 3 --conversations 1200");
        const std::string lines = read_file(questions);
        for (size_t at = 0, end; (end = lines.find('\n', at)) != std::string::npos; at = end + 1)
            held_out.push_back(question(lines.substr(at, end - at)));
        succeed(program("data/tokenize") + " " + scratch / "conversations.jsonl" +
                " --format chat --train-tokenizer --vocab-size 400 --out " + scratch / "data");
        succeed(program("train_gpt") + " --train-data '" + scratch / "data/train_*.bin' --val-data '" +
                scratch / "data/val_*.bin' --packing pad --num-layers 2 --num-heads 2 --channels 64 --seq-len 96 " +
                "--batch-size 8 --steps 480 --learning-rate 4e-3 --dtype fp32 --sample-tokens 0 --seed 1 --out-dir " +
                folder);
    }
    Finished ask(const std::string& of) const {
        return run("python3 scripts/tiny_world.py ask " + folder + " " + of + " --train-gpt " + program("train_gpt"));
    }
    // {"question": "...", "answer": "..."}
    static Question question(const std::string& line) {
        const std::string between = "\", \"answer\": \"", before = "{\"question\": \"";
        const size_t middle = line.find(between), start = middle + between.size();
        REQUIRE((line.starts_with(before) && middle != std::string::npos && line.ends_with("\"}")));
        return {line.substr(before.size(), middle - before.size()), line.substr(start, line.size() - 2 - start)};
    }
    static void succeed(const std::string& command) {
        const Finished finished = run(command);
        INFO(finished.err);
        REQUIRE(finished.exit_code == 0);
    }
    // The lines are standard input.
    Finished chat(const std::string& lines, const std::string& flags = "") const {
        write_file_atomically(scratch / "input", lines);
        return run(program("train_gpt") + " chat --resume " + folder + " --temperature 0 " + flags + " < " +
                   scratch / "input");
    }
};
}  // namespace

TEST_CASE("a model that was taught on conversations answers, also in the middle of one", "[chat_loop][plain]") {
    const Taught taught;
    CHECK(contains(read_file(taught.folder + "/log.jsonl"), "\"ignored\":"));

    const Finished asked = taught.ask(taught.questions);
    INFO(asked.out << asked.err);
    CHECK(asked.exit_code == 0);
    CHECK(contains(asked.out, format("of %zu held-out questions right", taught.held_out.size())));

    // How it was taught goes along, so that others ask it in the same way.
    const std::string jinja = read_file(taught.scratch / "data/chat_template.jinja");
    CHECK(contains(jinja, "<|assistant_start|>"));
    CHECK(read_file(step_folder(taught.folder, 480) + "/chat_template.jinja") == jinja);
    Taught::succeed(program("train_gpt") + " export --init-from " + taught.folder + " --out-dir " +
                    taught.scratch / "exported");
    CHECK(read_file(taught.scratch / "exported/chat_template.jinja") == jinja);

    // With other expected answers fewer are right.
    const Question& one = taught.held_out[0];
    const std::string wrong = taught.scratch / "wrong.jsonl";
    write_file_atomically(wrong, "{\"question\": \"" + one.text + "\", \"answer\": \"Nobody knows.\"}\n");
    const Finished missed = taught.ask(wrong);
    CHECK(missed.exit_code == 1);
    CHECK(contains(missed.out, "(expected: Nobody knows.)\n0 of 1 held-out questions right, 0.0 %"));

    // One after the other, with what was said before in sight; the oldest go in the end.
    std::string again;
    for (int i = 0; i < 12; i++) again += one.text + "\n";
    const Finished longer = taught.chat(again);
    CHECK(longer.exit_code == 0);
    CHECK(contains(longer.err, "messages, for the context of 96 tokens)"));
    CHECK(std::count(longer.out.begin(), longer.out.end(), '\n') == 12);
    CHECK(contains(longer.out, one.answer));

    const Finished single = taught.chat("", "--message '" + one.text + "' --system 'You know the village.'");
    CHECK(single.out == one.answer + "\n");
    const Finished commands =
        taught.chat("/help\n/nothing\n\n  \t\n/system You know the village.\n" + one.text + "\r\n/quit\n?\n");
    CHECK(commands.out == one.answer + "\n");
    CHECK(contains(commands.err, "/system TEXT, /clear, /quit"));
    CHECK(contains(commands.err, "/nothing is no command: expected"));
    const Finished nothing = taught.chat("");
    CHECK((nothing.exit_code == 0 && nothing.out == ""));
    const Finished large = taught.chat(std::string(100000, 'a') + "\n" + one.text + "\n");
    CHECK((large.exit_code == 0 && large.out == one.answer + "\n"));
    CHECK(contains(large.err, "and the context is 96, 48 of them for the answer: shorten it"));
    const Finished cut = taught.chat(one.text + "\n", "--sample-tokens 2");
    CHECK(contains(cut.err, "(cut off after 2 tokens"));
}

TEST_CASE("chat refuses a model whose tokenizer has no tokens for conversations", "[chat_loop]") {
    const TinyRuns runs;
    must_succeed(runs.train("run", {{"steps", "5"}}));
    const Finished refused = run(program("train_gpt") + " chat --message Hi --resume " + runs.path("run"));
    CHECK(refused.exit_code == 2);
    CHECK(contains(refused.err, "has no tokens for conversations, such as <|user_start|>"));
    const Finished without = run(program("train_gpt") + " chat --message Hi");
    CHECK(without.exit_code == 2);
    CHECK(contains(without.err, "expected the model to talk to: give --resume"));
}
