/*
The tokenizer of a run, and whether its initial model and all of its data use that one. A model that reads the ids of
another tokenizer learns from noise, and no loss shows it.

  const KnownTokenizer text(request);
  check_tokens(request, text, is_first);
*/
#pragma once
#include <optional>
#include <string>
#include "llmc/data/tokenizer.h"     // Tokenizer
#include "llmc/train/run_request.h"  // RunRequest

// The tokenizer that lies beside the data, or that was named; where nothing is learned and neither is there, the
// model's.
struct KnownTokenizer {
    std::optional<Tokenizer> tokenizer;
    std::string path;           // empty: none is known
    std::string json;           // its file, which checkpoints take along
    std::string chat_template;  // and how conversations are written, if they are

    explicit KnownTokenizer(const RunRequest& request);
    int vocab_size() const { return tokenizer ? tokenizer->vocab_size() : 0; }
};

// The first id that stands for other text in one tokenizer than in the other, or in one alone; -1: there is none. Ids
// that stand for no text, special ones, do not count.
int first_difference(const Tokenizer& a, const Tokenizer& b);

// Throws an Error if the initial model, the training data and the validation data do not use one tokenizer. For a model
// without a tokenizer only the vocabulary size can be compared: if `speaks`, warns of that.
void check_tokens(const RunRequest& request, const KnownTokenizer& text, bool speaks);

// Of the tokenizer that `plan` would find; 0: there is none.
int64_t planned_vocab_size(const RunFlags& flags);
