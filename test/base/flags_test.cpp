// Flags, config files, and the texts made from the same list of fields.
#include <cfloat>
#include <charconv>
#include <cstring>
#include <map>
#include <set>
#include <utility>
#include "llmc/base/flags.h"
#include "llmc/base/file.h"           // write_file_atomically, read_file
#include "llmc/base/number_text.h"    // number_from_chars
#include "llmc/model/architecture.h"  // ArchitectureFields
#include "llmc/run/command.h"         // parse_command_line
#include "test/program.h"             // program, run
#include "test/testing.h"

namespace {
struct Example {
    int batch_size = 12;
    int64_t steps = 2000;
    uint64_t seed = 1337;
    double learning_rate = 0.001;
    std::string schedule = "cosine", prompt = "";
    bool resume = false, flash = true;

    std::vector<Field> fields() {
        return {{"batch", "batch-size", &batch_size, "sequences per micro-step (B)", {}, 1, 4096},
                {"optimizer", "steps", &steps, "optimizer steps", {}, 0},
                {"optimizer", "learning-rate", &learning_rate, "at its highest", {}, 0},
                {"optimizer", "schedule", &schedule, "of the learning rate", {"cosine", "linear"}},
                {"run", "seed", &seed, "of everything random"},
                {"run", "prompt", &prompt, "samples start with it"},
                {"run", "resume", &resume, "continue"},
                {"run", "flash", &flash, "no T x T matrix"}};
    }
};

Flags parse(Example& example, std::vector<const char*> arguments) {
    arguments.insert(arguments.begin(), "train_gpt");
    return parse_flags(example.fields(), int(arguments.size()), arguments.data(), "Trains.");
}

std::string parse_error(std::vector<const char*> arguments) {
    return error_of([&] {
        Example example;
        parse(example, arguments);
    });
}

std::string file_error(const std::string& content) {
    const ScratchFolder scratch;
    const std::string path = scratch / "run.toml";
    write_file_atomically(path, content);
    return parse_error({"--config", path.c_str()});
}
}  // namespace

TEST_CASE("flags set the fields of every type", "[flags]") {
    Example e;
    const Flags flags =
        parse(e, {"--batch-size", "8", "--steps=5000000000", "--seed", "18446744073709551615", "--learning-rate",
                  "6e-4", "--schedule", "linear", "--prompt=--- a = b, \"c\" # d", "--resume", "--no-flash"});
    CHECK(e.batch_size == 8);
    CHECK(e.steps == 5000000000);
    CHECK(e.seed == 18446744073709551615ull);
    CHECK(e.learning_rate == 6e-4);
    CHECK(e.schedule == "linear");
    CHECK(e.prompt == "--- a = b, \"c\" # d");
    CHECK(e.resume);
    CHECK_FALSE(e.flash);
    CHECK_FALSE(flags.help);
    CHECK(flags.given.size() == 8);

    Example untouched;
    CHECK(parse(untouched, {}).given.empty());
    CHECK(to_json(untouched.fields()) == to_json(Example().fields()));
    CHECK(parse(untouched, {"--flash=false", "--seed", "7"}).has("flash"));
    CHECK_FALSE(untouched.flash);
    CHECK(untouched.seed == 7);

    Example empty;
    empty.prompt = "x";
    parse(empty, {"--prompt=", "--steps", "3"});
    CHECK(empty.prompt == "");
    CHECK(empty.steps == 3);
    empty.prompt = "x";
    parse(empty, {"--prompt", ""});
    CHECK(empty.prompt == "");
}

TEST_CASE("a wrong flag says what was found and what is expected", "[flags]") {
    CHECK(parse_error({"--learning-rtae", "1"}) == "2: unknown flag --learning-rtae, did you mean --learning-rate?");
    CHECK(parse_error({"--batchsize=4"}) == "2: unknown flag --batchsize, did you mean --batch-size?");
    CHECK(parse_error({"--no-resum"}) == "2: unknown flag --no-resum, did you mean --no-resume?");
    CHECK(contains(parse_error({"-b", "4"}), "2: unknown flag -b, did you mean --"));
    CHECK(contains(parse_error({"data.bin"}), "2: unexpected argument 'data.bin'"));
    CHECK(contains(parse_error({"--resume", "false"}), "2: unexpected argument 'false'"));
    CHECK(parse_error({"--resume=maybe"}) == "2: --resume maybe: expected true or false");
    CHECK(contains(parse_error({"--no-resume=maybe"}), "2: "));
    for (const char* value :
         {"12abc", "", " 8", "8 ", "+8", "8.5", "1e3", "0x10", "0", "-3", "4097", "nan", "99999999999"})
        CHECK(contains(parse_error({"--batch-size", value}), "expected an integer from 1 to 4096"));
    CHECK(contains(parse_error({"--batch-size="}), "2: --batch-size '': expected an integer"));
    CHECK(parse_error({"--steps", "-1"}) == "2: --steps -1: expected an integer of at least 0");
    CHECK(contains(parse_error({"--seed", "-1"}), "expected an integer of at least 0"));
    CHECK(contains(parse_error({"--seed", "18446744073709551616"}), "does not fit"));
    for (const char* value : {"nan", "inf", "-inf", "1e999", "-0.1", "1e-3x", "", "1,5", "0x1p3"})
        CHECK(contains(parse_error({"--learning-rate", value}), "expected a number of at least 0"));
    CHECK(parse_error({"--schedule", "cosin"}) == "2: --schedule cosin: expected one of cosine, linear");
    // The last one counts, as for every `command $DEFAULTS "$@"`.
    Example e;
    parse(e, {"--steps", "1", "--resume", "--seed", "2", "--no-resume", "--steps", "7"});
    CHECK(e.steps == 7);
    CHECK_FALSE(e.resume);
    CHECK(contains(parse_error({"--steps"}), "2: --steps: expected a value"));
    CHECK(contains(parse_error({"--batch-size", "--steps", "3"}), "--batch-size --steps: expected an integer"));
    CHECK(contains(parse_error({"--config", "/nowhere/run.toml"}), "2: cannot read /nowhere/run.toml"));
}

