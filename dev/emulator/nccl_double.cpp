// See nccl_double.h. What NCCL's calls mean is said in its user guide, "Collective Operations", "In-place Operations"
// and "Fault Tolerance".
#include "dev/emulator/nccl_double.h"
#include <nccl.h>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <vector>
#include "dev/emulator/emulator.h"
#include "llmc/base/bf16.h"   // bf16
#include "llmc/comm/local.h"  // LocalGroup

namespace emulator {
Nccl nccl;
void submit(cudaStream_t stream, std::function<void()> work);
}  // namespace emulator

using emulator::nccl;

struct ncclComm {
    int rank, size;
    int busy;  // questions until it is not
    ncclResult_t state = ncclSuccess;
    bool finalized = false;
    int64_t collectives = 0;
    cudaEvent_t event = nullptr;
    cudaStream_t stream = nullptr;
};

static ncclResult_t misuse(const std::string& text) {
    if (nccl.misuse.empty()) nccl.misuse = text;
    nccl.last_error = text;
    return ncclInvalidUsage;
}
static ncclResult_t begin(ncclComm_t comm, const char* call) {
    if (!comm) return misuse(format("%s without a communicator", call));
    if (comm->busy > 0) return misuse(format("%s while the communicator is busy", call));
    if (comm->finalized && std::strcmp(call, "ncclCommDestroy") != 0) return misuse(format("%s after finalize", call));
    comm->busy = nccl.questions;
    return ncclInProgress;
}

ncclResult_t ncclGetVersion(int* version) { return *version = NCCL_VERSION_CODE, ncclSuccess; }
ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
    std::memset(id->internal, 0x5A, sizeof id->internal);
    return ncclSuccess;
}
const char* ncclGetErrorString(ncclResult_t status) {
    switch (status) {
        case ncclUnhandledCudaError:
            return "unhandled cuda error";
        case ncclSystemError:
            return "system error";
        case ncclInvalidUsage:
            return "invalid usage";
        case ncclRemoteError:
            return "remote error";
        default:
            return "an error of the emulated NCCL";
    }
}
const char* ncclGetLastError(ncclComm_t) { return nccl.last_error.c_str(); }

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int size, ncclUniqueId id, int rank, ncclConfig_t* config) {
    if (config->blocking != 0) return misuse("a communicator that blocks");
    for (const char byte : id.internal)
        if (byte != 0x5A) return misuse("an id that is not rank 0's");
    if (size > 1 && (!nccl.group || nccl.group->world_size != size)) return misuse("ranks that are no LocalGroup");
    if (rank < 0 || rank >= size) return misuse("a rank that is not in the world");
    *comm = new ncclComm{rank, size, nccl.questions};
    nccl.communicators++;
    (*comm)->state = ncclResult_t(nccl.init_status);
    cudaEventCreate(&(*comm)->event);
    return ncclInProgress;
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* state) {
    if (comm->busy > 0 && !nccl.init_hangs) comm->busy--;
    *state = comm->busy > 0 ? ncclInProgress : nccl.fails_later ? ncclRemoteError : comm->state;
    return ncclSuccess;
}
static void free_comm(ncclComm_t comm) {
    cudaEventDestroy(comm->event);
    nccl.communicators--;
    delete comm;
}
ncclResult_t ncclCommFinalize(ncclComm_t comm) {
    const ncclResult_t status = begin(comm, "ncclCommFinalize");
    comm->finalized = true;
    return status;
}
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
    const ncclResult_t status = begin(comm, "ncclCommDestroy");
    if (!comm->finalized) return misuse("ncclCommDestroy before finalize");
    if (status == ncclInProgress) free_comm(comm);
    return status == ncclInProgress ? ncclSuccess : status;
}
ncclResult_t ncclCommAbort(ncclComm_t comm) {
    if (comm->stream) emulator::stall(comm->stream, false);
    nccl.aborted++;
    free_comm(comm);
    return ncclSuccess;
}

// ---- memory
// ----------------------------------------------------------------------------------------------------------
ncclResult_t ncclMemAlloc(void** data, size_t bytes) {
    if (nccl.refuses_memory || cudaMalloc(data, bytes) != cudaSuccess) return ncclUnhandledCudaError;
    nccl.buffers++;
    return ncclSuccess;
}
ncclResult_t ncclMemFree(void* data) {
    if (cudaFree(data) != cudaSuccess) return misuse("ncclMemFree of something else");
    nccl.buffers--;
    return ncclSuccess;
}
ncclResult_t ncclCommRegister(ncclComm_t comm, void* data, size_t, void** handle) {
    if (nccl.refuses_registration) return ncclInvalidUsage;
    nccl.registrations++;
    *handle = data;
    return begin(comm, "ncclCommRegister");
}
ncclResult_t ncclCommDeregister(ncclComm_t comm, void* handle) {
    if (!handle) return misuse("ncclCommDeregister of nothing");
    nccl.registrations--;
    return begin(comm, "ncclCommDeregister");
}

