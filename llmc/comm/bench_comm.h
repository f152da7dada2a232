/*
Measures the speed of collectives, on any backend:

  const auto timings = time_collectives(comm, device, ranks);   all-reduce, reduce-scatter, all-gather; 1 KB to 256 MB
  comm_table(timings)                                           as Markdown
  comm_csv(timings)                                             one line each
  comm_rows(timings, device, comm.describe(), W, hosts)         lines of JSON, for `plan --calibrate`
  measure_bandwidth(comm, device, ranks)                        bytes/s, in a fraction of a second

Definitions are those of nccl-tests (doc/PERFORMANCE.md there): `bytes` is the whole buffer, the input of a
reduce-scatter and the output of an all-gather. Algorithm bandwidth is bytes / time. Bus bandwidth is the rate at which
each rank sends, and receives, in a ring: algorithm bandwidth times 2 (W - 1) / W for an all-reduce and (W - 1) / W for
the others. It does not depend on the number of ranks W if the links do not. measure_bandwidth() returns it, so the
predicted time of a collective is its ring's bytes divided by it. A time is the mean over several calls on the slowest
rank, because a training step waits for that rank.
*/
#pragma once
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>
#include "llmc/base/check.h"   // format
#include "llmc/base/memory.h"  // aligned
#include "llmc/comm/comm.h"    // Comm
#include "llmc/comm/ranks.h"   // Ranks

struct CommTiming {
    const char* what;
    size_t bytes;
    int calls;          // over which `seconds` is the mean
    double seconds;     // per call
    double ring_share;  // the fraction of `bytes` that a rank sends in a ring

    double bandwidth() const { return seconds > 0 ? double(bytes) / seconds : 0; }
    double bus_bandwidth() const { return bandwidth() * ring_share; }
};

// Times `call`: repeats it for about least_s seconds, at least three times. `data`: a buffer that `call` writes, which
// is read to wait for the device. Collective.
template <class Device, class Call>
CommTiming time_calls(Device& device, Ranks& ranks, const char* what, size_t bytes, float* data, double ring_share,
                      double least_s, Call&& call) {
    using Clock = std::chrono::steady_clock;
    const auto run = [&](int calls) {
        ranks.barrier();
        const Clock::time_point start = Clock::now();
        for (int i = 0; i < calls; i++) call();
        float last;
        copy_to_host(device, &last, data, 1);  // waits for the device
        return std::chrono::duration<double>(Clock::now() - start).count();
    };
    // The slowest rank's time is the same on all ranks, so that they all make the same number of calls.
    const auto slowest = [&](double seconds) {
        double most = 0;
        for (const double other : ranks.all_gather_values(seconds, "its time")) most = std::max(most, other);
        return most;
    };
    run(1);
    const double first = slowest(run(1));
    const int calls = int(std::clamp(least_s / std::max(first, 1e-7), 3., 1e4));
    return {what, bytes, calls, slowest(run(calls)) / calls, ring_share};
}

// Times all collectives at sizes of 1 KB, 4 KB, 16 KB, ..., at most most_bytes. Collective.
template <class Device>
std::vector<CommTiming> time_collectives(Comm<Device>& comm, Device& device, Ranks& ranks,
                                         size_t most_bytes = size_t(256) << 20, double least_s = 0.1) {
    std::vector<CommTiming> timings;
    const size_t all = size_t(comm.world_size);
    const double share = double(all - 1) / double(all);
    const size_t capacity = aligned(most_bytes) + all * sizeof(float);
    float* const data = static_cast<float*>(comm.allocate(capacity));
    float* const scratch = static_cast<float*>(comm.allocate(capacity));
    for (size_t wanted = 1 << 10; wanted <= most_bytes; wanted *= 4) {
        const size_t shard = wanted / sizeof(float) / all, bytes = shard * all * sizeof(float);
        const auto time = [&](const char* what, double ring_share, auto&& call) {
            timings.push_back(time_calls(device, ranks, what, bytes, data, ring_share, least_s, call));
        };
        time("all-reduce", 2 * share, [&] { comm.wait(comm.all_reduce(data, int64_t(shard * all))); });
        time("reduce-scatter", share, [&] { comm.wait(comm.reduce_scatter(data, int64_t(shard))); });
        time("all-to-all", share, [&] { comm.wait(comm.all_to_all_sum(data, int64_t(shard), scratch)); });
        time("all-gather", share, [&] { comm.wait(comm.all_gather(data, shard * sizeof(float))); });
    }
    comm.release(scratch, capacity);
    comm.release(data, capacity);
    return timings;
}

