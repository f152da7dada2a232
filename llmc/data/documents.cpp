// See documents.h. Text and .jsonl files are mapped; a Python program reads .parquet files.
#include "llmc/data/documents.h"
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <map>
#include "llmc/base/check.h"  // require, ensure
#include "llmc/base/json.h"   // scan_json, from_python_json

namespace {
namespace fs = std::filesystem;

constexpr int64_t kBatchBytes = int64_t(1) << 20;
constexpr size_t kPieceBytes = size_t(1) << 20, kLongestPiece = size_t(4) << 20;

// Writes records to the pipe: a letter, the number of bytes, the bytes. N: the number of rows; T: the text of one; E:
// an error; Z: the end.
constexpr const char* kRowsProgram = R"(
import sys
sys.path[:] = [folder for folder in sys.path if folder]  # not the working directory, which may be a stranger's
import signal, struct
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
path, column = sys.argv[1:]
def record(kind, data=b""):
    sys.stdout.buffer.write(kind + struct.pack("<Q", len(data)) + data)
try:
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise SystemExit(f"python3 has no pyarrow ({error}): pip install pyarrow")
    file = pyarrow.parquet.ParquetFile(path)
    names = file.schema_arrow.names
    if column not in names:
        raise SystemExit(f"no column {column!r}; there are: {', '.join(names)}; choose one with --field")
    record(b"N", struct.pack("<Q", file.metadata.num_rows))
    for batch in file.iter_batches(batch_size=1024, columns=[column]):
        for text in batch.column(0).to_pylist():
            if not isinstance(text, (str, bytes, type(None))):
                raise SystemExit(f"the column {column!r} has a {type(text).__name__}: expected strings")
            record(b"T", text.encode() if isinstance(text, str) else text or b"")
    record(b"Z")
except (Exception, SystemExit) as error:
    record(b"E", str(error).replace("\n", " ").encode(errors="replace"))
)";

// The extension in lower case.
std::string ending_of(const fs::path& path) {
    std::string end = path.extension();
    for (char& c : end) c = c >= 'A' && c <= 'Z' ? char(c + 32) : c;
    return end;
}

bool is_one_of(const std::string& end, std::initializer_list<const char*> endings) {
    return std::find(endings.begin(), endings.end(), end) != endings.end();
}

bool has_records(const std::string& end) { return is_one_of(end, {".jsonl", ".ndjson", ".json", ".parquet"}); }

// Files that are read in a folder. A .json there is most often something about the data.
bool is_known(const std::string& end) {
    return end != ".json" && (has_records(end) || is_one_of(end, {".txt", ".md"}));
}

// Text would be learned from these as well, but not what is in them.
bool is_no_text(const std::string& end) {
    return is_one_of(end, {".csv",  ".tsv", ".xls",  ".xlsx", ".ods", ".arrow",  ".feather",    ".avro", ".orc",
                           ".gz",   ".tgz", ".zst",  ".xz",   ".bz2", ".lz4",    ".zip",        ".7z",   ".rar",
                           ".tar",  ".pdf", ".doc",  ".docx", ".odt", ".epub",   ".pptx",       ".png",  ".jpg",
                           ".jpeg", ".gif", ".webp", ".mp3",  ".wav", ".flac",   ".mp4",        ".npy",  ".npz",
                           ".pkl",  ".pt",  ".pth",  ".gguf", ".db",  ".sqlite", ".safetensors"});
}

// Shortens a very long path for a message: both of its ends.
std::string clipped(const std::string& path) {
    return path.size() <= 400 ? path : path.substr(0, 150) + "..." + path.substr(path.size() - 150);
}

bool is_hidden(const fs::path& below) {
    return std::any_of(below.begin(), below.end(), [](const fs::path& name) { return name.string().starts_with('.'); });
}

