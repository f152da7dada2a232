/*
The FLOP/s that a device does at most. MFU is the part of that which the model's own arithmetic reaches (PaLM, Chowdhery
et al., 2022, appendix B). Of a GPU in the table it is its vendor's figure: bf16 with fp32 sums, dense. Of any other
device, and in fp32, it is measured once and kept in the user's cache, so that later runs start as fast as before and
their MFU is a part of the same figure.

  peak_bf16_flops("NVIDIA H100 80GB HBM3")                        989e12
  find_peak("auto", peak_bf16_flops(name), folder, key, measure)  {989e12, "the vendor's figure"}
*/
#pragma once
#include <functional>
#include <optional>
#include <string>
#include "llmc/base/profile.h"  // PeakRates
#include "llmc/comm/ranks.h"    // Ranks

// By the name that the driver gives a GPU. 0: not known.
double peak_bf16_flops(const std::string& gpu_name);

struct DevicePeak {
    double flops = 0;      // a second; 0: not known
    std::string how = "";  // "measured: multiply-adds in registers"

    std::string text() const;  // "0.268 TFLOP/s, measured: multiply-adds in registers"
};

// --peak-flops: a number, "auto" or "measure", which are none; an Error for anything else.
std::optional<double> given_peak(const std::string& asked);

// `vendors` is a figure from the table, or 0. A measurement is read from `folder` (user_cache.h) if it was made for the
// same `key`, else made and kept there; one that fails leaves the peak unknown.
DevicePeak find_peak(const std::string& asked, double vendors, const std::string& folder, const std::string& key,
                     const std::function<PeakRates()>& measure);

// Of all ranks, each with its own; 0 if one is not known. `shares_device`: they are threads of one process with one
// device, whose figure is the first rank's.
double peak_of_all(Ranks& ranks, double own, bool shares_device);

// Which processor that is, of the content of /proc/cpuinfo: its model's name, or on Arm its numbers.
std::string processor_text(const std::string& cpuinfo);
