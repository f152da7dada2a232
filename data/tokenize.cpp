/*
data/tokenize: converts text to a folder of token shards. This file defines its flags; llmc/data/dataset.h does the
work.
*/
#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <sstream>
#include "llmc/base/build_id.h"     // anvil_version, build_id
#include "llmc/base/check.h"        // Error, ExitCode, format
#include "llmc/base/file.h"         // open_standard_files
#include "llmc/base/host_limits.h"  // use_given_cores
#include "llmc/base/script.h"       // with_installed_names
#include "llmc/data/dataset.h"      // make_dataset
#include "llmc/data/utf8.h"         // printable

namespace {
// Whether all output has been written.
bool written() { return std::fflush(stdout) == 0 && !std::ferror(stdout); }

int fail(int exit_code, const char* message) {
    std::fprintf(stderr, "error: %s\n", printable(with_installed_names(message)).c_str());
    return exit_code;
}

const char* kExamples =
    R"(Writes DIR/train_000000.bin ... and DIR/val_000000.bin ... (llm.c's format), DIR/tokenizer.json and
DIR/dataset.json, and replaces those of an earlier run when all is done. Started again after it was killed, it
continues after the last finished file.

Examples:
  data/tokenize notes.txt --out data/notes
  data/tokenize books/ --tokenizer char --out data/books
  data/tokenize posts.jsonl --field body --tokenizer gpt2 --out data/posts
  data/tokenize fineweb/*.parquet --train-tokenizer --vocab-size 32768 --out data/fineweb
  zstdcat dump.jsonl.zst | data/tokenize - --format jsonl --tokenizer gpt2 --out data/dump
  data/tokenize chats.jsonl --format chat --tokenizer data/fineweb/tokenizer.json --out data/chats
  data/tokenize --stories 2000000 --out data/stories)";
}  // namespace

int main(int argc, char** argv) {
    open_standard_files();
    use_given_cores();
    DatasetConfig config;
    CLI::App app("Turns text into token shards to train on.", "data/tokenize");
    app.set_version_flag("--version", format("data/tokenize %s (build %s)", anvil_version(), build_id()));
    app.footer(kExamples);
    app.add_option(
        "INPUT", config.inputs,
        "Files, or folders with all .txt, .md, .jsonl and .parquet files in them and below (.md only where "
        "there are no others); - is standard input, which is first copied into DIR. A text file is one "
        "document, a line of .jsonl, an element or line of .json, a row of .parquet (which needs python3 with "
        "pyarrow)");
    app.add_option("--out", config.out, "The folder to write to, made if it is missing")->type_name("DIR");
    app.add_option("--format", config.format,
                   "What the files are: text, jsonl, parquet; chat: conversations, a line of .jsonl each, such as "
                   "{\"messages\": [{\"role\": \"user\", \"content\": ...}, ...]}; auto: by their endings")
        ->type_name("NAME")
        ->capture_default_str();
    app.add_option(
           "--chat-template", config.chat_template,
           "Of --format chat: nanochat, chatml, llama3; auto: as the template beside the tokenizer says, or by its "
           "special tokens")
        ->type_name("NAME")
        ->capture_default_str();
    app.add_option("--field", config.field, "Which field of .jsonl or column of .parquet is the text")
        ->type_name("NAME")
        ->capture_default_str();
    app.add_flag("--skip-bad-lines", config.skip_bad_lines,
                 "Passes over lines of .jsonl and elements of .json that cannot be read, and counts them");
    app.add_option("--document-separator", config.document_separator,
                   "What stands between the documents of a text file: \\n\\n, say, or <|endoftext|>")
        ->type_name("STRING");
    app.add_option("--tokenizer", config.tokenizer,
                   "byte (V = 256, takes any text), char (one token for each character that occurs), gpt2, or a file: "
                   "tokenizer.json, vocab.bpe, tiktoken's ranks, llm.c's tokenizer.bin")
        ->type_name("NAME|PATH")
        ->capture_default_str();
    app.add_flag("--train-tokenizer", config.train_tokenizer,
                 "Instead: a BPE made from the text, but for what is for validation")
        ->excludes("--tokenizer");
    app.add_option("--vocab-size", config.vocab_size, "Of --train-tokenizer: all its tokens, the special ones included")
        ->type_name("V")
        ->capture_default_str()
        ->needs("--train-tokenizer");
    app.add_option("--pattern", config.pattern,
                   "Of --train-tokenizer: where text is cut, gpt2, gpt4, llama3, qwen2, smollm, o200k or nanochat; the "
                   "last brings "
                   "nanochat's nine special tokens, the others <|endoftext|>")
        ->type_name("NAME")
        ->capture_default_str()
        ->needs("--train-tokenizer");
    app.add_option("--tokenizer-bytes", config.tokenizer_bytes, "Of --train-tokenizer: it sees the files up to here")
        ->type_name("N")
        ->capture_default_str()
        ->needs("--train-tokenizer");
    app.add_option("--val-fraction", config.val_fraction,
                   "Kept for validation: of the documents, chosen by a hash of their text; of few documents the last, "
                   "of one text its end")
        ->type_name("X")
        ->capture_default_str();
    app.add_option("--val-input", config.val_inputs,
                   "Instead: files or folders that are for validation; may be repeated")
        ->type_name("PATH")
        ->allow_extra_args(false);
    app.add_option("--shard-tokens", config.shard_tokens, "Tokens per file")->type_name("N")->capture_default_str();
    app.add_option("--threads", config.threads, "0: as many as there are cores")->type_name("N")->capture_default_str();
    const CLI::Option* stories =
        app.add_option("--stories", config.stories_bytes,
                       "Instead of INPUT: about so many bytes of built-in stories, whose entropy is known")
            ->type_name("BYTES");
    app.add_option("--seed", config.seed, "Of the choice for validation, and of the stories")
        ->type_name("S")
        ->capture_default_str();
    try {
        app.parse(argc, argv);
        require(stories->count() == 0 || config.stories_bytes > 0, "--stories %lld: expected a number of bytes above 0",
                static_cast<long long>(config.stories_bytes));
        const DatasetSummary summary = make_dataset(config);
        std::printf("%s: %lld training tokens in %d files, %lld validation tokens in %d files, vocabulary of %d (%s)\n",
                    config.out.c_str(), static_cast<long long>(summary.train_tokens), summary.train_shards,
                    static_cast<long long>(summary.val_tokens), summary.val_shards, summary.vocab_size,
                    summary.tokenizer.c_str());
        if (summary.skipped_lines > 0)
            std::fprintf(stderr, "warning: %lld bad lines were skipped, the first: %s\n",
                         static_cast<long long>(summary.skipped_lines), printable(summary.why_skipped).c_str());
        if (summary.kept_shards > 0) std::printf("%d of the files were kept from a run before\n", summary.kept_shards);
        if (!written()) std::fprintf(stderr, "warning: standard output could not be written; the files are complete\n");
        return kExitOk;
    } catch (const CLI::ParseError& error) {
        if (error.get_exit_code() == 0) {  // --help
            std::ostringstream help;
            app.exit(error, help, help);
            std::fputs(with_installed_names(help.str()).c_str(), stdout);
            return written() ? kExitOk : fail(kExitUsage, "standard output could not be written: is its disk full?");
        }
        return fail(kExitUsage, (std::string(error.what()) + "; see data/tokenize --help").c_str());
    } catch (const Error& error) {
        return fail(error.exit_code, error.what());
    } catch (const std::filesystem::filesystem_error& error) {  // an unreadable folder, a name that is too long
        return fail(kExitUsage, error.what());
    } catch (const std::exception& error) {
        return fail(kExitInternal, error.what());
    }
}
