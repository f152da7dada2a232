/*
Documents: the texts that data/tokenize reads, as a stream of batches of about 1 MB, in order.

  .jsonl, .ndjson     one document per line: the string in one field of its object
  .json               the same, or an array of such objects
  .parquet            one document per row: one column, which python3 with pyarrow reads and writes to a pipe
  any other name      text: one document per file, or several with a separator between them; names known to be of other
                      files (.csv, .gz, .pdf, ...) are refused

Only the current batches are in memory. They are raw: text_of() extracts a document's text from its line, so that many
threads can do it. A text of more than 1 MB is cut into pieces, between a letter or digit and the blank after it, where
every split pattern cuts, too. If there is no such place in 4 MB, it is cut between two characters.

  DocumentReader reader(sources, {.field = "text"});
  while (std::optional<DocumentBatch> batch = reader.next())
      for (const Piece& piece : batch->pieces) use(text_of(*batch, piece, "text", scratch));
*/
#pragma once
#include <cstdint>
#include <cstdio>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>
#include "llmc/base/file.h"  // MappedFile
#include "llmc/base/hash.h"  // Hasher

enum class DocumentFormat { text, jsonl, json, parquet };  // json: an array of what lines of jsonl are

struct Source {
    std::string path, name;  // name: for messages and dataset.json
    DocumentFormat format = DocumentFormat::text;
    bool validation = false;  // all of its documents are for validation
    int64_t bytes = 0;
    std::shared_ptr<const std::string> content = nullptr;  // replaces the content of the file
};

// Parses text, jsonl or parquet; nullopt for auto, which goes by the file name's extension. Throws on any other name.
std::optional<DocumentFormat> document_format(const std::string& name);

// The files that `inputs` name, in the given order; those of a folder sorted by path. In a folder, only files with a
// known extension count, .md only where there are no records, and empty ones are skipped; `notes` gets a line for each
// folder of which something is left out. Throws if an input is missing, empty or without text.
std::vector<Source> sources_of(const std::vector<std::string>& inputs, std::optional<DocumentFormat> type,
                               bool validation, std::vector<std::string>& notes);

// A document or a part of one.
struct Piece {
    std::string_view raw;        // the text; of .jsonl the line, of .json the element
    int64_t document = 0;        // its number over all sources
    int64_t at = 0;              // the line, record or row, counted from 1; in a text the offset in the file
    bool begins = true;          // begins a document; pieces that follow may continue it
    bool validation = false;     // according to the source or ReadOptions
    uint64_t document_hash = 0;  // if a document has several pieces: the first piece's hash, in all of them
};

struct DocumentBatch {
    const Source* source = nullptr;
    std::shared_ptr<const void> owner;  // owns the memory that the pieces point to
    std::vector<Piece> pieces;
    int64_t source_bytes = 0;  // how far into the source's file this batch reaches
};

struct ReadOptions {
    static constexpr int64_t kNever = std::numeric_limits<int64_t>::max();
    std::string field = "text";  // of .jsonl and .parquet
    // Separates the documents of a text, together with the line breaks around it. Empty: the text is one document.
    std::string separator;
    // Everything from here on is validation data.
    int64_t validation_byte = kNever;  // counted over all sources; only for text
    int64_t validation_document = kNever;
};

class DocumentReader {
public:
    // The sources must outlive the reader and its batches.
    DocumentReader(const std::vector<Source>& sources, ReadOptions options)
        : sources_(sources), options_(std::move(options)) {}

    // The next batch, with at least one piece; nullopt at the end.
    std::optional<DocumentBatch> next();

    int64_t num_documents() const { return document_; }  // so far
    // XXH3 hashes of the files that have been read completely, in order.
    const std::vector<uint64_t>& hashes() const { return hashes_; }

private:
    struct ClosePipe {
        void operator()(FILE* pipe) const { pclose(pipe); }
    };
    void open_source();
    void close_source();
    void begin_document();
    void read_text(DocumentBatch& batch);
    void read_lines(DocumentBatch& batch);
    void read_array(DocumentBatch& batch);
    size_t after_blanks(size_t at) const;
    void open_parquet();
    void read_rows(DocumentBatch& batch);
    char read_record(std::string& to);  // reads from the pipe; returns the record's kind
    size_t piece_end(size_t document_end) const;
    void add(DocumentBatch& batch, Piece piece) const;

    const std::vector<Source>& sources_;
    ReadOptions options_;
    std::vector<uint64_t> hashes_;
    size_t source_ = 0;         // the current source
    bool is_open_ = false;      // whether it is open
    int64_t bytes_before_ = 0;  // of the sources before it
    int64_t document_ = 0;      // the number of the next document
    std::shared_ptr<const void> owner_;
    std::string_view text_;  // of the current source
    size_t at_ = 0;          // in text_
    size_t document_begin_ = 0, document_end_ = 0, next_document_ = 0;
    uint64_t document_hash_ = 0;
    int64_t line_ = 0;
    Hasher hasher_;
    std::unique_ptr<FILE, ClosePipe> pipe_;
    int64_t rows_ = 0;
};

// A piece's name in messages: "notes.txt", "posts.jsonl:12", "row 12 of posts.parquet".
std::string where(const Source& source, const Piece& piece);

// The text of a piece, in place or in `scratch`. For .jsonl and .json throws, naming file and line, unless the line is
// a JSON object with a string (or null, an empty text) in this field. JSON as Python's module reads it is let in.
std::string_view text_of(const DocumentBatch& batch, const Piece& piece, const std::string& field,
                         std::string& scratch);