std::vector<std::string> files_in(const std::string& folder, std::vector<std::string>& notes) {
    std::vector<std::string> paths;
    std::map<std::string, int64_t> left_out;  // by ending
    int64_t num_left_out = 0;
    const auto leave_out = [&](const std::string& what) { left_out[what]++, num_left_out++; };
    std::error_code error;
    for (fs::recursive_directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
        if (!at->is_regular_file(error)) continue;
        const std::string ending = ending_of(at->path());
        const bool is_empty = at->file_size(error) == 0;
        if (is_known(ending) && !is_empty)
            paths.push_back(at->path().string());
        else if (!is_hidden(at->path().lexically_relative(folder)))
            leave_out(is_empty ? "empty" : ending.empty() ? "without an ending" : ending);
    }
    require(!error, "cannot read the folder %s: %s", clipped(folder).c_str(), reason_of(error.value()).c_str());
    // Beside records, pages are about them.
    if (std::any_of(paths.begin(), paths.end(), [](const std::string& path) { return has_records(ending_of(path)); }))
        std::erase_if(paths, [&](const std::string& path) {
            if (ending_of(path) != ".md") return false;
            leave_out(".md beside records");
            return true;
        });
    std::string counts;
    for (const auto& [what, count] : left_out)
        counts += (counts.empty() ? "" : ", ") + std::to_string(count) + " " + what;
    require(!paths.empty(),
            "%s has no text: expected .txt, .md, .jsonl or .parquet files that are not empty, in it or in folders "
            "below%s%s%s",
            folder.c_str(), counts.empty() ? "" : ", and found ", counts.c_str(),
            counts.empty() ? "" : "; give files of other kinds by name");
    if (num_left_out > 0)
        notes.push_back(format("%s: %ld of %ld files are left out: %s; give such files by name",
                               clipped(folder).c_str(), num_left_out, num_left_out + int64_t(paths.size()),
                               counts.c_str()));
    std::sort(paths.begin(), paths.end());
    return paths;
}

bool is_continuation(char byte) { return (byte & 0xC0) == 0x80; }

bool is_newline(char c) { return c == '\n' || c == '\r'; }

bool is_letter_or_digit(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9'); }

// The first position from `at` on that does not split a UTF-8 sequence, which has at most four bytes.
size_t character_at(std::string_view text, size_t at) {
    for (int i = 0; i < 3 && at < text.size() && is_continuation(text[at]); i++) at++;
    return at;
}

std::string shell_quoted(const std::string& text) {
    std::string quoted = "'";
    for (const char c : text) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
    return quoted + "'";
}

// Extracts the string in one field of a JSON object; the whole line is parsed.
struct FieldOfLine : nlohmann::json_sax<Json> {
    const std::string& field;
    std::string& text;
    bool found = false, is_string = false, is_object = false, fits = false;
    size_t depth = 0, error_at = 0;
    std::string names;

    FieldOfLine(const std::string& field, std::string& text) : field(field), text(text) {}

    // Handles a value that is not a string.
    bool other() {
        if (depth == 1 && fits) is_string = false;
        return true;
    }
    bool null() override {
        if (depth == 1 && fits) text.clear(), is_string = true;
        return true;
    }
    bool boolean(bool) override { return other(); }
    bool number_integer(number_integer_t) override { return other(); }
    bool number_unsigned(number_unsigned_t) override { return other(); }
    bool number_float(number_float_t, const string_t&) override { return other(); }
    bool binary(binary_t&) override { return other(); }
    bool string(string_t& value) override {
        if (depth == 1 && fits) text.swap(value), is_string = true;
        return true;
    }
    bool start_object(std::size_t) override {
        if (depth == 0) is_object = true;
        other();
        depth++;
        return true;
    }
    bool start_array(std::size_t) override {
        other();
        depth++;
        return true;
    }
    bool end_object() override { return depth--, true; }
    bool end_array() override { return depth--, true; }
    bool key(string_t& value) override {
        if (depth != 1) return true;
        fits = value == field;
        found = found || fits;
        if (!found) names += (names.empty() ? "" : ", ") + value;
        return true;
    }
    bool parse_error(std::size_t position, const std::string&, const nlohmann::json::exception&) override {
        error_at = position;
        return false;
    }
};

// Throws an Error for a compressed file or one in another encoding, which a byte tokenizer would accept.
void check_encoding(const std::string& name, std::string_view content) {
    using namespace std::string_view_literals;
    struct Packer {
        std::string_view begin;
        const char *name, *unpack;
    };
    for (const Packer& packer :
         {Packer{"\x1f\x8b\x08"sv, "gzip", "zcat"}, Packer{"\x28\xb5\x2f\xfd"sv, "zstd", "zstdcat"},
          Packer{"\xfd\x37zXZ\0"sv, "xz", "xzcat"}, Packer{"BZh91AY&SY"sv, "bzip2", "bzcat"},
          Packer{"PK\3\4"sv, "zip", "unzip -p"}})
        require(!content.starts_with(packer.begin),
                "%s is compressed (%s): expected text; give what is in it: %s %s | data/tokenize - ...", name.c_str(),
                packer.name, packer.unpack, name.c_str());
    // Byte order marks.
    const char* const encoding = content.starts_with("\xff\xfe\0\0"sv) || content.starts_with("\0\0\xfe\xff"sv)
                                     ? "UTF-32"
                                 : content.starts_with("\xff\xfe"sv) || content.starts_with("\xfe\xff"sv) ? "UTF-16"
                                                                                                          : nullptr;
    require(!encoding, "%s is %s: expected UTF-8; convert it: iconv -f %s -t UTF-8 %s | data/tokenize - ...",
            name.c_str(), encoding, encoding, name.c_str());
}

constexpr std::string_view kBlanks = " \t\r\n", kUtf8Mark = "\xef\xbb\xbf";

// What a file is. Throws an Error if its name says that it is none of these, unless the user has said what it is.
DocumentFormat format_of(const std::string& path, std::optional<DocumentFormat> asked) {
    const std::string end = ending_of(path);
    if (asked.value_or(DocumentFormat::jsonl) == DocumentFormat::jsonl && end == ".json") {
        const MappedFile file(path);
        std::string_view content(file.data(), file.size());
        if (content.starts_with(kUtf8Mark)) content.remove_prefix(kUtf8Mark.size());
        const size_t first = content.find_first_not_of(kBlanks);
        return first < content.size() && content[first] == '[' ? DocumentFormat::json : DocumentFormat::jsonl;
    }
    if (asked) return *asked;
    if (has_records(end)) return end == ".parquet" ? DocumentFormat::parquet : DocumentFormat::jsonl;
    if (is_no_text(end)) {
        const MappedFile file(path);
        check_encoding(path, {file.data(), file.size()});
        require(
            false,
            "%s: a file named %s is not text: expected .txt, .json, .jsonl or .parquet; convert it to one of these, or "
            "give --format text to learn its bytes as they are",
            clipped(path).c_str(), end.c_str());
    }
    return DocumentFormat::text;
}
}  // namespace

