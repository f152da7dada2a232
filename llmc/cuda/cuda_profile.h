/*
Observers of a GPU's ops (llmc/base/op_scope.h): times by CUDA events for --profile, and NVTX ranges for NVIDIA's
profilers.

  CudaProfile profile(cuda);          as HostProfile in llmc/base/profile.h
  cuda.observer = &profile;

A slice lies between two events in the stream of its work, so that the host waits for none before finish(). Recording an
event costs the GPU a microsecond or so, which is part of the step that is profiled.
*/
#pragma once
#include <cstdint>
#include <memory>
#include <vector>
#include "llmc/base/profile.h"      // Profile
#include "llmc/cuda/cuda_device.h"  // Cuda

class CudaProfile : public Profile {
public:
    explicit CudaProfile(Cuda& cuda);
    ~CudaProfile() override;
    CudaProfile(const CudaProfile&) = delete;
    CudaProfile& operator=(const CudaProfile&) = delete;

protected:
    int track() const override;
    int64_t mark(const Slice& slice, bool begins) noexcept override;
    std::vector<int64_t> times() override;

private:
    struct Moment {
        cudaEvent_t event;
        int64_t base;  // the moment that its time counts from: the start of a step
        int track;
    };
    Cuda& cuda_;
    // The device's stream, then others as they are first used: of collectives (llmc/comm/gpu/cuda_comm.h) and copies.
    mutable std::vector<cudaStream_t> streams_;
    std::vector<Moment> moments_;
    int64_t base_ = 0;
    struct Last {
        int64_t moment = -1;
        bool begins = false;
    } last_[kTracks];
    cudaError_t first_error_ = cudaSuccess;  // the first failure
};

// Marks every op as an NVTX range (github.com/NVIDIA/NVTX) if Nsight Systems or another tool is attached; else null.
std::unique_ptr<OpObserver> nvtx_ranges();
