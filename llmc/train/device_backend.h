// A Backend for a device and an element type: each is instantiated in a file of its own. See backend.h.
#pragma once
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include "llmc/base/build_id.h"         // build_id
#include "llmc/comm/bench_comm.h"       // bench_comm
#include "llmc/comm/handshake.h"        // check_alike
#include "llmc/train/backend.h"         // Backend
#include "llmc/train/device_session.h"  // DeviceSession
#include "llmc/train/generate.h"        // generate

template <class Device, class T>
class DeviceBackend : public Backend {
public:
    template <class... Arguments>
    explicit DeviceBackend(Arguments&&... arguments) : device_(std::forward<Arguments>(arguments)...) {}

    std::unique_ptr<Session> open_session(World& world, const Start& start) override {
        return std::make_unique<DeviceSession<Device, T>>(device_, world, start);
    }

    std::string memory_table(World& world, const Start& start) override {
        const Setup<Device, T> setup(device_, world, start);
        return setup.memory(setup.how, setup.config().recompute_mode()).table(setup.memory_bytes());
    }

    void generate(World& world, const Start& start, const std::string& tokenizer_path) override {
        ::generate<T>(device_, world, start, tokenizer_path);
    }

    std::string bench_comm(World& world, const TrainConfig& config) override {
        require(!world.is_alone(),
                "--bench-comm measures what ranks exchange, and this is one: start it with mpirun, or give "
                "--virtual-ranks");
        check_alike(world.ranks, {{"the build", build_id()},
                                  {"the device", kind_of(device_)},
                                  {"--bench-comm-mib", std::to_string(config.bench_comm_mib)}});
        const std::unique_ptr<Comm<Device>> comm = make_comm(world, device_, config);
        return ::bench_comm(*comm, device_, world.ranks, size_t(config.bench_comm_mib) << 20);
    }

private:
    Device device_;
};
