/*
The log of a run: one line per step on stdout, and all records in OUT/log.jsonl, one JSON object per line.

  {"type":"start","time":...,"config":{...},"build":{...},"machine":{...},"data":{...},"kernels":{...}}    the first
  {"type":"resume", the same as start, and "step","from","passed_over":[...],"read":{...}}       at each resume
  {"type":"step","step","loss","norm","lr","ms","tokens_per_s"}     {"type":"val","step","loss"}
      several ranks: also "comm_ms","comm_exposed_ms","comm_predicted_ms"; with --noise-scale "noise_scale"
      if the devices' peak is known: also "mfu"                         "val" also has "bpb", bits per byte, if known
      with activation-sizes "val" also has "sizes":{NAME:RMS}
      if some targets are ignored: also "ignored", their number
      FP8 with delayed scales: also "fp8_saturated", the number of elements beyond their range
      packed documents: also "cropped", the fraction of their tokens that was dropped in all steps so far
  {"type":"ranks","step","weight_hash","min_ms","median_ms","max_ms","slowest","ms":[...],"sequences":[...]}
  {"type":"balance","step","micro_batches":[...],"sequences":[...],"ms":[...]}    each rank's share (shares.h)
  {"type":"outer","step","ms","sent_bytes"}      an outer step of islands; sent_bytes: by rank 0
  {"type":"skip","step","loss","norm","reason"}                     {"type":"sample","step","prompt","text"}
  {"type":"checkpoint","step","path","ms"}                          {"type":"end","step","reason"}
      "end" with a mixture of data: also "sources":[{"pattern","weight","tokens"}], the tokens read from each so far
      "end" on a GPU: also "plans":{"attention","gemm","timed"}, made since the start of the program
  {"type":"warning","step","what","message"}     something optional failed, such as a sample
  {"type":"tasks","step","file","score","tasks":{NAME:{"accuracy","centered","right","examples"}},"ms"}

Steps are numbered from 1; step 0 is the state before the first one. After a resume from step S, earlier records of
steps after S are void: of two records of a step, readers must take the later one (as scripts/report.py does). Doubles
read back exactly. Those that are not finite are the strings "nan", "inf", "-inf", so that the file stays JSON.

  RunLog log(out_dir, RunLog::Mode::fresh, {.steps = 2000});      rank 0; the others keep a RunLog(), which is silent
  log.start({.config_json = to_json(config.fields()), .device = "cpu, 2 threads", .data_hash = "00ff"});
  log.step({.step = 1, .loss = 4.17, .norm = 2.5, .lr = 1e-5, .ms = 81, .tokens = 768});

A failed write throws an Error that names the file. A line is written whole, or removed again if the disk is full. A
line that was cut short by a kill stays, and the next record begins on a new line.
*/
#pragma once
#include <sys/types.h>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <vector>
#include "llmc/base/terminal.h"   // Terminal
#include "llmc/data/loader.h"     // SourceFacts
#include "llmc/eval/task_file.h"  // TaskRecord

struct StepRecord {
    int64_t step = 0;  // 1 is the first
    double loss = 0;   // nats per token, mean of the batch, before the update
    double norm = 0;   // of the gradient, before clipping
    double lr = 0;
    double ms = 0;  // wall time of the step
    int64_t tokens = 0;
    int64_t ignored = 0;  // of these, targets that are ignored
    // With several ranks, in ms: the communication, the part of it that the device waited for, and the predicted time.
    bool has_comm = false;
    double comm_ms = 0, comm_exposed_ms = 0, comm_predicted_ms = 0;
    double noise_scale = 0;  // the gradient noise scale, in tokens; 0: not requested
    double mfu = 0;          // model FLOP/s over the devices' peak; 0: the peak is not known
    int64_t saturated = -1;  // elements beyond a delayed FP8 scale's range; -1: no delayed scales
    double cropped = NAN;    // fraction of all documents' tokens that packing dropped so far; NaN: no packing
    double left_s = std::numeric_limits<double>::infinity();  // of the time budget after this step, for the ETA
};

// Plans made by libraries: cuDNN's attention, cuBLASLt's GEMMs, and how many of these were timed.
struct PlanRecord {
    int64_t attention = 0, gemm = 0, timed = 0;
};

// The run's configuration, for the first record of its log.
struct RunFacts {
    std::string config_json = "{}";  // an object of all flags
    std::string device = "";         // "cpu, 2 threads", "cuda, NVIDIA H200, ..."
    int ranks = 1;
    std::string data_hash = "", val_hash = "", tokenizer_hash = "";  // "": there is none
    std::string attention = "", gemm = "";                           // on a GPU, the kernels in use
    int64_t head_rows = 0;                                           // rows of logits computed at a time
    int64_t num_parameters = 0;
    double flops_per_token = 0;                       // of a training step
    double peak_flops = 0;                            // FLOP/s, the sum over all ranks' devices; 0: not known
    std::string peak = "";                            // how rank 0's peak was determined
    std::map<std::string, std::string> sources = {};  // for flags without their default value: its source
};

