/*
A device's peak FLOP/s. MFU is the fraction of it that the model's own arithmetic reaches (PaLM, Chowdhery et al., 2022,
arXiv:2204.02311, appendix B). For a GPU in the table the peak is the vendor's figure: dense bf16 with fp32
accumulation. For any other device, and for fp32, it is measured once and stored in the user's cache, so that later runs
start without a measurement and their MFU refers to the same figure.

  peak_bf16_flops("NVIDIA H100 80GB HBM3")                        989e12
  find_peak("auto", peak_bf16_flops(name), folder, key, measure)  {989e12, "the vendor's figure"}
*/
#pragma once
#include <functional>
#include <optional>
#include <string>
#include "llmc/base/profile.h"  // PeakRates
#include "llmc/comm/ranks.h"    // Ranks

// The vendor's figure for a GPU, by the name that the driver reports. 0: not in the table.
double peak_bf16_flops(const std::string& gpu_name);

struct DevicePeak {
    double flops = 0;      // FLOP/s; 0: not known
    std::string how = "";  // "measured: multiply-adds in registers"

    std::string text() const;  // "0.268 TFLOP/s, measured: multiply-adds in registers"
};

// The number that peak-flops gives; nullopt for "auto" and "measure". Throws an Error for anything else.
std::optional<double> given_peak(const std::string& asked);

// The peak for peak-flops `asked`. `vendors`: the figure from the table, or 0. A measurement is read from `folder`
// (user_cache.h) if it was made for the same `key`, else made and stored there. If it fails, the peak is not known.
DevicePeak find_peak(const std::string& asked, double vendors, const std::string& folder, const std::string& key,
                     const std::function<PeakRates()>& measure);

// The sum over all ranks' devices; 0 if one is not known. `shares_device`: ranks are threads of one process with a
// single device, and rank 0 has its figure. Collective.
double peak_of_all(Ranks& ranks, double own, bool shares_device);

// Identifies the processor from the content of /proc/cpuinfo: by its model name, or on Arm by its numbers.
std::string processor_text(const std::string& cpuinfo);
