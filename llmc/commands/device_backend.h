// A Backend for a device and an element type: each is instantiated in a file of its own. See backend.h.
#pragma once
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include "llmc/base/build_id.h"         // build_id
#include "llmc/comm/bench_comm.h"       // bench_comm
#include "llmc/comm/handshake.h"        // check_alike
#include "llmc/commands/answer.h"       // answer_requests
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

    void run_command(World& world, const CommandLine& line, const RunRequest& request) override {
        const std::string& tokenizer = line.run.tokenizer;  // "": the model's own
        if (line.run.command == Command::generate)
            return generate<T>(device_, world, request, tokenizer, line.generate);
        if (line.run.command == Command::chat) return chat<T>(device_, world, request, tokenizer, line.chat);
        if (line.run.command == Command::answer)
            return answer_requests<T>(device_, world, request, tokenizer, line.answer.requests);
        if (line.run.command == Command::bench_comm) return world.print(bench_comm(world, line.run, line.bench_comm));
        const PreparedRun<Device, T> run = prepare<T>(device_, world, request);
        const bool is_assumed = assumes_vocabulary(request.flags) && !request.resumed() && !request.source;
        const RunConfig& config = run.config;
        world.print(config.derivation + (is_assumed ? kAssumedVocabulary : "") +
                    run.memory.plan(config.step).table(run.memory.limit()) + "\n");
    }

private:
    Device device_;

    std::string bench_comm(World& world, const RunFlags& flags, const BenchCommOptions& options) {
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
};
