// See backend.h.
#include "llmc/commands/backend.h"
#include <errno.h>
#include <sys/resource.h>
#include <algorithm>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <thread>
#ifdef _OPENMP
#include <omp.h>
#endif
#include "llmc/base/check.h"         // require, format
#include "llmc/base/file.h"          // open_standard_files, catch_cut_files
#include "llmc/base/host_limits.h"   // share_of_cores, cpu_quota
#include "llmc/comm/host.h"          // host_gpus, network_text, raise_file_limit
#include "llmc/cpu/kernels.h"        // cpu_kernels
#include "llmc/platform/platform.h"  // given_cores, use_given_cores
#include "llmc/run/stop.h"           // outlive_file_limits

namespace {

// The cores that each process of this host was given. Collective.
std::vector<std::vector<int>> cores_of_host(World& world) {
    if (world.group || world.is_alone()) return {given_cores()};
    const std::vector<std::string> all = world.ranks.all_gather(core_list(given_cores()));
    std::vector<std::vector<int>> of_host;
    for (const int rank : world.ranks.host_ranks) of_host.push_back(cores_in(all[size_t(rank)]));
    return of_host;
}

// The threads of a rank on the CPU.
int num_threads(const Place& place, const RunFlags& flags, const std::vector<std::vector<int>>& of_host) {
    const std::vector<int> mine = given_cores();
    const double quota = cpu_quota() / place.processes;
    CpuShare share{.cores = share_of_cores(mine, of_host), .quota = quota, .processes = place.processes};
#ifdef _OPENMP
    share.is_asked = flags.threads > 0 || std::getenv("OMP_NUM_THREADS");
    share.asked = flags.threads > 0 ? flags.threads : omp_get_max_threads();
    share.places = omp_get_num_procs(), share.limit = omp_get_thread_limit();
    share.is_bound = omp_get_proc_bind() != omp_proc_bind_false;
    const int threads = share.threads();
    // libgomp of each rank would bind its threads to the first of the same cores.
    if (share.is_bound && share.cores < double(mine.size())) {
#pragma omp parallel num_threads(threads)
        use_given_cores();
    }
    if (place.is_first && flags.threads == 0)
        if (const std::string crowd = crowd_warning(std::getenv("OMP_NUM_THREADS"), share.most()); !crowd.empty())
            std::fprintf(stderr, "warning: %s\n", crowd.c_str());
#else
    const int threads = 1;
#endif
    const int host_cores = int(std::thread::hardware_concurrency());
    if (place.is_first && flags.trains()) std::printf("%s", share.quota_line(host_cores).c_str());
    if (place.is_first) std::fprintf(stderr, "%s", share.warnings(mine, host_cores).c_str());
    return threads;
}

bool is_on_cpu(const RunFlags& flags) { return flags.device == "cpu" || !why_no_cuda().empty(); }

// Throws an Error if there is no such device for a rank at this place.
void check_device(const RunFlags& flags, const Place& place) {
    const std::string why = flags.device == "cpu" ? "" : why_no_cuda();
    cpu_kernels();  // throws an Error if there are none for this processor
    require(flags.device != "cuda" || why.empty(), "--device cuda: %s", why.c_str());
    if (flags.device == "cpu" || !why.empty()) return;
    const std::string why_not_this = why_no_cuda(place.gpu);  // two ranks never share one
    require(why_not_this.empty(), "no GPU for every rank of this host: %s; start fewer ranks, or --device cpu",
            why_not_this.c_str());
}

// The type that --dtype auto selects on this processor. Prints it on stderr.
std::string measured_dtype() {
    const MatmulRates rates = cpu_kernels().matmul_rates();
    std::fprintf(stderr, "--dtype auto: %s\n", rates.text().c_str());
    return rates.faster();
}

// --dtype on the CPU. If that takes a measurement, only rank 0 measures, because results might differ between ranks.
std::string cpu_dtype(World& world, const RunFlags& flags) {
    if (flags.dtype != "auto" || flags.command == Command::bench_comm) return flags.dtype;
    return world.ranks.broadcast(world.is_first() && is_on_cpu(flags) ? measured_dtype() : "");
}

std::string links_text(const World& world, const RunFlags& flags) {
    if (world.is_alone() || world.group || !world.is_first() || flags.command == Command::bench_comm) return "";
    const std::string gpus = is_on_cpu(flags) ? "" : cuda_gpu_links();
    const std::string network = world.ranks.num_hosts > 1 ? network_text() : "";
    if (gpus.empty() && network.empty()) return "";
    return "links: " + gpus + (gpus.empty() || network.empty() ? "" : "; ") + network + "\n";
}

// Makes no OpenMP call itself.
void check_openmp() {
    constexpr unsigned long kLeastKiB = 256;  // of the main thread and of every other one
    struct rlimit limit = {};
    require(getrlimit(RLIMIT_STACK, &limit) != 0 || limit.rlim_cur >= (kLeastKiB << 10),
            "the stack is limited to %lu KiB (ulimit -s): expected at least %lu; the usual limit is ulimit -s 8192",
            static_cast<unsigned long>(limit.rlim_cur >> 10), kLeastKiB);
#ifdef _OPENMP
    constexpr long kMost = 4096;
    constexpr double kLeastStackKiB = 256;
    const char* const threads = std::getenv("OMP_NUM_THREADS");
    require(!threads || std::strtol(threads, nullptr, 10) <= kMost,
            "OMP_NUM_THREADS=%s: expected 1 to %ld; this machine has %u cores", threads, kMost,
            std::thread::hardware_concurrency());
    const char* const stack = std::getenv("OMP_STACKSIZE");
    if (!stack) return;
    char* unit = nullptr;
    const double number = std::strtod(stack, &unit);
    const char letter = *unit && *unit != ' ' ? char(*unit | 0x20) : 'k';  // lower case; without a unit: KiB
    const double kib = number * (letter == 'b' ? 0x1p-10 : letter == 'm' ? 0x1p10 : letter == 'g' ? 0x1p20 : 1);
    require(kib >= kLeastStackKiB, "OMP_STACKSIZE=%s: threads need at least %gk; unset it", stack, kLeastStackKiB);
#endif
}

}  // namespace

