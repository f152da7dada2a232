/*
The command `generate`: a trained model continues a text. Stdout gets the new tokens' bytes, streamed, and nothing else;
multi-byte characters are written whole. With several samples, the first one is streamed and the others follow, each
after a line of three dashes. The time goes to stderr.

For a model trained on documents that begin with a token (--document-token), that token also precedes the prompt, and a
sample ends where the next document would begin.
*/
#pragma once
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>
#include "llmc/base/file.h"             // read_file, reason_of
#include "llmc/checkpoint/run_state.h"  // read_weights
#include "llmc/data/tokenizer.h"        // Tokenizer, load_tokenizer
#include "llmc/data/utf8.h"             // generated_text, unfinished_bytes
#include "llmc/eval/sample.h"           // sample_each
#include "llmc/run/stop.h"              // stop_signal
#include "llmc/train/run_request.h"     // RunRequest, find_shape
#include "llmc/train/tokens.h"          // check_named_tokenizer
#include "llmc/train/world.h"           // World

// The tokenizer that the command line names, else the checkpoint's.
inline Tokenizer tokenizer_for(const StoredModel& stored, const std::string& named) {
    const std::string path = named.empty() ? stored.tokenizer_path() : named;
    require(!path.empty(), "%s has no tokenizer.json: give --tokenizer with that of the data it was trained on",
            stored.path().c_str());
    check_named_tokenizer(path);
    const Tokenizer tokenizer = load_tokenizer(path);
    // A model may have more ids than its tokenizer knows. They are never sampled.
    const int64_t vocab_size = stored.shape().vocab_size;
    require(tokenizer.vocab_size() == vocab_size || (named.empty() && tokenizer.vocab_size() < vocab_size),
            "%s has %d symbols, and the model in %s a vocabulary of %ld: give the tokenizer it was trained with",
            path.c_str(), tokenizer.vocab_size(), stored.path().c_str(), vocab_size);
    return tokenizer;
}

// The tokens of the prompt.
inline std::vector<int32_t> prompt_tokens(const GenerateOptions& options, int32_t document_token,
                                          const Tokenizer& tokenizer, int64_t context) {
    const bool is_file = options.prompt.starts_with("@");
    const std::string where = is_file ? options.prompt.substr(1) : "--prompt";
    const std::string text = is_file ? read_file(where) : options.prompt;
    require(!text.empty(), "%s is empty: give a text to continue, at least a line break", where.c_str());
    std::vector<int32_t> tokens = tokenizer.encode(text, where);
    if (document_token >= 0 && tokens[0] != document_token) tokens.insert(tokens.begin(), document_token);
    require(int64_t(tokens.size()) <= context,
            "%s has %zu tokens, and the model's context is %ld: shorten it, by its beginning say", where.c_str(),
            tokens.size(), context);
    return tokens;
}

// Tokens are written as whole characters, and invalid UTF-8 as U+FFFD: a byte-level model may generate anything, and
// readers of text expect UTF-8. A terminal gets no control characters.
class WholeCharacters {
public:
    explicit WholeCharacters(std::FILE* to = stdout) : to_(to) {}
    void add(const std::string& bytes) {
        pending_ += bytes;
        write(pending_.size() - unfinished_bytes(pending_));
    }
    void end() { write(pending_.size()); }

private:
    std::FILE* to_;
    std::string pending_;

    void write(size_t n) {
        const std::string text = generated_text(std::string_view(pending_).substr(0, n), to_);
        require(std::fwrite(text.data(), 1, text.size(), to_) == text.size() && std::fflush(to_) == 0,
                "cannot write to standard output: %s", reason_of(errno).c_str());
        pending_.erase(0, n);
    }
};

template <class T, class Device>
void generate(Device& device, World& world, const RunRequest& request, const std::string& tokenizer_path,
              const GenerateOptions& options) {
    const RunFlags& flags = request.flags;
    const int32_t document_token = flags.document_token.value_or(-1);
    require(world.is_alone(), "`generate` is for one process: start it without mpirun, srun and torchrun");
    require(flags.sample_tokens > 0, "--sample-tokens 0 leaves nothing to generate: give a length");
    const StoredModel stored = stored_model(request);
    const GptShape shape = find_shape(request, 0);
    check_heads<T>(device, shape);
    const int64_t context = flags.seq_len(shape);
    const Tokenizer tokenizer = tokenizer_for(stored, tokenizer_path);
    const std::vector<int32_t> prompt = prompt_tokens(options, document_token, tokenizer, context);
    const int32_t end = document_token >= 0 ? document_token : tokenizer.separator();

    Gpt<Device, T> model(device, shape, 1, std::max<int64_t>(context, options.num_samples),
                         {Recompute::never, false, std::max(1, options.num_samples)});
    read_weights(stored, model.parameters,
                 [&](size_t i, const float* values) { model.set_weight(model.parameters.parameters[i], values); });
    model.document_token = document_token;

    std::vector<Rng> rngs;  // one per sample, so that a sample does not depend on their number
    for (int i = 0; i < options.num_samples; i++) rngs.emplace_back(mix64(flags.seed) + uint64_t(i), Stream::sampling);
    std::vector<std::string> later(rngs.size());
    WholeCharacters out;
    int64_t num_tokens = 0;
    const auto started = std::chrono::steady_clock::now();
    sample_each(model, std::vector(rngs.size(), prompt), context, tokenizer.vocab_size(), flags.sample(),
                Context::sliding, rngs, [&](size_t sample, int32_t token) {
                    num_tokens++;
                    if (token == end) return false;
                    const std::string bytes = tokenizer.decode({token});
                    if (sample == 0)
                        out.add(bytes);
                    else
                        later[sample] += bytes;
                    return !stop_signal();
                });
    out.end();
    for (size_t sample = 1; sample < later.size(); sample++) {
        out.add("\n---\n" + later[sample]);
        out.end();
    }
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count();
    std::fprintf(stderr, "\n%ld tokens after a prompt of %zu in %.2f s: %.1f tokens/s\n", num_tokens, prompt.size(),
                 seconds, double(num_tokens) / seconds);
}
