/*
The command `chat`: a conversation with a trained model. A line of standard input is a message; the answer is streamed
to standard output. The model sees the whole conversation, formatted by its template (llmc/data/chat.h); tokens in the
KV cache are not computed again.

  /system TEXT   sets the system message and starts a new conversation
  /clear         starts a new conversation
  /help          lists these commands
  /quit          ends the program, like the end of the input

Ctrl-C ends the current answer; at the prompt it ends the program. When the conversation outgrows the context, its
oldest turns are dropped, with a note on standard error.
*/
#pragma once
#include <unistd.h>
#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <vector>
#include "llmc/commands/generate.h"  // tokenizer_for, WholeCharacters
#include "llmc/data/chat.h"          // ChatTemplate, Conversation
#include "llmc/data/chat_style.h"    // find_chat_style

// The model's side of a conversation: the tokens that it has read are in the KV cache.
template <class Device, class T>
class ChatModel {
public:
    ChatModel(Gpt<Device, T>& model, int64_t context, int64_t num_ids, const SampleConfig& config, uint64_t seed)
        : model_(model),
          context_(context),
          config_(config),
          rng_(mix64(seed), Stream::sampling),
          stored_(size_t(model.shape.vocab_size)),
          logits_(size_t(num_ids)),
          decoder_(model, 1, context, context) {}

    // Reads the prompt and samples the tokens after it; each(token) returns whether to continue. Returns the number of
    // sampled tokens.
    template <class Each>
    int64_t answer(const std::vector<int32_t>& prompt, Each&& each) {
        ensure(!prompt.empty() && int64_t(prompt.size()) < context_);
        const T* row = read(prompt);
        int64_t drawn = 0;
        for (bool goes_on = true; goes_on && drawn < config_.num_tokens;) {
            copy_to_host(model_.device, stored_.data(), row, model_.shape.vocab_size);
            read_logits(logits_, stored_.data(), model_.shape.architecture.softcap);
            const int32_t token = draw(logits_, config_, rng_);
            drawn++;
            goes_on = each(token) && int64_t(cached_.size()) + 1 < context_;
            if (goes_on && drawn < config_.num_tokens) row = append(token);
        }
        return drawn;
    }

private:
    Gpt<Device, T>& model_;
    int64_t context_;
    SampleConfig config_;
    Rng rng_;
    std::vector<T> stored_;
    std::vector<float> logits_;
    GptDecoder<Device, T> decoder_;
    std::vector<int32_t> cached_;  // the tokens in the KV cache

    const T* append(int32_t token) {
        decoder_.decode({token});
        cached_.push_back(token);
        return model_.logits(0, 1);
    }

    // The logits after it. One token after another takes about as long as many at once take each eighth of them.
    const T* read(const std::vector<int32_t>& prompt) {
        const bool goes_on = !cached_.empty() && cached_.size() < prompt.size() &&
                             std::equal(cached_.begin(), cached_.end(), prompt.begin());
        const size_t more = prompt.size() - cached_.size();
        if (goes_on && more <= prompt.size() / 8) {
            const T* row = nullptr;
            for (size_t i = cached_.size(); i < prompt.size(); i++) row = append(prompt[i]);
            return row;
        }
        decoder_.prefill(0, prompt);
        cached_ = prompt;
        return model_.logits(int64_t(prompt.size()) - 1, 1);
    }
};

namespace chat_detail {
inline volatile std::sig_atomic_t interrupted = 0;

// Handles every Ctrl-C, not only the first one. A signal interrupts read().
inline void catch_interrupts() {
    struct sigaction action = {};
    action.sa_handler = [](int) { interrupted = 1; };
    sigaction(SIGINT, &action, nullptr);
}

// nullopt at the end of the input, or if reading was interrupted.
inline std::optional<std::string> read_line() {
    char* text = nullptr;
    size_t size = 0;
    const ssize_t n = getline(&text, &size, stdin);
    const std::unique_ptr<char, void (*)(void*)> owner(text, std::free);
    if (n < 0 || interrupted) return {};
    std::string line(text, size_t(n));
    while (!line.empty() && (line.back() == '\n' || line.back() == '\r')) line.pop_back();
    return line;
}
}  // namespace chat_detail

// The conversation so far, and the handling of an input line.
template <class Device, class T>
class ChatLoop {
public:
    ChatLoop(ChatModel<Device, T>& model, const Tokenizer& tokenizer, const ChatTemplate& chat, int64_t context,
             int64_t most_tokens)
        : model_(model), tokenizer_(tokenizer), chat_(chat), context_(context), most_tokens_(most_tokens) {}

    void set_system(const std::string& text) {
        system_ = text;
        turns_.clear();
    }

    // False: the user has ended the conversation.
    bool take(const std::string& line) {
        if (line.find_first_not_of(" \t") == std::string::npos) return true;
        if (line[0] != '/') return answer(line), true;
        const size_t blank = std::min(line.find(' '), line.size());
        const std::string command = line.substr(0, blank), rest = line.substr(std::min(blank + 1, line.size()));
        if (command == "/quit" || command == "/exit") return false;
        if (command == "/clear")
            turns_.clear();
        else if (command == "/system")
            set_system(rest);
        else if (command == "/help")
            std::fputs("/system TEXT, /clear, /quit; Ctrl-C ends an answer\n", stderr);
        else
            std::fprintf(stderr, "%s is no command: expected /system TEXT, /clear, /help or /quit\n",
                         printable(command).c_str());
        return true;
    }

