// train_gpt generate: its output, that this equals sampling in memory, and what is refused.
#include "llmc/commands/generate.h"
#include "test/program.h"

namespace {

// A run of a char tokenizer's stories with one checkpoint, of 2 layers and 16 positions.
struct Trained {
    TinyRuns runs;
    std::string folder;

    explicit Trained(const FlagMap& flags = {{"steps", "5"}}) {
        must_succeed(runs.train("run", flags));
        folder = runs.path("run");
    }
    Finished generate(const FlagMap& flags) const {
        FlagMap all = flags;
        all.insert({{"resume", folder}, {"prompt", "Once"}, {"sample-tokens", "30"}, {"temperature", "1"}});
        return run(command_of(all, "generate"));
    }
    std::string text(const FlagMap& flags) const {
        const Finished finished = generate(flags);
        must_succeed(finished);
        CHECK(contains(finished.err, " tokens/s\n"));
        return finished.out;
    }
    void check_refused(const FlagMap& flags, const std::string& message) const {
        const Finished finished = generate(flags);
        INFO(finished.err);
        CHECK(finished.exit_code == 2);
        CHECK(contains(finished.err, message));
    }
};

// The same in this process, each token from all the last ones.
std::string in_memory(const Trained& trained, const std::string& prompt, const SampleConfig& config, uint64_t seed) {
    const std::string checkpoint = find_checkpoint(trained.folder).path;
    Cpu cpu(1);
    const GptShape shape = checkpoint_shape(checkpoint);
    Gpt<Cpu> model(cpu, shape, 1, shape.max_seq_len);
    read_weights(StoredModel(checkpoint), model.parameters,
                 [&](size_t i, const float* values) { model.set_weight(model.parameters.parameters[i], values); });
    const Tokenizer tokenizer = load_tokenizer(checkpoint + "/tokenizer.json");
    Rng rng(mix64(seed), Stream::sampling);
    return tokenizer.decode(
        sample(model, tokenizer.encode(prompt), shape.max_seq_len, shape.vocab_size, config, Context::recompute, rng));
}

}  // namespace

// The context is 16 tokens: one text stays within it, the other one exceeds it.
TEST_CASE("generate prints what sampling gives", "[generate]") {
    const Trained trained;
    const std::string text = trained.text({});
    CHECK(text.size() == 30);
    CHECK(text == in_memory(trained, "Once", {.num_tokens = 30, .temperature = 1}, 7));
    CHECK(trained.text({{"threads", "2"}, {"sample-tokens", "12"}}) == text.substr(0, 12));
    CHECK(trained.text({{"temperature", "0"}}) == in_memory(trained, "Once", {.num_tokens = 30, .temperature = 0}, 7));
    CHECK(trained.text({{"top-k", "5"}, {"top-p", "0.7"}, {"seed", "3"}}) ==
          in_memory(trained, "Once", {.num_tokens = 30, .temperature = 1, .top_k = 5, .top_p = 0.7}, 3));
    // Samples have random numbers of their own; a file's text is taken as it is; an older checkpoint will do.
    const std::string three = trained.text({{"num-samples", "3"}});
    CHECK(three.size() == 3 * 30 + 2 * 5);
    CHECK(three.starts_with(text + "\n---\n"));
    CHECK(!contains(three.substr(35), text));
    put_file(trained.runs.path("prompt.txt"), "Once");
    CHECK(trained.text({{"prompt", "@" + trained.runs.path("prompt.txt")}}) == text);
    must_succeed(trained.runs.resume("run", {{"steps", "6"}}));
    CHECK(trained.text({{"resume", step_folder(trained.folder, 5)}}) == text);
    CHECK(trained.text({}) != text);
    // Nor does it need to be a run of your own; seed 7 is that of this one.
    const Finished given = run(command_of({{"init-from", step_folder(trained.folder, 5)},
                                           {"prompt", "Once"},
                                           {"sample-tokens", "30"},
                                           {"temperature", "1"},
                                           {"dtype", "fp32"},
                                           {"seed", "7"}},
                                          "generate"));
    must_succeed(given);
    CHECK(given.out == text);
    // Nothing was written.
    CHECK(checkpoint_steps(trained.folder) == std::vector<int64_t>{5, 6});
    CHECK(records_in(trained.folder, "sample").empty());
}

