// See log.h.
#include "llmc/base/log.h"
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <ctime>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>
#include <utility>
#include "llmc/base/build_id.h"  // build_id
#include "llmc/base/check.h"     // require, format
#include "llmc/base/file.h"      // make_folders

using json = nlohmann::ordered_json;

static json number(double value) {
    if (std::isfinite(value)) return value;
    return std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf";
}

// Samples of a byte tokenizer need not be UTF-8; JSON must be.
static std::string line_of(const json& record) { return record.dump(-1, ' ', false, json::error_handler_t::replace); }

std::string duration_text(double seconds) {
    if (!(seconds >= 0) || seconds > 1e9) return "?";
    if (seconds < 59.95) return format("%.1f s", seconds);
    const long long s = std::llround(seconds);
    if (s < 3600) return format("%lld:%02lld", s / 60, s % 60);
    if (s < 86400) return format("%lld:%02lld:%02lld", s / 3600, s / 60 % 60, s % 60);
    return format("%lldd %02lld:%02lld", s / 86400, s / 3600 % 24, s / 60 % 60);
}

std::string count_text(double count) {
    const char* unit = "";
    for (const char* next : {"k", "M", "G", "T"}) {
        if (!(count >= 999.5)) break;
        count /= 1000;
        unit = next;
    }
    return format("%.*f%s", *unit == '\0' || count >= 99.95 ? 0 : count >= 9.995 ? 1 : 2, count, unit);
}

std::string step_line(const StepRecord& record, int64_t steps, double eta_s) {
    const int width = int(std::to_string(steps).size());
    const double tokens_per_s = double(record.tokens) / (record.ms / 1000);
    return format("step %*lld/%lld | loss %7.4f | norm %7.3f | lr %.2e | %8.*f ms | %5s tok/s | ETA %s", width,
                  static_cast<long long>(record.step), static_cast<long long>(steps), record.loss, record.norm,
                  record.lr, record.ms < 99.95 ? 1 : 0, record.ms, count_text(tokens_per_s).c_str(),
                  duration_text(eta_s).c_str());
}