    void answer(const std::string& text) {
        std::vector<int32_t> prompt;
        turns_.push_back({Role::user, {{MessagePart::Kind::text, text}}});
        try {
            prompt = fitting_prompt();
        } catch (const Error& error) {
            turns_.pop_back();
            std::fprintf(stderr, "%s\n", printable(error.what()).c_str());
            return;
        }
        WholeCharacters out;
        std::string said;
        bool has_ended = false;
        const auto started = std::chrono::steady_clock::now();
        chat_detail::interrupted = 0;
        const int64_t drawn = model_.answer(prompt, [&](int32_t token) {
            has_ended = chat_.ends_turn(token);
            if (has_ended || chat_detail::interrupted || is_ended()) return false;
            const std::string bytes = tokenizer_.decode({token});
            said += bytes;
            out.add(bytes);
            return true;
        });
        out.add("\n");
        out.end();
        seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count();
        tokens_ += drawn;
        if (!has_ended && !chat_detail::interrupted && !is_ended())
            std::fprintf(stderr, "(cut off after %ld tokens: --sample-tokens, or the end of the context)\n", drawn);
        turns_.push_back({Role::assistant, {{MessagePart::Kind::text, said}}});
        chat_detail::interrupted = 0;  // the Ctrl-C has ended this answer
    }

    int64_t tokens() const { return tokens_; }
    double seconds() const { return seconds_; }
    // Whether a signal other than Ctrl-C has arrived.
    static bool is_ended() { return stop_signal() != nullptr; }

private:
    ChatModel<Device, T>& model_;
    const Tokenizer& tokenizer_;
    const ChatTemplate& chat_;
    int64_t context_, most_tokens_;
    std::string system_;
    Conversation turns_;  // without the system message
    int64_t tokens_ = 0;
    double seconds_ = 0;

    // Drops the oldest turns, two at a time, until there is room for an answer of at most half the context.
    std::vector<int32_t> fitting_prompt() {
        const int64_t room = std::min(most_tokens_, context_ / 2);
        size_t gone = 0;
        for (;; gone += 2) {
            Conversation all;
            if (!system_.empty()) all.push_back({Role::system, {{MessagePart::Kind::text, system_}}});
            all.insert(all.end(), turns_.begin() + ptrdiff_t(gone), turns_.end());
            std::vector<int32_t> prompt = chat_.prompt(all, "the message");
            if (int64_t(prompt.size()) + room <= context_) {
                turns_.erase(turns_.begin(), turns_.begin() + ptrdiff_t(gone));
                if (gone > 0)
                    std::fprintf(stderr, "(forgotten: the oldest %zu messages, for the context of %ld tokens)\n", gone,
                                 context_);
                return prompt;
            }
            require(gone + 2 < turns_.size(),
                    "the message, with its template, has %zu tokens, and the context is %ld, %ld of them for the "
                    "answer: shorten it",
                    prompt.size(), context_, room);
        }
    }
};

template <class T, class Device>
void chat(Device& device, World& world, const RunRequest& request, const std::string& tokenizer_path,
          const ChatOptions& options) {
    const RunFlags& flags = request.flags;
    require(world.is_alone(), "`chat` is for one process: start it without mpirun, srun and torchrun");
    const StoredModel stored = stored_model(request);
    const GptShape shape = find_shape(request, 0);
    check_heads<T>(device, shape);
    const int64_t context = flags.seq_len(shape);
    require(context >= 16, "a context of %ld tokens is too short for a conversation: give --seq-len", context);
    const Tokenizer tokenizer = tokenizer_for(stored, tokenizer_path);
    const std::string& beside = tokenizer_path.empty() ? stored.tokenizer_path() : tokenizer_path;
    const ChatTemplate chat(tokenizer, find_chat_style(tokenizer, beside, options.chat_template));
    if (request.resumed() && flags.packing_mode() != Packing::pad)
        std::fprintf(stderr,
                     "warning: %s was trained on text, not on conversations (--packing pad): it may not know how to "
                     "answer\n",
                     request.path().c_str());

    Gpt<Device, T> model(device, shape, 1, context, {Recompute::never, false, 1});
    read_weights(stored, model.parameters,
                 [&](size_t i, const float* values) { model.set_weight(model.parameters.parameters[i], values); });
    const bool is_masked = flags.packing_mode() == Packing::pad;  // trained with document masking per conversation
    model.document_token = flags.document_token.value_or(is_masked ? chat.document_token() : -1);

    SampleConfig config = flags.sample();
    if (config.num_tokens == 0) config.num_tokens = int(context);  // the run had --sample-tokens 0
    ChatModel<Device, T> answerer(model, context, tokenizer.vocab_size(), config, flags.seed);
    ChatLoop<Device, T> loop(answerer, tokenizer, chat, context, config.num_tokens);
    loop.set_system(options.system);
    chat_detail::catch_interrupts();
    if (!options.message.empty()) {
        loop.answer(options.message);
    } else {
        const bool is_terminal = isatty(STDIN_FILENO) && isatty(STDOUT_FILENO);
        if (is_terminal) std::printf("%s, template %s; /help\n", request.path().c_str(), chat.name());
        while (!loop.is_ended()) {
            if (is_terminal) std::fputs("> ", stdout), std::fflush(stdout);
            const std::optional<std::string> line = chat_detail::read_line();
            if (!line || !loop.take(*line)) break;
        }
        if (is_terminal) std::puts("");
    }
    if (loop.tokens() > 0)
        std::fprintf(stderr, "%ld tokens in %.2f s: %.1f tokens/s\n", loop.tokens(), loop.seconds(),
                     double(loop.tokens()) / loop.seconds());
}