TEST_CASE("samples during training are of the tokenizer's symbols alone, as those of generate", "[generate]") {
    // A model with ten times as many ids as symbols, before it has learned which ones there are.
    const TinyRuns runs;
    const Finished ended = runs.train("run", {{"vocab-size", "600"},
                                              {"steps", "2"},
                                              {"warmup-steps", "0"},
                                              {"sample-every", "1"},
                                              {"sample-tokens", "40"},
                                              {"prompt", "Once"}});
    must_succeed(ended);
    CHECK(ended.err == "");
    CHECK(records_in(runs.path("run"), "sample").size() == 2);
}

TEST_CASE("generate without a prompt begins a line", "[generate]") {
    const Trained trained;
    const FlagMap flags = {{"resume", trained.folder}, {"sample-tokens", "9"}, {"temperature", "0"}};
    const Finished bare = run(command_of(flags, "generate"));
    must_succeed(bare);
    CHECK(bare.out == trained.text({{"prompt", "\n"}, {"sample-tokens", "9"}, {"temperature", "0"}}));
}

TEST_CASE("generate with rotary positions slides on", "[generate]") {
    const Trained trained({{"steps", "16"}, {"architecture", "nanochat"}, {"num-layers", "3"}});
    const std::string text = trained.text({});
    CHECK(text.size() == 30);
    CHECK(text.substr(0, 12) == in_memory(trained, "Once", {.num_tokens = 30, .temperature = 1}, 7).substr(0, 12));
}

TEST_CASE("generate refuses what it cannot do", "[generate]") {
    const Trained trained;
    trained.check_refused({{"prompt", ""}}, "--prompt is empty");
    // The tokenizer of a run is in its checkpoints.
    trained.check_refused({{"tokenizer", trained.folder + "/tokenizer.json"}},
                          trained.folder + "/step_00000005/tokenizer.json");
    trained.check_refused({{"prompt", "@/nowhere/prompt"}}, "/nowhere/prompt");
    trained.check_refused({{"prompt", "Once upon a time there was"}},
                          "--prompt has 26 tokens, and the model's context is 16");
    trained.check_refused({{"prompt", "\xE2\x82\xAC"}}, "U+20AC");
    trained.check_refused({{"top-p", "0"}}, "--top-p 0 leaves no token");
    trained.check_refused({{"top-p", "1.5"}}, "--top-p 1.5");
    trained.check_refused({{"sample-tokens", "0"}}, "nothing to generate");
    trained.check_refused({{"resume", trained.runs.path("nowhere")}}, "there is no checkpoint");
    trained.check_refused({{"resume", "auto"}, {"out-dir", trained.runs.path("nowhere")}}, "give --resume");
    trained.check_refused({{"virtual-ranks", "2"}}, "--virtual-ranks is no flag of `generate`, but of: train");
    put_file(trained.runs.path("empty"), "");
    trained.check_refused({{"prompt", "@" + trained.runs.path("empty")}}, "is empty");
    // Of another tokenizer, and of none.
    save_tokenizer(byte_tokenizer(), trained.runs.path("bytes.json"));
    trained.check_refused({{"tokenizer", trained.runs.path("bytes.json")}}, "has 256 symbols, and the model in");
    std::filesystem::remove(trained.runs.path("data/tokenizer.json"));
    must_succeed(trained.runs.train("ids", {{"steps", "5"}, {"vocab-size", "80"}}));
    trained.check_refused({{"resume", trained.runs.path("ids")}}, "has no tokenizer.json: give --tokenizer");
}

