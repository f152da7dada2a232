// See fake_nccl.h. NCCL's user guide specifies the calls: "Collective Operations", "In-place Operations" and "Fault
// Tolerance".
#include "dev/emulator/fake_nccl.h"
#include <nccl.h>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>
#include "dev/emulator/emulator.h"
#include "dev/emulator/process_ranks.h"  // ProcessRanks
#include "llmc/base/bf16.h"              // bf16
#include "llmc/comm/local.h"             // LocalGroup

namespace emulator {
Nccl nccl;
void submit(cudaStream_t stream, std::function<void()> work);
}  // namespace emulator

using emulator::nccl;

struct ncclComm {
    int rank, size;
    int world_rank;            // in the communicator that this was split from; all of its ranks make the same calls
    std::vector<int> members;  // this communicator's ranks in that one; empty: all
    ncclResult_t state = ncclSuccess;
    bool finalized = false;
    int64_t collectives = 0;
    cudaEvent_t event = nullptr;
    cudaStream_t stream = nullptr;
    std::atomic<int> threads = 0;                // that are inside a call
    std::map<const char*, size_t> registered{};  // buffers and their bytes
    std::set<std::string> connected{};           // kinds of collectives that were called
    std::vector<void*> taken{};                  // GPU memory of the communicator
    // Work that is still in a stream reads this: after an abort it must not touch memory, which may have been freed.
    std::shared_ptr<std::atomic<bool>> aborted = std::make_shared<std::atomic<bool>>(false);
    std::shared_ptr<emulator::ProcessRanks> processes = nullptr;  // the ranks, if they are processes
};

static std::mutex misuse_mutex;  // the watchdog thread calls NCCL, too
static ncclResult_t misuse(const std::string& text) {
    const std::lock_guard lock(misuse_mutex);
    if (nccl.misuse.empty()) nccl.misuse = text;
    nccl.last_error = text;
    return ncclInvalidUsage;
}

static bool is_faulty(int rank) { return nccl.faulty_rank < 0 || nccl.faulty_rank == rank; }
// This thread's rank in the group, for calls without a communicator.
static thread_local int this_rank = 0;

static ncclResult_t take(ncclComm_t comm, size_t bytes) {
    if (bytes == 0) return ncclSuccess;
    void* data = nullptr;
    if (cudaMalloc(&data, bytes) != cudaSuccess) return ncclUnhandledCudaError;
    comm->taken.push_back(data);
    return ncclSuccess;
}

// Detects two threads in a communicator at a time.
class Inside {
public:
    Inside(ncclComm_t comm, const char* call) : comm_(comm) {
        if (comm->threads++ > 0) misuse(format("%s while another thread is in the communicator", call));
    }
    ~Inside() { comm_->threads--; }
    Inside(const Inside&) = delete;

private:
    ncclComm_t comm_;
};

// The first check of every call but queries and aborts.
static ncclResult_t begin(ncclComm_t comm, const char* call) {
    if (!comm) return misuse(format("%s without a communicator", call));
    if (comm->finalized && std::strcmp(call, "ncclCommDestroy") != 0) return misuse(format("%s after finalize", call));
    if (comm->state == ncclSuccess) return ncclSuccess;
    const std::string kept = nccl.last_error;
    misuse(format("%s after the communicator has failed", call));
    nccl.last_error = kept;
    return ncclInvalidArgument;  // "Attempt to use communicator before the previous operation returned ncclSuccess"
}

