/*
How this process was started, and so which rank it is, of how many, and how they meet.

  const Launch launch = detect_launch(flags);          from flags and environment; asks nobody, and can be tested
  const std::unique_ptr<Ranks> ranks = join(launch, 600);
  launch.describe()                                    "2 ranks, by Open MPI's mpirun"

In this order:

  flags        --rank, --world-size, --master
  torchrun     RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT, if TORCHELASTIC_RUN_ID tells that it is torchrun:
               it is closest to the process, whatever started torchrun
  Open MPI     OMPI_COMM_WORLD_RANK, OMPI_COMM_WORLD_SIZE, OMPI_COMM_WORLD_LOCAL_RANK
  PMI          PMI_RANK, PMI_SIZE, MPI_LOCALRANKID: MPICH, Intel MPI
  Slurm        SLURM_PROCID, SLURM_STEP_NUM_TASKS or SLURM_NTASKS, SLURM_LOCALID, in what srun starts
  torchrun's   variables, set by whoever else
  nothing      one rank

Under an MPI launcher ranks meet by MPI, else at the address of rank 0, which --master gives (then under MPI, too), or
MASTER_ADDR, or Slurm's list of nodes. A half-set environment is an Error, and so is a launch whose ranks could not
meet: N processes are never N runs.
*/
#pragma once
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include "llmc/comm/mpi_ranks.h"  // mpi_is_built_in
#include "llmc/comm/ranks.h"      // Ranks
#include "llmc/comm/tcp.h"        // Address, kDefaultPort

struct LaunchFlags {
    int rank = -1, world_size = 0, local_rank = -1;
    std::string master = "";        // HOST or HOST:PORT, of rank 0
    std::string launcher = "auto";  // or mpi, slurm, torchrun; none: one rank, whatever the environment says
    std::string interface = "";     // of this host's networks, by which others reach it; "": any
    bool supervise = false;
    int max_restarts = 50;
};

struct Launch {
    enum class Meet { nobody, by_mpi, at_address };
    Meet meet = Meet::nobody;
    int rank = 0, world_size = 1;  // world_size 0: only MPI knows (--launcher mpi)
    int local_rank = -1;           // as flags or launcher say; -1: they do not
    std::string master;            // host:port where rank 0 listens
    std::string run_key;           // text that only processes of this run have; "": the launcher gives none
    std::string secret;            // of ANVIL_KEY or ANVIL_KEY_FILE, where ranks meet at an address; "": none
    std::string interface;         // as the flag
    std::string source;            // "Open MPI's mpirun"
    // Of a supervised run: ranks may have other numbers when some have not come back; and may they stay away?
    bool numbers_anew = false, may_go_without = false;

    std::string describe() const;
};

// What std::getenv is.
using Environment = std::function<const char*(const char*)>;

Launch detect_launch(const LaunchFlags& flags, const Environment& environment = std::getenv,
                     bool has_mpi = mpi_is_built_in());

// Connects the ranks. An Error if that takes longer than timeout_s, which is also the watchdog's from then on, or when
// stop_signal() names a signal.
std::unique_ptr<Ranks> join(
    const Launch& launch, double timeout_s,
    const std::function<const char*()>& stop_signal = [] { return static_cast<const char*>(nullptr); });

// The parts of --master: "host", "host:port", "[::1]:port", "::1".
Address parse_address(const std::string& text);

// "gpu-a[017-019,022],gpu-b3" -> "gpu-a017": Slurm's way to write many names.
std::string first_slurm_host(const std::string& list);
