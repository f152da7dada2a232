// See memory_plan.h.
#include "llmc/run/memory_plan.h"
#include "llmc/base/check.h"  // format

std::string MemoryPlan::table(size_t available_bytes) const {
    std::string text = "memory plan, MiB\n";
    const auto row = [](const std::string& name, size_t bytes, const std::string& note) {
        const std::string line = format("  %-12s %10.1f  %s", name.c_str(), double(bytes) / (1 << 20), note.c_str());
        return line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
    };
    for (const Line& line : lines)
        if (line.bytes > 0) text += row(line.name, line.bytes, line.note);
    std::string free;
    if (available_bytes > 0) free = format("of %.1f that are free", double(available_bytes) / (1 << 20));
    if (taken_bytes > 0) free += format(", after %.1f taken by NCCL", double(taken_bytes) / (1 << 20));
    if (available_bytes > 0 && total_bytes() > available_bytes) free += ": it does not fit";
    text += row("total", total_bytes(), free);
    std::string host = "pinned, for the optimizer's state";
    if (free_host_bytes > 0) host += format(", of %.1f that are free", double(free_host_bytes) / (1 << 20));
    if (free_host_bytes > 0 && host_bytes > free_host_bytes) host += ": it does not fit";
    if (host_bytes > 0) text += row("host", host_bytes, host);
    text.pop_back();
    return text;
}

void check_host_fits(size_t bytes_of_each, int ranks, size_t free_bytes) {
    const double mib = 1 << 20, needed = double(bytes_of_each) * ranks;
    if (free_bytes == 0 || needed <= double(free_bytes)) return;
    throw Error(
        kExitUsage,
        format("out of host memory: --offload optimizer pins %.0f MiB on this host, %.0f for each of its ranks, "
               "and %.0f are free: take more hosts, --moments bf16, --offload optimizer:auto or none",
               needed / mib, double(bytes_of_each) / mib, double(free_bytes) / mib));
}