std::optional<DocumentFormat> document_format(const std::string& name) {
    if (name == "text") return DocumentFormat::text;
    if (name == "jsonl" || name == "chat") return DocumentFormat::jsonl;
    if (name == "parquet") return DocumentFormat::parquet;
    require(name == "auto", "--format %s: expected auto, text, jsonl, parquet or chat", name.c_str());
    return std::nullopt;
}

std::vector<Source> sources_of(const std::vector<std::string>& inputs, std::optional<DocumentFormat> type,
                               bool validation, std::vector<std::string>& notes) {
    std::vector<Source> sources;
    const auto add = [&](const std::string& path) {
        std::error_code error;
        const auto bytes = fs::file_size(path, error);
        require(!error, "cannot read %s: %s", clipped(path).c_str(), reason_of(error.value()).c_str());
        sources.push_back({path, path, format_of(path, type), validation, int64_t(bytes)});
    };
    for (const std::string& input : inputs) {
        std::error_code error;
        const bool exists = fs::exists(input, error);
        require(!error, "cannot read %s: %s", clipped(input).c_str(), reason_of(error.value()).c_str());
        require(exists, "%s: no such file or folder", input.c_str());
        if (fs::is_directory(input)) {
            for (const std::string& path : files_in(input, notes)) add(path);
            continue;
        }
        require(fs::is_regular_file(input),
                "%s is not a regular file: expected one, or a folder, or - for standard input", input.c_str());
        require(fs::file_size(input) > 0, "%s is empty: expected text", input.c_str());
        add(input);
    }
    return sources;
}

std::optional<DocumentBatch> DocumentReader::next() {
    while (source_ < sources_.size()) {
        if (!is_open_) open_source();
        const Source& source = sources_[source_];
        DocumentBatch batch{&source, owner_, {}, 0};
        if (source.format == DocumentFormat::text) read_text(batch);
        if (source.format == DocumentFormat::jsonl) read_lines(batch);
        if (source.format == DocumentFormat::json) read_array(batch);
        if (source.format == DocumentFormat::parquet) read_rows(batch);
        if (!pipe_ && at_ == text_.size()) close_source();
        if (!batch.pieces.empty()) return batch;
    }
    return std::nullopt;
}

void DocumentReader::open_source() {
    const Source& source = sources_[source_];
    is_open_ = true;
    text_ = {};
    at_ = document_begin_ = 0;
    line_ = 0;
    hasher_.reset();
    if (source.content) {
        owner_ = source.content;
        text_ = *source.content;
    } else {
        const auto file = std::make_shared<MappedFile>(source.path);
        owner_ = file;
        if (source.format == DocumentFormat::parquet) {
            hasher_.update(file->data(), file->size());
            open_parquet();
        } else {
            text_ = {file->data(), file->size()};
            check_encoding(source.name, text_);
        }
    }
}

