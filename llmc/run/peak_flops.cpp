// See peak_flops.h.
#include "llmc/run/peak_flops.h"
#include <cmath>
#include <cstdlib>
#include <exception>
#include <sstream>
#include "llmc/base/check.h"       // format, require
#include "llmc/base/hash.h"        // hex64, xxh3
#include "llmc/base/json.h"        // Json
#include "llmc/base/user_cache.h"  // cached_text, cache_text

double peak_bf16_flops(const std::string& gpu_name) {
    // The first entry whose words are all in the name counts. So variants with less power come before the card itself,
    // and a name that others contain comes after these.
    struct Peak {
        const char *name, *variant;
        double tflops;
    };
    static constexpr Peak kPeaks[] = {
        {"GB200", "", 2500},     {"B200", "", 2250},      {"B100", "", 1800},     {"H200", "NVL", 836},
        {"H200", "PCIe", 836},   {"H200", "", 989},       {"H100", "NVL", 835},   {"H100", "PCIe", 756},
        {"H100", "", 989},       {"H800", "PCIe", 756},   {"H800", "", 989},      {"A100", "", 312},
        {"A800", "", 312},       {"A40", "", 149.7},      {"A30", "", 165},       {"L40S", "", 362},
        {"RTX 5090", "", 209.5}, {"RTX 4090", "", 165.2}, {"RTX 3090", "", 71.2}, {"NVIDIA L4", "", 121},
    };
    const auto has = [&](const std::string& words) {
        const size_t at = gpu_name.find(words);
        if (at == std::string::npos) return false;
        // "A40" is not in "A4000", "L4" not in "L40".
        const size_t end = at + words.size();
        return words.empty() || end == gpu_name.size() || gpu_name[end] == ' ' || gpu_name[end] == '-';
    };
    for (const Peak& peak : kPeaks)
        if (has(peak.name) && has(peak.variant)) return peak.tflops * 1e12;
    return 0;
}

std::string DevicePeak::text() const { return format("%.3g TFLOP/s, %s", flops * 1e-12, how.c_str()); }

std::optional<double> given_peak(const std::string& asked) {
    if (asked == "auto" || asked == "measure") return {};
    char* end = nullptr;
    const double flops = std::strtod(asked.c_str(), &end);
    require(end != asked.c_str() && *end == 0 && std::isfinite(flops) && flops >= 0,
            "peak-flops = %s: expected auto, measure, or FLOP/s, 165e12 for example (0: no MFU)", asked.c_str());
    return flops;
}

namespace {

// Whether a figure is plausible. One from a damaged file or a stopped clock may not be.
bool makes_sense(double flops) { return flops > 1e6 && flops < 1e18; }

DevicePeak measured(double flops, const std::string& what) { return {flops, "measured: " + what}; }

}  // namespace

DevicePeak find_peak(const std::string& asked, double vendors, const std::string& folder, const std::string& key,
                     const std::function<PeakRates()>& measure) {
    if (const std::optional<double> flops = given_peak(asked)) return {*flops, "as peak-flops says"};
    if (asked == "auto" && vendors > 0) return {vendors, "the vendor's figure"};
    const std::string name = "peak-" + hex64(xxh3(key.data(), key.size())) + ".json";
    try {
        if (asked == "auto") {
            const Json kept = parse_json(cached_text(folder, name));
            const auto of_type = [&](const char* member, auto is_type) {
                return kept.is_object() && kept.contains(member) && (kept[member].*is_type)();
            };
            if (of_type("device", &Json::is_string) && kept["device"] == key && of_type("flops", &Json::is_number) &&
                makes_sense(kept["flops"]) && of_type("of", &Json::is_string))
                return measured(kept["flops"], kept["of"]);
        }
        const PeakRates rates = measure();
        if (!makes_sense(rates.flops)) return {};
        cache_text(folder, name,
                   json_text(Json{{"device", key}, {"flops", rates.flops}, {"of", rates.flops_text}}) + "\n");
        return measured(rates.flops, rates.flops_text);
    } catch (const std::exception&) {
        return {};  // for example, if the GPU's memory is full: a run must not fail because of its MFU
    }
}

double peak_of_all(Ranks& ranks, double own, bool shares_device) {
    const double all = ranks.joined_value(own, "its device's peak", [&](double a, double b) {
        return shares_device ? a : a > 0 && b > 0 ? a + b : 0;
    });
    ranks.require_sense(all >= 0 && std::isfinite(all), 0, "the devices' peak");
    return all;
}

std::string processor_text(const std::string& cpuinfo) {
    std::istringstream lines(cpuinfo);
    std::string text;
    for (std::string line; std::getline(lines, line) && !line.empty();)  // the first processor's lines
        for (const char* name : {"model name", "CPU implementer", "CPU variant", "CPU part", "CPU revision"})
            if (line.starts_with(name) && line.find(": ") != std::string::npos)
                text += (text.empty() ? "" : " ") + line.substr(line.find(": ") + 2);
    return text;
}
