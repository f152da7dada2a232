// See tokens.h.
#include "llmc/train/tokens.h"
#include <cstdio>
#include <filesystem>
#include "llmc/base/check.h"              // require, format
#include "llmc/base/file.h"               // read_file
#include "llmc/data/bpe.h"                // Bpe, AddedToken
#include "llmc/data/chat_style.h"         // chat_template_beside
#include "llmc/data/mixture.h"            // data_sources
#include "llmc/data/tokenizer_formats.h"  // read_tokenizer
#include "llmc/data/utf8.h"               // printable
#include "llmc/io/checkpoint.h"           // checkpoint_steps, checkpoint_path

namespace fs = std::filesystem;

namespace {

// The maximum padding of a vocabulary: to a multiple of 128 for each of eight ranks that share it.
constexpr int64_t kMostPadding = 1024;

std::string if_there(const std::string& path) {
    std::error_code ignored;
    return fs::exists(path, ignored) ? path : "";
}

std::string beside(const std::string& pattern) { return if_there(fs::path(pattern).parent_path() / "tokenizer.json"); }

std::string kind_text(const Tokenizer& tokenizer) {
    return format("%d symbols, %s", tokenizer.vocab_size(), tokenizer.name());
}

struct NamedTokenizer {
    std::string whose, path;
    Tokenizer tokenizer;
};

void check_pair(const NamedTokenizer& wanted, const NamedTokenizer& found) {
    const int id = first_difference(wanted.tokenizer, found.tokenizer);
    require(id < 0,
            "%s and %s are of different tokenizers: %s (%s) and %s (%s), which first differ in id %d. Make the shards "
            "again from the text: data/tokenize TEXT --tokenizer %s --out FOLDER",
            wanted.whose.c_str(), found.whose.c_str(), wanted.path.c_str(), kind_text(wanted.tokenizer).c_str(),
            found.path.c_str(), kind_text(found.tokenizer).c_str(), id, wanted.path.c_str());
}

// For a model without a readable tokenizer.
void check_sizes(const std::string& model, int64_t vocab_size, const std::string& why, const KnownTokenizer& text,
                 bool speaks) {
    const int64_t n = text.vocab_size();
    const std::string sizes = format("%s has %ld symbols, the model in %s a vocabulary of %ld", text.path.c_str(), n,
                                     model.c_str(), vocab_size);
    require(n == 0 || (n <= vocab_size && vocab_size - n <= kMostPadding),
            "the data are not in the model's tokens: %s. Make the shards again from the text with the tokenizer it was "
            "trained with: data/tokenize TEXT --tokenizer ... --out FOLDER",
            sizes.c_str());
    if (!speaks || (n == vocab_size && why.empty())) return;
    std::fprintf(stderr, "warning: whether the data are in the model's tokens cannot be known: %s\n",
                 !why.empty() ? printable(why).c_str()
                 : n > 0      ? sizes.c_str()
                              : format("neither they nor %s have a tokenizer.json", model.c_str()).c_str());
}

}  // namespace

KnownTokenizer::KnownTokenizer(const RunRequest& request) {
    const RunFlags& flags = request.flags;
    path = flags.tokenizer_path();
    const bool is_named = !flags.tokenizer.empty(), has_own = flags.evaluates() && request.resumed();
    if (!is_named && has_own && if_there(path).empty()) {
        path = request.has_checkpoint_file("tokenizer.json") ? request.checkpoint.path + "/tokenizer.json" : "";
        if (path.empty()) return;
        json = request.checkpoint_file("tokenizer.json");
        tokenizer = read_tokenizer(json, "", path);
        return;
    }
    if (!is_named) path = if_there(path);
    if (path.empty()) return;
    check_named_tokenizer(path);
    tokenizer = load_tokenizer(path);
    json = tokenizer_json_of(*tokenizer, path);
    chat_template = chat_template_beside(path);
    if (chat_template.empty() && request.resumed() && request.has_checkpoint_file(kChatTemplateFile))
        chat_template = request.checkpoint_file(kChatTemplateFile);
}

void KnownTokenizer::find_facts(const RunRequest& request, int64_t max_tokens) {
    const std::string& folder = request.path();
    const std::string own = folder.empty() ? "" : if_there(folder + "/tokenizer.json");
    const std::string theirs = own.empty() ? "" : read_file(own);
    const bool is_same = theirs.empty() == json.empty() && same_added_tokens(theirs, json);
    facts = read_token_facts(is_same ? folder : "", is_same ? theirs : json, max_tokens, chat_template);
}

