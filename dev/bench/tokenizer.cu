// Speed of tokenizers, in MB/s of text on one core: of splitting, of encoding, and of training. The text is tiny
// Shakespeare and the tokenizer GPT-2's if $ANVIL_MIRROR has them, else the built-in stories and a tokenizer trained on
// them.
//
//   make bench OP=tokenizer        --smoke: little text, and the numbers mean nothing; --json FILE is not written
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include "llmc/base/check.h"         // Error
#include "llmc/base/file.h"          // read_file
#include "llmc/data/bpe_training.h"  // PieceCounts, train_bpe
#include "llmc/data/split.h"         // for_each_piece
#include "llmc/data/stories.h"       // tell_stories
#include "llmc/data/tokenizer.h"     // load_tokenizer

namespace {
std::string in_mirror(const char* name) {
    const char* mirror = std::getenv("ANVIL_MIRROR");
    const std::string path = mirror ? std::string(mirror) + "/" + name : "";
    return std::filesystem::exists(path) ? path : "";
}

double thread_seconds() {
    timespec time;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return double(time.tv_sec) + double(time.tv_nsec) * 1e-9;
}

template <class F>
void measure(const char* what, size_t bytes, int runs, F f) {
    double best = 1e9;
    for (int run = 0; run < runs; run++) {
        const double start = thread_seconds();
        f();
        best = std::min(best, thread_seconds() - start);
    }
    std::printf("%-28s %9.2f ms  %8.1f MB/s\n", what, best * 1e3, double(bytes) / best / 1e6);
}

// Text in several scripts, of which a vocabulary made for English has few words.
std::string mixed(const std::string& text) {
    const char* words[] = {" Привет", " мир", " 日本語",  " हिन्दी", " naïve",
                           " 12345",  " 🙂",  " العربية", "\r\n",   " x_y(z)"};
    std::string result;
    for (size_t at = 0; at + 40 < text.size(); at += 40) result += text.substr(at, 40) + words[at / 40 % 10];
    return result;
}

void bench(bool smoke) {
    const std::string shakespeare = smoke ? "" : in_mirror("tinyshakespeare.txt"),
                      gpt2 = smoke ? "" : in_mirror("vocab.bpe");
    const std::string text =
        shakespeare.empty() ? tell_stories(smoke ? 5000 : 1000000, 1).text : read_file(shakespeare);
    const int runs = smoke ? 1 : 9;
    PieceCounts counts("nanochat");
    counts.add(text);
    const Tokenizer trained = train_bpe(counts, {.vocab_size = smoke ? 300 : 4096});
    const Tokenizer tokenizer = gpt2.empty() ? trained : load_tokenizer(gpt2);
    std::printf("# tokenizer, one thread, %s, vocabulary of %d\n", shakespeare.empty() ? "stories" : "tiny Shakespeare",
                tokenizer.vocab_size());
    for (const SplitPattern pattern : {SplitPattern::gpt2, SplitPattern::nanochat})
        measure(pattern == SplitPattern::gpt2 ? "split gpt2" : "split nanochat", text.size(), runs, [&] {
            size_t pieces = 0;
            for_each_piece(pattern, text, [&](std::string_view) { pieces++; });
            ensure(pieces > 0);
        });
    const std::string other = mixed(text), unbroken(text.size(), 'a');
    measure("encode", text.size(), runs, [&] { tokenizer.encode(text, "", 1); });
    measure("encode mixed scripts", other.size(), runs, [&] { tokenizer.encode(other, "", 1); });
    measure("encode without a space", unbroken.size(), runs, [&] { tokenizer.encode(unbroken, "", 1); });
    const std::vector<int32_t> ids = tokenizer.encode(text);
    measure("decode", text.size(), runs, [&] { ensure(tokenizer.decode(ids) == text); });
    measure("count pieces", text.size(), runs, [&] {
        PieceCounts again("nanochat");
        again.add(text);
    });
    measure(smoke ? "learn 300 tokens" : "learn 4096 tokens", text.size(), std::min(runs, 3),
            [&] { train_bpe(counts, {.vocab_size = smoke ? 300 : 4096}); });
}
}  // namespace

int main(int argc, char** argv) try {
    bench(argc > 1 && std::strcmp(argv[1], "--smoke") == 0);
    return 0;
} catch (const Error& error) {
    std::fprintf(stderr, "error: tokenizer: %s\n", error.what());
    return error.exit_code;
}
