// Makes a folder of shards from text: first plans the split and trains a tokenizer if asked, then encodes.
#include "llmc/data/dataset.h"
#include <unistd.h>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <deque>
#include <filesystem>
#include <future>
#include <memory>
#include <thread>
#include "llmc/base/check.h"         // require, ensure
#include "llmc/base/file.h"          // FileWriter, read_file, write_file_atomically
#include "llmc/base/hash.h"          // xxh3, hex64
#include "llmc/base/host_limits.h"   // usable_cores
#include "llmc/base/json.h"          // OrderedJson
#include "llmc/base/rng.h"           // mix64
#include "llmc/base/script.h"        // find_script, script_lines
#include "llmc/data/bpe_training.h"  // PieceCounts, train_bpe
#include "llmc/data/chat.h"          // ChatTemplate, parse_conversation
#include "llmc/data/chat_style.h"    // find_chat_style, jinja_of
#include "llmc/data/documents.h"     // DocumentReader, Source
#include "llmc/data/progress.h"      // Progress
#include "llmc/data/shards.h"        // ShardWriter
#include "llmc/data/staging.h"       // Staging
#include "llmc/data/stories.h"       // tell_stories
#include "llmc/data/tokenizer.h"     // Tokenizer, Symbols
#include "llmc/data/utf8.h"          // printable

namespace {
namespace fs = std::filesystem;

// nanochat's pattern comes with its special tokens for conversations.
std::vector<std::string> special_tokens_of(const std::string& pattern) {
    if (pattern == "nanochat") return nanochat_special_tokens();
    return {"<|endoftext|>"};
}

void check(const DatasetConfig& config) {
    require(config.val_fraction >= 0 && config.val_fraction < 1, "--val-fraction %g: expected at least 0 and below 1",
            config.val_fraction);
    require(config.shard_tokens >= 1 && config.shard_tokens <= kMaxShardTokens,
            "--shard-tokens %ld: expected 1 to %ld, the most that the format can hold", config.shard_tokens,
            kMaxShardTokens);
    require(!config.out.empty(), "--out is missing: expected a folder for the token shards");
    require(config.inputs.empty() != (config.stories_bytes == 0),
            "expected either text files or folders, or --stories BYTES");
    require(config.stories_bytes >= 0, "--stories %ld: expected a number of bytes above 0", config.stories_bytes);
    require(config.tokenizer_bytes > 0, "--tokenizer-bytes %ld: expected at least 1", config.tokenizer_bytes);
    require(config.threads >= 0, "--threads %d: expected 1 or more, or 0 for all cores", config.threads);
    document_format(config.format);
    require(config.chat_template == "auto" || config.is_chat(), "--chat-template is of --format chat");
    require(
        !config.is_chat() || config.train_tokenizer || (config.tokenizer != "byte" && config.tokenizer != "char"),
        "--format chat needs a tokenizer with tokens for conversations: give --train-tokenizer, which makes one with "
        "nanochat's, or --tokenizer PATH, that of the model");
    if (config.train_tokenizer) {
        split_pattern(config.pattern);
        const int least = 256 + int(special_tokens_of(config.pattern).size());
        require(config.vocab_size >= least, "--vocab-size %d: expected at least %d, the bytes and the special tokens",
                config.vocab_size, least);
    }
}

// Replaces the escapes of a separator from the command line.
std::string unescaped(const std::string& text) {
    std::string result;
    for (size_t i = 0; i < text.size(); i++) {
        const char next = text[i] == '\\' && i + 1 < text.size() ? text[i + 1] : '\0';
        const char meant = next == 'n' ? '\n' : next == 'r' ? '\r' : next == 't' ? '\t' : next == '\\' ? '\\' : '\0';
        result += meant ? meant : text[i];
        if (meant) i++;
    }
    return result;
}

// Copies standard input to a file, because it can be read only once and a data set may need two passes.
Source standard_input(const std::string& path, std::optional<DocumentFormat> type) {
    FileWriter file(path);
    std::vector<char> buffer(size_t(1) << 20);
    int64_t bytes = 0;
    for (size_t n; (n = fread(buffer.data(), 1, buffer.size(), stdin)) > 0; bytes += int64_t(n))
        file.write(buffer.data(), n);
    require(!ferror(stdin), "cannot read standard input");
    require(bytes > 0, "standard input is empty: expected text");
    return {path, "standard input", type.value_or(DocumentFormat::text), false, bytes};
}

// The path of GPT-2's vocab.bpe, which a script downloads.
std::string gpt2_tokenizer_file() {
    const std::string script = find_script("data/gpt2_tokenizer.sh");
    require(!script.empty(),
            "data/gpt2_tokenizer.sh is missing, which gets GPT-2's tokenizer: it belongs beside this program, in the "
            "repository or as `make install` puts it");
    const std::vector<std::string> lines = script_lines(script);
    require(!lines.empty() && fs::exists(lines.back()), "--tokenizer gpt2: %s did not get it", script.c_str());
    return lines.back();
}

// Which documents are for validation, in addition to those that the reader marks.
struct Split {
    double hash_fraction = 0;  // the fraction of documents that the hash selects
    uint64_t seed = 0;
    int64_t validation_byte = ReadOptions::kNever, validation_document = ReadOptions::kNever;