TEST_CASE("bytes that are no characters come out as U+FFFD", "[generate]") {
    const auto written = [](const std::vector<std::string>& tokens) {
        std::FILE* const file = std::tmpfile();
        WholeCharacters out(file);
        for (const std::string& token : tokens) out.add(token);
        out.end();
        std::string text(size_t(std::ftell(file)), ' ');
        std::rewind(file);
        CHECK(std::fread(text.data(), 1, text.size(), file) == text.size());
        std::fclose(file);
        return text;
    };
    const std::string euro = "\xE2\x82\xAC", none = "\xEF\xBF\xBD";
    CHECK(written({"a", "\xE2", "\x82", "\xAC", "b"}) == "a" + euro + "b");
    CHECK(written({"a", "\xFF", "b"}) == "a" + none + "b");
    CHECK(written({"\xE2", "\x82", "b"}) == none + "b");
    CHECK(written({"b", "\xE2\x82"}) == "b" + none);  // the last token ends within a character
    CHECK(written({euro + "\xF0", "\x9F", euro}) == euro + none + euro);
}

TEST_CASE("control characters of a model, its prompt and its flags do not reach a terminal", "[generate]") {
    // A model of a text of escape sequences, which it learns by heart: they set the title, and ring the bell.
    const TinyRuns runs;
    std::string text;
    for (int i = 0; i < 400; i++) text += "\x1b]0;P\x07\xc2\x9bm";
    put_file(runs.path("text.txt"), text);
    must_succeed(run(program("data/tokenize") + " " + runs.path("text.txt") +
                     " --tokenizer byte --val-fraction 0 --out " + runs.path("escapes")));
    // On a pseudo-terminal, whose output `run` reads.
    const auto on_terminal = [&](const std::string& command) {
        put_file(runs.path("terminal.py"), "import pty, sys\nsys.exit(pty.spawn(['sh', '-c', sys.argv[1]]) >> 8)\n");
        put_file(runs.path("command.sh"), command);
        return run("env NO_COLOR=1 python3 " + runs.path("terminal.py") + " 'sh " + runs.path("command.sh") + "'");
    };
    FlagMap flags = {{"train-data", runs.path("escapes/train_*.bin")},
                     {"val-data", ""},
                     {"steps", "120"},
                     {"learning-rate", "1e-2"},
                     {"sample-tokens", "40"},
                     {"sample-every", "120"},
                     {"prompt", "\x1b]0;"},
                     {"temperature", "0"},
                     {"checkpoint-every", "100"},
                     {"description", "\x1b[2J"}};
    const Finished trained = on_terminal(command_of(runs.flags("a", flags)));
    INFO(trained.out << trained.err);
    CHECK(trained.exit_code == 0);
    CHECK(contains(trained.out, "\\x1B]0;P\\x07\\xC2\\x9Bm"));
    CHECK(trained.out.find_first_of("\x1b\x07") == std::string::npos);
    const Finished resumed = on_terminal(command_of(runs.resume_flags("a", {{"steps", "121"}})));
    INFO(resumed.out);
    CHECK(contains(resumed.out, "from the checkpoint: "));
    CHECK(contains(resumed.out, "--description \\x1B[2J"));
    CHECK(resumed.out.find_first_of("\x1b\x07") == std::string::npos);

    const std::string generate = command_of(
        {{"resume", runs.path("a")}, {"prompt", "\x1b]0;"}, {"sample-tokens", "40"}, {"temperature", "0"}}, "generate");
    const Finished shown = on_terminal(generate), piped = run(generate);
    INFO(shown.out);
    CHECK(contains(shown.out, "P\\x07\\xC2\\x9Bm"));
    CHECK(shown.out.find_first_of("\x1b\x07") == std::string::npos);
    CHECK(contains(piped.out, "P\x07\xc2\x9bm\x1b]0;"));  // as it is
}
