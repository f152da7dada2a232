/*
The ranks that train together. They exchange gradients over a Comm (make_comm() in devices.h).

  in_world(line, [&](World& world) {              once per rank
      ...
  });
*/
#pragma once
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <memory>
#include <string>
#include "llmc/base/build_id.h"        // build_id
#include "llmc/base/script.h"          // with_installed_names
#include "llmc/comm/comm.h"            // Comm
#include "llmc/comm/handshake.h"       // check_connected, check_alike
#include "llmc/comm/launch/islands.h"  // IslandRanks
#include "llmc/comm/launch/launch.h"   // detect_launch, join
#include "llmc/comm/local.h"           // LocalGroup, LocalPart, LocalRanks
#include "llmc/comm/ranks.h"           // Ranks, SharedError, share_errors
#include "llmc/comm/watchdog.h"        // Watchdog
#include "llmc/data/utf8.h"            // printable
#include "llmc/run/command.h"          // CommandLine
#include "llmc/run/stop.h"             // stop_signal
#include "llmc/run/supervise.h"        // Supervised

// A process's place among those on the same host: its GPU, or its share of the cores.
struct Place {
    int gpu = 0;           // the number of its GPU on the host
    int processes = 1;     // how many processes share the host's cores
    bool is_first = true;  // rank 0, which prints messages for all
};

struct World {
    Ranks& ranks;
    LocalGroup* group = nullptr;               // not null: ranks are virtual
    std::string source;                        // "2 virtual ranks"
    std::shared_ptr<IslandRanks> island = {};  // with --islands: this rank's; set by prepare()

    // The ranks that reduce gradients together.
    Ranks& together() { return island ? static_cast<Ranks&>(*island) : ranks; }
    LocalPart local_part() { return {*group, island ? island->first() : 0, together().world_size}; }
    bool is_first() const { return ranks.rank == 0; }
    bool is_alone() const { return ranks.world_size == 1; }
    void print(const std::string& text) const {
        if (is_first()) std::printf("%s", text.c_str());
    }
    // Sets the step for messages about a collective that hangs.
    template <class Device>
    void set_step(Comm<Device>& comm, int64_t step) const {
        comm.set_step(step);
        if (Watchdog* watchdog = ranks.watchdog()) watchdog->set_step(step);
    }
    Place place() const { return group ? Place{0, 1, is_first()} : Place{ranks.device, ranks.local_size, is_first()}; }
};

// (name, value) of all that must be equal on all ranks before they read anything.
inline std::vector<std::pair<std::string, std::string>> alike(const CommandLine& line) {
    std::vector<std::pair<std::string, std::string>> all = {{"the build", build_id()}};
    for (const auto& flag : line.shared_flags()) all.push_back(flag);
    return all;
}

// Thrown in place of an error that has been printed.
struct PrintedError : Error {
    using Error::Error;
};

// The exit code for an error that ends the program. Prints the error, unless that is done: in a single write, so that
// the lines of several ranks do not mix.
inline int exit_code_of(const std::exception& error, int rank = 0) {
    const Error* const ours = dynamic_cast<const Error*>(&error);
    const bool of_files = dynamic_cast<const std::filesystem::filesystem_error*>(&error);  // an unreadable folder
    if (!dynamic_cast<const PrintedError*>(&error)) {
        std::fflush(stdout);
        const std::string who = rank > 0 ? format("rank %d: ", rank) : "";
        std::fprintf(stderr, "error: %s%s\n", who.c_str(), printable(with_installed_names(error.what())).c_str());
    }
    return ours ? ours->exit_code : of_files ? kExitUsage : kExitInternal;
}

// Lost output is an error, because printing is part of the command. In a training run it is only a warning, because
// log.jsonl has the same records.
inline void check_output(bool is_training) {
    if (std::fflush(stdout) == 0 && !std::ferror(stdout)) return;
    const char* const lost = "standard output could not be written, and some of it is lost";
    require(is_training, "%s: is its disk full?", lost);
    std::fprintf(stderr, "warning: %s; log.jsonl has all steps\n", lost);
}

// Connects the ranks and calls body(world) once per rank. An Error that all ranks throw, such as that in one's command
// line, is printed once, before any of them ends, because a launcher that sees one end kills the others.
template <class Body>
void in_world(const CommandLine& line, Body&& body) {
    const RunFlags& flags = line.run;
    Launch launch = detect_launch(flags.launch);
    launch.numbers_anew = flags.launch.supervise, launch.may_go_without = Supervised::has_saved();
    launch.waits_for_port = Supervised::is_restarted();
    if (flags.virtual_ranks > 0) {
        require(
            launch.meet == Launch::Meet::nobody,
            "--virtual-ranks %d are of one process, and this is one of several: leave the flag out, or the launcher",
            flags.virtual_ranks);
        LocalGroup group(flags.virtual_ranks);
        return group.run([&](int rank) {
            LocalRanks ranks(group, rank);
            World world{ranks, &group, std::to_string(group.world_size) + " virtual ranks in one process"};
            body(world);
        });
    }
    // With lazy loading the first launch of a kernel may wait until the GPU is idle: a deadlock if the GPU runs a
    // collective in which other ranks wait for this one. Set before the first CUDA call, which MPI may make.
    if (launch.meet != Launch::Meet::nobody && flags.device != "cpu") setenv("CUDA_MODULE_LOADING", "EAGER", 0);
    if (!launch.interface.empty()) setenv("NCCL_SOCKET_IFNAME", ("=" + launch.interface).c_str(), 0);
    std::unique_ptr<Ranks> ranks;
    try {
        ranks = join(launch, flags.comm_timeout_s, stop_signal);
    } catch (const Error&) {
        if (line.error) std::rethrow_exception(line.error);
        throw;
    }
    if (Watchdog* watchdog = ranks->watchdog()) watchdog->disk_timeout_s = flags.io_timeout_s;
    check_connected(*ranks);
    if (launch.meet == Launch::Meet::at_address) launch.world_size = ranks->world_size;
    World world{*ranks, nullptr, launch.describe()};
    try {
        share_errors(*ranks, [&] {
            if (line.error) std::rethrow_exception(line.error);
        });
        check_alike(*ranks, alike(line));
        body(world);
    } catch (const SharedError& error) {
        if (world.is_first()) exit_code_of(error);
        ranks->barrier();
        throw PrintedError(error.exit_code, error.what());
    } catch (const std::exception& error) {
        throw PrintedError(exit_code_of(error, ranks->rank), error.what());
    }
}
