/*
What happens in a run: one line per step on stdout, and everything in OUT/log.jsonl, one JSON object per line.

  {"type":"start","time":...,"config":{...},"build":{...},"machine":{...},"data_hash":"..."}     first in the file
  {"type":"resume", the same as start, and "step","from","passed_over":[...]}                    at each resume
  {"type":"step","step","loss","norm","lr","ms","tokens_per_s"}     {"type":"val","step","loss"}
  {"type":"skip","step","loss","norm","reason"}                     {"type":"sample","step","prompt","text"}
  {"type":"checkpoint","step","path","ms"}                          {"type":"end","step","reason"}

A step is numbered from 1; what belongs to the state before the first is of step 0. After a resume from step S the
records beyond S from before it are void: a reader lets the later record of a step win (scripts/report.py does). Doubles
read back exactly; those that are not finite are the strings "nan", "inf", "-inf", so that the file stays JSON.

  RunLog log(out_dir, RunLog::Mode::fresh, {.steps = 2000});     rank 0; the other ranks keep a RunLog(), which is
silent log.start(to_json(config.fields()), device, data_hash); log.step({.step = 1, .loss = 4.17, .norm = 2.5, .lr =
1e-5, .ms = 81, .tokens = 768});

Every failed write is an Error that names the file. A line is written whole or, if the disk is full, taken back; one cut
short by a kill stays, and what follows begins on a line of its own.
*/
#pragma once
#include <chrono>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

struct StepRecord {
    int64_t step = 0;  // 1 is the first
    double loss = 0;   // nats per token, mean of the batch, before the update
    double norm = 0;   // of the gradient, before clipping
    double lr = 0;
    double ms = 0;  // wall time of the step
    int64_t tokens = 0;
};

class RunLog {
public:
    enum class Mode { fresh, resume };  // empty the file, or add to it
    struct Options {
        int64_t steps = 0;    // at the end of the run: for "120/2000" and the ETA
        int print_every = 1;  // steps per line on stdout; the file has them all
        double time_budget_s = std::numeric_limits<double>::infinity();  // the run ends after this: for the ETA
    };

    RunLog() = default;
    // Creates OUT and locks the file; an Error if another program has it open.
    RunLog(const std::string& out_dir, Mode mode, const Options& options);
    ~RunLog();
    RunLog(RunLog&& other) noexcept;
    RunLog& operator=(RunLog&& other) noexcept;

    // Once, first of all: start() in a fresh file, resume() after a checkpoint of `step` was loaded.
    void start(const std::string& config_json, const std::string& device, const std::string& data_hash);
    void resume(const std::string& config_json, const std::string& device, const std::string& data_hash, int64_t step,
                const std::string& from, const std::vector<std::string>& passed_over);

    void step(const StepRecord& record);
    void validation(int64_t step, double loss);
    // The update of this step was left out; the parameters are as before.
    void skip(int64_t step, double loss, double norm, const std::string& reason);
    void sample(int64_t step, const std::string& prompt, const std::string& text);
    void checkpoint(int64_t step, const std::string& path, double ms);
    // "finished", "time budget", "SIGTERM"
    void end(int64_t step, const std::string& reason);

    std::string path() const { return path_; }

private:
    using Clock = std::chrono::steady_clock;
    bool silent() const { return fd_ < 0; }
    void write_line(const std::string& json);
    double eta_s(int64_t step);

    std::string path_;
    int fd_ = -1;
    Options options_;
    Clock::time_point opened_;
    Clock::time_point first_step_end_;  // the first one warms up: the ETA is made of those after it
    int64_t first_step_ = -1;
};

// "12.3 s", "4:05", "1:02:03", "3d 04:05"
std::string duration_text(double seconds);
// "590k", "1.20M", "768": three digits
std::string count_text(double count);
// The line for stdout, without its end: "step   120/2000 | loss 3.2841 | norm 0.41 | lr 6.00e-04 | ..."
std::string step_line(const StepRecord& record, int64_t steps, double eta_s);
