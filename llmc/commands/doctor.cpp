// See doctor.h.
#include "llmc/commands/doctor.h"
#include <arpa/inet.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <set>
#include <sstream>
#include <thread>
#include "llmc/base/build_id.h"        // build_id, build_libraries, nvidia_package
#include "llmc/base/check.h"           // Error, format
#include "llmc/base/file.h"            // reason_of
#include "llmc/base/host_limits.h"     // cpu_quota
#include "llmc/base/memory.h"          // kAlignment
#include "llmc/base/number_text.h"     // count_text
#include "llmc/comm/bench_comm.h"      // time_calls, measure_bandwidth
#include "llmc/comm/handshake.h"       // check_connected, check_alike
#include "llmc/comm/host.h"            // host_gpus, network_text
#include "llmc/comm/host/host_comm.h"  // HostComm
#include "llmc/comm/ranks.h"           // Ranks
#include "llmc/commands/backend.h"     // look_at_gpu, cuda_gpu_links
#include "llmc/cpu/kernels.h"          // cpu_kernels
#include "llmc/data/fetch.h"           // open_shards, FetchConfig
#include "llmc/data/mixture.h"         // data_sources
#include "llmc/data/tokenizer.h"       // load_tokenizer
#include "llmc/model/parameters.h"     // ParameterList
#include "llmc/platform/platform.h"    // cpuinfo, sync_to_disk
#include "llmc/train/devices.h"        // peak_of
#include "llmc/train/run_request.h"    // find_request, find_shape

namespace fs = std::filesystem;

namespace {

Finding ok(const std::string& what, const std::string& found) { return {Finding::Grade::ok, what, found, ""}; }
Finding warn(const std::string& what, const std::string& found, const std::string& todo) {
    return {Finding::Grade::warn, what, found, todo};
}
Finding fail(const std::string& what, const std::string& found, const std::string& todo) {
    return {Finding::Grade::fail, what, found, todo};
}

// Splits an Error's message "EXPECTED AND FOUND: WHAT TO DO" into the finding and the advice.
Finding fail(const std::string& what, const Error& error) {
    std::string said = error.what();
    for (char& c : said) c = c == '\n' ? ' ' : c;
    const size_t colon = said.rfind(": ");
    if (colon == std::string::npos) return fail(what, said, "see the message");
    return fail(what, said.substr(0, colon), said.substr(colon + 2));
}

std::string joined(const std::vector<std::string>& words) {
    std::string all;
    for (const std::string& word : words) all += (all.empty() ? "" : ", ") + word;
    return all;
}

constexpr double kLinkTimeoutS = 60;  // time to start the command on the other ranks

std::string gib(size_t bytes) { return format("%.1f GiB", double(bytes) / (1 << 30)); }

// The text after the first "NAME : " in the style of /proc/cpuinfo.
std::string value_of(const std::string& name, const std::string& text) {
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);)
        if (line.starts_with(name) && line.find(": ") != std::string::npos) return line.substr(line.find(": ") + 2);
    return "";
}

// An address to which a host name resolves; "" if none.
std::string address_of(const std::string& host) {
    addrinfo hints = {}, *found = nullptr;
    hints.ai_socktype = SOCK_STREAM;
    if (getaddrinfo(host.c_str(), nullptr, &hints, &found) != 0 || !found) return "";
    char name[NI_MAXHOST] = "";
    getnameinfo(found->ai_addr, found->ai_addrlen, name, sizeof(name), nullptr, 0, NI_NUMERICHOST);
    freeaddrinfo(found);
    return name;
}

// "eth0 10.0.0.7": the interfaces that are up, without the loopback.
std::vector<std::string> interfaces() {
    std::vector<std::string> names;
    ifaddrs* all = nullptr;
    if (getifaddrs(&all) != 0) return names;
    for (const ifaddrs* one = all; one; one = one->ifa_next) {
        if (!one->ifa_addr || one->ifa_addr->sa_family != AF_INET) continue;
        if (!(one->ifa_flags & IFF_UP) || one->ifa_flags & IFF_LOOPBACK) continue;
        char address[INET_ADDRSTRLEN] = "";
        inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(one->ifa_addr)->sin_addr, address, sizeof(address));
        names.push_back(std::string(one->ifa_name) + " " + address);
    }
    freeifaddrs(all);
    return names;
}