ncclResult_t ncclGetVersion(int* version) {
    return *version = nccl.version ? nccl.version : NCCL_VERSION_CODE, ncclSuccess;
}
ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
    std::memset(id->internal, 0x5A, sizeof id->internal);
    if (nccl.group) return ncclSuccess;
    const std::string meeting = emulator::new_meeting();
    std::memcpy(id->internal, meeting.c_str(), meeting.size() + 1);
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
    *comm = nullptr;
    if (config->blocking != 1) return misuse("a communicator that makes a thread for every collective");
    for (const char byte : id.internal)
        if (nccl.group && byte != 0x5A) return misuse("an id that is not rank 0's");
    if (nccl.group && nccl.group->world_size != size) return misuse("a world that is not the LocalGroup's");
    if (rank < 0 || rank >= size) return misuse("a rank that is not in the world");
    while (nccl.init_hangs) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    this_rank = rank;
    if (is_faulty(rank) && nccl.init_status != ncclSuccess) return ncclResult_t(nccl.init_status);
    *comm = new ncclComm{rank, size, rank, {}};
    if (size > 1 && !nccl.group) (*comm)->processes = std::make_shared<emulator::ProcessRanks>(id.internal, rank, size);
    nccl.communicators++;
    cudaEventCreate(&(*comm)->event);
    return take(*comm, nccl.init_bytes);
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* state) {
    const Inside inside(comm, "ncclCommGetAsyncError");
    if (nccl.fails_later && is_faulty(comm->rank)) comm->state = ncclRemoteError;
    *state = comm->state;
    return ncclSuccess;
}
// Supports colors and keys as Anvil uses them: the ranks of a color keep their order in the world.
ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* part, ncclConfig_t*) {
    const Inside inside(comm, "ncclCommSplit");
    if (const ncclResult_t status = begin(comm, "ncclCommSplit"); status != ncclSuccess) return status;
    if (!comm->members.empty()) return misuse("ncclCommSplit of a part");
    if (key != comm->rank) return misuse("a key that is not the rank");
    std::vector<int> colors(size_t(comm->size), color);
    if (comm->processes) {
        const std::vector<std::vector<char>> all = comm->processes->exchange(&color, sizeof color);
        for (size_t r = 0; r < all.size(); r++) std::memcpy(&colors[r], all[r].data(), sizeof color);
    } else if (comm->size > 1) {
        const std::vector<const void*> all = nccl.group->meet(comm->rank, &color);
        for (size_t r = 0; r < all.size(); r++) colors[r] = *static_cast<const int*>(all[r]);
        nccl.group->meet(comm->rank, nullptr);
    }
    std::vector<int> members;
    for (int r = 0; r < comm->size; r++)
        if (colors[size_t(r)] == color) members.push_back(r);
    const int rank = int(std::find(members.begin(), members.end(), comm->rank) - members.begin());
    *part = new ncclComm{rank, int(members.size()), comm->rank, members};
    (*part)->processes = comm->processes;
    nccl.communicators++;
    cudaEventCreate(&(*part)->event);
    return take(*part, nccl.init_bytes);
}
static void free_comm(ncclComm_t comm) {
    cudaEventDestroy(comm->event);
    for (void* data : comm->taken) cudaFree(data);
    nccl.registrations -= int(comm->registered.size());
    nccl.communicators--;
    delete comm;
}
ncclResult_t ncclCommFinalize(ncclComm_t comm) {
    const Inside inside(comm, "ncclCommFinalize");
    const ncclResult_t status = begin(comm, "ncclCommFinalize");
    if (!comm->registered.empty()) return misuse("ncclCommFinalize with registered buffers");
    comm->finalized = true;
    return status;
}
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
    const ncclResult_t status = begin(comm, "ncclCommDestroy");
    if (!comm->finalized) return misuse("ncclCommDestroy before finalize");
    if (status == ncclSuccess) free_comm(comm);
    return status;
}
ncclResult_t ncclCommAbort(ncclComm_t comm) {
    if (comm->threads > 0) misuse("ncclCommAbort while another thread is in the communicator");
    *comm->aborted = true;
    if (comm->stream) emulator::stall(comm->stream, false);
    nccl.aborted++;
    free_comm(comm);
    return ncclSuccess;
}