// Kernels compute in floats: values that are infinite in float must be refused before.
TEST_CASE("no real flag takes a number that is none as a float", "[flags]") {
    RunFlags config;
    ArchitectureFields architecture{Architecture()};
    std::vector<Field> fields = config.fields();
    const std::vector<Field> parts = architecture.fields();
    fields.insert(fields.end(), parts.begin(), parts.end());
    int tried = 0;
    for (const Field& field : fields) {
        if (!field.is_double()) continue;
        const std::string flag = "--" + std::string(field.name);
        for (const char* huge : {"1e308", "-1e308", "3.5e38", "inf", "nan"}) {
            INFO(flag << " " << huge);
            CHECK(error_of([&] { set_field(field, huge, flag); }).starts_with("2: " + flag + ": expected "));
        }
        tried++;
    }
    CHECK(tried >= 30);
    CHECK(contains(parse_error({"--learning-rate", "3.5e38"}),
                   "expected a number of at least 0; numbers go up to 3.4e38"));

    architecture.softcap_kind = "tanh";
    architecture.qk_scale = 1;
    for (double* value : {&architecture.softcap, &architecture.qk_scale, &architecture.score_scale}) {
        const double before = std::exchange(*value, 1e-46);  // 0 as a float
        CHECK(contains(error_of([&] { architecture.architecture(); }), "1e-46: expected at least 1e-06"));
        *value = before > 0 ? before : 1;
    }
    architecture.architecture();
}

TEST_CASE("a config file sets the same names, and the command line wins", "[flags]") {
    const ScratchFolder scratch;
    const std::string path = scratch / "run.toml";
    write_file_atomically(path,
                          "# a run\r\n\r\nbatch-size = 4   # small\n[optimizer]\nsteps=7\n  schedule = 'linear'\n"
                          "[run]\nprompt = \"a # b \\\"c\\\" \\\\ \\n\" # end\nresume = true\nseed = 1");
    Example e;
    const Flags flags = parse(e, {"--steps", "9", "--config", path.c_str(), "--no-resume"});
    CHECK(e.batch_size == 4);
    CHECK(e.steps == 9);
    CHECK(e.schedule == "linear");
    CHECK(e.prompt == "a # b \"c\" \\ \n");
    CHECK_FALSE(e.resume);
    CHECK(e.seed == 1);
    CHECK(flags.given.size() == 6);

    CHECK(contains(file_error("\nbatch size = 4\n"),
                   "run.toml:2: unknown name 'batch size', did you mean 'batch-size'?"));
    write_file_atomically(path,
                          "\xEF\xBB\xBF"
                          "batch_size = 6\n");  // a Windows editor's mark, and Python's underscores
    parse(e, {"--config", "/nowhere", "--config", path.c_str()});
    CHECK(e.batch_size == 6);
    CHECK(contains(file_error("batch-size = x"), "run.toml:1: batch-size = x: expected an integer from 1 to 4096"));
    CHECK(contains(file_error("steps = 1\nseed = 2\nsteps = 3"), "run.toml:3: 'steps' is already set in line 1"));
    CHECK(contains(file_error("[batch]\nsteps = 1"), "belongs to [optimizer]"));
    CHECK(contains(file_error("[batch\nbatch-size = 1"), "] is missing"));
    CHECK(contains(file_error("resume"), "expected name = value, found 'resume'"));
    CHECK(contains(file_error("prompt = \"abc"), "closing \" is missing"));
    CHECK(contains(file_error("prompt = \"abc\" d"), "unexpected 'd'"));
    CHECK(contains(file_error("prompt = \"a\\q\""), "unknown escape \\q"));
    CHECK(contains(file_error("steps ="), "expected an integer"));
    CHECK(contains(file_error("config = x"), "unknown name 'config'"));
}