    bool is_validation(const Piece& piece, uint64_t text_hash) const {
        if (piece.validation) return true;
        const uint64_t hash = piece.document_hash ? piece.document_hash : text_hash;
        return double(mix64(hash ^ mix64(seed)) >> 11) * 0x1p-53 < hash_fraction;
    }
};

// Makes one data set.
class Maker {
public:
    explicit Maker(const DatasetConfig& config) : config_(config) {
        num_threads_ = config.threads > 0 ? config.threads : usable_cores();
        options_.field = config.field;
        options_.separator = unescaped(config.document_separator);
    }

    DatasetSummary make() {
        find_sources();
        Staging staging(config_.out);
        for (Source& source : sources_)
            if (source.path == "-") source = standard_input(staging.path("input"), document_format(config_.format));
        for (const Source& source : sources_) total_bytes_ += source.bytes;
        is_plain_ = options_.separator.empty() && std::all_of(sources_.begin(), sources_.end(), [](const Source& s) {
                        return s.format == DocumentFormat::text;
                    });
        plan_split();
        options_.validation_byte = split_.validation_byte;
        options_.validation_document = split_.validation_document;
        get_tokenizer(staging);
        separator_ = is_plain_ && sources_.size() == 1 ? -1 : tokenizer_.separator();
        if (config_.is_chat())
            chat_.emplace(tokenizer_, find_chat_style(tokenizer_, config_.tokenizer, config_.chat_template));
        if (!config_.train_tokenizer) save_tokenizer(tokenizer_, staging.path("tokenizer.json"));

        const Journal journal = staging.resume(key(read_file(staging.path("tokenizer.json"))));
        if (!encode_all(staging, journal)) {
            std::fprintf(stderr, "the text is not what %s was made of: beginning anew\n", staging.path("").c_str());
            staging.start_over();
            ensure(encode_all(staging, {}));
        }
        if (chat_) {  // prompts of a model trained on this data begin like the data
            ChatStyle style = chat_->style();
            style.begins = true;
            write_file_atomically(staging.path(kChatTemplateFile), jinja_of(style, document_token_of(tokenizer_)));
        }
        write_file_atomically(staging.path("dataset.json"), json_text(description(), 1) + "\n");
        staging.commit();
        return summary_;
    }

private:
    struct Part {
        uint64_t text_hash = 0;
        bool begins = false, validation = false, skipped = false;
        int64_t bytes = 0, num_ids = 0;
        std::string error = {};  // of a bad line
    };
    struct Encoded {
        std::vector<Part> parts;  // one per piece
        std::vector<int32_t> ids;
        int64_t source_bytes;
    };

    // Writes one split: NAME_000000.bin and so on, each full but the last.
    struct SplitWriter {
        const Staging& staging;
        const char* name;
        int vocab_size;
        ShardMask mask;
        int64_t shard_tokens;
        ShardMark mark;  // after the last full shard
        std::unique_ptr<ShardWriter> shard = nullptr;

        // Appends n tokens of a piece; now.tokens is the number of the first in that piece. Returns whether a shard was
        // filled.
        bool append(const int32_t* ids, int64_t n, ShardMark now) {
            const int before = mark.shards;
            while (n > 0) {
                if (!shard)
                    shard = std::make_unique<ShardWriter>(staging.path(format("%s_%06d.bin", name, mark.shards)),
                                                          vocab_size, mask);
                const int64_t fits = std::min(n, shard_tokens - shard->num_tokens());
                shard->append(ids, fits);
                ids += fits;
                n -= fits;
                now.tokens += fits;
                if (shard->num_tokens() < shard_tokens) continue;
                shard->finish();
                shard.reset();
                now.shards = mark.shards + 1;
                mark = now;
            }
            return mark.shards > before;
        }
        int64_t num_tokens() const { return mark.shards * shard_tokens + (shard ? shard->num_tokens() : 0); }
        // Finishes the last shard. Returns the number of shards.
        int finish() {
            if (!shard) return mark.shards;
            shard->finish();
            shard.reset();
            return mark.shards + 1;
        }
    };

