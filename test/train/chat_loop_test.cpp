// train_gpt chat: a model that was taught on conversations answers questions that it has not seen, and the loop around
// it.
#include <set>
#include "llmc/base/file.h"  // write_file_atomically
#include "test/program.h"    // run, program

namespace {
struct Question {
    std::string text, answer;
};

// A world of twelve things, each with a color, and six ways to ask for it.
std::vector<Question> questions() {
    const char* const things[][2] = {{"sky", "blue"},   {"grass", "green"}, {"snow", "white"},  {"coal", "black"},
                                     {"sun", "yellow"}, {"rose", "red"},    {"sea", "teal"},    {"moon", "silver"},
                                     {"wood", "brown"}, {"sand", "tan"},    {"plum", "purple"}, {"fire", "orange"}};
    std::vector<Question> all;
    for (const char* form : {"What color is the %s?", "Please tell me the color of the %s.", "The %s: which color?"})
        for (const char* hello : {"", "Hi! "})
            for (const auto& thing : things)
                all.push_back({hello + format(form, thing[0]), format("The %s is %s.", thing[0], thing[1])});
    return all;
}

std::string message(const char* role, const std::string& text) {
    return format(R"({"role": "%s", "content": "%s"})", role, text.c_str());
}

// A model that was taught all questions but every sixth.
struct Taught {
    ScratchFolder scratch;
    std::vector<Question> held_out;
    std::string folder = scratch / "run";

    Taught() {
        std::vector<Question> all = questions(), taught;
        Rng rng(1, Stream::tests);
        for (size_t i = all.size(); i > 1; i--) std::swap(all[i - 1], all[size_t(rng.below(i))]);
        for (size_t i = 0; i < all.size(); i++) (i % 6 == 0 ? held_out : taught).push_back(all[i]);
        std::string lines;
        for (int i = 0; i < 1200; i++) {
            std::string turns;
            if (rng.below(4) == 0) turns += message("system", "You know colors.") + ", ";
            for (uint64_t n = 1 + rng.below(2), k = 0; k < n; k++) {
                const Question& one = taught[size_t(rng.below(taught.size()))];
                turns += (k > 0 ? ", " : "") + message("user", one.text) + ", " + message("assistant", one.answer);
            }
            lines += "{\"messages\": [" + turns + "]}\n";
        }
        write_file_atomically(scratch / "chats.jsonl", lines);
        succeed(program("data/tokenize") + " " + scratch / "chats.jsonl" +
                " --format chat --train-tokenizer --vocab-size 400 --out " + scratch / "data");
        succeed(program("train_gpt") + " --train-data '" + scratch / "data/train_*.bin' --val-data '" +
                scratch / "data/val_*.bin' --packing pad --num-layers 2 --num-heads 2 --channels 64 --seq-len 96 " +
                "--batch-size 8 --steps 240 --learning-rate 4e-3 --dtype fp32 --sample-tokens 0 --seed 1 --out-dir " +
                folder);
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

TEST_CASE("a model that was taught on conversations answers, also in the middle of one", "[chat_loop]") {
    const Taught taught;
    CHECK(contains(read_file(taught.folder + "/log.jsonl"), "\"ignored\":"));

    std::string lines, want;
    for (const Question& one : taught.held_out) lines += "/clear\n" + one.text + "\n", want += one.answer + "\n";
    const Finished all = taught.chat(lines);
    INFO(all.err);
    REQUIRE(all.exit_code == 0);
    CHECK(contains(all.err, " tokens/s\n"));
    std::vector<std::string> got;
    for (size_t at = 0; at < all.out.size();) {
        const size_t end = all.out.find('\n', at);
        got.push_back(all.out.substr(at, end - at));
        at = end + 1;
    }
    REQUIRE(got.size() == taught.held_out.size());
    size_t right = 0;
    for (size_t i = 0; i < got.size(); i++) right += got[i] == taught.held_out[i].answer;
    INFO(all.out << "instead of\n" << want);
    CHECK(double(right) >= 0.95 * double(got.size()));

    // One after the other, with what was said before in sight; the oldest go in the end.
    const Question& one = taught.held_out[0];
    std::string again;
    for (int i = 0; i < 12; i++) again += one.text + "\n";
    const Finished longer = taught.chat(again);
    CHECK(longer.exit_code == 0);
    CHECK(contains(longer.err, "messages, for the context of 96 tokens)"));
    CHECK(std::count(longer.out.begin(), longer.out.end(), '\n') == 12);
    CHECK(contains(longer.out, one.answer));

    const Finished single = taught.chat("", "--message '" + one.text + "' --system 'You know colors.'");
    CHECK(single.out == one.answer + "\n");
    const Finished commands =
        taught.chat("/help\n/nothing\n\n/system You know colors.\n" + one.text + "\r\n/quit\n?\n");
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