// Bytes of a checkpoint that were verified and loaded, without headers and small files: by all ranks together, and the
// most by one rank.
struct ReadBytes {
    uint64_t verified = 0, most_verified = 0, loaded = 0, most_loaded = 0;
};

// The number of the last step in OUT's log; 0: none.
int64_t last_step(const std::string& out_dir);

class RunLog {
public:
    enum class Mode { fresh, resume };  // empty the file, or add to it
    struct Options {
        int64_t steps = 0;         // the run's last step, for "120/2000" and the ETA; 0: not known
        int print_every = 1;       // steps per line on stdout; the file has them all
        double time_budget_s = 0;  // the run ends after this much training: for the bar; 0: no limit
    };

    RunLog() = default;
    // Creates OUT and locks the file. Throws an Error if another program has it open.
    RunLog(const std::string& out_dir, Mode mode, const Options& options);
    // Writes no file.
    static RunLog on_console(const Options& options);
    ~RunLog();
    RunLog(RunLog&& other) noexcept;
    RunLog& operator=(RunLog&& other) noexcept;

    // Writes the first record: start() in a fresh file, resume() after a checkpoint of `step` was loaded. Call one of
    // them once, before all other calls.
    void start(const RunFacts& facts);
    void resume(const RunFacts& facts, int64_t step, const std::string& from,
                const std::vector<std::string>& passed_over, const ReadBytes& read = {});

    void step(const StepRecord& record);
    void validation(int64_t step, double loss, double bits_per_byte = NAN,  // NaN: not known
                    const std::map<std::string, double>& sizes = {});
    // The scores of the tasks of a file.
    void tasks(int64_t step, const std::string& file, const std::vector<TaskRecord>& tasks, double score, double ms);
    // The update of this step was skipped; the parameters are unchanged.
    void skip(int64_t step, double loss, double norm, const std::string& reason);
    // The result of a comparison of the ranks' weights and computing times. `ms`, `sequences`: of each rank, in a step.
    void ranks(int64_t step, uint64_t weight_hash, double min_ms, double median_ms, double max_ms, int slowest,
               const std::vector<double>& ms = {}, const std::vector<int64_t>& sequences = {});
    // The ranks' shares of the steps after this one, and each rank's ms per micro-batch; NaN: not known.
    void balance(int64_t step, const std::vector<int64_t>& micro_batches, const std::vector<int64_t>& sequences,
                 const std::vector<double>& ms);
    // The outer step of islands after this step.
    void outer(int64_t step, double ms, double sent_bytes);
    void sample(int64_t step, const std::string& prompt, const std::string& text);
    void checkpoint(int64_t step, const std::string& path, double ms);
    // Something optional failed: "sample"
    void warning(int64_t step, const std::string& what, const std::string& message);
    // "finished", "time budget", "patience", "SIGTERM"
    void end(int64_t step, const std::string& reason, const std::optional<PlanRecord>& plans = {},
             const std::vector<SourceFacts>& sources = {});

    std::string path() const { return path_; }
    // False once the file was renamed or removed, or its folder.
    bool is_in_place() const;

private:
    using Clock = std::chrono::steady_clock;
    bool silent() const { return !speaks_; }
    void write_line(const std::string& json);
    double eta_s(const StepRecord& record);

    std::string path_;
    int fd_ = -1;  // -1: no file
    bool speaks_ = false;
    Options options_;
    Terminal terminal_ = terminal_of(stdout);
    Clock::time_point first_step_end_;  // the ETA uses only later steps, because the first one warms up
    int64_t first_step_ = -1;
};

// The line for stdout, without its end: "step   120/2000 | loss 3.2841 | norm 0.41 | lr 6.00e-04 | ..."
// `columns`: of the terminal; fields that do not fit are left out, the least important ones first. 0: no limit.
std::string step_line(const StepRecord& record, int64_t steps, double eta_s, int columns = 0);
// A line for each task, and one for the score if there are several tasks.
std::string task_lines(const std::string& file, const std::vector<TaskRecord>& tasks, double score, double ms);

// --log-to wandb,tensorboard: a separate process, scripts/log_to.py, that reads log.jsonl as it grows and sends the
// records there. On rank 0, once the log is open.
//
// Training does not depend on it: if it fails, or a package or the network is missing, a line on stderr says so and
// training continues. It ends at the end of its input, a pipe: when this object is destroyed or this process ends in
// any way. Then it sends the rest; the destructor waits briefly for that.
class LogFollower {
public:
    LogFollower() = default;
    // `log_to`: as the flag; "none": no process.
    LogFollower(const std::string& log_to, const std::string& out_dir);
    ~LogFollower();
    LogFollower(const LogFollower&) = delete;
    LogFollower& operator=(const LogFollower&) = delete;

private:
    pid_t pid_ = -1;
    int pipe_ = -1;  // the process's input; closing it ends the process
};
