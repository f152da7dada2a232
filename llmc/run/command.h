/*
The commands of train_gpt and their flags:

  ./train_gpt [train] --depth 12                            `train` may be left out
  ./train_gpt generate --resume run/default --prompt "Once upon a time"
  ./train_gpt plan --gpu H100 --world-size 64 --depth 24

  const CommandLine line = read_command_line(argc, argv);
  if (line.is_done) return kExitOk;                         --help or --version, which has been printed
*/
#pragma once
#include <cstdint>
#include <exception>
#include <string>
#include <utility>
#include <vector>
#include "llmc/base/flags.h"     // Field, Flags
#include "llmc/run/run_flags.h"  // RunFlags, Command

// The flags of commands other than `train`, in addition to those of a run.
struct GenerateOptions {
    std::string prompt = "\n";  // the text to continue, or @FILE
    int num_samples = 1;
};

struct ChatOptions {
    std::string message;  // a single message; "": read messages from standard input
    std::string system;   // the system message
    std::string chat_template = "auto";
};

struct AnswerOptions {
    std::string requests;  // a file
};

// 0 stands for the GPU's own figure (llmc/plan/gpus.h).
struct PlanOptions {
    std::string gpu = "H100", world_size = "1";  // lists: "H100,4090", "8,64"
    double memory_gb = 0, tflops = 0, bandwidth = 0, network = 0, usd_per_hour = 0;
    bool fit = false;            // search for the fastest flags that fit
    std::string trace = "";      // path of the trace; "": none
    std::string calibrate = "";  // paths of benchmark results, a list; "": none
};

struct ExportOptions {
    std::string format = "hf";
};

struct BenchCommOptions {
    int mib = 256;          // of the largest buffer
    std::string json = "";  // a file to which rows are appended; "": none
};

struct CommandLine {
    RunFlags run;  // the command is among them
    GenerateOptions generate;
    ChatOptions chat;
    AnswerOptions answer;
    PlanOptions plan;
    ExportOptions exported;
    BenchCommOptions bench_comm;

    Flags given;
    bool is_done = false;           // --help or the like was given, and printed
    std::exception_ptr error = {};  // what is wrong with the flags, for in_world() to throw on all ranks

    // The flags of this command: its own, then those of `train` that it accepts.
    std::vector<Field> fields();
    // The command line as far as it must be the same on all ranks: the command, and all flags except those of a process
    // or machine.
    std::vector<std::pair<std::string, std::string>> shared_flags() const;
};

// Records in flags.sources the source of each given flag's value.
void note_given(RunFlags& flags, const Flags& given);

// Throws an Error for an unknown command or flag; if another command has the flag, or had it, the message names that
// command. `line`, if not null, gets the command even then.
CommandLine parse_command_line(int argc, const char* const* argv);
// The same, but an Error is kept in the result unless the flags tell how to meet the other ranks, which may be what is
// wrong. So that all ranks end with it.
CommandLine read_command_line(int argc, const char* const* argv);

// doc/flags.md: the commands with their flags, the recipes, and the exit codes.
std::string flags_document();