    void find_sources() {
        if (config_.stories_bytes > 0) {
            const auto stories = std::make_shared<Stories>(tell_stories(config_.stories_bytes, config_.seed));
            num_stories_ = stories->num_stories;
            sources_ = {{.path = "",
                         .name = "the built-in stories",
                         .bytes = int64_t(stories->text.size()),
                         .content = std::shared_ptr<const std::string>(stories, &stories->text)}};
        }
        std::vector<std::string> notes;
        const auto add = [&](const std::vector<std::string>& inputs, bool validation) {
            for (const std::string& input : inputs) {
                std::vector<Source> found = {{.path = "-", .name = "standard input"}};
                if (input != "-") found = sources_of({input}, document_format(config_.format), validation, notes);
                sources_.insert(sources_.end(), found.begin(), found.end());
            }
        };
        add(config_.inputs, false);
        add(config_.val_inputs, true);
        for (const std::string& note : notes) std::fprintf(stderr, "note: %s\n", printable(note).c_str());
    }

    DocumentReader reader() const { return DocumentReader(sources_, options_); }

    void plan_split() {
        const double fraction = config_.val_fraction;
        split_.seed = config_.seed;
        if (fraction == 0 || !config_.val_inputs.empty()) return;
        const double enough = 10 / fraction;
        if (is_plain_ && double(sources_.size()) < enough) {
            split_.validation_byte = int64_t(double(total_bytes_) * (1 - fraction));  // rounded as nanoGPT does
            require(split_.validation_byte > 0 && split_.validation_byte < total_bytes_,
                    "%ld bytes are too few to keep a fraction of %g for validation: expected at least one on each "
                    "side; give more text, or another --val-fraction",
                    total_bytes_, fraction);
            return;
        }
        DocumentReader first = reader();
        while (double(first.num_documents()) < enough && first.next()) continue;
        const int64_t documents = first.num_documents();
        if (double(documents) >= enough) {
            split_.hash_fraction = fraction;
            return;
        }
        // A file that is not of the kind its name says is a single line, too, so this error comes first.
        if (documents < 2) for_each_piece("looking", options_, [](std::string_view, const std::string&) {});
        require(documents >= 2,
                "%ld document: expected at least two, so that one can be kept for validation; give --val-input, or "
                "--val-fraction 0",
                documents);
        split_.validation_document = documents - std::max<int64_t>(1, int64_t(double(documents) * fraction));
    }

    // Calls f(). Returns the error of a bad line that is to be skipped, else "".
    template <class F>
    std::string error_to_skip(const Source& source, F f) const {
        const bool of_lines = source.format == DocumentFormat::jsonl || source.format == DocumentFormat::json;
        try {
            f();
        } catch (const Error& error) {
            if (!config_.skip_bad_lines || !of_lines || error.exit_code != kExitUsage) throw;
            return error.what();
        }
        return "";
    }

    // Calls f(text, where) for every piece, in order.
    template <class F>
    void for_each_piece(const char* verb, const ReadOptions& options, F f) const {
        DocumentReader documents(sources_, options);
        Progress progress(verb);
        ProgressState state;
        int64_t source_bytes = 0;
        std::string scratch;
        while (const std::optional<DocumentBatch> batch = documents.next()) {
            for (const Piece& piece : batch->pieces) {
                error_to_skip(*batch->source, [&] {
                    each_text(*batch, piece, raw_text(*batch, piece, scratch), [&](std::string_view text) {
                        f(text, where(*batch->source, piece));
                        state.text_bytes += int64_t(text.size());
                    });
                });
            }
            source_bytes += batch->source_bytes;
            state.fraction = double(source_bytes) / double(total_bytes_);
            progress.show(state);
        }
    }

    // The text that identifies a piece; of a conversation the whole line.
    std::string_view raw_text(const DocumentBatch& batch, const Piece& piece, std::string& scratch) const {
        return config_.is_chat() ? piece.raw : text_of(batch, piece, config_.field, scratch);
    }
    // Calls f(text) for the text of a piece, or of each message if it is a conversation.
    template <class F>
    void each_text(const DocumentBatch& batch, const Piece& piece, std::string_view raw, F f) const {
        if (!config_.is_chat()) return f(raw);
        for (const Message& message : parse_conversation(raw, where(*batch.source, piece)))
            for (const MessagePart& part : message.parts) f(part.text);
    }

