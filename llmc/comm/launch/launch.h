/*
Detects how this process was launched: its rank, the number of ranks, and how ranks find each other.

  const Launch launch = detect_launch(flags);          from flags and environment variables only
  const std::unique_ptr<Ranks> ranks = join(launch, 600);
  launch.describe()                                    "2 ranks, by Open MPI's mpirun"

The first of these that is present decides:

  flags        --rank, --world-size, --master
  torchrun     RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT, if TORCHELASTIC_RUN_ID is set. Before the other
               launchers, because one of them may have started torchrun
  Open MPI     OMPI_COMM_WORLD_RANK, OMPI_COMM_WORLD_SIZE, OMPI_COMM_WORLD_LOCAL_RANK
  PMI          PMI_RANK, PMI_SIZE, MPI_LOCALRANKID: MPICH, Intel MPI
  Slurm        SLURM_PROCID, SLURM_STEP_NUM_TASKS or SLURM_NTASKS, SLURM_LOCALID, in processes that srun started
  torchrun's   variables without TORCHELASTIC_RUN_ID, set by another launcher
  PET          PET_NODE_RANK, PET_NNODES, PET_MASTER_ADDR, PET_MASTER_PORT: torchrun's defaults, which Kubeflow's
               TrainJob sets in each pod. One process per host
  SkyPilot     SKYPILOT_NODE_RANK, SKYPILOT_NUM_NODES, SKYPILOT_NODE_IPS. One process per host
  nothing      one rank. An Error if another variable says that there are more: JOB_COMPLETION_INDEX of an indexed
               Kubernetes job (its rank, if --world-size and --master are given), AWS_BATCH_JOB_NUM_NODES, ...

Under an MPI launcher ranks find each other by MPI, unless --master is given. Otherwise they meet at the address of rank
0: --master, MASTER_ADDR, or the first of Slurm's nodes. An incomplete environment is an Error, and so is a launch whose
ranks have no way to meet, so that N processes never become N separate runs.
*/
#pragma once
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include "llmc/comm/launch/mpi_ranks.h"  // mpi_is_built_in
#include "llmc/comm/ranks.h"             // Ranks
#include "llmc/comm/tcp/tcp.h"           // Address, kDefaultPort

struct LaunchFlags {
    int rank = -1, world_size = 0, local_rank = -1;
    int nproc_per_node = 0, nnodes = 0, node_rank = -1;  // ranks that this process starts (llmc/run/local_ranks.h)
    std::string master = "";                             // HOST or HOST:PORT of rank 0
    std::string launcher = "auto";  // or mpi, slurm, torchrun; none: one rank, whatever the environment says
    std::string interface = "";     // the network interface by which other hosts reach this one; "": any
    bool supervise = false;
    int max_restarts = 50;
};

struct Launch {
    enum class Meet { nobody, by_mpi, at_address };
    Meet meet = Meet::nobody;
    int rank = 0, world_size = 1;  // world_size 0: only MPI knows (--launcher mpi)
    int local_rank = -1;           // from flags or launcher; -1: not given
    std::string master;            // host:port where rank 0 listens
    std::string run_key;           // text that only processes of this run have; "": the launcher gives none
    std::string secret;            // from ANVIL_KEY or ANVIL_KEY_FILE, if ranks meet at an address; "": none
    std::string interface;         // LaunchFlags::interface
    std::string source;            // "Open MPI's mpirun"
    // In a supervised run: whether ranks may be renumbered, and whether the run may continue without missing ranks.
    bool numbers_anew = false, may_go_without = false;
    bool waits_for_port = false;  // whether it has been restarted, so that its port may be in use for a moment

    std::string describe() const;
};

// A function like std::getenv.
using Environment = std::function<const char*(const char*)>;

Launch detect_launch(const LaunchFlags& flags, const Environment& environment = std::getenv,
                     bool has_mpi = mpi_is_built_in());

// Connects the ranks. Throws an Error if that takes longer than timeout_s seconds, or when stop_signal() names a
// signal. timeout_s is also the timeout of the ranks' watchdog.
std::unique_ptr<Ranks> join(
    const Launch& launch, double timeout_s,
    const std::function<const char*()>& stop_signal = [] { return static_cast<const char*>(nullptr); });

// The parts of --master: "host", "host:port", "[::1]:port", "::1".
Address parse_address(const std::string& text);

// The first name of a Slurm hostlist: "gpu-a[017-019,022],gpu-b3" -> "gpu-a017".
std::string first_slurm_host(const std::string& list);
