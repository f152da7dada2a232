/*
What a GPU can do at most, by its name: FLOP/s in bf16 with fp32 sums, dense, as its vendor states them. MFU is the part
of that which the model's own arithmetic reaches (PaLM, Chowdhery et al., 2022, appendix B).

  peak_bf16_flops("NVIDIA H100 80GB HBM3")     989e12
*/
#pragma once
#include <string>

// 0: not known.
inline double peak_bf16_flops(const std::string& gpu_name) {
    // The first whose words are all in the name counts: variants with less power come before the card itself, and names
    // that others contain after those.
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