TEST_CASE("help, tables and JSON come from the same list", "[flags]") {
    Example e;
    const std::string help = help_text(e.fields(), "train_gpt", {.description = "Trains."});
    CHECK(
        contains(help_text(e.fields(), "/a/long/path/to/train_gpt", {.description = "Trains."}), "usage: train_gpt "));
    CHECK(contains(help, "--batch-size N"));
    CHECK(contains(help, "sequences per micro-step (B) [12]"));
    CHECK(contains(help, "--schedule cosine|linear"));
    CHECK(contains(help, "--[no-]flash"));
    CHECK(contains(help, "no T x T matrix [true]"));
    CHECK(contains(help, "--config"));
    e.prompt = "a|b";
    CHECK(contains(markdown_table(e.fields()),
                   "### batch\n\n| flag | default | meaning |\n|---|---|---|\n"
                   "| `--batch-size N` | `12` | sequences per micro-step (B) |\n"));
    CHECK(contains(markdown_table(e.fields()), "`a\\|b`"));
    e.prompt = "\n";
    CHECK(contains(markdown_table(e.fields()), "`\\n`"));
}

TEST_CASE("JSON reads back exactly", "[flags]") {
    Example e;
    e.seed = 18446744073709551615ull;
    e.steps = INT64_MAX;
    e.learning_rate = 0.1 + 0.2;
    e.prompt = "\"quoted\"\n\t\\ \xC3\xA9";
    e.resume = true;
    const std::string text = to_json(e.fields(), 2);
    Example back;
    from_json(back.fields(), text, "state.json");
    CHECK(back.seed == e.seed);
    CHECK(back.steps == e.steps);
    CHECK(back.learning_rate == e.learning_rate);
    CHECK(back.prompt == e.prompt);
    CHECK(back.resume);
    for (double extreme : {double(FLT_MAX), DBL_TRUE_MIN, 1 / 3.0, 5e-324, 123456789012345678.0}) {
        e.learning_rate = extreme;
        from_json(back.fields(), to_json(e.fields()), "state.json");
        CHECK(back.learning_rate == extreme);
    }

    const auto error = [&](const std::string& json) {
        return error_of([&] { from_json(Example().fields(), json, "state.json"); });
    };
    CHECK(contains(error("{\"batch-size\": 1"), "2: state.json: not a JSON object"));
    CHECK(contains(error("[1]"), "not a JSON object"));
    CHECK(error("{}") == "2: state.json: \"batch-size\" is missing");
    CHECK(error("{\"batch-size\": 0}") == "2: state.json: \"batch-size\": 0: expected an integer from 1 to 4096");
    CHECK(contains(error("{\"batch-size\": \"1\"}"), "expected a number"));
    CHECK(contains(error("{\"batch-size\": 1.5}"), "expected an integer"));
    CHECK(contains(error("{\"batch-size\": 1, \"steps\": 1, \"learning-rate\": null}"), "expected a number"));

    // Of an older program: what it did not know keeps its default, what it wrote is checked.
    Example older;
    older.seed = 5;
    from_older_json(older.fields(), "{\"batch-size\": 3}", "state.json");
    CHECK((older.batch_size == 3 && older.seed == 5));
    CHECK(contains(error_of([&] { from_older_json(older.fields(), "{\"batch-size\": 0}", "state.json"); }),
                   "\"batch-size\": 0: expected an integer from 1"));
    CHECK(contains(error_of([&] { from_older_json(older.fields(), "[]", "state.json"); }), "not a JSON object"));
}

TEST_CASE("flags are shown by where they are from, text as a config file takes it", "[flags]") {
    Example e;
    CHECK(flags_by_source(e.fields(), {}) == "");
    e.batch_size = 5, e.prompt = "a \"b\"\n\\", e.flash = false;
    CHECK(flags_by_source(e.fields(), {{"prompt", "x"}, {"flash", "memory"}, {"batch-size", "x"}, {"other", "y"}}) ==
          "from x: --batch-size 5 --prompt \"a \\\"b\\\"\\n\\\\\"\nfrom memory: --flash false\n");
    // Long lines are broken between flags.
    e.schedule = std::string(90, 's');
    CHECK(flags_by_source(e.fields(), {{"batch-size", "x"}, {"schedule", "x"}, {"flash", "x"}}) ==
          "from x: --batch-size 5\n    --schedule " + e.schedule + "\n    --flash false\n");
}

