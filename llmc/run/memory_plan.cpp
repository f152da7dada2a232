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
    text.pop_back();
    return text;
}
