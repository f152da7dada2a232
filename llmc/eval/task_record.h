/*
The result of one task of a file (task_file.h). tasks.h computes it, and logs store it.
*/
#pragma once
#include <cstdint>
#include <string>

struct TaskRecord {
    std::string name;
    int64_t examples = 0, right = 0;
    double centered = 0;  // rescaled accuracy; 0: as good as guessing, 1: all right
    double accuracy() const { return double(right) / double(examples); }
};