TEST_CASE("a field may have no value: a word on the command line, null in JSON, -1 of old", "[flags]") {
    std::optional<double> rate;
    std::optional<int> batch = 3;
    std::vector<Field> fields = {Field{"a", "rate", &rate, "r"}.from(0).or_else("recipe"),
                                 Field{"a", "batch", &batch, "b"}.from(1, 9).zero_is("auto").or_else("default")};
    CHECK(to_json(fields) == "{\"rate\":null,\"batch\":3}");
    CHECK((text_of(fields[0]) == "recipe" && text_of(fields[1]) == "3"));
    set_field(fields[0], "0.25", "--rate"), set_field(fields[1], "auto", "--batch");
    CHECK((rate == 0.25 && batch == 0));
    const std::string text = to_json(fields);
    set_field(fields[0], "recipe", "--rate"), set_field(fields[1], "default", "--batch");
    CHECK((!rate && !batch));
    from_json(fields, text, "run.json");
    CHECK((rate == 0.25 && batch == 0));
    from_json(fields, "{\"rate\":null,\"batch\":null}", "run.json");
    CHECK((!rate && !batch));
    rate = 1, batch = 1;
    from_older_json(fields, "{\"rate\":-1,\"batch\":-1}", "run.json");
    CHECK((!rate && !batch));
    CHECK(error_of([&] { set_field(fields[0], "-1", "--rate -1"); }) ==
          "2: --rate -1: expected recipe or a number of at least 0");
    CHECK(error_of([&] { set_field(fields[1], "10", "--batch 10"); }) ==
          "2: --batch 10: expected default, auto or an integer from 1 to 9");
    CHECK(contains(error_of([&] { from_json(fields, "{\"rate\":-1,\"batch\":1}", "run.json"); }), "\"rate\": -1"));
    CHECK(contains(help_text(fields, "p", {.description = "d"}), "--rate X"));
    CHECK(contains(help_text(fields, "p", {.description = "d"}), "r [recipe]"));
}

namespace {
CommandLine parsed(std::vector<const char*> arguments) {
    arguments.insert(arguments.begin(), "./train_gpt");
    return parse_command_line(int(arguments.size()), arguments.data());
}
std::string refusal(const std::vector<const char*>& arguments) {
    return error_of([&] { parsed(arguments); });
}
}  // namespace

TEST_CASE("a command has its own flags, and those of a run that it takes", "[flags]") {
    CHECK(parsed({}).run.command == Command::train);
    CHECK(parsed({"train", "--steps", "3"}).run.steps == 3);
    const CommandLine generate = parsed({"generate", "--resume", "run/x", "--prompt", "Once", "--top-k=4"});
    CHECK((generate.run.generates() && generate.generate.prompt == "Once" && generate.run.prompt == "\n"));
    CHECK((generate.run.resume == "run/x" && generate.run.top_k == 4));
    CHECK(parsed({"plan", "--gpu", "H200", "--depth", "24"}).plan.gpu == "H200");
    CHECK(parsed({"export", "--format", "gguf"}).exported.format == "gguf");
    CHECK(parsed({"bench-comm", "--mib", "4"}).bench_comm.mib == 4);
    CHECK(parsed({"eval", "--val-tokens", "7"}).run.evaluates());
    CHECK(parsed({"doctor", "--grad-clip", "2"}).run.grad_clip == 2.0);

    CHECK(contains(refusal({"fly"}), "2: unexpected argument 'fly': expected a command (train, generate, chat, "));
    CHECK(refusal({"--device", "cpu", "plan"}) == "2: 'plan' comes first: ./train_gpt plan --flag value");
    CHECK(parsed({"--out-dir", "plan"}).run.out_dir == "plan");
    CHECK(contains(refusal({"generate", "--steps", "3"}),
                   "--steps is no flag of `generate`, but of: train, plan, doctor"));
    CHECK(contains(refusal({"--gpu", "H100"}), "--gpu is no flag of `train`, but of: plan"));
    CHECK(contains(refusal({"--stepz", "3"}), "unknown flag --stepz, did you mean --steps?"));
    // What were flags once.
    CHECK(refusal({"--generate", "Once"}) == "2: --generate is now a command: ./train_gpt generate --prompt TEXT");
    CHECK(refusal({"--resume", "run/x", "--eval-only"}) == "2: --eval-only is now a command: ./train_gpt eval");
    CHECK(refusal({"--plan", "--plan-gpu", "H100"}) == "2: --plan is now a command: ./train_gpt plan");
    CHECK(refusal({"plan", "--plan-price", "2"}) == "2: --plan-price is now --price of ./train_gpt plan");
    for (const std::string flag : {"--checkpoint-local", "--local-every"})
        CHECK(refusal({flag.c_str(), "7"}) ==
              "2: " + flag + " is now gone: leave it out, and lower --checkpoint-every to lose fewer steps");
    CHECK(refusal({"--dependent-launch"}) == "2: --dependent-launch is now gone: leave it out");
    CHECK(refusal({"--tensorboard"}) == "2: --tensorboard is now --log-to tensorboard, or wandb,tensorboard for both");
    CHECK(refusal({"--export=hf"}) == "2: --export is now a command: ./train_gpt export --format FORMAT");
    const ScratchFolder scratch;
    write_file_atomically(scratch / "run.cfg", "steps = 4\neval-only = true\n");
    CHECK(refusal({"--config", (scratch / "run.cfg").c_str()}) ==
          "2: " + scratch / "run.cfg" + ":2: --eval-only is now a command: ./train_gpt eval");
}