inline std::string comm_table(const std::vector<CommTiming>& timings) {
    std::string text = "| collective | KB | us | algorithm GB/s | bus GB/s |\n|---|---:|---:|---:|---:|\n";
    for (const CommTiming& t : timings)
        text += format("| %s | %.0f | %.1f | %.3f | %.3f |\n", t.what, double(t.bytes) / 1024, t.seconds * 1e6,
                       t.bandwidth() / 1e9, t.bus_bandwidth() / 1e9);
    return text;
}

inline std::string comm_csv(const std::vector<CommTiming>& timings) {
    std::string text = "collective,bytes,calls,us,algorithm_bytes_per_s,bus_bytes_per_s\n";
    for (const CommTiming& t : timings)
        text += format("%s,%zu,%d,%.3f,%.6g,%.6g\n", t.what, t.bytes, t.calls, t.seconds * 1e6, t.bandwidth(),
                       t.bus_bandwidth());
    return text;
}

// `device` and `how` are names without quotes.
inline std::string comm_rows(const std::vector<CommTiming>& timings, const std::string& device, const std::string& how,
                             int ranks, int hosts) {
    std::string text;
    for (const CommTiming& t : timings)
        text += format(
            "{\"type\": \"comm\", \"what\": \"%s\", \"device\": \"%s\", \"how\": \"%s\", \"ranks\": %d, \"hosts\": %d, "
            "\"buffer\": %zu, \"calls\": %d, \"us\": %.6g, \"bus_gb_per_s\": %.6g}\n",
            t.what, device.c_str(), how.c_str(), ranks, hosts, t.bytes, t.calls, t.seconds * 1e6,
            t.bus_bandwidth() * 1e-9);
    return text;
}

// The output of the command `bench-comm`. Rank 0 appends rows to the file `json`, unless that is "".
template <class Device>
std::string bench_comm(Comm<Device>& comm, Device& device, Ranks& ranks, size_t most_bytes,
                       const std::string& json = "", const std::string& device_name = "") {
    std::FILE* file = nullptr;
    // Opened before the measurements, which take minutes.
    on_first_rank(ranks, [&] {
        if (json.empty()) return;
        file = std::fopen(json.c_str(), "a");
        require(file, "--json %s: cannot be written: %s", json.c_str(), std::strerror(errno));
    });
    const std::vector<CommTiming> timings = time_collectives(comm, device, ranks, most_bytes);
    if (file) {
        const std::string rows = comm_rows(timings, device_name, comm.describe(), comm.world_size, ranks.num_hosts);
        const bool written = std::fwrite(rows.data(), 1, rows.size(), file) == rows.size();
        require(std::fclose(file) == 0 && written, "--json %s: cannot be written", json.c_str());
    }
    return comm.describe() + "\n\n" + comm_table(timings);
}

// The bus bandwidth in bytes/s, from an all-reduce that grows until its calls take 10 ms or it has 16 MiB. 0 for one
// rank. Collective.
template <class Device>
double measure_bandwidth(Comm<Device>& comm, Device& device, Ranks& ranks) {
    if (comm.world_size == 1) return 0;
    CommTiming timing = {};
    for (size_t bytes = 256 << 10; bytes <= 16 << 20 && timing.seconds * timing.calls < 0.01; bytes *= 4) {
        float* const data = static_cast<float*>(comm.allocate(bytes));
        timing = time_calls(device, ranks, "all-reduce", bytes, data, 2. * (comm.world_size - 1) / comm.world_size, 0,
                            [&] { comm.wait(comm.all_reduce(data, int64_t(bytes / sizeof(float)))); });
        comm.release(data, bytes);
    }
    return timing.bus_bandwidth();
}
