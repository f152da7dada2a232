/*
The control groups (cgroups v1 and v2) that contain this process: a container, a batch job, a slice. Each may have a
limit, and the lowest counts.
*/
#pragma once
#include <string>
#include <vector>

struct ControlGroup {
    std::string path;  // a folder; it may be missing
    bool is_v2;
};

// From the process's own group up to the top, for a controller ("cpu", "memory"). `root` is the folder that holds /proc
// and /sys.
std::vector<ControlGroup> control_groups(const std::string& controller, const std::string& root = "");