TEST_CASE("what the guides of other programs call a flag is that flag, or is told what to give", "[flags]") {
    // nanochat's base_train
    const CommandLine line = parsed({"--device-type=cpu", "--depth=4", "--max-seq-len=512", "--device-batch-size=1",
                                     "--total-batch-size=512", "--num-iterations=20"});
    const CommandLine own = parsed(
        {"--device=cpu", "--depth=4", "--seq-len=512", "--batch-size=1", "--total-batch-size=512", "--steps=20"});
    CHECK(to_json(RunFlags(line.run).fields()) == to_json(RunFlags(own.run).fields()));
    CHECK(line.run.sources.contains("batch-size"));
    CHECK_FALSE(line.run.sources.contains("device-batch-size"));
    // nanoGPT's train.py
    const RunFlags gpt =
        parsed({"--batch_size=12", "--block_size=64", "--n_layer=4", "--n_head", "4", "--n_embd=128", "--max_iters",
                "2000", "--lr=1e-3", "--warmup_iters=100", "--eval_interval=250", "--save_best", "--no-save_best"})
            .run;
    CHECK((gpt.batch_size == 12 && gpt.model.seq_len == 64 && gpt.model.num_layers == 4 && gpt.model.channels == 128));
    CHECK((gpt.steps == 2000 && gpt.learning_rate == 1e-3 && gpt.warmup_steps == 100 && gpt.val_every == 250));
    CHECK((gpt.model.num_heads == 4 && !gpt.save_best));
    // -1 means "off" in nanochat.
    CHECK_FALSE(parsed({"--num-iterations=-1"}).run.steps);
    CHECK_FALSE(parsed({"--num-iterations", "-1", "--depth", "4"}).run.steps);
    CHECK(parsed({"--save-every", "-1"}).run.checkpoint_every == 0);
    CHECK(parsed({"--resume-from-step", "-1"}).run.resume == "");
    CHECK(contains(refusal({"--eval-every=-1"}), "2: --val-every -1: expected an integer of at least 0"));
    CHECK(parsed({"--fp8", "--steps", "3"}).run.dtype == "fp8");
    const CommandLine resumed = parsed({"--resume-from-step", "40", "--out-dir", "run/x"});
    CHECK(resumed.run.resume == "run/x/step_00000040");
    CHECK(resumed.given.given.at("resume").text == "run/x/step_00000040");
    CHECK(parsed({"eval", "--device-batch-size", "3"}).run.batch_size == 3);
    CHECK(contains(refusal({"generate", "--device-batch-size", "3"}), "--batch-size is no flag of `generate`, but of"));
    CHECK(parsed({"--steps", "5", "--num-iterations", "6"}).run.steps == 6);
    // The nearest spelling would have been --packing, --no-supervise, --shuffle, --val-every, --rank...
    for (const auto& [flag, instead] : std::map<std::string, std::string>{{"--backend=gloo", "NCCL on GPUs"},
                                                                          {"--standalone", "--nproc-per-node is of"},
                                                                          {"--rdzv_endpoint=a:1", "--master HOST:PORT"},
                                                                          {"--rdzv-id", "--master HOST:PORT"},
                                                                          {"--master-port", "--master HOST:PORT"},
                                                                          {"--grad-accum", "--total-batch-size"},
                                                                          {"--run", "--log-to wandb"},
                                                                          {"--min_lr", "--final-lr-fraction"},
                                                                          {"-b", "instead: --batch-size"},
                                                                          {"--compile=False", "nothing"}}) {
        const std::string error = refusal({flag.c_str()});
        INFO(error);
        CHECK(contains(error, flag.substr(0, flag.find('=')).substr(0, 3)));
        CHECK(contains(error, " is no flag of Anvil's; instead: "));
        CHECK(contains(error, instead));
    }
    CHECK(contains(refusal({"--train-data", "a_0.bin", "a_1.bin"}), "quote the pattern: --train-data 'FOLDER/"));
    // No other name hides a flag of Anvil's, and all lead to one.
    RunFlags flags;
    std::set<std::string> names;
    for (const Field& field : flags.fields()) names.insert(field.name);
    CHECK(names.size() > 100);
    for (const char* name : {"device-batch-size", "max-seq-len", "lr", "block-size", "run", "backend"})
        CHECK_FALSE(names.contains(name));
}

