/*
--nproc-per-node N: starts N ranks on this host, each a process of this program, and waits for them. With several hosts
this is done on each of them, by --nnodes and --node-rank, or by a launcher that starts one process per host (Slurm,
SkyPilot, Kubeflow's TrainJob, which gives N as PET_NPROC_PER_NODE, too).

  if (const int n = local_ranks(line)) return run_local_ranks(line.run, n, argv);    in main(), before any thread

A rank has the same command line with --rank, --world-size, --local-rank and --master added. A signal is forwarded to
all ranks. When a rank has failed, the others see it and end by themselves; those that do not are stopped. The exit code
is that of the rank that failed first.
*/
#pragma once
#include "llmc/run/command.h"  // CommandLine

// The number of ranks to start; 0: this process is a rank, or has flags that no rank would take.
int local_ranks(const CommandLine& line);
// Throws an Error if the ranks cannot be started. Does not return if the first rank that failed ended by a signal.
int run_local_ranks(const RunFlags& flags, int n, char** argv);
