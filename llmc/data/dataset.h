/*
Makes a data set from text: a folder to train on. `data/tokenize` is its command line.

  DIR/train_000000.bin ...  DIR/val_000000.bin ...   token shards (llmc/data/shards.h)
  DIR/tokenizer.json                                 what the ids mean (llmc/data/tokenizer.h)
  DIR/dataset.json                                   where the tokens come from, and how many there are

All threads encode documents (llmc/data/documents.h), about 1 MB each at a time. The tokens are written in order, so the
files are the same at any number of threads, and memory use does not depend on the length of the text. The separator
precedes each document, unless the whole input is one document. The validation data is one of these:

  of at least 10 / val_fraction documents, those chosen by a hash of the text and the seed: equal documents are in the
  same split, in any order of the input
  of fewer documents, the last ones, at least one; of fewer plain text files, the last bytes
  with val_inputs, their documents and no others

With format `chat` a document is a conversation, one line of .jsonl (llmc/data/chat.h), and the shards have masks: only
what the assistant writes is learned.

A run that was killed continues after its last finished shard when it is started again (llmc/data/staging.h): the text
before that is read and compared, but not encoded. If the text has changed, the run starts over.
*/
#pragma once
#include <cstdint>
#include <string>
#include <vector>

struct DatasetConfig {
    std::vector<std::string> inputs;      // files, folders (see sources_of), or "-": standard input
    std::vector<std::string> val_inputs;  // all of their text is for validation
    std::string format = "auto";          // of files: text, jsonl, parquet, chat; auto: by the extension
    std::string chat_template = "auto";   // for format chat: nanochat, chatml, llama3; auto: the tokenizer's
    std::string field = "text";           // the field of .jsonl, the column of .parquet
    bool skip_bad_lines = false;          // of .jsonl and .json: counts lines that cannot be read, instead of an Error
    std::string document_separator;       // between the documents of a text; may contain \n \r \t \\ as in C
    int64_t stories_bytes = 0;            // replaces inputs: about this many bytes of llmc/data/stories.h
    uint64_t seed = 1337;                 // of the stories and of the split
    std::string out;
    std::string tokenizer = "byte";  // or "char", "gpt2", or a file that load_tokenizer reads
    bool train_tokenizer = false;    // replaces `tokenizer`: a BPE learned from the training text
    int vocab_size = 32768;          // of the trained tokenizer, with its special tokens
    std::string pattern = "nanochat";
    int64_t tokenizer_bytes = 2'000'000'000;  // the tokenizer is trained on the input files up to here
    double val_fraction = 0.1;
    int64_t shard_tokens = 100'000'000;
    int threads = 0;  // 0: all cores

    bool is_chat() const { return format == "chat"; }
};

struct DatasetSummary {
    int64_t train_tokens = 0, val_tokens = 0, documents = 0, text_bytes = 0;
    int train_shards = 0, val_shards = 0, vocab_size = 0;
    int kept_shards = 0;           // made by an earlier run that was killed
    int64_t skipped_lines = 0;     // bad ones
    std::string why_skipped = "";  // the error of the first one
    std::string tokenizer;
};

// Errors name the file. After an error before the first finished shard no files are left.
DatasetSummary make_dataset(const DatasetConfig& config);
