// The flags of commands other than `train`, in addition to those of a run (command.h).
#pragma once
#include <string>

struct GenerateOptions {
    std::string prompt = "\n";  // the text to continue, or @FILE
    int num_samples = 1;
};

struct ChatOptions {
    std::string message;  // a single message; "": read messages from standard input
    std::string system;   // the system message
    std::string chat_template = "auto";
};

struct AnswerOptions {
    std::string requests;  // a file
};

// 0 stands for the GPU's own figure (llmc/plan/gpus.h).
struct PlanOptions {
    std::string gpu = "H100", world_size = "1";  // lists: "H100,4090", "8,64"
    double memory_gb = 0, tflops = 0, bandwidth = 0, network = 0, usd_per_hour = 0;
    bool fit = false;            // search for the fastest flags that fit
    std::string trace = "";      // path of the trace; "": none
    std::string calibrate = "";  // paths of benchmark results, a list; "": none
};

struct ExportOptions {
    std::string format = "hf";
};

struct BenchCommOptions {
    int mib = 256;          // of the largest buffer
    std::string json = "";  // a file to which rows are appended; "": none
};
