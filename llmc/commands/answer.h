/*
The command `answer`: requests of a program, such as lm-eval (python/anvil/lm_eval.py), from a file with a JSON object
per line. Texts are token ids. For each request, in their order, a line goes to stdout:

  {"tokens": [5, 17, 3], "start": 1}            {"is_greedy": false, "logprob": -4.25}
  {"tokens": [5, 17], "until": ["\n", "Q:"]}    {"text": " a continuation\n"}

The first kind asks for the log-probability of the tokens from `start` on, and whether each is the most probable one.
The second kind asks for a continuation by --sample-tokens, which ends early with the first of the texts `until`, or
before the token that ends documents. Texts are scored and continued --batch-size at a time.
*/
#pragma once
#include <algorithm>
#include <cstdio>
#include <numeric>
#include <optional>
#include <string>
#include <string_view>
#include <vector>
#include "llmc/commands/generate.h"  // tokenizer_for
#include "llmc/eval/tasks.h"         // TaskScorer, task_batches

struct AnswerRequest {
    std::vector<int32_t> tokens;
    int32_t start = 0;  // 0: of the second kind
    std::vector<std::string> until;
    std::string answer;
};

// Of a model that reads `context` tokens. `path` names the file in errors.
std::vector<AnswerRequest> read_requests(std::string_view content, const std::string& path, int64_t vocab_size,
                                         int64_t context);
// The answers of the two kinds.
std::string scored_answer(double logprob, bool is_greedy);
std::string continued_answer(const std::string& text);

template <class Device, class T>
void score_requests(Gpt<Device, T>& model, std::vector<AnswerRequest*> requests, int64_t B, int64_t context) {
    std::vector<std::vector<int32_t>> rows;
    std::vector<int32_t> starts;
    for (const AnswerRequest* request : requests) rows.push_back(request->tokens), starts.push_back(request->start);
    const TaskFile file(rows, starts);
    TaskScorer<Device, T> scorer(model, B, context);
    for (const TaskBatch& batch : task_batches(file, B, context))
        scorer.score(file, batch, [&](size_t e, const std::vector<RowScore>& scores) {
            const double tokens = double(rows[e].size()) - starts[e];
            requests[e]->answer = scored_answer(-scores[0].nll * tokens, scores[0].matches);
        });
}

template <class Device, class T>
void continue_requests(Gpt<Device, T>& model, std::vector<AnswerRequest*> requests, int64_t B, int64_t context,
                       const Tokenizer& tokenizer, const RunFlags& flags) {
    const int32_t end = flags.document_token.value_or(tokenizer.separator());
    std::vector<Rng> rngs;
    for (size_t i = 0; i < requests.size(); i++) rngs.emplace_back(mix64(flags.seed) + uint64_t(i), Stream::sampling);
    // Neighbors of similar length, because a batch ends with its longest text.
    std::vector<size_t> order(requests.size());
    std::iota(order.begin(), order.end(), size_t(0));
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return requests[a]->tokens.size() > requests[b]->tokens.size(); });
    for (size_t first = 0; first < order.size(); first += size_t(B)) {
        const size_t n = std::min(size_t(B), order.size() - first);
        std::vector<std::vector<int32_t>> prompts;
        std::vector<std::string> texts(n);
        std::vector<Rng> own;
        for (size_t i = 0; i < n; i++)
            prompts.push_back(requests[order[first + i]]->tokens), own.push_back(rngs[order[first + i]]);
        sample_each(model, prompts, context, tokenizer.vocab_size(), flags.sample(), Context::sliding, own,
                    [&](size_t i, int32_t token) {
                        if (token == end) return false;
                        texts[i] += tokenizer.decode({token});
                        const std::vector<std::string>& until = requests[order[first + i]]->until;
                        return std::none_of(until.begin(), until.end(), [&](const std::string& stop) {
                            return texts[i].find(stop) != std::string::npos;
                        });
                    });
        for (size_t i = 0; i < n; i++) requests[order[first + i]]->answer = continued_answer(texts[i]);
    }
}

template <class T, class Device>
void answer_requests(Device& device, World& world, const RunRequest& request, const std::string& tokenizer_path,
                     const std::string& path) {
    const RunFlags& flags = request.flags;
    require(world.is_alone(), "`answer` is for one process: start it without mpirun, srun and torchrun");
    require(!path.empty(), "expected --requests FILE, a JSON object per line: {\"tokens\": [...], \"start\": S}");
    const StoredModel stored = stored_model(request);
    const GptShape shape = find_shape(request, 0);
    check_heads<T>(device, shape);
    const int64_t context = flags.seq_len(shape);
    std::vector<AnswerRequest> requests = read_requests(read_file(path), path, shape.vocab_size, context);
    std::vector<AnswerRequest*> scored, continued;
    for (AnswerRequest& one : requests) (one.start > 0 ? scored : continued).push_back(&one);
    std::optional<Tokenizer> tokenizer;
    if (!continued.empty()) tokenizer = tokenizer_for(stored, tokenizer_path);

    const int64_t asked = flags.batch_size.value_or(0), B = asked > 0 ? asked : 8;
    Gpt<Device, T> model(
        device, shape, B, context,
        {Recompute::never, false, std::max(B, device.head_rows(B * context, shape.padded_vocab_size(), sizeof(T)))});
    read_weights(stored, model.parameters,
                 [&](size_t i, const float* values) { model.set_weight(model.parameters.parameters[i], values); });
    model.document_token = flags.document_token.value_or(-1);
    if (!scored.empty()) score_requests(model, scored, B, context);
    if (!continued.empty()) continue_requests(model, continued, B, context, *tokenizer, flags);
    for (const AnswerRequest& one : requests) std::printf("%s\n", one.answer.c_str());
}
