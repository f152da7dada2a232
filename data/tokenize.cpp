/*
data/tokenize: converts text to a folder of token shards. This file defines its flags; llmc/data/dataset.h does the
work.
*/
#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>
#include "llmc/base/build_id.h"      // anvil_version, build_id
#include "llmc/base/check.h"         // Error, ExitCode, format
#include "llmc/base/file.h"          // open_standard_files
#include "llmc/base/flags.h"         // Field, Flags, parse_flags
#include "llmc/base/script.h"        // with_installed_names
#include "llmc/data/dataset.h"       // make_dataset
#include "llmc/data/shards.h"        // write_shard_list
#include "llmc/data/utf8.h"          // printable
#include "llmc/platform/platform.h"  // use_given_cores

namespace {
// Whether all output has been written.
bool written() { return std::fflush(stdout) == 0 && !std::ferror(stdout); }

int fail(int exit_code, const char* message) {
    std::fprintf(stderr, "error: %s\n", printable(with_installed_names(message)).c_str());
    return exit_code;
}

const char* kDescription =
    R"(Turns text into token shards to train on.

INPUT: files, or folders with all .txt, .md, .jsonl and .parquet files in them and below (.md only where there are no
others); - is standard input, which is first copied into DIR. A text file is one document, a line of .jsonl, an element
or line of .json, a row of .parquet (which needs python3 with pyarrow).

Writes DIR/train_000000.bin ... and DIR/val_000000.bin ... (llm.c's format), DIR/tokenizer.json and
DIR/dataset.json, and replaces those of an earlier run when all is done. Started again after it was killed, it
continues after the last finished file.

Examples:
  data/tokenize notes.txt --out data/notes
  data/tokenize books/ --tokenizer char --out data/books
  data/tokenize posts.jsonl --field body --tokenizer gpt2 --out data/posts
  data/tokenize fineweb/*.parquet --train-tokenizer --vocab-size 32768 --out data/fineweb
  zstdcat dump.jsonl.zst | data/tokenize - --format jsonl --tokenizer gpt2 --out data/dump
  data/tokenize chats.jsonl --format chat --tokenizer data/fineweb/tokenizer.json --out data/chats
  data/tokenize --stories 2000000 --out data/stories
  data/tokenize --list data/fineweb)";

// `val_input`: the last of those given. `list`: a folder of shards to list, instead of all else.
std::vector<Field> fields_of(DatasetConfig& config, std::string& val_input, std::string& list) {
    return {
        {"input", "format", &config.format,
         "what the files are: text, jsonl, parquet; chat: conversations, a line of .jsonl each, such as "
         "{\"messages\": [{\"role\": \"user\", \"content\": ...}, ...]}; auto: by their endings"},
        {"input", "chat-template", &config.chat_template,
         "of --format chat: nanochat, chatml, llama3; auto: as the template beside the tokenizer says, or by its "
         "special tokens"},
        {"input", "field", &config.field, "which field of .jsonl or column of .parquet is the text"},
        {"input", "skip-bad-lines", &config.skip_bad_lines,
         "pass over lines of .jsonl and elements of .json that cannot be read, and count them"},
        {"input", "document-separator", &config.document_separator,
         "what stands between the documents of a text file: \\n\\n, say, or <|endoftext|>"},
        {"input", "stories", &config.stories_bytes,
         "instead of INPUT: about so many bytes of built-in stories, whose entropy is known"},
        {"tokenizer", "tokenizer", &config.tokenizer,
         "byte (V = 256, takes any text), char (one token for each character that occurs), gpt2, or a file: "
         "tokenizer.json, vocab.bpe, tiktoken's ranks, llm.c's tokenizer.bin"},
        {"tokenizer", "train-tokenizer", &config.train_tokenizer,
         "instead: a BPE made from the text, but for what is for validation"},
        {"tokenizer", "vocab-size", &config.vocab_size,
         "of --train-tokenizer: all its tokens, the special ones included"},
        {"tokenizer", "pattern", &config.pattern,
         "of --train-tokenizer: where text is cut, gpt2, gpt4, llama3, qwen2, smollm, o200k or nanochat; the last "
         "brings nanochat's nine special tokens, the others <|endoftext|>"},
        {"tokenizer", "tokenizer-bytes", &config.tokenizer_bytes, "of --train-tokenizer: it sees the files up to here"},
        {"output", "out", &config.out, "the folder to write to, made if it is missing"},
        {"output", "val-fraction", &config.val_fraction,
         "kept for validation: of the documents, chosen by a hash of their text; of few documents the last, of one "
         "text its end"},
        {"output", "val-input", &val_input, "instead: a file or folder that is for validation; may be repeated"},
        {"output", "shard-tokens", &config.shard_tokens, "tokens per file"},
        {"output", "threads", &config.threads, "0: as many as there are cores"},
        {"output", "seed", &config.seed, "of the choice for validation, and of the stories"},
        {"output", "list", &list,
         "instead of all else: write shards.json, the list of all shards in this folder, which train_gpt --fetch "
         "needs"}};
}

// What parse_flags() cannot know: values that are given several times, and flags that go together or do not.
void complete(DatasetConfig& config, const Flags& flags) {
    config.inputs = flags.inputs;
    if (flags.has("val-input")) config.val_inputs = flags.given.at("val-input").all;
    require(!config.train_tokenizer || !flags.has("tokenizer"),
            "--train-tokenizer makes a tokenizer, and --tokenizer names one: leave one of them out");
    for (const std::string name : {"vocab-size", "pattern", "tokenizer-bytes"})
        require(config.train_tokenizer || !flags.has(name), "--%s is of --train-tokenizer: give that, too",
                name.c_str());
    require(!flags.has("stories") || config.stories_bytes > 0, "--stories %ld: expected a number of bytes above 0",
            config.stories_bytes);
}

void print_summary(const DatasetConfig& config, const DatasetSummary& summary) {
    std::printf("%s: %ld training tokens in %d files, %ld validation tokens in %d files, vocabulary of %d (%s)\n",
                config.out.c_str(), summary.train_tokens, summary.train_shards, summary.val_tokens, summary.val_shards,
                summary.vocab_size, summary.tokenizer.c_str());
    if (summary.skipped_lines > 0)
        std::fprintf(stderr, "warning: %ld bad lines were skipped, the first: %s\n", summary.skipped_lines,
                     printable(summary.why_skipped).c_str());
    if (summary.kept_shards > 0) std::printf("%d of the files were kept from a run before\n", summary.kept_shards);
}
}  // namespace

int main(int argc, char** argv) {
    open_standard_files();
    use_given_cores();
    if (argc == 2 && argv[1] == std::string("--version")) {
        std::printf("data/tokenize %s (build %s)\n", anvil_version(), build_id());
        return written() ? kExitOk : kExitUsage;
    }
    try {
        DatasetConfig config;
        std::string val_input, list;
        const Flags flags = parse_flags(
            fields_of(config, val_input, list), argc, argv,
            {.description = kDescription, .usage = "INPUT... --out DIR [--flag value]...", .takes_inputs = true});
        if (flags.help)
            return written() ? kExitOk : fail(kExitUsage, "standard output could not be written: is its disk full?");
        if (!list.empty()) {
            require(flags.inputs.empty() && flags.given.size() == 1, "--list reads shards only: leave all else out");
            std::printf("%s/%s: %zu shards\n", list.c_str(), kShardList, write_shard_list(list));
            return written() ? kExitOk : kExitUsage;
        }
        complete(config, flags);
        print_summary(config, make_dataset(config));
        if (!written()) std::fprintf(stderr, "warning: standard output could not be written; the files are complete\n");
        return kExitOk;
    } catch (const Error& error) {
        return fail(error.exit_code, error.what());
    } catch (const std::filesystem::filesystem_error& error) {  // an unreadable folder, a name that is too long
        return fail(kExitUsage, error.what());
    } catch (const std::exception& error) {
        return fail(kExitInternal, error.what());
    }
}