// Write bandwidth, in bytes/s, of the disk below this folder. Throws an Error if it cannot write.
double write_speed(const std::string& folder, size_t bytes) {
    std::string path = folder + "/doctor_XXXXXX";
    const int fd = mkstemp(path.data());
    require(fd >= 0, "cannot write to %s: %s", folder.c_str(), reason_of(errno).c_str());
    unlink(path.c_str());
    const std::string block(1 << 20, 'x');
    const auto began = std::chrono::steady_clock::now();
    bool good = true;
    for (size_t done = 0; good && done < bytes; done += block.size())
        good = write(fd, block.data(), block.size()) == ssize_t(block.size());
    good = good && sync_to_disk(fd) == 0;
    const int error = errno;
    close(fd);
    require(good, "cannot write to %s: %s", folder.c_str(), reason_of(error).c_str());
    return double(bytes) / std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
}

}  // namespace

Finding check_processor(const std::string& cpuinfo, CpuLevel used, CpuLevel highest) {
    std::string name = value_of("model name", cpuinfo);
    if (name.empty()) name = "a processor without a name";
    name += format(", %u cores", std::thread::hardware_concurrency());
    if (const double quota = cpu_quota(); quota > 0) name += format(" (CPU quota: %g)", quota);
    if (used < highest)
        return warn(
            "processor", name + ", has " + text_of(highest) + ", and this run uses " + text_of(used),
            format("training on the CPU is faster without ANVIL_CPU_ISA=%s in the environment, or built with make "
                   "CPU_ARCH=all",
                   name_of(used)));
    return ok("processor", name + "; uses " + text_of(used));
}

std::vector<Finding> check_libraries(const std::string& libraries, bool cuda_build) {
    std::vector<Finding> findings;
    std::set<std::string> built_in;
    std::istringstream words(libraries);
    for (std::string word; words >> word;) {
        const size_t equals = word.find('=');
        const std::string name = word.substr(0, equals), path = word.substr(equals + 1);
        built_in.insert(name);
        const std::string file = path.substr(path.rfind('/') + 1);
        if (dlopen(path.c_str(), RTLD_LAZY | RTLD_LOCAL))  // never closed: the program is linked to it anyway
            findings.push_back(ok(name, path));
        else if (dlopen(file.c_str(), RTLD_LAZY | RTLD_LOCAL))  // as the loader has found it for this program
            findings.push_back(ok(name, file + ", elsewhere than where it was built"));
        else
            findings.push_back(fail(name, dlerror(), "install it where it was, or build again (`make info`)"));
    }
    if (cuda_build && !built_in.count("cuDNN"))
        findings.push_back(
            warn("cuDNN", "not in this build: attention is our own",
                 "cuDNN's is expected to be faster on Hopper: pip install " + nvidia_package("cudnn") + ", make"));
    if (cuda_build && !built_in.count("NCCL"))
        findings.push_back(warn("NCCL", "not in this build: several GPUs cannot train together",
                                "for more than one GPU: pip install " + nvidia_package("nccl") + ", make"));
    if (!built_in.count("MPI")) findings.push_back(ok("MPI", "not in this build: ranks meet by --master"));
    return findings;
}

Finding check_gpu(const RunFlags& config, const GpuFacts& gpu) {
    if (config.device == "cpu") return ok("GPU", "not asked for (--device cpu)");
    if (!gpu.why_none.empty()) {
        const std::string todo = gpu.is_built ? "nvidia-smi should list it" : "install the CUDA toolkit and make again";
        if (config.device == "cuda") return fail("GPU", gpu.why_none, todo + ", or --device cpu");
        if (!gpu.is_built && gpu.on_host.known > 0)
            return warn("GPU",
                        format("%s, and the driver of this host has %d", gpu.why_none.c_str(), gpu.on_host.known),
                        gpu.on_host.open > 0 ? todo : "docker run --gpus all gives them to a container; then " + todo);
        if (!gpu.is_built) return ok("GPU", gpu.why_none + ": the CPU trains");
        return warn("GPU", gpu.why_none + ": the CPU would train", todo);
    }
    const std::string found = gpu.device + ", " + gib(gpu.free_bytes) + " free";
    if (double(gpu.free_bytes) < 0.9 * double(gpu.bytes))
        return warn("GPU", found,
                    "another program uses the rest (nvidia-smi lists them): end it, or --batch-size auto");
    return ok("GPU", found);
}

Finding check_launch(const LaunchFlags& flags, const Environment& environment, Launch* launch) {
    try {
        *launch = detect_launch(flags, environment);
    } catch (const Error& error) {
        return fail("launch", error);
    }
    return ok("launch", launch->describe() + (launch->master.empty() ? "" : ", who meet at " + launch->master));
}

