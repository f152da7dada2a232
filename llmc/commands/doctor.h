/*
The command `doctor`: checks before a run starts whether this machine meets the needs of these flags, with advice for
each problem.

  ok    limits: 1048576 open files
  warn  shared memory: /dev/shm has 64 MiB -> MPI and NCCL want more: docker run --shm-size 1g
  FAIL  training data: no file matches 'data/x_*.bin' -> ...

It takes no lock, and removes the file with which it measures the disk. With several ranks each checks its own host;
ranks above 0 print only lines that are not ok. Ranks that meet at an address connect to it, which tests the port, and
time their communication. Exit code 2 if a check fails.
*/
#pragma once
#include <cstdint>
#include <string>
#include <vector>
#include "llmc/base/processor.h"      // CpuLevel
#include "llmc/comm/host.h"           // HostGpus
#include "llmc/comm/launch/launch.h"  // Environment, Launch
#include "llmc/run/command.h"         // CommandLine, RunFlags
#include "llmc/run/peak_flops.h"      // DevicePeak

struct Finding {
    enum class Grade { ok, warn, fail };
    Grade grade;
    std::string what, found, todo;  // todo: the advice; empty if ok
};

// Facts that only code compiled with CUDA can determine (devices.h).
struct GpuFacts {
    bool is_built = false;      // this is a CUDA build
    std::string why_none = "";  // why it has no GPU to use; empty: it has one
    std::string device = "";    // "cuda, NVIDIA H200, ..."
    size_t free_bytes = 0, bytes = 0;
    DevicePeak peak = {};             // in bf16
    std::string bias_gradients = "";  // where cuBLASLt sums those of GPT-2 124M's MLPs
    HostGpus on_host = {};            // also known in a build without CUDA
};

// Runs all checks, prints one line per finding, and returns the exit code.
int doctor(const CommandLine& line);

// The lines and a summary. On ranks above 0 only lines that are not ok.
std::string text_of(const std::vector<Finding>& findings, int rank = 0);

// The checks, for tests. `cpuinfo` is the content of /proc/cpuinfo.
Finding check_processor(const std::string& cpuinfo, CpuLevel used, CpuLevel highest);
// `libraries` as in build_id.h.
std::vector<Finding> check_libraries(const std::string& libraries, bool cuda_build);
Finding check_gpu(const RunFlags& config, const GpuFacts& gpu);
// The line about the CPU's peak FLOP/s, to which MFU refers.
Finding check_cpu_peak(const RunFlags& config);
Finding check_launch(const LaunchFlags& flags, const Environment& environment, Launch* launch);
std::vector<Finding> check_limits(int world_size, size_t open_files, size_t shared_memory_bytes);
std::vector<Finding> check_network(const Launch& launch, const std::string& host_name);
// Times the collectives of CPU ranks. Called by every rank of a launch that meets at an address.
Finding check_link(const Launch& launch, double timeout_s);
Finding check_disk(const RunFlags& config, size_t checkpoint_bytes);
std::vector<Finding> check_data(const RunFlags& config, int64_t* vocab_size);
