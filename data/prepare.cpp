/*
data/prepare: text in, a folder of token shards out. This file is its flags; the work is in llmc/data/dataset.h.
*/
#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include "llmc/base/check.h"    // Error, ExitCode
#include "llmc/data/dataset.h"  // prepare_dataset

namespace {
int fail(int exit_code, const char* message) {
    std::fprintf(stderr, "error: %s\n", message);
    return exit_code;
}
}  // namespace

int main(int argc, char** argv) {
    DatasetConfig config;
    CLI::App app("Turns text into token shards to train on.", "data/prepare");
    app.footer(R"(Writes DIR/train_000000.bin ... and DIR/val_000000.bin ... (llm.c's format), DIR/tokenizer.json and
DIR/dataset.json, and replaces those of an earlier run.

Examples:
  data/prepare notes.txt --out data/notes
  data/prepare books/ --tokenizer char --out data/books
  data/prepare --stories 2000000 --out data/stories)");
    app.add_option("INPUT", config.inputs, "Text files, or folders: all .txt and .md files in them and below");
    app.add_option("--out", config.out, "The folder to write to, made if it is missing")->type_name("DIR");
    app.add_option("--tokenizer", config.tokenizer,
                   "byte (V = 256, takes any text) or char (one token for each character that occurs)")
        ->type_name("NAME")
        ->capture_default_str();
    app.add_option("--val-fraction", config.val_fraction, "The last part of the tokens, kept for validation")
        ->type_name("X")
        ->capture_default_str();
    app.add_option("--shard-tokens", config.shard_tokens, "Tokens per file")->type_name("N")->capture_default_str();
    const CLI::Option* stories =
        app.add_option("--stories", config.stories_bytes,
                       "Instead of INPUT: about so many bytes of built-in stories, whose entropy is known")
            ->type_name("BYTES");
    app.add_option("--seed", config.seed, "Of the stories")->type_name("S")->capture_default_str();
    try {
        app.parse(argc, argv);
        require(stories->count() == 0 || config.stories_bytes > 0, "--stories %lld: expected a number of bytes above 0",
                static_cast<long long>(config.stories_bytes));
        const DatasetSummary summary = prepare_dataset(config);
        std::printf("%s: %lld training tokens in %d files, %lld validation tokens in %d files, vocabulary of %d (%s)\n",
                    config.out.c_str(), static_cast<long long>(summary.train_tokens), summary.train_shards,
                    static_cast<long long>(summary.val_tokens), summary.val_shards, summary.vocab_size,
                    config.tokenizer.c_str());
        return kExitOk;
    } catch (const CLI::ParseError& error) {
        if (error.get_exit_code() == 0) return app.exit(error);  // --help
        return fail(kExitUsage, (std::string(error.what()) + "; see data/prepare --help").c_str());
    } catch (const Error& error) {
        return fail(error.exit_code, error.what());
    } catch (const std::filesystem::filesystem_error& error) {  // a folder that may not be read, a name too long
        return fail(kExitUsage, error.what());
    } catch (const std::exception& error) {
        return fail(kExitInternal, error.what());
    }
}