// ---- memory ------------------------------------------------------------------------------------------------------
ncclResult_t ncclMemAlloc(void** data, size_t bytes) {
    if (nccl.refuses_memory && is_faulty(this_rank)) return ncclUnhandledCudaError;
    if (cudaMalloc(data, bytes) != cudaSuccess) return ncclUnhandledCudaError;
    nccl.buffers++;
    return ncclSuccess;
}
ncclResult_t ncclMemFree(void* data) {
    if (cudaFree(data) != cudaSuccess) return misuse("ncclMemFree of something else");
    nccl.buffers--;
    return ncclSuccess;
}
ncclResult_t ncclCommRegister(ncclComm_t comm, void* data, size_t bytes, void** handle) {
    const Inside inside(comm, "ncclCommRegister");
    if (const ncclResult_t status = begin(comm, "ncclCommRegister"); status != ncclSuccess) return status;
    if (nccl.refuses_registration && is_faulty(comm->rank)) return ncclInvalidUsage;
    nccl.registrations++;
    comm->registered[static_cast<char*>(data)] = bytes;
    *handle = data;
    return ncclSuccess;
}
ncclResult_t ncclCommDeregister(ncclComm_t comm, void* handle) {
    const Inside inside(comm, "ncclCommDeregister");
    if (const ncclResult_t status = begin(comm, "ncclCommDeregister"); status != ncclSuccess) return status;
    if (!comm->registered.erase(static_cast<char*>(handle))) return misuse("ncclCommDeregister of something else");
    nccl.registrations--;
    return ncclSuccess;
}

