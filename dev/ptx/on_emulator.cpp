/*
Tests on the emulator execute kernels here if ANVIL_PTX names a folder with PTX of them (`make run-ptx`): the launchers,
their grids and arguments are the engine's own, and a kernel's name is that of its host function, which g++ and nvcc
mangle alike. Kernels of which there is no PTX, those of tests, are the emulator's. At exit the names of all that ran
are added to the file ANVIL_PTX_RAN.
*/
#include <dlfcn.h>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include "dev/emulator/emulator.h"
#include "dev/ptx/machine.h"
#include "llmc/base/check.h"  // Error
#include "llmc/base/file.h"   // read_file

namespace ptx {

namespace {

class Library {
public:
    explicit Library(const std::string& folder) {
        std::set<std::string> paths;  // in order: of several files with a kernel the first counts
        for (const auto& entry : std::filesystem::directory_iterator(folder))
            if (entry.path().extension() == ".ptx") paths.insert(entry.path());
        for (const std::string& path : paths) {
            modules_.push_back(std::make_unique<Module>(read_file(path)));
            for (const std::string& name : modules_.back()->names()) by_name_.emplace(name, modules_.back().get());
        }
        require(!by_name_.empty(), "ANVIL_PTX=%s: there are no kernels", folder.c_str());
    }
    ~Library() {
        const char* const path = std::getenv("ANVIL_PTX_RAN");
        if (!path) return;
        std::ofstream file(path, std::ios::app);
        for (const std::string& name : ran_) file << name << "\n";
    }
    const Kernel* find(const void* function) {
        Dl_info info;
        if (!dladdr(function, &info) || !info.dli_sname || info.dli_saddr != function) return nullptr;
        const auto found = by_name_.find(info.dli_sname);
        if (found == by_name_.end()) return nullptr;
        ran_.insert(info.dli_sname);
        return &found->second->kernel(info.dli_sname);
    }

private:
    std::vector<std::unique_ptr<Module>> modules_;
    std::map<std::string, Module*> by_name_;
    std::set<std::string> ran_;
};

bool run_launch(const void* function, dim3 grid, dim3 block, size_t shared_bytes,
                const std::vector<emulator::Argument>& arguments) {
    static Library library(std::getenv("ANVIL_PTX"));
    try {
        const Kernel* const kernel = library.find(function);
        if (!kernel) return false;
        Launch launch{.kernel = kernel,
                      .grid = {grid.x, grid.y, grid.z},
                      .block = {block.x, block.y, block.z},
                      .dynamic_bytes = uint32_t(shared_bytes),
                      .parameters = std::vector<char>(kernel->parameter_bytes),
                      .allocation_of = emulator::allocation_of};
        ensure(arguments.size() == kernel->parameters.size());
        for (size_t i = 0; i < arguments.size(); i++) {
            const Parameter parameter = kernel->parameters[i];
            if (arguments[i].bytes != parameter.bytes)
                throw Fault("PTX of " + kernel->name + ": argument " + std::to_string(i) + " has " +
                            std::to_string(arguments[i].bytes) + " bytes, expected " + std::to_string(parameter.bytes));
            std::memcpy(launch.parameters.data() + parameter.at, arguments[i].data, parameter.bytes);
        }
        const emulator::Options& options = emulator::options();
        launch.order = options.schedule == emulator::Schedule::in_order  ? Order::first
                       : options.schedule == emulator::Schedule::reverse ? Order::last
                                                                         : Order::random;
        launch.seed = options.seed;
        run(launch);
    } catch (const Fault& fault) {
        throw Error(kExitInternal, fault.what());
    }
    return true;
}

[[maybe_unused]] const bool is_set = [] {
    if (std::getenv("ANVIL_PTX")) emulator::run_elsewhere = run_launch;
    return true;
}();

}  // namespace

}  // namespace ptx