std::vector<Finding> check_limits(int world_size, size_t open_files, size_t shared_memory_bytes) {
    std::vector<Finding> findings;
    const std::string files = format("%zu open files", open_files);
    // Shards are mapped and closed; what stays open is per rank.
    if (open_files < 256)
        findings.push_back(fail("limits", files, "raise it: ulimit -n 4096"));
    else if (open_files < 1024 + 16 * size_t(world_size))
        findings.push_back(warn("limits", files, "many ranks need more: ulimit -n 65536"));
    else
        findings.push_back(ok("limits", files));
    const std::string memory = format("/dev/shm has %.0f MiB", double(shared_memory_bytes) / (1 << 20));
    if (world_size != 1 && shared_memory_bytes < (size_t(256) << 20))
        findings.push_back(warn("shared memory", memory, "MPI and NCCL want more: docker run --shm-size 1g"));
    else
        findings.push_back(ok("shared memory", memory));
    return findings;
}

std::vector<Finding> check_network(const Launch& launch, const std::string& host_name) {
    std::vector<Finding> findings;
    const bool alone = launch.world_size == 1;
    const std::vector<std::string> names = interfaces();
    if (!names.empty())
        findings.push_back(ok("network", joined(names)));
    else if (alone)
        findings.push_back(ok("network", "no interface but the loopback: this host alone"));
    else
        findings.push_back(warn("network", "no interface but the loopback", "ranks on other hosts are out of reach"));

    const std::string own = address_of(host_name);
    if (!own.empty())
        findings.push_back(ok("host name", host_name + " is " + own));
    else
        findings.push_back(
            warn("host name", host_name + " has no address", "add it to /etc/hosts: MPI and NCCL look it up"));
    if (launch.meet != Launch::Meet::at_address) return findings;
    std::string host;
    try {
        host = parse_address(launch.master).host;
    } catch (const Error& error) {
        findings.push_back(fail("rank 0", error.what(), "give --master as HOST:PORT"));
        return findings;
    }
    const std::string master = address_of(host);
    if (master.empty())
        findings.push_back(fail("rank 0", host + " has no address", "give --master an IP address, or fix DNS"));
    else
        findings.push_back(ok("rank 0", host + (host == master ? "" : " is " + master)));
    return findings;
}

Finding check_link(const Launch& launch, double timeout_s) {
    try {
        const std::unique_ptr<Ranks> ranks = join(launch, timeout_s);
        check_connected(*ranks);
        check_alike(*ranks, {{"the build", build_id()}});
        Cpu cpu(1);
        HostComm comm(*ranks, cpu);
        float* const data = static_cast<float*>(comm.allocate(kAlignment));
        const CommTiming latency = time_calls(cpu, *ranks, "all-reduce", sizeof(float), data, 1, 0.1,
                                              [&] { comm.wait(comm.all_reduce(data, 1)); });
        comm.release(data, kAlignment);
        const double bytes_per_s = measure_bandwidth(comm, cpu, *ranks);
        // A rank that ends would end the other ranks.
        ranks->barrier();
        return ok("link",
                  format("all are at %s: %s; an all-reduce of 4 bytes takes %.1f us, and a rank sends %.3f GB/s",
                         launch.master.c_str(), comm.describe().c_str(), latency.seconds * 1e6, bytes_per_s / 1e9));
    } catch (const Error& error) {
        return fail("link", error);
    }
}

Finding check_disk(const RunFlags& config, size_t checkpoint_bytes) {
    constexpr size_t kMeasured = 64 << 20;
    std::error_code ignored;
    fs::path folder = fs::absolute(config.out_dir.empty() ? "." : config.out_dir);
    while (!fs::exists(folder, ignored) && folder.has_relative_path()) folder = folder.parent_path();
    struct statvfs info;
    if (!fs::is_directory(folder, ignored) || statvfs(folder.c_str(), &info) != 0)
        return fail("disk", folder.string() + " is not a folder that can be read", "give another --out-dir");
    const size_t free = size_t(info.f_bavail) * info.f_frsize;
    std::string found = "--out-dir " + config.out_dir + ": " + gib(free) + " free";
    if (checkpoint_bytes > 0) found += ", a checkpoint takes " + count_text(double(checkpoint_bytes)) + "B";
    // The checkpoints that are kept, and the one that is being written.
    const size_t needed = std::max(kMeasured, size_t(config.keep + 1) * checkpoint_bytes);
    if (free < std::max(kMeasured, checkpoint_bytes))
        return fail("disk", found, "make room, or give another --out-dir");
    double speed = 0;
    try {
        speed = write_speed(folder, kMeasured);
    } catch (const Error& error) {
        return fail("disk", error.what(), "give another --out-dir");
    }
    found += format(", %.0f MB/s", speed * 1e-6);
    if (free < needed)
        return warn("disk", found, format("--keep %d of them need more: make room, or keep fewer", config.keep));
    const double seconds = double(checkpoint_bytes) / speed;
    if (seconds > 60)
        return warn("disk", found,
                    format("a checkpoint takes %.0f s to write: give a faster --out-dir, or a larger "
                           "--checkpoint-every",
                           seconds));
    return ok("disk", found);
}