    void get_tokenizer(const Staging& staging) {
        if (config_.train_tokenizer) {
            tokenizer_ = trained_tokenizer(staging);
        } else if (config_.tokenizer == "byte") {
            tokenizer_ = byte_tokenizer();
        } else if (config_.tokenizer == "char") {
            Symbols symbols;
            // Whole files, whatever is for validation, so that an error gives the position in the file.
            ReadOptions whole = options_;
            whole.validation_byte = ReadOptions::kNever;
            for_each_piece("looking", whole,
                           [&](std::string_view text, const std::string& where) { symbols.add(text, where); });
            tokenizer_ = char_tokenizer(symbols);
        } else {
            tokenizer_ = load_tokenizer(config_.tokenizer == "gpt2" ? gpt2_tokenizer_file() : config_.tokenizer);
        }
    }

    // Loads the tokenizer that an earlier run trained on the same files, or trains a new one.
    Tokenizer trained_tokenizer(const Staging& staging) const {
        const std::string path = staging.path("tokenizer.json"), key_path = staging.path("tokenizer_key");
        std::string all =
            format("%d %s %ld %s %ld %s ", config_.vocab_size, config_.pattern.c_str(), config_.tokenizer_bytes,
                   config_.field.c_str(), int64_t(options_.separator.size()), options_.separator.c_str()) +
            key("") + (config_.is_chat() ? "chat " : "");
        for (const Source& source : sources_) {
            std::error_code ignored;  // the stories are not in a file
            const auto time = fs::last_write_time(source.path, ignored).time_since_epoch().count();
            all += format("%s %ld %ld ", source.name.c_str(), source.bytes, int64_t(time));
        }
        const std::string key = hex64(xxh3(all.data(), all.size()));
        if (fs::exists(key_path) && read_file(key_path) == key && fs::exists(path)) return load_tokenizer(path);

        const Tokenizer tokenizer = train_bpe(
            count_pieces(), {.vocab_size = config_.vocab_size, .special_tokens = special_tokens_of(config_.pattern)});
        if (tokenizer.vocab_size() < config_.vocab_size)
            std::fprintf(stderr, "note: %d tokens, of --vocab-size %d: the text has no more pairs to merge\n",
                         tokenizer.vocab_size(), config_.vocab_size);
        save_tokenizer(tokenizer, path);
        write_file_atomically(key_path, key);
        return tokenizer;
    }

    // Counts the pieces of the training documents, up to tokenizer_bytes of the files. Every thread has its own counts,
    // whose sum does not depend on the assignment of documents to threads.
    PieceCounts count_pieces() const {
        std::vector<PieceCounts> counts(size_t(num_threads_), PieceCounts(config_.pattern));
        const auto add = [this](PieceCounts& to, const DocumentBatch& batch) {
            std::string scratch;
            int64_t bytes = 0;
            for (const Piece& piece : batch.pieces) {
                error_to_skip(*batch.source, [&] {
                    const std::string_view raw = raw_text(batch, piece, scratch);
                    const bool is_validation = split_.is_validation(piece, xxh3(raw.data(), raw.size()));
                    each_text(batch, piece, raw, [&](std::string_view text) {
                        if (!is_validation) to.add(text);
                        bytes += int64_t(text.size());
                    });
                });
            }
            return bytes;
        };
        std::vector<std::future<int64_t>> under_way(counts.size());
        DocumentReader documents = reader();
        Progress progress("counting words");
        ProgressState state;
        int64_t source_bytes = 0;
        for (size_t i = 0; source_bytes < config_.tokenizer_bytes; i = (i + 1) % counts.size()) {
            std::optional<DocumentBatch> batch = documents.next();
            if (!batch) break;
            if (under_way[i].valid()) state.text_bytes += under_way[i].get();
            source_bytes += batch->source_bytes;
            under_way[i] = std::async(std::launch::async,
                                      [&add, &to = counts[i], batch = std::move(*batch)] { return add(to, batch); });
            state.fraction = double(source_bytes) / double(std::min(total_bytes_, config_.tokenizer_bytes));
            progress.show(state);
        }
        for (std::future<int64_t>& future : under_way)
            if (future.valid()) future.get();
        for (size_t i = 1; i < counts.size(); i++) counts[0].add(counts[i]);
        return std::move(counts[0]);
    }

