// What commands other than `train` take besides a run's flags (command.h).
#pragma once
#include <string>

struct GenerateOptions {
    std::string prompt;  // the text to continue, or @FILE
    int num_samples = 1;
};

struct ChatOptions {
    std::string message;  // the only one; "": those on standard input
    std::string system;   // what the model is told first
    std::string chat_template = "auto";
};

// 0: that GPU's figure (llmc/trace/gpus.h).
struct PlanOptions {
    std::string gpu = "H100", world_size = "1";  // lists: "H100,4090", "8,64"
    double memory_gb = 0, tflops = 0, bandwidth = 0, network = 0, usd_per_hour = 0;
    std::string trace = "";      // a file; "": none
    std::string calibrate = "";  // results of benchmarks, a list; "": none
};

struct ExportOptions {
    std::string format = "hf";
};

struct BenchCommOptions {
    int mib = 256;  // of the largest buffer
};
