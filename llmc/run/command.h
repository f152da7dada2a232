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
#include "llmc/run/options.h"    // GenerateOptions, ...
#include "llmc/run/run_flags.h"  // RunFlags, Command

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