RunLog::RunLog(const std::string& out_dir, Mode mode, const Options& options)
    : path_(out_dir + "/log.jsonl"), options_(options), opened_(Clock::now()) {
    make_folders(out_dir);
    fd_ = open(path_.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    require(fd_ >= 0, "cannot write %s: %s", path_.c_str(), std::strerror(errno));
    // From here on the destructor does not run if this throws: close by hand.
    const auto check = [&](bool good, const char* what) {
        const int error = errno;
        if (!good) close(std::exchange(fd_, -1));
        require(good, "%s %s: %s", what, path_.c_str(), std::strerror(error));
    };
    // Some network file systems have no locks; only a lock held by another is an error.
    const bool is_locked = flock(fd_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
    check(!is_locked, "another run is writing to this folder, choose another --out-dir;");
    struct stat info;
    check(fstat(fd_, &info) == 0, "cannot read");
    if (mode == Mode::fresh) {
        check(ftruncate(fd_, 0) == 0, "cannot write");
    } else if (info.st_size > 0) {
        char last;
        check(pread(fd_, &last, 1, info.st_size - 1) == 1, "cannot read");
        check(last == '\n' || ::write(fd_, "\n", 1) == 1, "cannot write");
    }
}

RunLog::~RunLog() {
    if (fd_ >= 0) close(fd_);
}

RunLog::RunLog(RunLog&& other) noexcept { *this = std::move(other); }

RunLog& RunLog::operator=(RunLog&& other) noexcept {
    std::swap(path_, other.path_);
    std::swap(fd_, other.fd_);
    std::swap(options_, other.options_);
    std::swap(opened_, other.opened_);
    std::swap(first_step_end_, other.first_step_end_);
    std::swap(first_step_, other.first_step_);
    return *this;
}

void RunLog::write_line(const std::string& json) {
    const std::string line = json + "\n";
    const off_t before = lseek(fd_, 0, SEEK_END);
    size_t done = 0;
    while (done < line.size()) {
        const ssize_t written = ::write(fd_, line.data() + done, line.size() - done);
        if (written < 0 && errno == EINTR) continue;
        if (written <= 0) {
            const int error = errno;
            const bool taken_back = before >= 0 && ftruncate(fd_, before) == 0;
            throw Error(kExitUsage, "cannot write " + path_ + ": " + std::strerror(error) +
                                        (taken_back ? "" : " (its last line is cut short)"));
        }
        done += size_t(written);
    }
}

static std::string cpu_model() {
    std::ifstream info("/proc/cpuinfo");
    for (std::string line; std::getline(info, line);)
        if (line.starts_with("model name")) return line.substr(std::min(line.size(), line.find(':') + 2));
    return "unknown";
}

static json header(const char* type, const std::string& config_json, const std::string& device,
                   const std::string& data_hash) {
    const json config = json::parse(config_json, nullptr, false);
    ensure(config.is_object());
    return {{"type", type},
            {"time", int64_t(std::time(nullptr))},  // seconds since 1970, UTC
            {"config", config},
            {"build", {{"id", build_id()}, {"compiler", __VERSION__}}},
            {"machine", {{"cpu", cpu_model()}, {"cores", std::thread::hardware_concurrency()}, {"device", device}}},
            {"data_hash", data_hash}};
}

void RunLog::start(const std::string& config_json, const std::string& device, const std::string& data_hash) {
    if (silent()) return;
    write_line(line_of(header("start", config_json, device, data_hash)));
}

void RunLog::resume(const std::string& config_json, const std::string& device, const std::string& data_hash,
                    int64_t step, const std::string& from, const std::vector<std::string>& passed_over) {
    if (silent()) return;
    json record = header("resume", config_json, device, data_hash);
    record["step"] = step;
    record["from"] = from;
    record["passed_over"] = passed_over;
    write_line(line_of(record));
    std::printf("resume from %s at step %lld\n", from.c_str(), static_cast<long long>(step));
}

// From the wall time per step so far, validation, samples and checkpoints included.
double RunLog::eta_s(int64_t step) {
    const auto seconds = [](Clock::duration d) { return std::chrono::duration<double>(d).count(); };
    const Clock::time_point now = Clock::now();
    const double budget_s = options_.time_budget_s - seconds(now - opened_);
    if (first_step_ < 0) {
        first_step_ = step;
        first_step_end_ = now;
    }
    if (step <= first_step_) return step >= options_.steps ? 0 : std::numeric_limits<double>::quiet_NaN();
    const double per_step = seconds(now - first_step_end_) / double(step - first_step_);
    return std::max(0.0, std::min(budget_s, per_step * double(options_.steps - step)));
}

void RunLog::step(const StepRecord& r) {
    if (silent()) return;
    write_line(line_of({{"type", "step"},
                        {"step", r.step},
                        {"loss", number(r.loss)},
                        {"norm", number(r.norm)},
                        {"lr", number(r.lr)},
                        {"ms", number(r.ms)},
                        {"tokens_per_s", number(double(r.tokens) / (r.ms / 1000))}}));
    const bool is_first = first_step_ < 0;
    const double eta = eta_s(r.step);
    if (is_first || r.step == options_.steps || r.step % options_.print_every == 0) {
        std::puts(step_line(r, options_.steps, eta).c_str());
        std::fflush(stdout);
    }
}

void RunLog::validation(int64_t step, double loss) {
    if (silent()) return;
    write_line(line_of({{"type", "val"}, {"step", step}, {"loss", number(loss)}}));
    std::printf("val  %*lld/%lld | loss %7.4f\n", int(std::to_string(options_.steps).size()),
                static_cast<long long>(step), static_cast<long long>(options_.steps), loss);
    std::fflush(stdout);
}

void RunLog::skip(int64_t step, double loss, double norm, const std::string& reason) {
    if (silent()) return;
    write_line(line_of(
        {{"type", "skip"}, {"step", step}, {"loss", number(loss)}, {"norm", number(norm)}, {"reason", reason}}));
    std::fprintf(stderr, "warning: step %lld skipped, parameters unchanged: %s\n", static_cast<long long>(step),
                 reason.c_str());
}

void RunLog::sample(int64_t step, const std::string& prompt, const std::string& text) {
    if (silent()) return;
    write_line(line_of({{"type", "sample"}, {"step", step}, {"prompt", prompt}, {"text", text}}));
    // A byte tokenizer's samples may hold anything, and a terminal obeys control characters.
    std::string shown = prompt + text;
    for (char& c : shown)
        if ((c >= 0 && c < ' ' && c != '\n' && c != '\t') || c == 127) c = '?';
    std::printf("sample at step %lld:\n%s\n", static_cast<long long>(step), shown.c_str());
    std::fflush(stdout);
}

void RunLog::checkpoint(int64_t step, const std::string& path, double ms) {
    if (silent()) return;
    write_line(line_of({{"type", "checkpoint"}, {"step", step}, {"path", path}, {"ms", number(ms)}}));
}

void RunLog::end(int64_t step, const std::string& reason) {
    if (silent()) return;
    write_line(line_of({{"type", "end"}, {"step", step}, {"reason", reason}}));
}
