// See log.h.
#include "llmc/run/log.h"
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <fstream>
#include <optional>
#include <sstream>
#include <thread>
#include <utility>
#include "llmc/base/build_id.h"      // build_id
#include "llmc/base/check.h"         // require, format
#include "llmc/base/file.h"          // make_folders, reason_of
#include "llmc/base/hash.h"          // hex64
#include "llmc/base/json.h"          // OrderedJson
#include "llmc/base/number_text.h"   // count_text, duration_text
#include "llmc/base/script.h"        // find_script
#include "llmc/base/terminal.h"      // colored_line
#include "llmc/data/utf8.h"          // generated_text, printable
#include "llmc/platform/platform.h"  // cpuinfo
#include "llmc/platform/sockets.h"   // new_pipe
#include "llmc/run/child_process.h"  // start_beside

static OrderedJson number(double value) {
    if (std::isfinite(value)) return value;
    return std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf";
}

// Replaces invalid UTF-8, which samples of a byte-level tokenizer may contain and JSON must not.
static std::string line_of(const OrderedJson& record) { return json_text(record); }

// "  12/2000"; only the number if the run's last step is not known.
static std::string step_text(int64_t step, int64_t steps) {
    if (steps == 0) return format("%6ld", step);
    return format("%*ld/%ld", int(std::to_string(steps).size()), step, steps);
}

std::string step_line(const StepRecord& record, int64_t steps, double eta_s, int columns) {
    const double tokens_per_s = double(record.tokens) / (record.ms / 1000);
    struct Part {
        std::string text;
        int importance;
    };
    std::vector<Part> parts = {{"step " + step_text(record.step, steps), 9},
                               {format("loss %7.4f", record.loss), 8},
                               {format("norm %7.3f", record.norm), 4},
                               {format("lr %.2e", record.lr), 5},
                               {format("%8.*f ms", record.ms < 99.95 ? 1 : 0, record.ms), 3},
                               {format("%5s tok/s", count_text(tokens_per_s).c_str()), 6},
                               {record.mfu > 0 ? format("MFU %4.1f%%", 100 * record.mfu) : "", 2},
                               {std::isnan(record.cropped) ? "" : format("cropped %4.1f%%", 100 * record.cropped), 1},
                               {"ETA " + duration_text(eta_s), 7}};
    const auto line = [&](int least) {
        std::string text;
        for (const Part& part : parts)
            if (part.importance >= least && !part.text.empty()) text += (text.empty() ? "" : " | ") + part.text;
        return text;
    };
    int least = 1;
    while (columns > 0 && least < 8 && line(least).size() > size_t(columns)) least++;
    return line(least);
}

std::string task_lines(const std::string& file, const std::vector<TaskRecord>& tasks, double score, double ms) {
    std::string text;
    for (const TaskRecord& task : tasks)
        text += format("task %-32s | accuracy %.4f | centered %7.4f | %ld of %ld\n", task.name.c_str(), task.accuracy(),
                       task.centered, task.right, task.examples);
    if (tasks.size() > 1) text += format("mean centered of %zu tasks of %s: %.4f\n", tasks.size(), file.c_str(), score);
    return text + format("scored in %s\n", duration_text(ms / 1e3).c_str());
}

// Some network file systems have no locks; only a lock held by another is an error.
static bool is_anothers(int fd) { return flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK; }

int64_t last_step(const std::string& out_dir) {
    constexpr off_t kMostBytes = 1 << 20;  // reads at most this much from the end of the file
    const std::string path = out_dir + "/log.jsonl", begin = R"({"type":"step","step":)";
    const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return 0;
    std::string text(size_t(kMostBytes), ' ');
    const off_t size = lseek(fd, 0, SEEK_END);
    const ssize_t got = pread(fd, text.data(), text.size(), std::max<off_t>(0, size - kMostBytes));
    close(fd);
    text.resize(size_t(std::max<ssize_t>(0, got)));
    const size_t at = text.rfind(begin);
    return at == std::string::npos ? 0 : std::strtoll(text.c_str() + at + begin.size(), nullptr, 10);
}

