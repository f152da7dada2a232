/*
A device and the data type of weights and activations (fp32 or bf16). Model, optimizer and trainer are compiled once for
each pair, in cpu_backend.cpp and cuda_backend.cpp; no other code is a template over both.

  prepare_process();                                                              the first call of main()
  const std::unique_ptr<Backend> backend = open_backend(world, request.flags);
  const std::unique_ptr<Session> session = backend->open_session(world, request);

The GPU's functions are in every program: in a build without CUDA, cuda_backend_absent.cpp reports that.
*/
#pragma once
#include <climits>
#include <memory>
#include <string>
#include <vector>
#include "llmc/comm/host.h"          // HostGpus
#include "llmc/run/run_flags.h"      // RunFlags
#include "llmc/train/run_request.h"  // RunRequest
#include "llmc/train/session.h"      // Session
#include "llmc/train/world.h"        // World

struct GpuFacts;

class Backend {
public:
    virtual ~Backend() = default;
    // Collective: all ranks call each of these. `world` and `request` must outlive the session.
    virtual std::unique_ptr<Session> open_session(World& world, const RunRequest& request) = 0;
    // The commands `generate`, `chat` and `bench-comm`, and --dry-run: prints, and writes no file.
    virtual void run_command(World& world, const CommandLine& line, const RunRequest& request) = 0;
};

// Standard files, signals, limits and cores. Throws an Error if the environment would make OpenMP crash or hang in its
// first call, or if the stack is too small for the program.
void prepare_process();

// The requested device and dtype. Collective: throws an Error on all ranks if the device is missing on any. Prints what
// joins the GPUs and hosts of a run, as rank 0's host reports it.
std::unique_ptr<Backend> open_backend(World& world, const RunFlags& flags);

// The backends, of which open_backend() chooses one.
std::unique_ptr<Backend> cpu_backend(const std::string& dtype, int num_threads);  // fp32, bf16
// On the host's GPU with this number; in bf16 unless --dtype is fp32.
std::unique_ptr<Backend> cuda_backend(int gpu, const RunFlags& flags);

// Whether this program is built with CUDA.
bool has_cuda();
// Why this build or machine has no GPU at all, or none with this number; "" if it has one.
std::string why_no_cuda(int gpu = 0);
// The number of GPUs that CUDA shows to this process.
int num_cuda_gpus();
// The links between these GPUs (gpu_links_text in llmc/comm/host.h); "": not known, or fewer than two GPUs.
std::string cuda_gpu_links();
// The facts about a GPU for the command `doctor` (doctor.h).
GpuFacts look_at_gpu(int gpu);

// A rank's threads on the CPU.
struct CpuShare {
    double cores = 1, quota = 0;  // its part of those that it may use, and of the container's quota (0: none)
    int processes = 1;            // of this host
    bool is_asked = false;        // by --threads or OMP_NUM_THREADS
    int asked = 1;
    int places = 1, limit = INT_MAX;  // OpenMP's: omp_get_num_procs(), OMP_THREAD_LIMIT
    bool is_bound = false;            // OMP_PROC_BIND

    int threads() const;
    int most() const;  // that can run at once
    // For the start of a run; "": nothing to say. `mine`: the cores that this process may use.
    std::string quota_line(int host_cores) const;
    std::string warnings(const std::vector<int>& mine, int host_cores) const;
};

// The message at the start of a run for which --device auto chose the CPU: why it uses no GPU, and whether the host has
// unused ones. "": no message, because the host has no GPU and the build supports none.
std::string no_gpu_line(bool is_built, const std::string& why, const HostGpus& gpus);

// The line at the start of a run with fewer ranks on this host than it has GPUs; "": none.
std::string unused_gpus_line(int gpus, int ranks);

// The warning about OMP_NUM_THREADS if it asks for more than twice as many threads as there are cores: they would wait
// for each other in every op. "": no warning.
std::string crowd_warning(const char* asked, int cores);
