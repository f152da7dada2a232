// A Backend for a device and an element type: each is instantiated in a file of its own. See backend.h.
#pragma once
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include "llmc/base/build_id.h"         // build_id
#include "llmc/comm/bench_comm.h"       // bench_comm
#include "llmc/comm/handshake.h"        // check_alike
#include "llmc/commands/backend.h"      // Backend
#include "llmc/commands/chat_loop.h"    // chat
#include "llmc/commands/generate.h"     // generate
#include "llmc/train/device_session.h"  // DeviceSession

template <class Device, class T>
class DeviceBackend : public Backend {
public:
    template <class... Arguments>
    explicit DeviceBackend(Arguments&&... arguments) : device_(std::forward<Arguments>(arguments)...) {}

    std::unique_ptr<Session> open_session(World& world, const RunRequest& request) override {
        return std::make_unique<DeviceSession<Device, T>>(device_, world, request);
    }

    std::string memory_table(World& world, const RunRequest& request) override {
        const PreparedRun<Device, T> run = prepare<T>(device_, world, request);
        const bool is_assumed = assumes_vocabulary(request.flags) && !request.resumed() && !request.source;
        return run.config.derivation + (is_assumed ? kAssumedVocabulary : "") +
               run.memory.plan(run.config.step, run.config.flags.recompute_mode()).table(run.memory.limit());
    }

    void generate(World& world, const RunRequest& request, const std::string& tokenizer_path,
                  const GenerateOptions& options) override {
        ::generate<T>(device_, world, request, tokenizer_path, options);
    }

    void chat(World& world, const RunRequest& request, const std::string& tokenizer_path,
              const ChatOptions& options) override {
        ::chat<T>(device_, world, request, tokenizer_path, options);
    }

    std::string bench_comm(World& world, const RunFlags& flags, const BenchCommOptions& options) override {
        require(
            !world.is_alone(),
            "`bench-comm` measures communication between ranks, and this is one rank: start it with mpirun, or give "
            "--virtual-ranks 2");
        check_alike(
            world.ranks,
            {{"the build", build_id()}, {"the device", kind_of(device_)}, {"--mib", std::to_string(options.mib)}});
        const std::unique_ptr<Comm<Device>> comm = make_comm(world, device_, flags);
        return ::bench_comm(*comm, device_, world.ranks, size_t(options.mib) << 20, options.json, kind_of(device_));
    }

private:
    Device device_;
};