    // Identifies all that finished shards depend on, except the text.
    std::string key(const std::string& tokenizer_json) const {
        const std::string all = format("%d %.17g %lu %ld %ld %ld ", separator_, split_.hash_fraction, split_.seed,
                                       split_.validation_byte, split_.validation_document, config_.shard_tokens) +
                                (chat_ ? jinja_of(chat_->style(), document_token_of(tokenizer_)) : "") + tokenizer_json;
        return hex64(xxh3(all.data(), all.size()));
    }

    Encoded encode(const DocumentBatch& batch, int64_t first_piece, const Journal& done) const {
        Encoded result{{}, {}, batch.source_bytes};
        std::string scratch;
        for (size_t i = 0; i < batch.pieces.size(); i++) {
            const Piece& piece = batch.pieces[i];
            const size_t before = result.ids.size();
            Part part{.text_hash = xxh3(piece.raw.data(), piece.raw.size())};
            part.error = error_to_skip(*batch.source, [&] {
                const std::string_view text = raw_text(batch, piece, scratch);
                part.text_hash = xxh3(text.data(), text.size());
                part.begins = piece.begins && !text.empty();
                part.validation = split_.is_validation(piece, part.text_hash);
                part.skipped = first_piece + int64_t(i) < (part.validation ? done.val : done.train).piece;
                // Bad lines are counted in finished shards, too.
                if (!text.empty() && (!part.skipped || config_.skip_bad_lines)) encode(batch, piece, text, result.ids);
                part.bytes = int64_t(text.size());
            });
            if (part.skipped || !part.error.empty()) result.ids.resize(before);
            part.num_ids = int64_t(result.ids.size() - before);
            result.parts.push_back(std::move(part));
        }
        return result;
    }

    void encode(const DocumentBatch& batch, const Piece& piece, std::string_view text, std::vector<int32_t>& to) const {
        const std::string place = where(*batch.source, piece);
        if (!chat_ && separator_ >= 0 && piece.begins) to.push_back(separator_);
        if (!chat_ && separator_ >= 0 && tokenizer_.kind == TokenizerKind::bytes) check_no_zero(text, place);
        const std::vector<int32_t> ids = chat_ ? chat_->encode(parse_conversation(text, place), place)
                                               : tokenizer_.encode(text, place, 1, piece.begins);
        to.insert(to.end(), ids.begin(), ids.end());
    }

    static void check_no_zero(std::string_view text, const std::string& place) {
        const size_t zero = text.find('\0');
        require(
            zero == std::string_view::npos,
            "%s has a zero byte at offset %zu, which is what separates documents; is it UTF-16? convert it to UTF-8",
            place.c_str(), zero);
    }

