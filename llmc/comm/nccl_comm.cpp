// See nccl_comm.h.
#include "llmc/comm/nccl_comm.h"
#include <nccl.h>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <exception>
#include <map>
#include <mutex>
#include <thread>
#include <utility>
#include "llmc/comm/cuda_comm.h"  // CudaComm
#include "llmc/comm/watchdog.h"   // Watchdog

static_assert(NCCL_VERSION_CODE >= NCCL_VERSION(2, 19, 0), "Anvil needs NCCL 2.19 or newer");

namespace {

using Clock = std::chrono::steady_clock;

bool is_error(ncclResult_t status) { return status != ncclSuccess && status != ncclInProgress; }

bool contains(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

std::string what_to_do(ncclResult_t status, const std::string& text) {
    if (contains(text, "Duplicate GPU"))
        return "Each rank needs a GPU of its own: start no more ranks on a host than it has GPUs";
    if (status == ncclRemoteError) return "Another rank has failed: what it says tells why";
    if (contains(text, "driver version") || contains(text, "no CUDA-capable device"))
        return "NCCL needs a GPU and a driver on every host";
    if (status == ncclSystemError)
        return "If the hosts cannot reach each other, NCCL_SOCKET_IFNAME names the network interface to use; "
               "NCCL_DEBUG=INFO prints what was tried";
    return "NCCL_DEBUG=INFO prints more; every rank must have the same version of NCCL";
}

int exit_code_of(ncclResult_t status) {
    if (status == ncclRemoteError) return kExitRank;
    return status == ncclInternalError || status == ncclInvalidArgument ? kExitInternal : kExitUsage;
}

std::string text_of(ncclResult_t status, const char* call, ncclComm_t comm) {
    const char* last = ncclGetLastError(comm);
    const std::string detail = last && *last ? last : "it says no more";
    return format("NCCL %s, %s: %s (%s). %s", nccl_version().c_str(), call, ncclGetErrorString(status), detail.c_str(),
                  what_to_do(status, detail).c_str());
}

// Owns a communicator, and asks until its calls are done.
class Communicator {
public:
    const int rank, world_size;
    const double timeout_s;

    Communicator(Ranks& ranks, double timeout_s)
        : rank(ranks.rank), world_size(ranks.world_size), timeout_s(timeout_s) {
        ncclUniqueId id{};
        std::string record;
        if (rank == 0) {
            check(ncclGetUniqueId(&id), "ncclGetUniqueId");
            record.assign(id.internal, sizeof id.internal);
        }
        record = ranks.broadcast(record);
        ensure(record.size() == sizeof id.internal);
        std::memcpy(id.internal, record.data(), record.size());
        ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
        config.blocking = 0;
        try {
            ncclComm_t comm = nullptr;
            const ncclResult_t status = ncclCommInitRankConfig(&comm, world_size, id, rank, &config);
            comm_ = comm;
            check(status, "ncclCommInitRankConfig");
            ranks.barrier();  // whoever came late is not NCCL's fault, and not in its time
            settle("ncclCommInitRankConfig");
        } catch (...) {
            abort();
            throw;
        }
    }
    Communicator(const Communicator&) = delete;
    // In order if nothing has failed, else without waiting for ranks that may be gone.
    ~Communicator() {
        if (std::uncaught_exceptions() > exceptions_) abort();
        if (!comm_) return;
        ncclResult_t outcome = ncclCommFinalize(comm_);
        if (outcome == ncclInProgress) outcome = ask();
        if (outcome == ncclSuccess)
            ncclCommDestroy(comm_);
        else
            abort();
    }

    // Work in progress on the GPU ends at once, here and, with an error, on the other ranks.
    void abort() {
        const std::lock_guard lock(mutex_);
        if (ncclComm_t comm = comm_.exchange(nullptr)) ncclCommAbort(comm);
    }

    // A call, which may have only begun.
    void call(ncclResult_t status, const char* name) {
        check(status, name);
        settle(name);
    }
    operator ncclComm_t() const { return comm_; }

    // "" or the error of a rank, this one or another; from any thread.
    std::string failure() const {
        const ncclResult_t now = state();
        return is_error(now) ? text_of(now, "asked in the background", comm_) : "";
    }

private:
    std::atomic<ncclComm_t> comm_ = nullptr;
    mutable std::mutex mutex_;                           // so that nobody asks what is being aborted
    const int exceptions_ = std::uncaught_exceptions();  // while one unwinds the stack there are more

    void check(ncclResult_t status, const char* name) const {
        if (is_error(status)) throw Error(exit_code_of(status), text_of(status, name, comm_));
    }
    void settle(const char* name) const {
        const ncclResult_t outcome = ask();
        check(outcome, name);
        if (outcome == ncclInProgress)
            throw Error(kExitRank, format("NCCL %s, %s: not done after %.0f s. A rank is missing or cannot be reached: "
                                          "NCCL_SOCKET_IFNAME names the network interface to use, NCCL_DEBUG=INFO "
                                          "prints what was tried",
                                          nccl_version().c_str(), name, timeout_s));
    }
    ncclResult_t state() const {
        const std::lock_guard lock(mutex_);
        ncclResult_t now = ncclRemoteError;  // aborted: by the watchdog, for a rank that has failed
        if (!comm_) return now;
        const ncclResult_t asked = ncclCommGetAsyncError(comm_, &now);
        return is_error(asked) ? asked : now;
    }
    // The same once it is known; ncclInProgress if it is not within the time.
    ncclResult_t ask() const {
        const Clock::time_point begin = Clock::now();
        while (true) {
            const ncclResult_t now = state();
            if (now != ncclInProgress) return now;
            const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
            if (timeout_s > 0 && seconds > timeout_s) return ncclInProgress;
            // A launch takes microseconds, a connection milliseconds or more.
            if (seconds < 1e-3)
                std::this_thread::yield();
            else
                std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
    }
};

class NcclComm : public CudaComm {
public:
    NcclComm(Cuda& cuda, Order order, std::unique_ptr<Communicator> communicator, Watchdog* watchdog)
        : CudaComm(cuda, order), communicator_(std::move(communicator)), watchdog_(watchdog) {
        rank = communicator_->rank, world_size = communicator_->world_size;
        if (!watchdog) return;
        hook_ = watchdog->add_hook([this](const std::string&) { communicator_->abort(); });
        watcher_ = std::thread([this] { watch(); });
    }
    ~NcclComm() override {
        if (!watchdog_) return;
        watchdog_->remove_hook(hook_);
        {
            const std::lock_guard lock(stop_mutex_);
            stop_ = true;
        }
        stopped_.notify_one();
        watcher_.join();
    }
    std::string describe() const override { return format("NCCL %s, %d ranks", nccl_version().c_str(), world_size); }

    Ticket broadcast(void* data, size_t bytes, int root) override {
        return start("broadcast", 1, double(bytes), [&] {
            call(ncclBroadcast(data, data, bytes, ncclUint8, root, *communicator_, stream_), "ncclBroadcast");
        });
    }
    Ticket reduce_scatter(float* data, int64_t shard) override { return reduce_scatter_of(data, shard, ncclFloat32); }
    Ticket reduce_scatter(bf16* data, int64_t shard) override { return reduce_scatter_of(data, shard, ncclBfloat16); }
    Ticket all_gather(void* data, size_t shard_bytes) override {
        return start("all_gather", 1, double(shard_bytes) * world_size, [&] {
            const void* own = static_cast<char*>(data) + size_t(rank) * shard_bytes;
            call(ncclAllGather(own, data, shard_bytes, ncclUint8, *communicator_, stream_), "ncclAllGather");
        });
    }
    Ticket all_reduce(float* data, int64_t n) override { return all_reduce_of(data, n, ncclFloat32); }
    Ticket all_reduce(uint64_t* data, int64_t n) override { return all_reduce_of(data, n, ncclUint64); }

    void* allocate(size_t bytes) override {
        const size_t size = bytes > 0 ? bytes : 1;
        void *data = nullptr, *handle = nullptr;
        ncclResult_t status = ncclMemAlloc(&data, size);
        if (is_error(status)) {
            say_once(status, "ncclMemAlloc", "ordinary memory is used");
            return cuda_.allocate(bytes);
        }
        buffers_[data] = nullptr;
        cuda_check(cudaMemsetAsync(data, 0xFF, size, cuda_.stream), "filling %zu bytes with NaN", size);
        status = ncclCommRegister(*communicator_, data, size, &handle);
        if (is_error(status)) {
            say_once(status, "ncclCommRegister", "collectives copy through NCCL's own buffers");
            return data;
        }
        communicator_->call(status, "ncclCommRegister");
        buffers_[data] = handle;
        return data;
    }
    void release(void* data, size_t bytes) override {
        cuda_check(cudaStreamSynchronize(stream_), "waiting for collectives");
        const auto found = buffers_.find(data);
        if (found == buffers_.end()) return cuda_.release(data, bytes);
        cuda_.synchronize();
        if (found->second) communicator_->call(ncclCommDeregister(*communicator_, found->second), "ncclCommDeregister");
        buffers_.erase(found);
        communicator_->call(ncclMemFree(data), "ncclMemFree");
    }

private:
    std::unique_ptr<Communicator> communicator_;
    std::map<void*, void*> buffers_;  // NCCL's memory, and the handle of its registration
    bool said_ = false;

    Watchdog* watchdog_;  // null: nobody to wait for
    int hook_ = 0;
    std::thread watcher_;
    std::mutex stop_mutex_;
    std::condition_variable stopped_;
    bool stop_ = false;

    void call(ncclResult_t status, const char* name) { communicator_->call(status, name); }

    template <class T>
    Ticket reduce_scatter_of(T* data, int64_t shard, ncclDataType_t type) {
        return start("reduce_scatter", 1, double(shard) * world_size * sizeof(T), [&] {
            call(ncclReduceScatter(data, data + rank * shard, size_t(shard), type, ncclSum, *communicator_, stream_),
                 "ncclReduceScatter");
        });
    }
    template <class T>
    Ticket all_reduce_of(T* data, int64_t n, ncclDataType_t type) {
        return start("all_reduce", 2, double(n) * sizeof(T), [&] {
            call(ncclAllReduce(data, data, size_t(n), type, ncclSum, *communicator_, stream_), "ncclAllReduce");
        });
    }

    void say_once(ncclResult_t status, const char* name, const char* instead) {
        if (rank == 0 && !std::exchange(said_, true))
            std::fprintf(stderr, "warning: NCCL %s, %s: %s: %s\n", nccl_version().c_str(), name,
                         ncclGetErrorString(status), instead);
    }

    // The host may wait for the GPU for ever: only the watchdog's end of the process reaches it. Ten times a second, so
    // that a collective is seen soon after it began.
    void watch() {
        cudaSetDevice(cuda_.ordinal);  // or asking for events would make a context on the first GPU
        std::unique_lock lock(stop_mutex_);
        while (!stopped_.wait_for(lock, std::chrono::milliseconds(100), [&] { return stop_; })) {
            std::string why = communicator_->failure();
            try {
                if (why.empty()) why = overdue(watchdog_->timeout_s);
            } catch (const Error& error) {
                why = error.what();
            }
            if (!why.empty()) watchdog_->give_up(why);
        }
    }
};

}  // namespace

std::string nccl_version() {
    int code = 0;
    if (ncclGetVersion(&code) != ncclSuccess) return "of an unknown version";
    return format("%d.%d.%d", code / 10000, code % 10000 / 100, code % 100);
}

std::unique_ptr<Comm<Cuda>> make_nccl_comm(Ranks& ranks, Cuda& cuda, Order order, double timeout_s) {
    return std::make_unique<NcclComm>(cuda, order, std::make_unique<Communicator>(ranks, timeout_s), ranks.watchdog());
}
