// See control_groups.h. https://docs.kernel.org/admin-guide/cgroup-v2.html, .../cgroup-v1/cgroups.html
#include "llmc/base/control_groups.h"
#include <fstream>

std::vector<ControlGroup> control_groups(const std::string& controller, const std::string& root) {
    std::vector<ControlGroup> groups;
    // "0::/a/b" in v2, "4:cpu,memory:/a/b" in v1. In a container the path may be the host's, of which only a prefix
    // exists here. So all parent groups are listed.
    std::ifstream file(root + "/proc/self/cgroup");
    for (std::string line; std::getline(file, line);) {
        const size_t first = line.find(':'), second = line.find(':', first + 1);
        if (second == std::string::npos) continue;
        const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
        const bool is_v2 = controllers == ",,";
        if (!is_v2 && controllers.find("," + controller + ",") == std::string::npos) continue;
        const std::string top = root + "/sys/fs/cgroup" + (is_v2 ? "" : "/" + controller);
        for (std::string path = line.substr(second + 1);; path.resize(path.rfind('/'))) {
            if (path == "/") path.clear();
            groups.push_back({top + path, is_v2});
            if (path.find('/') == std::string::npos) break;
        }
    }
    return groups;
}