void DocumentReader::close_source() {
    hashes_.push_back(hasher_.digest());
    bytes_before_ += sources_[source_].bytes;
    is_open_ = false;
    owner_.reset();
    source_++;
}

void DocumentReader::add(DocumentBatch& batch, Piece piece) const {
    piece.validation = sources_[source_].validation || piece.document >= options_.validation_document;
    batch.pieces.push_back(piece);
}

// The end of the piece that begins at at_.
size_t DocumentReader::piece_end(size_t document_end) const {
    if (document_end - at_ <= kPieceBytes) return document_end;
    const size_t last = std::min(document_end, at_ + kLongestPiece);
    for (size_t end = at_ + kPieceBytes; end < last; end++)
        if ((text_[end] == ' ' || text_[end] == '\n') && is_letter_or_digit(text_[end - 1])) return end;
    return std::min(character_at(text_, last), document_end);
}

void DocumentReader::begin_document() {
    const std::string& separator = options_.separator;
    document_end_ = separator.empty() ? text_.size() : std::min(text_.find(separator, at_), text_.size());
    next_document_ = std::min(document_end_ + separator.size(), text_.size());
    if (!separator.empty()) {
        while (at_ < document_end_ && is_newline(text_[at_])) at_++;
        while (at_ < document_end_ && is_newline(text_[document_end_ - 1])) document_end_--;
    }
    document_begin_ = at_;
    const size_t end = piece_end(document_end_);
    document_hash_ = end < document_end_ ? xxh3(text_.data() + at_, end - at_) : 0;
}

void DocumentReader::read_text(DocumentBatch& batch) {
    const size_t begin = at_;
    const int64_t left_for_training = options_.validation_byte - bytes_before_;
    const size_t cut = left_for_training > 0 && left_for_training < int64_t(text_.size())
                           ? character_at(text_, size_t(left_for_training))
                           : 0;
    while (int64_t(at_ - begin) < kBatchBytes && at_ < text_.size()) {
        if (at_ == document_begin_) begin_document();
        size_t end = piece_end(document_end_);
        if (at_ < cut && cut < end) end = cut;
        if (end > at_) {
            Piece piece{text_.substr(at_, end - at_), document_, int64_t(at_),
                        at_ == document_begin_,       false,     document_hash_};
            add(batch, piece);
            if (bytes_before_ + int64_t(at_) >= options_.validation_byte) batch.pieces.back().validation = true;
        }
        at_ = end;
        if (at_ == document_end_) {
            if (document_end_ > document_begin_) document_++;
            at_ = document_begin_ = next_document_;
        }
    }
    hasher_.update(text_.data() + begin, at_ - begin);
    batch.source_bytes = int64_t(at_ - begin);
}

void DocumentReader::read_lines(DocumentBatch& batch) {
    const size_t begin = at_;
    while (int64_t(at_ - begin) < kBatchBytes && at_ < text_.size()) {
        const size_t end = std::min(text_.find('\n', at_), text_.size());
        const std::string_view line = text_.substr(at_, end - at_);
        line_++;
        if (line.find_first_not_of(" \t\r") != std::string_view::npos) add(batch, {line, document_++, line_});
        at_ = std::min(end + 1, text_.size());
    }
    hasher_.update(text_.data() + begin, at_ - begin);
    batch.source_bytes = int64_t(at_ - begin);
}

size_t DocumentReader::after_blanks(size_t at) const {
    return std::min(text_.find_first_not_of(kBlanks, at), text_.size());
}

// Only finds where the elements end; whoever reads one sees whether it is JSON.
void DocumentReader::read_array(DocumentBatch& batch) {
    const size_t begin = at_;
    const char* const name = sources_[source_].name.c_str();
    static constexpr char cut_off[] = "%s ends before the end of its array, after %ld elements: is the file whole?";
    if (at_ == 0) at_ = after_blanks(text_.starts_with(kUtf8Mark) ? kUtf8Mark.size() : 0) + 1;  // [
    while (int64_t(at_ - begin) < kBatchBytes && at_ < text_.size()) {
        at_ = after_blanks(at_);
        require(at_ < text_.size(), cut_off, name, line_);
        if (text_[at_] == ']') {
            at_ = after_blanks(at_ + 1);
            require(at_ == text_.size(), "%s goes on after the end of its array: expected one array", name);
            break;
        }
        size_t end = at_;
        bool in_string = false;
        for (int64_t depth = 0; end < text_.size(); end++) {
            const char c = text_[end];
            if (c == '\\' && in_string) end++;
            if (c == '"') in_string = !in_string;
            if (in_string) continue;
            if (depth == 0 && (c == ',' || c == ']')) break;
            depth += (c == '{' || c == '[') - (c == '}' || c == ']');
        }
        const bool is_last = end < text_.size() && text_[end] == ']';
        require(is_last || end + 1 < text_.size(), cut_off, name, line_);
        add(batch, {text_.substr(at_, end - at_), document_++, ++line_});
        at_ = is_last ? end : end + 1;
    }
    hasher_.update(text_.data() + begin, at_ - begin);
    batch.source_bytes = int64_t(at_ - begin);
}

