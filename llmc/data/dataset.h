/*
Makes a dataset from text: a folder ready to train on. `data/tokenize` is its command line.

  DIR/train_000000.bin ...  DIR/val_000000.bin ...   token shards (llmc/data/shards.h)
  DIR/tokenizer.json                                 what the ids mean (llmc/data/tokenizer.h)
  DIR/dataset.json                                   where the tokens come from, and how many there are

Documents (llmc/data/documents.h) are encoded by all threads, a megabyte each at a time, and written in order, so the
files are the same at any number of threads, and memory does not grow with the text. The separator precedes each
document, unless the whole input is one. Validation data are:

  a hash of its text and the seed says of each document; equal documents are on the same side, in any order of the input
  of fewer than 10 / val_fraction documents the last ones are, at least one; of whole text files the last bytes
  the documents of val_inputs, and no others, if there are any

With format `chat` a document is a conversation, one line of .jsonl (llmc/data/chat.h), and the shards have masks: what
the assistant writes is learned, everything else is only read.

A run that was killed continues after the last finished shard when it is started again (llmc/data/staging.h): the text
before it is read and compared, but not encoded. If the text has changed, the run starts over.
*/
#pragma once
#include <cstdint>
#include <string>
#include <vector>

struct DatasetConfig {
    std::vector<std::string> inputs;      // files, folders (see sources_of), or "-": standard input
    std::vector<std::string> val_inputs;  // of these everything is for validation
    std::string format = "auto";          // of files: text, jsonl, parquet, chat; auto: by the ending
    std::string chat_template = "auto";   // of format chat: nanochat, chatml, llama3; auto: the tokenizer's
    std::string field = "text";           // of .jsonl and .parquet
    std::string document_separator;       // of text; \n \r \t \\ stand for what they do in C
    int64_t stories_bytes = 0;            // instead of inputs: about so many bytes of llmc/data/stories.h
    uint64_t seed = 1337;                 // of the stories, and of the split
    std::string out;
    std::string tokenizer = "byte";  // or "char", "gpt2", or a file that load_tokenizer reads
    bool train_tokenizer = false;    // instead: a BPE made from the text for training
    int vocab_size = 32768;          // of that, with its special tokens
    std::string pattern = "nanochat";
    int64_t tokenizer_bytes = 2'000'000'000;  // it sees the text up to here
    double val_fraction = 0.1;
    int64_t shard_tokens = 100'000'000;
    int threads = 0;  // 0: all cores

    bool is_chat() const { return format == "chat"; }
};

struct DatasetSummary {
    int64_t train_tokens = 0, val_tokens = 0, documents = 0, text_bytes = 0;
    int train_shards = 0, val_shards = 0, vocab_size = 0;
    int kept_shards = 0;  // made by an earlier run
    std::string tokenizer;
};

// Errors name the file. An error before the first shard is finished leaves nothing behind.
DatasetSummary make_dataset(const DatasetConfig& config);