namespace {
// Training shards that --fetch brings count as they are listed.
std::optional<FetchConfig> fetch_of(const RunFlags& config, const std::string& pattern) {
    if (config.fetch.empty() || pattern == config.val_data) return {};
    return FetchConfig{};
}

// Reads every token of the run's data. A run does that, too (llmc/data/token_scan.h), but only after it has started.
Finding look_for_foreign_tokens(const RunFlags& config, int64_t vocab_size) {
    try {
        std::vector<DataSource> all = data_sources(config.train_data);
        if (!config.val_data.empty()) all.push_back({config.val_data, 1});
        for (const auto& [pattern, weight] : all) {
            const OpenShards data = open_shards(pattern, fetch_of(config, pattern));
            for (const TokenShard& shard : data.shards)
                if (!shard.is_fetched()) shard.check(0, shard.num_tokens(), int(vocab_size));
        }
    } catch (const Error& error) {
        const std::string said = error.what();
        const size_t todo = said.rfind("; ");
        return fail("tokens", said.substr(0, todo),
                    todo == std::string::npos ? "see the message" : said.substr(todo + 2));
    }
    return ok("tokens", format("all are in the vocabulary of %ld", vocab_size));
}
}  // namespace

std::vector<Finding> check_data(const RunFlags& config, int64_t* vocab_size) {
    std::vector<Finding> findings;
    const auto look = [&](const char* what, const std::string& pattern) {
        try {
            int64_t tokens = 0;
            const OpenShards data = open_shards(pattern, fetch_of(config, pattern));
            const std::vector<TokenShard>& shards = data.shards;
            for (const TokenShard& shard : shards) {
                tokens += shard.num_tokens();
                if (shard.is_fetched()) continue;
                int32_t ends[2];
                shard.copy(0, 1, ends), shard.copy(shard.num_tokens() - 1, 1, ends + 1);
            }
            findings.push_back(
                ok(what, format("%zu shard%s of %s tokens: %s", shards.size(), shards.size() == 1 ? "" : "s",
                                count_text(double(tokens)).c_str(), pattern.c_str())));
        } catch (const Error& error) {
            findings.push_back(fail(what, error));
        }
    };
    for (const DataSource& source : data_sources(config.train_data)) look("training data", source.pattern);
    if (config.val_data.empty())
        findings.push_back(ok("validation data", "none asked for"));
    else
        look("validation data", config.val_data);
    const std::string path = config.tokenizer_path();
    std::error_code ignored;
    if (config.tokenizer.empty() && !fs::exists(path, ignored)) {
        findings.push_back(
            warn("tokenizer", path + " is not there", "without one there are no samples and no bits per byte"));
        return findings;
    }
    try {
        *vocab_size = load_tokenizer(path).vocab_size();
        findings.push_back(ok("tokenizer", format("%ld tokens: %s", *vocab_size, path.c_str())));
    } catch (const Error& error) {
        findings.push_back(fail("tokenizer", error));
    }
    const bool has_shards = findings[0].grade == Finding::Grade::ok && findings[1].grade == Finding::Grade::ok;
    const int64_t models = config.model.vocab_size > 0 ? config.model.vocab_size : *vocab_size;
    if (has_shards && models > 0) findings.push_back(look_for_foreign_tokens(config, models));
    return findings;
}

Finding check_cpu_peak(const RunFlags& config) {
    Cpu cpu(config.threads);
    const std::string dtype = config.dtype == "auto" ? cpu_kernels().matmul_rates().faster() : config.dtype;
    const DevicePeak peak =
        dtype == "bf16" ? peak_of<bf16>(cpu, config.peak_flops) : peak_of<float>(cpu, config.peak_flops);
    if (peak.flops <= 0) return ok("MFU", "none, as peak-flops = 0 says");
    return ok("MFU", format("of %s (%s, threads: %d)", peak.text().c_str(), dtype.c_str(), cpu.num_threads));
}