RunLog::RunLog(const std::string& out_dir, Mode mode, const Options& options)
    : path_(out_dir + "/log.jsonl"), speaks_(true), options_(options) {
    make_folders(out_dir);
    fd_ = open(path_.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    require(fd_ >= 0, "cannot write %s: %s", path_.c_str(), reason_of(errno).c_str());
    // From here on the destructor does not run if this throws: close by hand.
    const auto check = [&](bool good, const char* what) {
        const int error = errno;
        if (!good) close(std::exchange(fd_, -1));
        require(good, "%s %s: %s", what, path_.c_str(), reason_of(error).c_str());
    };
    check(!is_anothers(fd_), "another run is writing to this folder, choose another --out-dir;");
    struct stat info;
    check(fstat(fd_, &info) == 0, "cannot read");
    errno = EINVAL;
    check(!S_ISFIFO(info.st_mode), "a pipe keeps no records:");
    if (mode == Mode::fresh) {
        check(ftruncate(fd_, 0) == 0, "cannot write");
    } else if (info.st_size > 0) {
        char last;
        check(pread(fd_, &last, 1, info.st_size - 1) == 1, "cannot read");
        check(last == '\n' || ::write(fd_, "\n", 1) == 1, "cannot write");
    }
}

RunLog RunLog::on_console(const Options& options) {
    RunLog log;
    log.speaks_ = true;
    log.options_ = options;
    return log;
}

RunLog::~RunLog() {
    if (fd_ >= 0) close(fd_);
}

RunLog::RunLog(RunLog&& other) noexcept { *this = std::move(other); }

RunLog& RunLog::operator=(RunLog&& other) noexcept {
    std::swap(path_, other.path_);
    std::swap(fd_, other.fd_);
    std::swap(speaks_, other.speaks_);
    std::swap(options_, other.options_);
    std::swap(first_step_end_, other.first_step_end_);
    std::swap(first_step_, other.first_step_);
    return *this;
}

bool RunLog::is_in_place() const {
    struct stat here, there;
    if (fd_ < 0 || fstat(fd_, &here) != 0) return true;
    return stat(path_.c_str(), &there) == 0 && here.st_ino == there.st_ino && here.st_dev == there.st_dev;
}

void RunLog::write_line(const std::string& json) {
    if (fd_ < 0) return;
    const std::string line = json + "\n";
    const off_t before = lseek(fd_, 0, SEEK_END);
    size_t done = 0;
    while (done < line.size()) {
        const ssize_t written = ::write(fd_, line.data() + done, line.size() - done);
        if (written < 0 && errno == EINTR) continue;
        if (written <= 0) {
            const int error = errno;
            const bool taken_back = before >= 0 && ftruncate(fd_, before) == 0;
            throw Error(kExitUsage, "cannot write " + path_ + ": " + reason_of(error) +
                                        (taken_back ? "" : " (its last line is cut short)"));
        }
        done += size_t(written);
    }
}

// The text after the first `name` and its separator, in such lines; "unknown" if there is none.
static std::string value_in(std::istream&& lines, const std::string& name, char separator) {
    for (std::string line; std::getline(lines, line);) {
        if (!line.starts_with(name)) continue;
        std::string value = line.substr(std::min(line.size(), line.find(separator) + 1));
        const char* around = " \t\"";
        value.erase(0, value.find_first_not_of(around));
        return value.substr(0, value.find_last_not_of(around) + 1);
    }
    return "unknown";
}

static std::string operating_system() {
    utsname kernel = {};
    uname(&kernel);
    return value_in(std::ifstream("/etc/os-release"), "PRETTY_NAME", '=') + ", " + kernel.sysname + " " +
           kernel.release;
}

static OrderedJson header(const char* type, const RunFacts& facts) {
    const OrderedJson config = parse_ordered_json(facts.config_json);
    ensure(config.is_object());
    OrderedJson data = {{"train", facts.data_hash}};
    if (!facts.val_hash.empty()) data["val"] = facts.val_hash;
    if (!facts.tokenizer_hash.empty()) data["tokenizer"] = facts.tokenizer_hash;
    OrderedJson kernels = OrderedJson::object();
    if (!facts.attention.empty()) kernels["attention"] = facts.attention;
    if (!facts.gemm.empty()) kernels["gemm"] = facts.gemm;
    kernels["head_rows"] = facts.head_rows;
    OrderedJson machine = {{"cpu", value_in(std::istringstream(cpuinfo()), "model name", ':')},
                           {"cores", std::thread::hardware_concurrency()},
                           {"memory_bytes", int64_t(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE)},
                           {"os", operating_system()},
                           {"device", facts.device},
                           {"ranks", facts.ranks}};
    if (facts.peak_flops > 0) machine["peak_flops"] = facts.peak_flops, machine["peak"] = facts.peak;
    return {{"type", type},
            {"time", int64_t(std::time(nullptr))},  // seconds since 1970, UTC
            {"config", config},
            {"sources", facts.sources},
            {"build", {{"id", build_id()}, {"compiler", __VERSION__}}},
            {"machine", machine},
            {"model", {{"parameters", facts.num_parameters}, {"flops_per_token", facts.flops_per_token}}},
            {"data", data},
            {"kernels", kernels}};
}

void RunLog::start(const RunFacts& facts) {
    if (silent()) return;
    write_line(line_of(header("start", facts)));
}

void RunLog::resume(const RunFacts& facts, int64_t step, const std::string& from,
                    const std::vector<std::string>& passed_over, const ReadBytes& read) {
    if (silent()) return;
    OrderedJson record = header("resume", facts);
    record["step"] = step;
    record["from"] = from;
    record["passed_over"] = passed_over;
    record["read"] = {{"verified", read.verified},
                      {"most_verified", read.most_verified},
                      {"loaded", read.loaded},
                      {"most_loaded", read.most_loaded}};
    write_line(line_of(record));
    std::printf("resume from %s at step %ld\n", from.c_str(), step);
    const auto text = [](uint64_t all, uint64_t most) {
        return format(most < all ? "%.1f MB (%.1f by one rank at most)" : "%.1f MB", double(all) * 1e-6,
                      double(most) * 1e-6);
    };
    std::printf("checkpoint: verified %s, loaded %s\n", text(read.verified, read.most_verified).c_str(),
                text(read.loaded, read.most_loaded).c_str());
}

// From the wall time per step so far, which includes validation, samples and checkpoints, or what is left of the time
// budget, which counts time in steps.
double RunLog::eta_s(const StepRecord& record) {
    const auto seconds = [](Clock::duration d) { return std::chrono::duration<double>(d).count(); };
    const Clock::time_point now = Clock::now();
    const int64_t step = record.step;
    const double budget_s = record.left_s;
    if (first_step_ < 0) {
        first_step_ = step;
        first_step_end_ = now;
    }
    if (options_.steps == 0) return std::max(0.0, budget_s);
    if (step <= first_step_) return step >= options_.steps ? 0 : std::numeric_limits<double>::quiet_NaN();
    const double per_step = seconds(now - first_step_end_) / double(step - first_step_);
    return std::max(0.0, std::min(budget_s, per_step * double(options_.steps - step)));
}

void RunLog::step(const StepRecord& r) {
    if (silent()) return;
    OrderedJson line = {{"type", "step"},
                        {"step", r.step},
                        {"loss", number(r.loss)},
                        {"norm", number(r.norm)},
                        {"lr", number(r.lr)},
                        {"ms", number(r.ms)},
                        {"tokens_per_s", number(double(r.tokens) / (r.ms / 1000))}};
    if (r.has_comm) {
        line["comm_ms"] = number(r.comm_ms);
        line["comm_exposed_ms"] = number(r.comm_exposed_ms);
        line["comm_predicted_ms"] = number(r.comm_predicted_ms);
    }
    if (r.ignored > 0) line["ignored"] = r.ignored;
    if (r.saturated >= 0) line["fp8_saturated"] = r.saturated;
    if (r.noise_scale != 0) line["noise_scale"] = number(r.noise_scale);
    if (r.mfu > 0) line["mfu"] = number(r.mfu);
    if (!std::isnan(r.cropped)) line["cropped"] = number(r.cropped);
    write_line(line_of(line));
    const bool is_first = first_step_ < 0;
    const double eta = eta_s(r);
    if (is_first || r.step == options_.steps || r.step % options_.print_every == 0) {
        // By steps or by time, whichever ends the run sooner.
        const double in_time = options_.time_budget_s > 0 ? 1 - r.left_s / options_.time_budget_s : 0;
        const double in_steps = options_.steps ? double(r.step) / double(options_.steps) : 0;
        const std::string shown = step_line(r, options_.steps, eta, terminal_.columns);
        std::puts(colored_line(terminal_, shown, std::max(in_steps, in_time)).c_str());
        std::fflush(stdout);
    }
}

void RunLog::validation(int64_t step, double loss, double bits_per_byte, const std::map<std::string, double>& sizes) {
    if (silent()) return;
    OrderedJson line = {{"type", "val"}, {"step", step}, {"loss", number(loss)}};
    if (!std::isnan(bits_per_byte)) line["bpb"] = number(bits_per_byte);
    for (const auto& [name, size] : sizes) line["sizes"][name] = number(size);
    write_line(line_of(line));
    const std::string bpb = std::isnan(bits_per_byte) ? "" : format(" | bpb %.4f", bits_per_byte);
    const std::string shown =
        format("val  %s | loss %7.4f%s", step_text(step, options_.steps).c_str(), loss, bpb.c_str());
    std::puts(colored_line(terminal_, shown, 0).c_str());
    std::fflush(stdout);
}

void RunLog::tasks(int64_t step, const std::string& file, const std::vector<TaskRecord>& tasks, double score,
                   double ms) {
    if (silent()) return;
    OrderedJson scores = OrderedJson::object();
    for (const TaskRecord& task : tasks)
        scores[task.name] = {{"accuracy", number(task.accuracy())},
                             {"centered", number(task.centered)},
                             {"right", task.right},
                             {"examples", task.examples}};
    write_line(line_of({{"type", "tasks"},
                        {"step", step},
                        {"file", file},
                        {"score", number(score)},
                        {"tasks", scores},
                        {"ms", number(ms)}}));
    std::printf("tasks at step %ld:\n%s", step, printable(task_lines(file, tasks, score, ms)).c_str());
    std::fflush(stdout);
}

void RunLog::skip(int64_t step, double loss, double norm, const std::string& reason) {
    if (silent()) return;
    write_line(line_of(
        {{"type", "skip"}, {"step", step}, {"loss", number(loss)}, {"norm", number(norm)}, {"reason", reason}}));
    std::fprintf(stderr, "warning: step %ld skipped, parameters unchanged: %s\n", step, reason.c_str());
}

static OrderedJson numbers(const std::vector<double>& values) {
    OrderedJson all = OrderedJson::array();
    for (const double value : values) all.push_back(number(value));
    return all;
}

void RunLog::ranks(int64_t step, uint64_t weight_hash, double min_ms, double median_ms, double max_ms, int slowest,
                   const std::vector<double>& ms, const std::vector<int64_t>& sequences) {
    if (silent()) return;
    OrderedJson line = {{"type", "ranks"},
                        {"step", step},
                        {"weight_hash", hex64(weight_hash)},
                        {"min_ms", number(min_ms)},
                        {"median_ms", number(median_ms)},
                        {"max_ms", number(max_ms)},
                        {"slowest", slowest}};
    if (!ms.empty()) line["ms"] = numbers(ms);
    if (!sequences.empty()) line["sequences"] = sequences;
    write_line(line_of(line));
}

void RunLog::balance(int64_t step, const std::vector<int64_t>& micro_batches, const std::vector<int64_t>& sequences,
                     const std::vector<double>& ms) {
    if (silent()) return;
    write_line(line_of({{"type", "balance"},
                        {"step", step},
                        {"micro_batches", micro_batches},
                        {"sequences", sequences},
                        {"ms", numbers(ms)}}));
}

void RunLog::outer(int64_t step, double ms, double sent_bytes) {
    if (silent()) return;
    write_line(line_of({{"type", "outer"}, {"step", step}, {"ms", number(ms)}, {"sent_bytes", number(sent_bytes)}}));
}

void RunLog::sample(int64_t step, const std::string& prompt, const std::string& text) {
    if (silent()) return;
    write_line(line_of({{"type", "sample"}, {"step", step}, {"prompt", prompt}, {"text", text}}));
    std::printf("sample at step %ld:\n%s\n", step, generated_text(prompt + text, stdout).c_str());
    std::fflush(stdout);
}

void RunLog::checkpoint(int64_t step, const std::string& path, double ms) {
    if (silent()) return;
    write_line(line_of({{"type", "checkpoint"}, {"step", step}, {"path", path}, {"ms", number(ms)}}));
}

void RunLog::warning(int64_t step, const std::string& what, const std::string& message) {
    if (silent()) return;
    write_line(line_of({{"type", "warning"}, {"step", step}, {"what", what}, {"message", message}}));
}

void RunLog::end(int64_t step, const std::string& reason, const std::optional<PlanRecord>& plans,
                 const std::vector<SourceFacts>& sources) {
    if (silent()) return;
    OrderedJson line = {{"type", "end"}, {"step", step}, {"reason", reason}};
    double sum = 0;
    for (const SourceFacts& facts : sources) {
        line["sources"].push_back(
            {{"pattern", facts.source.pattern}, {"weight", facts.source.weight}, {"tokens", facts.tokens}});
        sum += double(facts.tokens);
    }
    for (const SourceFacts& facts : sources)
        std::printf("data: %s tokens of %s, %.2f%% of all\n", count_text(double(facts.tokens)).c_str(),
                    printable(facts.source.pattern).c_str(), sum > 0 ? 100 * double(facts.tokens) / sum : 0.);
    if (plans) line["plans"] = {{"attention", plans->attention}, {"gemm", plans->gemm}, {"timed", plans->timed}};
    write_line(line_of(line));
}

namespace {

constexpr int kPatienceS = 60;

void warn(const std::string& log_to, const std::string& what) {
    std::fprintf(stderr, "warning: --log-to %s: %s; training goes on without\n", log_to.c_str(), what.c_str());
}

}  // namespace

LogFollower::LogFollower(const std::string& log_to, const std::string& out_dir) {
    if (log_to == "none") return;
    const std::string name = "scripts/log_to.py", script = find_script(name);
    int ends[2];
    if (script.empty() || new_pipe(ends) != 0) {
        warn(log_to,
             script.empty() ? name + " is neither beside this program nor installed with it" : std::strerror(errno));
        return;
    }

    const int error =
        start_beside(pid_, {"python3", "-B", script, "--until-stdin-ends", "--", log_to, out_dir}, ends[0]);
    close(ends[0]);
    pipe_ = ends[1];
    if (error == 0) return;
    pid_ = -1;
    warn(log_to, std::string("cannot start python3: ") + std::strerror(error));
}

LogFollower::~LogFollower() {
    if (pipe_ >= 0) close(pipe_);
    if (pid_ < 0) return;
    for (int tenths = 0; tenths < 10 * kPatienceS; tenths++) {
        if (waitpid(pid_, nullptr, WNOHANG) != 0) return;
        usleep(100000);
    }
    std::fprintf(stderr, "warning: process %d has not sent all of the log after %d s, and is left to itself\n",
                 int(pid_), kPatienceS);
}
