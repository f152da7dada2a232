/*
The tokenizer of a run, and the check that its initial model and all of its data use it. A model that reads the ids of
another tokenizer learns from noise, and the loss does not show it.

  const KnownTokenizer text(request);
  check_tokens(request, text, is_first);
*/
#pragma once
#include <optional>
#include <string>
#include "llmc/data/tokenizer.h"            // Tokenizer
#include "llmc/interop/tokenizer_export.h"  // TokenFacts
#include "llmc/train/run_request.h"         // RunRequest

// The tokenizer of --tokenizer, or the one beside the data. With the command `eval`, if neither exists, the
// checkpoint's.
struct KnownTokenizer {
    std::optional<Tokenizer> tokenizer;
    std::string path;           // empty: no tokenizer is known
    std::string json;           // the content of its file
    std::string chat_template;  // the format of conversations; empty: none

    TokenFacts facts;  // what checkpoints say of it

    explicit KnownTokenizer(const RunRequest& request);
    // After check_tokens(): what the initial model or the checkpoint says, if it has the same special tokens. Its
    // tokenizer.json may say more than the one beside the data.
    void find_facts(const RunRequest& request, int64_t max_tokens);
    int vocab_size() const { return tokenizer ? tokenizer->vocab_size() : 0; }
};

// The first id that stands for different texts in the two tokenizers, or exists in only one; -1: there is none. Special
// and other added tokens are ignored.
int first_difference(const Tokenizer& a, const Tokenizer& b);

// Throws an Error if the initial model, the training data and the validation data do not use one tokenizer. For a model
// without a tokenizer only the vocabulary size can be compared: if `speaks`, warns of that.
void check_tokens(const RunRequest& request, const KnownTokenizer& text, bool speaks);

// Throws an Error that says where a run's tokenizers are if `path` looks for one in a run's own folder.
void check_named_tokenizer(const std::string& path);

// A plan (`plan`, --dry-run) by --depth is for nanochat's vocabulary, to which published figures refer, unless data or
// a tokenizer were named.
inline constexpr int64_t kDepthVocabSize = 32768;
inline constexpr const char* kAssumedVocabulary =
    "vocabulary: 32768, as nanochat's; --train-data, --tokenizer or --vocab-size plan for another\n";
bool assumes_vocabulary(const RunFlags& flags);
// The vocabulary size for a plan: that, or the tokenizer's; 0: there is none.
int64_t planned_vocab_size(const RunFlags& flags);