int first_difference(const Tokenizer& a, const Tokenizer& b) {
    // Older versions wrote all added tokens as special ones.
    const auto bytes_of = [](const Tokenizer& tokenizer) {
        std::vector<int32_t> bytes = tokenizer.token_bytes();
        if (tokenizer.bpe)
            for (const AddedToken& token : tokenizer.bpe->added) bytes[size_t(token.id)] = 0;
        return bytes;
    };
    const std::vector<int32_t> bytes_a = bytes_of(a), bytes_b = bytes_of(b);
    const auto text = [](const Tokenizer& tokenizer, const std::vector<int32_t>& bytes, size_t id) -> std::string_view {
        if (id >= bytes.size() || bytes[id] == 0) return {};
        return tokenizer.symbols[id];
    };
    for (size_t id = 0; id < std::max(bytes_a.size(), bytes_b.size()); id++)
        if (text(a, bytes_a, id) != text(b, bytes_b, id)) return int(id);
    return -1;
}

void check_tokens(const RunRequest& request, const KnownTokenizer& text, bool speaks) {
    const RunFlags& flags = request.flags;
    if (flags.evaluates() && flags.val_data.empty()) return;  // no data
    std::optional<NamedTokenizer> wanted, of_run;
    if (text.tokenizer)
        of_run = {!flags.tokenizer.empty() ? "--tokenizer"
                  : flags.evaluates()      ? "the validation data"
                                           : "the training data",
                  text.path, *text.tokenizer};

    if (request.resumed() || request.source) {
        const bool has_own = !request.source && request.has_checkpoint_file("tokenizer.json");
        const std::string path = request.source ? request.source->tokenizer_path()
                                 : has_own      ? request.checkpoint.path + "/tokenizer.json"
                                                : "";
        const std::string stored = has_own ? request.checkpoint_file("tokenizer.json") : "";
        const bool is_same = !path.empty() && of_run && (has_own ? stored : read_file(path)) == text.json;
        std::string why;
        if (!path.empty() && !is_same) try {
                wanted = {"the model", path, has_own ? read_tokenizer(stored, "", path) : load_tokenizer(path)};
            } catch (const Error& error) {
                why = error.what();
            }
        // A resumed run was checked when it began.
        if (!wanted && !is_same && request.source)
            check_sizes(request.path(), request.source->shape().vocab_size, why, text, speaks);
        if (wanted && of_run) check_pair(*wanted, *of_run);
    }
    if (!wanted) wanted = of_run;
    if (!wanted) return;
    // The tokenizer beside the shards is the one that made them, whatever --tokenizer names.
    const auto check_beside = [&](const char* whose, const std::string& pattern) {
        const std::string path = pattern.empty() ? "" : beside(pattern);
        if (path.empty() || path == text.path || read_file(path) == text.json) return;
        check_pair(*wanted, {whose, path, load_tokenizer(path)});
    };
    if (flags.trains())
        for (const DataSource& source : data_sources(flags.train_data))
            check_beside("the training data", source.pattern);
    check_beside("the validation data", flags.val_data);
}

void check_named_tokenizer(const std::string& path) {
    if (!if_there(path).empty()) return;
    const std::string folder = fs::path(path).parent_path();
    const std::vector<int64_t> steps = checkpoint_steps(folder.empty() ? "." : folder);
    require(steps.empty(), "%s: no such file; a run's tokenizer is in its checkpoints: %s/tokenizer.json", path.c_str(),
            steps.empty() ? "" : checkpoint_path(folder, steps.back()).c_str());
}

bool assumes_vocabulary(const RunFlags& flags) {
    const bool is_named = flags.sources.contains("train-data") || flags.sources.contains("tokenizer");
    return flags.model.depth > 0 && !flags.model.vocab_size && (!is_named || if_there(flags.tokenizer_path()).empty());
}

int64_t planned_vocab_size(const RunFlags& flags) {
    if (assumes_vocabulary(flags)) return kDepthVocabSize;
    const std::string path = if_there(flags.tokenizer_path());
    return path.empty() ? 0 : load_tokenizer(path).vocab_size();
}