    // Returns false if the finished shards in `done` were made of another text.
    bool encode_all(Staging& staging, const Journal& done) {
        const ShardMask mask = chat_ ? ShardMask::some_learned : ShardMask::all_learned;
        SplitWriter train{staging, "train", tokenizer_.vocab_size(), mask, config_.shard_tokens, done.train};
        SplitWriter val{staging, "val", tokenizer_.vocab_size(), mask, config_.shard_tokens, done.val};
        summary_ = {};
        summary_.kept_shards = done.train.shards + done.val.shards;
        DocumentReader documents = reader();
        Progress progress("tokenizing");
        ProgressState state;
        int64_t read_pieces = 0, written_pieces = 0, source_bytes = 0;
        uint64_t text_hash = 0;
        bool same_text = true;

        const auto write = [&](const Encoded& encoded) {
            const int32_t* ids = encoded.ids.data();
            for (const Part& part : encoded.parts) {
                text_hash = mix64(text_hash + Rng::kStep) ^ (part.text_hash + part.begins);
                SplitWriter& split = part.validation ? val : train;
                const ShardMark& mark = part.validation ? done.val : done.train;
                ShardMark now{0, written_pieces, 0, text_hash};
                if (mark.shards > 0 && written_pieces == mark.piece) {
                    now.tokens = mark.tokens;
                    same_text = same_text && text_hash == mark.text_hash && part.num_ids >= mark.tokens;
                    if (!same_text) return;
                }
                if (!part.skipped && split.append(ids + now.tokens, part.num_ids - now.tokens, now))
                    staging.save({train.mark, val.mark});
                ids += part.num_ids;
                state.text_bytes += part.bytes;
                const bool is_bad = !part.error.empty();
                summary_.documents += part.begins && !is_bad;
                if (is_bad && summary_.skipped_lines++ == 0) summary_.why_skipped = part.error;
                written_pieces++;
            }
            source_bytes += encoded.source_bytes;
            state.tokens = train.num_tokens() + val.num_tokens();
            state.fraction = double(source_bytes) / double(total_bytes_);
            if (encoded.ids.empty()) progress.restart(state);
            progress.show(state);
        };

        // The pieces that are being encoded, between the one that is read and the one that is written.
        std::deque<std::future<Encoded>> under_way;
        const auto write_next = [&] {
            const Encoded encoded = under_way.front().get();
            under_way.pop_front();
            write(encoded);
        };
        while (std::optional<DocumentBatch> batch = documents.next()) {
            const int64_t first_piece = read_pieces;
            read_pieces += int64_t(batch->pieces.size());
            under_way.push_back(std::async(std::launch::async, [this, first_piece, &done, batch = std::move(*batch)] {
                return encode(batch, first_piece, done);
            }));
            if (int(under_way.size()) > num_threads_) write_next();
            if (!same_text) return false;
        }
        while (same_text && !under_way.empty()) write_next();
        // The text ends before a mark, so it has become shorter.
        if (!same_text || (done.train.shards > 0 && done.train.piece >= written_pieces) ||
            (done.val.shards > 0 && done.val.piece >= written_pieces))
            return false;

        summary_.text_bytes = state.text_bytes;
        summary_.train_tokens = train.num_tokens();
        summary_.val_tokens = val.num_tokens();
        const bool needs_val = config_.val_fraction > 0 || !config_.val_inputs.empty();
        require(summary_.train_tokens > 0 && (summary_.val_tokens > 0 || !needs_val),
                "%ld documents with %ld tokens for training and %ld for validation: expected at least one on each "
                "side; give more text, another --val-fraction or --seed, or --val-input%s",
                summary_.documents, summary_.train_tokens, summary_.val_tokens,
                summary_.skipped_lines == 0 ? ""
                                            : format("; %ld lines were skipped, the first: %s", summary_.skipped_lines,
                                                     summary_.why_skipped.c_str())
                                                  .c_str());
        summary_.train_shards = train.finish();
        summary_.val_shards = val.finish();
        summary_.vocab_size = tokenizer_.vocab_size();
        summary_.tokenizer = tokenizer_.name();
        hashes_ = documents.hashes();
        return true;
    }

    OrderedJson description() const {
        OrderedJson json = {
            {"tokenizer", summary_.tokenizer},       {"vocab_size", summary_.vocab_size},
            {"train_tokens", summary_.train_tokens}, {"train_shards", summary_.train_shards},
            {"val_tokens", summary_.val_tokens},     {"val_shards", summary_.val_shards},
            {"documents", summary_.documents},       {"bytes", summary_.text_bytes},
        };
        if (chat_) json["chat_template"] = chat_->name();
        if (config_.skip_bad_lines) json["skipped_lines"] = summary_.skipped_lines;
        if (config_.stories_bytes > 0) {
            json["stories"] = {{"seed", config_.seed}, {"stories", num_stories_}, {"bytes", total_bytes_}};
            // Stories are ASCII, so these tokenizers have one token per byte.
            if (summary_.tokenizer == "byte" || summary_.tokenizer == "char")
                json["entropy_nats_per_token"] = stories_nats_per_byte();
            return json;
        }
        json["sources"] = OrderedJson::array();
        for (size_t i = 0; i < sources_.size(); i++)
            json["sources"].push_back(
                {{"path", sources_[i].name}, {"bytes", sources_[i].bytes}, {"xxh3", hex64(hashes_[i])}});
        return json;
    }

    const DatasetConfig& config_;
    ReadOptions options_;
    int num_threads_ = 1;
    std::vector<Source> sources_;
    int64_t num_stories_ = 0, total_bytes_ = 0;
    bool is_plain_ = false;  // whole text files are documents
    Split split_;
    Tokenizer tokenizer_;
    std::optional<ChatTemplate> chat_;  // refers to tokenizer_
    int32_t separator_ = -1;            // before each document; -1: none
    DatasetSummary summary_;
    std::vector<uint64_t> hashes_;
};
}  // namespace

DatasetSummary make_dataset(const DatasetConfig& config) {
    check(config);
    return Maker(config).make();
}