TEST_CASE("the flags that a checkpoint holds are a config file", "[flags]") {
    const ScratchFolder scratch;
    const std::string path = scratch / "train_config.json";
    CommandLine line = parsed({"--depth=4", "--batch-size=auto", "--prompt", "a\n\"b\"", "--learning-rate=recipe",
                               "--train-data", "x_*.bin", "--no-shuffle", "--seed", "18446744073709551615"});
    write_file_atomically(path, to_json(line.run.fields(), 2));
    const CommandLine again = parsed({"--config", path.c_str(), "--steps=3"});
    line.run.steps = 3;
    CHECK(to_json(RunFlags(again.run).fields()) == to_json(line.run.fields()));
    CHECK(again.run.sources.at("depth") == path);
    CHECK(parsed({"plan", "--config", path.c_str()}).run.model.depth == 4);
    write_file_atomically(path, "{\"keep\": 0}");
    CHECK(refusal({"--config", path.c_str()}) == "2: " + path + ": \"keep\": 0: expected an integer of at least 1");
    write_file_atomically(path, "{\"keep\": ");
    CHECK(refusal({"--config", path.c_str()}).starts_with("2: "));
}

TEST_CASE("a model and a recipe are files, in which stands what is no flag", "[flags]") {
    const ScratchFolder scratch;
    const std::string model = scratch / "model.conf", recipe = scratch / "recipe.conf", run = scratch / "run.cfg";
    write_file_atomically(model, "model = gpt2-124M\nnum-layers = 3\nmlp = swiglu # gated\nchannels = 96\n");
    write_file_atomically(recipe, "[optimizer]\nmuon-momentum = 0.9\nbeta2 = 0.99\nweight_decay = 0.2\n");
    write_file_atomically(run, "channels = 48\nweight-decay = 0.3\nsmear = true\nmodel = " + model + "\n");
    // The command line wins, then --config, then the file.
    const CommandLine line = parsed({"--recipe", recipe.c_str(), "--num-layers=2", "--config", run.c_str()});
    const auto part = [](const CommandLine& line, const std::string& name) {
        RunFlags flags = line.run;
        return text_of(field_named(flags.fields(), name, name));
    };
    CHECK((line.run.model.model == "gpt2-124M" && line.run.model.num_layers == 2 && line.run.model.channels == 48));
    CHECK((part(line, "mlp") == "swiglu" && part(line, "smear") == "true" && part(line, "norm") == "preset"));
    CHECK((line.run.recipe == "model" && line.run.muon_momentum == 0.9 && line.run.beta2 == 0.99));
    CHECK(line.run.weight_decay == 0.3);
    CHECK((line.run.sources.at("mlp") == model && line.run.sources.at("channels") == run));
    CHECK((line.run.sources.at("num-layers") == "the command line" && line.run.sources.at("beta2") == recipe));
    RunFlags flags = line.run;
    CHECK(contains(flags_by_source(flags.fields(), flags.sources), "from " + recipe + ":"));
    CHECK(contains(flags_by_source(flags.fields(), flags.sources), " mlp=swiglu"));
    // A checkpoint's flags are such a file, of which only the model's part counts, or the recipe's.
    write_file_atomically(scratch / "train_config.json", to_json(flags.fields()));
    const CommandLine again = parsed({"--model", (scratch / "train_config.json").c_str(), "--channels", "64"});
    CHECK((part(again, "mlp") == "swiglu" && again.run.model.channels == 64 && !again.run.beta2));

    CHECK(part(parsed({"--depth=2", "--model", "configs/smoke.conf"}), "aspect-ratio") == "32");
    CHECK(part(parsed({"--model", "configs/nanogpt.conf"}), "biases") == "false");
    CHECK(parsed({"--recipe", "configs/proxy.conf"}).run.recipe == "stage-a");

    CHECK(refusal({"--qk-norm=true"}) ==
          "2: --qk-norm is no flag: write `qk-norm = true` into a file, and give that as --model FILE (doc/flags.md)");
    CHECK(refusal({"--muon-momentum", "0.8"}) ==
          "2: --muon-momentum is no flag: write `muon-momentum = 0.8` into a "
          "file, and give that as --recipe FILE (doc/flags.md)");
    CHECK(contains(refusal({"--muon-cautious=false"}), "write `muon-cautious = false` into a file"));
    CHECK(
        refusal({"generate", "--smear", "true"}) ==
        "2: --smear is no flag of `generate`, but a line of a file for: train, plan, doctor; see ./train_gpt generate "
        "--help");
    CHECK(contains(refusal({"--model", "gpt2-125M"}), "2: --model gpt2-125M: expected one of custom, gpt2-124M, "));
    for (const std::string wrong :
         {"block:", "block:x", "block:-1", "block:1x", "block:12345678901", "blocks", "norms:3"})
        CHECK(refusal({"--recompute", wrong.c_str()}) ==
              "2: --recompute " + wrong + ": expected one of none, norms, block, block:N");
    CHECK(parsed({"--recompute", "block:12"}).run.recomputation().blocks == 12);
    for (const std::string wrong :
         {"wandbx", "prometheus:x", "prometheus:", "wandb:3", "wandb,,mlflow", "mlflow,none"}) {
        RunFlags flags;
        flags.log_to = wrong;
        CHECK(contains(error_of([&] { flags.validate(); }), "2: --log-to " + wrong + ": expected none, or wandb, "));
    }
    RunFlags all;
    all.log_to = "wandb,tensorboard,mlflow,trackio,prometheus:9400";
    all.validate();
    CHECK(contains(refusal({"--model", "gpt2-125M"}), ", or a file; there is no such file"));
    CHECK(contains(refusal({"--recipe", scratch.path.c_str()}), "or a file; there is no such file"));
    const auto wrong = [&](const std::string& text) {
        write_file_atomically(model, text);
        return refusal({"--model", model.c_str()});
    };
    CHECK(wrong("\nmpl = gelu\n") == "2: " + model + ":2: unknown name 'mpl', did you mean 'mlp'?");
    CHECK(wrong("mlp = gulu") == "2: " + model + ":1: mlp = gulu: expected one of preset, gelu, relu-squared, swiglu");
    CHECK(wrong("steps = 3") == "2: " + model + ":1: 'steps' is no line of a --model file, but a flag");
    CHECK(wrong("beta2 = 1\nadam-eps = 1").ends_with(":1: 'beta2' is no line of a --model file, but a flag"));
    CHECK(wrong("adam-eps = 1").ends_with(":1: 'adam-eps' is no line of a --model file, but of a --recipe file"));
    CHECK(wrong("bucket-mb = 1").ends_with(":1: 'bucket-mb' is no line of a --model file, but of a --config file"));
    CHECK(contains(wrong("model = " + recipe), ":1: model = " + recipe + ": expected one of custom, gpt2-124M"));
    CHECK(contains(wrong("eval-only = true"), ":1: --eval-only is now a command"));
}

