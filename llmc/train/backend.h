/*
A device and the data type of weights and activations (fp32 or bf16). Model, optimizer and trainer are compiled once for
each pair, in the files *_backend_*; no other code is a template over both.

  const std::unique_ptr<Backend> backend = open_backend(world, request.flags);
  const std::unique_ptr<Session> session = backend->open_session(world, request);
*/
#pragma once
#include <memory>
#include <string>
#include "llmc/comm/host.h"          // HostGpus
#include "llmc/train/run_flags.h"    // RunFlags
#include "llmc/train/session.h"      // Session
#include "llmc/train/run_request.h"  // RunRequest
#include "llmc/train/world.h"        // World

class Backend {
public:
    virtual ~Backend() = default;
    // Collective: all ranks call each of these. `world` and `request` must outlive the session.
    virtual std::unique_ptr<Session> open_session(World& world, const RunRequest& request) = 0;
    // --dry-run: a table of the device memory that a run would use. Writes no file.
    virtual std::string memory_table(World& world, const RunRequest& request) = 0;
    // Writes the text to stdout. `tokenizer_path`: --tokenizer; "": the model's own.
    virtual void generate(World& world, const RunRequest& request, const std::string& tokenizer_path,
                          const GenerateOptions& options) = 0;
    virtual void chat(World& world, const RunRequest& request, const std::string& tokenizer_path,
                      const ChatOptions& options) = 0;
    // A table of the collectives' speed.
    virtual std::string bench_comm(World& world, const RunFlags& flags, const BenchCommOptions& options) = 0;
};

// The requested device and dtype. Collective: throws an Error on all ranks if the device is missing on any.
std::unique_ptr<Backend> open_backend(World& world, const RunFlags& flags);

// Throws an Error if the environment would make OpenMP crash or hang in its first call, so none is made here; or if the
// stack is too small for the program.
void check_openmp();

// The message at the start of a run for which --device auto chose the CPU: why it uses no GPU, and whether the host has
// unused ones. "": no message, because the host has no GPU and the build supports none.
std::string no_gpu_line(bool is_built, const std::string& why, const HostGpus& gpus);

// The line at the start of a run with fewer ranks on this host than it has GPUs; "": none.
std::string unused_gpus_line(int gpus, int ranks);

// The warning about OMP_NUM_THREADS if it asks for more than twice as many threads as there are cores: they would wait
// for each other in every op. "": no warning.
std::string crowd_warning(const char* asked, int cores);