int doctor(const CommandLine& line) {
#ifdef __clang__
    const char* compiler = "";  // the version text begins with the compiler's name
#else
    const char* compiler = "g++ ";
#endif
    std::vector<Finding> findings = {ok("build", format("%s, by %s%s", build_id(), compiler, __VERSION__))};
    const auto add = [&](const std::vector<Finding>& more) {
        findings.insert(findings.end(), more.begin(), more.end());
    };
    RunRequest request{line.run, {}, nullptr};
    Launch launch;
    const Finding launched = check_launch(request.flags.launch, std::getenv, &launch);
    const CpuKernels& kernels = cpu_kernels();
    findings.push_back(check_processor(cpuinfo(), level_in_use(kernels.level), highest_level(cpuid_facts())));
    findings.push_back(ok("GEMMs", "--dtype auto on the CPU: " + kernels.matmul_rates().text()));
#ifndef _OPENMP
    findings.push_back(warn("threads", "this build has no OpenMP: one thread", "install libgomp1 or use g++, make"));
#endif
    GpuFacts gpu = look_at_gpu(std::max(0, launch.local_rank));
    gpu.on_host = host_gpus();
    findings.push_back(check_gpu(request.flags, gpu));
    if (request.flags.device != "cpu" && gpu.peak.flops > 0)
        findings.push_back(ok("MFU", "of " + gpu.peak.text() + ", in bf16"));
    else
        findings.push_back(check_cpu_peak(request.flags));
    if (!gpu.bias_gradients.empty()) findings.push_back(ok("gradients of biases", gpu.bias_gradients));
    std::vector<std::string> links = {cuda_gpu_links(), network_text()};
    std::erase(links, "");
    if (!links.empty()) findings.push_back(ok("links", joined(links)));
    add(check_libraries(build_libraries(), gpu.is_built));

    findings.push_back(launched);
    rlimit files = {};
    getrlimit(RLIMIT_NOFILE, &files);
    struct statvfs shared = {};
    statvfs("/dev/shm", &shared);
    add(check_limits(launch.world_size, files.rlim_cur, size_t(shared.f_bavail) * shared.f_frsize));
    char host_name[256] = "";
    gethostname(host_name, sizeof(host_name) - 1);
    add(check_network(launch, host_name));

    // The flags, and the checkpoint or model that they name.
    int64_t vocab_size = 0;
    size_t checkpoint_bytes = 0;
    std::vector<Finding> data;
    const std::unique_ptr<Ranks> alone = join(Launch{}, 1);
    try {
        request = find_request(line, *alone);
        data = check_data(request.flags, &vocab_size);
        // Weights of two bytes with master weights, or of four bytes; and two moments.
        GptShape shape = find_shape(request, vocab_size);
        shape.lora = request.flags.lora();
        checkpoint_bytes = 14 * size_t(ParameterList(shape).num_learned);
        findings.push_back(ok("run", request.resumed() ? "goes on from " + request.checkpoint.path : "begins anew"));
    } catch (const Error& error) {
        findings.push_back(fail("run", error));
    }
    add(data.empty() ? check_data(request.flags, &vocab_size) : data);
    findings.push_back(check_disk(request.flags, checkpoint_bytes));
    // Last, because other ranks may take longer for the checks before.
    if (launch.meet == Launch::Meet::at_address && launch.world_size > 1)
        findings.push_back(check_link(launch, std::min(line.run.comm_timeout_s, kLinkTimeoutS)));

    std::printf("%s", printable(text_of(findings, launch.rank)).c_str());
    const bool failed = std::any_of(findings.begin(), findings.end(),
                                    [](const Finding& finding) { return finding.grade == Finding::Grade::fail; });
    return failed ? kExitUsage : kExitOk;
}

std::string text_of(const std::vector<Finding>& findings, int rank) {
    const char* const words[] = {"ok  ", "warn", "FAIL"};
    int count[3] = {};
    std::string text;
    for (const Finding& finding : findings) {
        count[int(finding.grade)]++;
        if (rank > 0 && finding.grade == Finding::Grade::ok) continue;
        text += std::string(words[int(finding.grade)]) + "  " + (rank > 0 ? format("rank %d: ", rank) : "") +
                finding.what + ": " + finding.found + (finding.todo.empty() ? "" : " -> " + finding.todo) + "\n";
    }
    if (rank == 0) text += format("%d ok, %d warn, %d FAIL\n", count[0], count[1], count[2]);
    return text;
}