TEST_CASE("what is rarely changed is a line of --config alone, and sampling a matter of three commands", "[flags]") {
    const ScratchFolder scratch;
    const std::string path = scratch / "run.cfg", recipe = scratch / "recipe.conf";
    write_file_atomically(path, "[ranks]\nbucket-mb = 8\n[sampling]\ntemperature = 0.5\n");
    write_file_atomically(recipe, "schedule-by = steps\n");
    const RunFlags run = parsed({"--config", path.c_str(), "--recipe", recipe.c_str()}).run;
    CHECK((run.bucket_mb == 8 && run.temperature == 0.5 && run.schedule_by == "steps"));
    CHECK((run.sources.at("bucket-mb") == path && run.sources.at("schedule-by") == recipe));
    CHECK(refusal({"--no-async_checkpoint"}) ==
          "2: --async-checkpoint is no flag: write `async-checkpoint = false` into a file, and give that as --config "
          "FILE (doc/flags.md)");
    CHECK(contains(refusal({"--schedule-by", "time"}),
                   "write `schedule-by = time` into a file, and give that as --recipe"));
    for (const char* command : {"train", "doctor"})
        CHECK(contains(refusal({command, "--temperature=1"}), "2: --temperature is no flag: write `temperature = "));
    for (const char* command : {"generate", "chat", "answer"}) {
        const RunFlags asked = parsed({command, "--temperature=0", "--top-k=3", "--top-p=0.5"}).run;
        CHECK((asked.temperature == 0 && asked.top_k == 3 && asked.top_p == 0.5));
        CHECK(asked.sources.at("top-p") == "the command line");
    }
    CHECK(contains(refusal({"eval", "--top-k=3"}),
                   "2: --top-k is no flag of `eval`, but of: generate, chat, answer; see "));
    CHECK(contains(refusal({"generate", "--config", path.c_str()}),
                   ":2: --bucket-mb is no flag of `generate`, but a line of a file for: train, plan, doctor; see "));
}

TEST_CASE("an older run's three flags of how gradients are summed are one", "[flags]") {
    const auto renamed = [](const std::string& json) {
        RunFlags flags;
        from_older_json(flags.fields(), by_new_names(json), "train_config.json");
        return flags.grad_sum;
    };
    CHECK(renamed("{}") == "fp32");
    CHECK(renamed(R"({"grad-comm":"fp32","reduce":"reduce-scatter","sum-order":"in-place"})") == "fp32");
    CHECK(renamed(R"({"grad-comm":"fp32","reduce":"all-to-all","sum-order":"in-place"})") == "ordered");
    CHECK(renamed(R"({"grad-comm":"fp32","reduce":"auto","sum-order":"tree"})") == "tree");
    CHECK(renamed(R"({"grad-comm":"fp32","reduce":"all-to-all","sum-order":"tree"})") == "tree-ordered");
    CHECK(renamed(R"({"grad-comm":"bf16","reduce":"auto","sum-order":"tree"})") == "bf16");
    CHECK(renamed(R"({"grad-comm":"bf16","reduce":"reduce-scatter"})") == "bf16-scatter");
    CHECK(renamed(R"({"grad-comm":"bf16","reduce":"all-to-all"})") == "bf16-ordered");
    CHECK(contains(refusal({"--sum-order=tree"}), "2: --sum-order is now --grad-sum, with tree"));
    const ScratchFolder scratch;
    write_file_atomically(scratch / "train_config.json", R"({"grad-comm":"fp32","sum-order":"tree"})");
    CHECK(parsed({"--config", (scratch / "train_config.json").c_str()}).run.grad_sum == "tree");
}