void DocumentReader::open_parquet() {
    const std::string command = "exec python3 -c " + shell_quoted(kRowsProgram) + " " +
                                shell_quoted(sources_[source_].path) + " " + shell_quoted(options_.field) +
                                " 2>/dev/null";
    pipe_.reset(popen(command.c_str(), "re"));
    require(pipe_, "cannot start python3, which reads %s: %s", sources_[source_].name.c_str(), std::strerror(errno));
    std::string rows;
    ensure(read_record(rows) == 'N' && rows.size() == sizeof rows_);
    std::memcpy(&rows_, rows.data(), sizeof rows_);
}

char DocumentReader::read_record(std::string& to) {
    const std::string& name = sources_[source_].name;
    char head[9];
    uint64_t bytes = 0;
    const bool has_head = fread(head, 1, sizeof head, pipe_.get()) == sizeof head;
    if (has_head) std::memcpy(&bytes, head + 1, sizeof bytes);
    const size_t before = to.size();
    if (has_head) to.resize(before + bytes);
    require(has_head && fread(to.data() + before, 1, bytes, pipe_.get()) == bytes,
            "%s: python3, which reads .parquet files, is missing or died; install it (apt-get install python3) and "
            "pyarrow (pip install pyarrow)",
            name.c_str());
    require(head[0] != 'E', "%s: %s", name.c_str(), to.c_str() + before);
    return head[0];
}

void DocumentReader::read_rows(DocumentBatch& batch) {
    auto text = std::make_shared<std::string>();
    std::vector<size_t> begins = {0};
    bool more = true;
    while (more && text->size() < size_t(kBatchBytes)) {
        more = read_record(*text) == 'T';
        if (more) begins.push_back(text->size());
    }
    for (size_t i = 0; i + 1 < begins.size(); i++)
        add(batch, {std::string_view(*text).substr(begins[i], begins[i + 1] - begins[i]), document_++, ++line_});
    batch.owner = text;
    const double part = rows_ > 0 ? double(batch.pieces.size()) / double(rows_) : 1;
    batch.source_bytes = int64_t(double(sources_[source_].bytes) * part);
    if (!more) pipe_.reset();
}

std::string where(const Source& source, const Piece& piece) {
    const int64_t at = piece.at;
    if (source.format == DocumentFormat::jsonl) return format("%s:%ld", source.name.c_str(), at);
    if (source.format == DocumentFormat::json) return format("element %ld of %s", at, source.name.c_str());
    if (source.format == DocumentFormat::parquet) return format("row %ld of %s", at, source.name.c_str());
    return at == 0 ? source.name : format("%s, from byte %ld on,", source.name.c_str(), at);
}

std::string_view text_of(const DocumentBatch& batch, const Piece& piece, const std::string& field,
                         std::string& scratch) {
    const DocumentFormat kind = batch.source->format;
    if (kind != DocumentFormat::jsonl && kind != DocumentFormat::json) return piece.raw;
    std::optional<FieldOfLine> reader(std::in_place, field, scratch);
    bool valid = scan_json(piece.raw, *reader);
    if (!valid) {
        reader.emplace(field, scratch);
        valid = scan_json(from_python_json(piece.raw), *reader);
    }
    const FieldOfLine& line = *reader;
    const std::string place = where(*batch.source, piece);
    require(valid, "%s: not valid JSON (byte %zu of the %s): expected an object such as {\"%s\": \"...\"}",
            place.c_str(), line.error_at, kind == DocumentFormat::json ? "element" : "line", field.c_str());
    require(line.is_object, "%s: not a JSON object: expected one such as {\"%s\": \"...\"}", place.c_str(),
            field.c_str());
    require(line.found, "%s: no field \"%s\"; there are: %s; choose one with --field", place.c_str(), field.c_str(),
            line.names.empty() ? "none" : line.names.c_str());
    require(line.is_string, "%s: the field \"%s\" is not a string", place.c_str(), field.c_str());
    return scratch;
}
