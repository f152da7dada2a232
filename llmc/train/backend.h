/*
A device and the type of weights and activations (fp32 or bf16): what the model, the optimizer and the trainer are
compiled for, once for each of them, in the files *_backend_*; nothing outside is a template of both.

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
    // All of these: by all ranks; `world` and `start` must live as long as the session.
    virtual std::unique_ptr<Session> open_session(World& world, const RunRequest& request) = 0;
    // --dry-run: what a run would take of the device's memory, as a table; no file is written.
    virtual std::string memory_table(World& world, const RunRequest& request) = 0;
    // The text goes to stdout. `tokenizer_path`: --tokenizer, "" for the model's own.
    virtual void generate(World& world, const RunRequest& request, const std::string& tokenizer_path,
                          const GenerateOptions& options) = 0;
    virtual void chat(World& world, const RunRequest& request, const std::string& tokenizer_path,
                      const ChatOptions& options) = 0;
    // A table of how fast collectives are.
    virtual std::string bench_comm(World& world, const RunFlags& flags, const BenchCommOptions& options) = 0;
};

// The device and dtype that were asked for. All ranks; an Error on all of them if the device is missing on any.
std::unique_ptr<Backend> open_backend(World& world, const RunFlags& flags);

// An Error where the environment asks OpenMP for what ends in a crash or a standstill: of its first call, so none is
// made here.
void check_openmp();

// What to say at the start of a run on the CPU that would have taken a GPU (--device auto): why it has none, and that
// the host has some that nobody uses. "": nothing, where there are none and the build is for none.
std::string no_gpu_line(bool is_built, const std::string& why, const HostGpus& gpus);

// What to say, as a line, at the start of a run that has fewer ranks on this host than it has GPUs; "": nothing.
std::string unused_gpus_line(int gpus, int ranks);

// What to say of OMP_NUM_THREADS: more than twice as many threads as cores wait for each other in every op. "" :
// nothing.
std::string crowd_warning(const char* asked, int cores);