// ---- collectives
// -----------------------------------------------------------------------------------------------------
namespace {

struct Call {
    const char* name;
    size_t count;
    ncclDataType_t type;
    int root;
    const void* send;
    cudaEvent_t event;
};

size_t size_of(ncclDataType_t type) {
    return type == ncclUint8 ? 1 : type == ncclBfloat16 ? 2 : type == ncclUint64 ? 8 : 4;
}

// Every rank's stream waits for all the others', as in LocalComm<Cuda>. Gives what they brought.
std::vector<Call> meet(ncclComm_t comm, Call mine) {
    cudaEventRecord(comm->event, comm->stream);
    mine.event = comm->event;
    if (comm->size == 1) return {mine};
    std::vector<Call> all;
    for (const void* theirs : nccl.group->meet(comm->rank, &mine)) {
        all.push_back(*static_cast<const Call*>(theirs));
        if (all.back().event != comm->event) cudaStreamWaitEvent(comm->stream, all.back().event);
    }
    nccl.group->meet(comm->rank, nullptr);
    return all;
}

template <class T, class Add>
void add_up(void* to, const std::vector<Call>& all, size_t begin, size_t count, Add add) {
    // In a ring's order: the rank behind the first of them is the first to add, not rank 0.
    for (size_t i = 0; i < count; i++) {
        T sum = static_cast<const T*>(all.back().send)[begin + i];
        for (size_t r = 0; r + 1 < all.size(); r++) sum = add(sum, static_cast<const T*>(all[r].send)[begin + i]);
        static_cast<T*>(to)[i] = sum;
    }
}
void sum(void* to, const std::vector<Call>& all, size_t begin, size_t count, ncclDataType_t type) {
    if (type == ncclFloat32) add_up<float>(to, all, begin, count, [](float a, float b) { return a + b; });
    if (type == ncclUint64) add_up<uint64_t>(to, all, begin, count, [](uint64_t a, uint64_t b) { return a + b; });
    if (type == ncclBfloat16)
        add_up<bf16>(to, all, begin, count, [](bf16 a, bf16 b) { return to_bf16(to_float(a) + to_float(b)); });
}

// `compute` fills `bytes` of outcome from what all ranks brought, once that is there; they go to `receive` once all
// ranks have theirs.
template <class Compute>
ncclResult_t collective(const Call& call, void* receive, size_t bytes, bool in_place, ncclComm_t comm,
                        cudaStream_t stream, Compute compute) {
    if (const ncclResult_t status = begin(comm, call.name); status != ncclInProgress) return status;
    if (!in_place) return misuse(format("%s that is not in place", call.name));
    comm->stream = stream;
    nccl.collectives++;
    const int64_t number = comm->collectives++;
    if (number == nccl.fails_at) {
        nccl.last_error = "a peer has closed its connection";
        comm->state = ncclRemoteError;
        return ncclInProgress;
    }
    if (number == nccl.hangs_at) emulator::stall(stream, true);
    const std::vector<Call> all = meet(comm, call);
    for (const Call& other : all)
        if (std::strcmp(other.name, call.name) != 0 || other.count != call.count || other.type != call.type ||
            other.root != call.root)
            return misuse(format("%s of %zu, while another rank calls %s of %zu", call.name, call.count, other.name,
                                 other.count));
    const auto outcome = std::make_shared<std::vector<char>>(bytes);
    emulator::submit(stream, [=] { compute(outcome->data(), all); });
    meet(comm, call);
    emulator::submit(stream, [=] {
        if (bytes > 0) std::memcpy(receive, outcome->data(), bytes);
    });
    return ncclInProgress;
}

const void* at(const void* data, size_t offset) { return static_cast<const char*>(data) + offset; }

}  // namespace

ncclResult_t ncclBroadcast(const void* send, void* receive, size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream) {
    const size_t bytes = count * size_of(type);
    return collective({"ncclBroadcast", count, type, root, send, nullptr}, receive, bytes, send == receive, comm,
                      stream, [=](void* to, const std::vector<Call>& all) {
                          if (bytes > 0) std::memcpy(to, all[size_t(root)].send, bytes);
                      });
}
ncclResult_t ncclAllReduce(const void* send, void* receive, size_t count, ncclDataType_t type, ncclRedOp_t,
                           ncclComm_t comm, cudaStream_t stream) {
    return collective({"ncclAllReduce", count, type, -1, send, nullptr}, receive, count * size_of(type),
                      send == receive, comm, stream,
                      [=](void* to, const std::vector<Call>& all) { sum(to, all, 0, count, type); });
}
ncclResult_t ncclReduceScatter(const void* send, void* receive, size_t count, ncclDataType_t type, ncclRedOp_t,
                               ncclComm_t comm, cudaStream_t stream) {
    const size_t first = size_t(comm->rank) * count;
    return collective({"ncclReduceScatter", count, type, -1, send, nullptr}, receive, count * size_of(type),
                      receive == at(send, first * size_of(type)), comm, stream,
                      [=](void* to, const std::vector<Call>& all) { sum(to, all, first, count, type); });
}
ncclResult_t ncclAllGather(const void* send, void* receive, size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream) {
    const size_t bytes = count * size_of(type);
    return collective({"ncclAllGather", count, type, -1, send, nullptr}, receive, bytes * size_t(comm->size),
                      send == at(receive, size_t(comm->rank) * bytes), comm, stream,
                      [=](void* to, const std::vector<Call>& all) {
                          for (size_t r = 0; r < all.size() && bytes > 0; r++)
                              std::memcpy(static_cast<char*>(to) + r * bytes, all[r].send, bytes);
                      });
}