TEST_CASE("what an older run's recipe kept or left out is so again", "[flags]") {
    RunFlags flags;
    const char* json = R"({"muon-cautious":true,"muon-equal-rows":false,"muon-fixed-norm":"true"})";
    from_older_json(flags.fields(), by_new_names(json), "train_config.json");
    CHECK((flags.muon_cautious == "recipe" && flags.muon_equal_rows == "false" && flags.muon_fixed_norm == "true"));
}

TEST_CASE("a value knows where it is from", "[flags]") {
    const ScratchFolder scratch;
    const std::string path = scratch / "run.cfg";
    write_file_atomically(path, "steps = 4\nseed = 5\n");
    const CommandLine line = parsed({"--config", path.c_str(), "--seed", "6", "--depth=4"});
    CHECK(line.run.sources == std::map<std::string, std::string>{
                                  {"steps", path}, {"seed", "the command line"}, {"depth", "the command line"}});
}

TEST_CASE("a help text in brief ends where a clause does", "[flags]") {
    CHECK(in_brief("peak learning rate of AdamW (only with --recipe gpt2)", 40) == "peak learning rate of AdamW");
    CHECK(in_brief("auto: a GPU if there is one", 40) == "auto: a GPU if there is one");
    CHECK(in_brief("optimizer steps (auto: from the targets below; else 2000)", 40) == "optimizer steps");
    CHECK(in_brief("nanochat's model with this many layers, from which all follows", 48) ==
          "nanochat's model with this many layers");
    CHECK(in_brief("width C (0: the preset's; custom: 128)", 40) == "width C");
    CHECK(in_brief("one, two, three and four", 16) == "one, two, ...");
    CHECK(in_brief("short", 5) == "short");
}

TEST_CASE("a command's help is a screen", "[flags]") {
    for (const char* name : {"train", "generate", "chat", "answer", "eval", "plan", "export", "doctor", "bench-comm"}) {
        const Finished help = run(program("train_gpt") + " " + name + " --help");
        must_succeed(help);
        INFO(help.out);
        CHECK(contains(help.out, "usage: "));
        CHECK(std::count(help.out.begin(), help.out.end(), '\n') <= 51);
        if (std::string(name) == "train") {
            std::istringstream lines(help.out);
            for (std::string line; std::getline(lines, line);) CHECK(line.size() <= 80);
        }
        const Finished all = run(program("train_gpt") + " " + name + " --help-all");
        must_succeed(all);
        CHECK(all.out.size() >= help.out.size() - 200);
    }
    CHECK(contains(run(program("train_gpt") + " --help-all").out, "\n  muon-momentum-warmup-steps=N"));
}

TEST_CASE("doc/flags.md is what the program says of itself", "[flags]") {
    const Finished said = run(program("train_gpt") + " --help-markdown");
    must_succeed(said);
    INFO("if they differ: make && ./train_gpt --help-markdown >doc/flags.md");
    CHECK((said.out == read_file("doc/flags.md")));
}

#ifdef __cpp_lib_to_chars  // libc++ has std::from_chars for doubles only from version 20 on
TEST_CASE("number_from_chars reads doubles as std::from_chars does", "[flags]") {
    for (const std::string text : {"0",      "-0",
                                   "1.5",    "1,5",
                                   "3e-4",   "-.5e+2x",
                                   "1e400",  "-1e400",
                                   "1e-400", "5e-324",
                                   "1e-310", "2.2250738585072011e-308",
                                   "0.1",    "9007199254740993",
                                   "0x10",   "0X1p3",
                                   "",       " 1",
                                   "\t1",    "+1",
                                   "-",      "e5",
                                   ".",      "1e",
                                   "1e+",    "inf",
                                   "-nan",   "infinity",
                                   "nan",    "x",
                                   "1 ",     "12345678901234567890"}) {
        double read = 7, expected = 7;
        const char *const begin = text.data(), *const end = begin + text.size();
        const auto found = number_from_chars(begin, end, read), right = std::from_chars(begin, end, expected);
        INFO(text);
        CHECK(found.ec == right.ec);
        CHECK(found.ptr - begin == right.ptr - begin);
        CHECK(std::memcmp(&read, &expected, sizeof read) == 0);
    }
}
#endif