void prepare_process() {
    open_standard_files();
    catch_cut_files();
    outlive_file_limits();
    std::signal(SIGCHLD, SIG_DFL);  // where it is ignored, as a parent may leave it, nobody learns how a child ends
    set_process_name();             // else ps shows "exe" (omp_spin.h)
    let_threads_use_given_cores();
    raise_file_limit();
    check_openmp();
}

std::unique_ptr<Backend> open_backend(World& world, const RunFlags& flags) {
    const Place place = world.place();
    share_errors(world.ranks, [&] { check_device(flags, place); });
    const std::string dtype = cpu_dtype(world, flags);
    const std::vector<std::vector<int>> of_host = cores_of_host(world);  // also on GPUs: ranks may differ
    if (!is_on_cpu(flags) && flags.trains() && place.is_first)
        std::fprintf(stderr, "%s", unused_gpus_line(num_cuda_gpus(), place.processes).c_str());
    if (!is_on_cpu(flags)) {
        world.print(links_text(world, flags));
        return cuda_backend(place.gpu, flags);
    }
    if (flags.device == "auto" && place.is_first) {
        const std::string line = no_gpu_line(has_cuda(), why_no_cuda(), host_gpus());
        if (!line.empty()) std::fprintf(stderr, "%s\n", line.c_str());
    }
    const int threads = num_threads(place, flags, of_host);
    world.print(links_text(world, flags));
    return cpu_backend(dtype, threads);
}

int CpuShare::threads() const {
    int n = is_asked ? asked : std::min({int(cores + 1e-9), places, quota > 0 ? int(quota) : INT_MAX});
    return std::max(1, std::min(n, limit));
}

int CpuShare::most() const { return quota > 0 ? std::clamp(int(quota), 1, places) : places; }

std::string CpuShare::quota_line(int host_cores) const {
    if (is_asked || quota <= 0 || quota >= std::min(cores, double(places))) return "";
    const std::string ranks = processes > 1 ? format(" for %d ranks", processes) : "";
    return format("CPU quota of this container or job: %g of %d cores%s\n", quota * processes, host_cores,
                  ranks.c_str());
}

std::string CpuShare::warnings(const std::vector<int>& mine, int host_cores) const {
    std::string text;
    if (processes == 1 || cores >= double(mine.size())) return text;
    if (is_bound)
        text += format(
            "warning: OMP_PROC_BIND, OMP_PLACES or GOMP_CPU_AFFINITY would bind the threads of all %d ranks of this "
            "host to the same cores (%s), so they are not bound: give each rank cores of its own (mpirun --bind-to, "
            "srun --cpus-per-task, taskset)\n",
            processes, core_list(mine).c_str());
    if (mine.size() == 1 && host_cores > 1)
        text += format(
            "warning: several ranks of this host may use core %d alone, of %d: start them without taskset, or with "
            "mpirun --bind-to none\n",
            mine[0], host_cores);
    return text;
}

std::string no_gpu_line(bool is_built, const std::string& why, const HostGpus& gpus) {
    if (gpus.known == 0) return is_built ? "no GPU, training on the CPU: " + why : "";
    return format("this host has %s that nobody uses, training on the CPU: ",
                  gpus.known == 1 ? "a GPU" : format("%d GPUs", gpus.known).c_str()) +
           (gpus.open > 0 ? why : "this container was given none of them (docker run --gpus all)");
}

std::string unused_gpus_line(int gpus, int ranks) {
    if (gpus <= ranks) return "";
    return format("this host has %d GPUs, and this run uses %d: mpirun -np %d ./train_gpt ... uses all\n", gpus, ranks,
                  gpus);
}

std::string crowd_warning(const char* asked, int cores) {
    const long threads = asked ? std::strtol(asked, nullptr, 10) : 0;
    if (threads <= 2L * cores) return "";
    return format(
        "OMP_NUM_THREADS=%ld, and this process may use %d core%s: threads wait for each other, and a step takes many "
        "times as long; unset it or set it to %d",
        threads, cores, cores == 1 ? "" : "s", cores);
}
