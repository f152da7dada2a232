// A build without NCCL: llmc/comm/gpu/nccl_comm.h.
#include "llmc/comm/gpu/nccl_comm.h"
#include "llmc/base/build_id.h"  // nvidia_package

std::string nccl_version() { return ""; }

std::unique_ptr<Comm<Cuda>> make_nccl_comm(Ranks&, Cuda&, Order) {
    throw Error(kExitUsage,
                "this build of Anvil has no NCCL, which several GPUs need: install libnccl-dev, or `pip install " +
                    nvidia_package("nccl") +
                    "`, or set NCCL_HOME, then build again (`make info` tells what was found)");
}