// ---- collectives -------------------------------------------------------------------------------------------------
namespace {

// A send to a peer, or a receive from it.
struct Message {
    const void* data;
    int peer;
};

struct Call {
    const char* name;
    size_t count;
    ncclDataType_t type;
    int root;
    const void* send;
    cudaEvent_t event = nullptr;
    bool registered = false;
    std::shared_ptr<const std::vector<Message>> sends = nullptr;  // of a group call, `count` elements each
};

size_t size_of(ncclDataType_t type) {
    return type == ncclUint8 ? 1 : type == ncclBfloat16 ? 2 : type == ncclUint64 ? 8 : 4;
}

// Each rank's stream waits for those of all others, as in LocalComm<Cuda>. Returns the calls of all ranks.
std::vector<Call> meet(ncclComm_t comm, Call mine) {
    cudaEventRecord(comm->event, comm->stream);
    mine.event = comm->event;
    if (nccl.group == nullptr || nccl.group->world_size == 1) return {mine};
    std::vector<Call> all;
    const std::vector<const void*> brought = nccl.group->meet(comm->world_rank, &mine);
    for (int i = 0; i < comm->size; i++) {
        all.push_back(
            *static_cast<const Call*>(brought[comm->members.empty() ? size_t(i) : size_t(comm->members[size_t(i)])]));
        if (all.back().event != comm->event) cudaStreamWaitEvent(comm->stream, all.back().event);
    }
    nccl.group->meet(comm->world_rank, nullptr);
    return all;
}

template <class T, class Add>
void add_up(void* to, const std::vector<Call>& all, size_t begin, size_t count, Add add) {
    // Starts with the last rank: a ring does not add in rank order, and nothing may rely on that order.
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

// Exchanges what each process sends, and calls use(calls) with pointers to these copies.
template <class Use>
void among_processes(emulator::ProcessRanks& ranks, const Call& call, size_t size, const std::vector<int>& members,
                     Use use) {
    const bool brings_all = std::strcmp(call.name, "ncclReduceScatter") == 0 || call.sends;
    const size_t bytes = call.count * size_of(call.type) * (brings_all ? size : 1);
    const std::string text = format("%s of %zu of type %d, root %d", call.name, call.count, int(call.type), call.root);
    char described[64] = {};
    std::strncpy(described, text.c_str(), sizeof described - 1);
    for (const std::vector<char>& other : ranks.exchange(described, sizeof described))
        require(std::memcmp(other.data(), described, sizeof described) == 0,
                "emulated NCCL: %s, while another rank calls %s", described, other.data());
    std::vector<char> to_all(call.sends ? bytes : 0);
    if (call.sends)
        for (const Message& message : *call.sends)
            std::memcpy(to_all.data() + size_t(message.peer) * bytes / size, message.data, bytes / size);
    const std::vector<std::vector<char>> sent = ranks.exchange(call.sends ? to_all.data() : call.send, bytes);
    std::vector<Call> all(size, call);
    for (size_t r = 0; r < size; r++) all[r].send = sent[members.empty() ? r : size_t(members[r])].data();
    use(all);
}

// compute(outcome, calls) fills `bytes` of outcome from the data of all ranks, once all of that is there.
// deliver(outcome) copies it to its destination once all ranks have computed theirs: calls are in place, so it
// overwrites the data they send.
template <class Compute, class Deliver>
ncclResult_t collective(Call call, size_t bytes, bool in_place, ncclComm_t comm, cudaStream_t stream, Compute compute,
                        Deliver deliver) {
    const Inside inside(comm, call.name);
    if (const ncclResult_t status = begin(comm, call.name); status != ncclSuccess) return status;
    if (!in_place) return misuse(format("%s that is not in place", call.name));
    if (nccl.slow_call_ms > 0) std::this_thread::sleep_for(std::chrono::milliseconds(nccl.slow_call_ms));
    comm->stream = stream;
    if (comm->connected.insert(call.name).second)
        if (const ncclResult_t status = take(comm, nccl.connect_bytes); status != ncclSuccess) return status;
    for (const auto& [data, size] : comm->registered) {
        const char* const sent = static_cast<const char*>(call.send);
        call.registered |= sent >= data && sent < data + size;
    }
    nccl.collectives++;
    const int64_t number = comm->collectives++;
    if (number == nccl.fails_at && is_faulty(comm->rank)) {
        nccl.last_error = "a peer has closed its connection";
        comm->state = ncclRemoteError;
        return ncclSuccess;  // the call only enqueues; the error is asynchronous
    }
    if (number == nccl.hangs_at && is_faulty(comm->rank)) emulator::stall(stream, true);
    if (comm->processes) {
        emulator::submit(stream, [=, ranks = comm->processes, aborted = comm->aborted, size = size_t(comm->size),
                                  members = comm->members] {
            if (*aborted) return;
            among_processes(*ranks, call, size, members, [&](const std::vector<Call>& all) {
                std::vector<char> outcome(bytes);
                compute(outcome.data(), all);
                deliver(outcome.data());
            });
        });
        return ncclSuccess;
    }
    const std::vector<Call> all = meet(comm, call);
    for (const Call& other : all) {
        if (std::strcmp(other.name, call.name) != 0 || other.count != call.count || other.type != call.type ||
            other.root != call.root)
            return misuse(format("%s of %zu, while another rank calls %s of %zu", call.name, call.count, other.name,
                                 other.count));
        if (other.registered != call.registered)
            return misuse(format("%s of a buffer that is registered on some ranks only", call.name));
    }
    const auto outcome = std::make_shared<std::vector<char>>(bytes);
    emulator::submit(stream, [=, aborted = comm->aborted] {
        if (!*aborted) compute(outcome->data(), all);
    });
    meet(comm, call);
    emulator::submit(stream, [=, aborted = comm->aborted] {
        if (!*aborted) deliver(outcome->data());
    });
    return ncclSuccess;
}
// The same, for a single destination.
template <class Compute>
ncclResult_t collective(const Call& call, void* receive, size_t bytes, bool in_place, ncclComm_t comm,
                        cudaStream_t stream, Compute compute) {
    return collective(call, bytes, in_place, comm, stream, compute, [=](const char* outcome) {
        if (bytes > 0) std::memcpy(receive, outcome, bytes);
    });
}

const void* at(const void* data, size_t offset) { return static_cast<const char*>(data) + offset; }

}  // namespace

ncclResult_t ncclBroadcast(const void* send, void* receive, size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream) {
    const size_t bytes = count * size_of(type);
    return collective({"ncclBroadcast", count, type, root, send}, receive, bytes, send == receive, comm, stream,
                      [=](void* to, const std::vector<Call>& all) {
                          if (bytes > 0) std::memcpy(to, all[size_t(root)].send, bytes);
                      });
}
ncclResult_t ncclAllReduce(const void* send, void* receive, size_t count, ncclDataType_t type, ncclRedOp_t,
                           ncclComm_t comm, cudaStream_t stream) {
    return collective({"ncclAllReduce", count, type, -1, send}, receive, count * size_of(type), send == receive, comm,
                      stream, [=](void* to, const std::vector<Call>& all) { sum(to, all, 0, count, type); });
}
ncclResult_t ncclReduceScatter(const void* send, void* receive, size_t count, ncclDataType_t type, ncclRedOp_t,
                               ncclComm_t comm, cudaStream_t stream) {
    const size_t first = size_t(comm->rank) * count;
    return collective({"ncclReduceScatter", count, type, -1, send}, receive, count * size_of(type),
                      receive == at(send, first * size_of(type)), comm, stream,
                      [=](void* to, const std::vector<Call>& all) { sum(to, all, first, count, type); });
}
ncclResult_t ncclAllGather(const void* send, void* receive, size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream) {
    const size_t bytes = count * size_of(type);
    return collective({"ncclAllGather", count, type, -1, send}, receive, bytes * size_t(comm->size),
                      send == at(receive, size_t(comm->rank) * bytes), comm, stream,
                      [=](void* to, const std::vector<Call>& all) {
                          for (size_t r = 0; r < all.size() && bytes > 0; r++)
                              std::memcpy(static_cast<char*>(to) + r * bytes, all[r].send, bytes);
                      });
}

// ---- messages ----------------------------------------------------------------------------------------------------
namespace {

struct Group {
    int depth = 0;
    ncclComm_t comm = nullptr;
    cudaStream_t stream = nullptr;
    size_t count = 0;
    ncclDataType_t type = ncclUint8;
    std::vector<Message> sends{}, receives{};
};
thread_local Group group;

ncclResult_t add_message(std::vector<Message>& to, const char* call, const void* data, size_t count,
                         ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) {
    if (group.depth == 0) return misuse(format("%s outside of a group", call));
    if (peer < 0 || peer >= comm->size || peer == comm->rank) return misuse(format("%s with rank %d", call, peer));
    if (group.comm && (group.comm != comm || group.stream != stream || group.count != count || group.type != type))
        return misuse(format("%s unlike the others of its group", call));
    group.comm = comm, group.stream = stream, group.count = count, group.type = type;
    to.push_back({data, peer});
    return ncclSuccess;
}

}  // namespace

ncclResult_t ncclGroupStart() { return group.depth++, ncclSuccess; }
ncclResult_t ncclSend(const void* send, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
    return add_message(group.sends, "ncclSend", send, count, type, peer, comm, stream);
}
ncclResult_t ncclRecv(void* receive, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
    return add_message(group.receives, "ncclRecv", receive, count, type, peer, comm, stream);
}
ncclResult_t ncclGroupEnd() {
    if (group.depth == 0) return misuse("ncclGroupEnd without ncclGroupStart");
    if (--group.depth > 0) return ncclSuccess;
    const Group all = std::exchange(group, {});
    if (!all.comm) return ncclSuccess;
    const size_t bytes = all.count * size_of(all.type);
    const int rank = all.comm->rank;
    const bool processes = all.comm->processes != nullptr;
    const auto receives = std::make_shared<const std::vector<Message>>(all.receives);
    Call call{"ncclSend", all.count, all.type, -1, all.sends.empty() ? nullptr : all.sends[0].data};
    call.sends = std::make_shared<const std::vector<Message>>(all.sends);
    return collective(
        call, bytes * receives->size(), true, all.comm, all.stream,
        [=](char* to, const std::vector<Call>& calls) {
            size_t sent = 0;  // messages to this rank
            for (const Call& other : calls)
                for (const Message& message : *other.sends) sent += message.peer == rank;
            bool fits = processes || sent == receives->size();
            for (const Message& wanted : *receives) {
                const Call& from = calls[size_t(wanted.peer)];
                // A process brings its messages to all ranks, in the order of the ranks.
                const void* data = processes ? at(from.send, size_t(rank) * bytes) : nullptr;
                for (const Message& message : *from.sends)
                    if (!processes && message.peer == rank) data = message.data;
                fits &= data != nullptr;
                if (data && bytes > 0) std::memcpy(to, data, bytes);
                to += bytes;
            }
            if (!fits) misuse(format("rank %d receives what is not sent, or not what is", rank));
        },
        [=](const char* from) {
            for (const Message& wanted : *receives) {
                if (bytes > 0) std::memcpy(const_cast<void*>(wanted.data), from, bytes);
                from += bytes;
            }
        });
}
