// See summary.h.
#include "llmc/run/summary.h"
#include <fcntl.h>
#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include "llmc/base/build_id.h"  // build_id
#include "llmc/base/check.h"     // require, format
#include "llmc/base/file.h"      // read_file, reason_of
#include "llmc/base/hash.h"      // xxh3, hex64
#include "llmc/base/json.h"      // OrderedJson
#include "llmc/data/utf8.h"      // printable

std::string summary_text(const RunSummary& s) {
    std::string text = "---\n";
    const auto line = [&](const char* name, int digits, double value) {
        text += format("%-19s %.*f\n", (std::string(name) + ":").c_str(), digits, value);
    };
    const double peak_mb = double(s.peak_bytes) / (1 << 20);
    line("val_loss", 6, s.evaluation.loss);
    line("val_bpb", 6, s.evaluation.bits_per_byte);
    for (const auto& [name, value] : s.scores) line(name.c_str(), 6, value);
    if (s.best_loss) line("best_val_loss", 6, *s.best_loss), line("best_step", 0, double(s.best_step));
    line("training_seconds", 1, s.training_s);
    line("total_seconds", 1, s.total_s);
    line("peak_memory_mb", 1, peak_mb);
    line("peak_vram_mb", 1, peak_mb);  // autoresearch's name; on a CPU there is no other memory
    line("mfu_percent", 2, 100 * s.mfu);
    if (!std::isnan(s.cropped)) line("cropped_percent", 2, 100 * s.cropped);
    line("total_tokens_M", 3, double(s.tokens) * 1e-6);
    line("num_steps", 0, double(s.steps));
    line("num_params_M", 3, double(s.parameters) * 1e-6);
    line("depth", 0, double(s.layers));
    return text;
}

namespace {

constexpr const char* kHeader =
    "commit\tconfig\tseed\tval_bpb\tval_loss\ttokens\tsteps\tseconds\tmemory_mb\tmfu_percent\tstatus\tout_dir\t"
    "description\n";

// The flags in which runs of one configuration may differ.
constexpr const char* kNotOfConfig[] = {
    "seed",    "out-dir",          "results",       "description", "resume",      "summary",    "threads",
    "keep",    "checkpoint-every", "print-every",   "save-best",   "rank",        "local-rank", "interface",
    "master",  "bucket-mb",        "checkpoint-to", "log-to",      "tune-matmul", "cuda-graph", "peak-flops",
    "offload", "after-checkpoint", "before-resume", "fetch"};

std::string config_hash(RunFlags flags) {
    OrderedJson config = parse_ordered_json(to_json(flags.fields()));
    for (const char* name : kNotOfConfig) config.erase(name);
    const std::string text = json_text(config);
    return hex64(xxh3(text.data(), text.size()));
}

// Makes a text fit into a cell: no tabs or line breaks.
std::string cell(std::string text) {
    std::replace_if(text.begin(), text.end(), [](char c) { return c == '\t' || c == '\n' || c == '\r'; }, ' ');
    return text;
}

}  // namespace

static bool is_new(const std::string& path) {
    std::error_code ignored;
    return !std::filesystem::exists(path, ignored) || std::filesystem::file_size(path, ignored) == 0;
}

static void check_header(const std::string& path) {
    require(
        is_new(path) || read_file(path).starts_with(kHeader),
        "--results %s: its first line is not that of this program's results, \"commit, config, seed, val_bpb, ...\": "
        "give another file",
        path.c_str());
}

// For appending; created if it does not exist.
static int open_table(const std::string& path) {
    const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    require(fd >= 0, "--results: cannot open %s: %s", path.c_str(), reason_of(errno).c_str());
    return fd;
}

void check_results(const std::string& path) {
    check_header(path);
    close(open_table(path));
}

void append_result(const std::string& path, const RunFlags& flags, const RunSummary& s, const std::string& status) try {
    check_header(path);
    const std::string line =
        (is_new(path) ? kHeader : "") +
        format("%s\t%s\t%lu\t%.6f\t%.6f\t%ld\t%ld\t%.1f\t%.1f\t%.2f\t%s\t%s\t%s\n", build_id(),
               config_hash(flags).c_str(), flags.seed, s.evaluation.bits_per_byte, s.evaluation.loss, s.tokens, s.steps,
               s.training_s, double(s.peak_bytes) / (1 << 20), 100 * s.mfu, cell(status).c_str(),
               cell(flags.out_dir).c_str(), cell(flags.description).c_str());
    // A single write, so that concurrent runs do not mix their lines.
    const int fd = open_table(path);
    const bool written = write(fd, line.data(), line.size()) == ssize_t(line.size()) && fsync(fd) == 0;
    const int error = errno;
    close(fd);
    require(written, "--results: cannot write %s: %s", path.c_str(), reason_of(error).c_str());
} catch (const Error& error) {
    std::fprintf(stderr, "warning: no row of this run: %s\n", printable(error.what()).c_str());
}
