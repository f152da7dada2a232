// See nccl_comm.h.
#include "llmc/comm/gpu/nccl_comm.h"
#include <nccl.h>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <map>
#include <mutex>
#include <set>
#include <thread>
#include <utility>
#include "llmc/base/build_id.h"       // check_library_version, library_version_text, nvidia_package
#include "llmc/base/memory.h"         // Arena
#include "llmc/comm/gpu/cuda_comm.h"  // CudaComm
#include "llmc/comm/watchdog.h"       // Watchdog
#include "llmc/cuda/cuda_kernels.h"   // sum_terms

static_assert(NCCL_VERSION_CODE >= NCCL_VERSION(2, 19, 0), "Anvil needs NCCL 2.19 or newer");

namespace {

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

void check_version() {
    int loaded = 0;
    ncclGetVersion(&loaded);
    check_library_version("NCCL", NCCL_VERSION_CODE, size_t(loaded), nvidia_package("nccl"));
}

// Owns a communicator. Only one thread at a time may use it, so every call is made under mutex_. Every call may wait
// for other ranks, so each is under a Watch.
class Communicator {
public:
    const int rank, world_size;

    explicit Communicator(Ranks& ranks) : rank(ranks.rank), world_size(ranks.world_size), watchdog_(ranks.watchdog()) {
        share_errors(ranks, check_version);
        ncclUniqueId id{};
        on_first_rank(ranks, [&] {
            const ncclResult_t status = ncclGetUniqueId(&id);
            if (status != ncclSuccess) throw_error(status, "ncclGetUniqueId");
        });
        const std::string record = ranks.broadcast(std::string(id.internal, sizeof id.internal));
        ranks.require_sense(record.size() == sizeof id.internal, 0, "NCCL's id");
        std::memcpy(id.internal, record.data(), record.size());
        ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
        config.blocking = 1;
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 27, 0)
        config.commName = "anvil";  // for the output of NCCL_DEBUG
#endif
        const Watchdog::Watch watch(watchdog_, kConnecting);
        const ncclResult_t status = ncclCommInitRankConfig(&comm_, world_size, id, rank, &config);
        if (status == ncclSuccess) return;
        const std::string text = text_of(status, "ncclCommInitRankConfig", comm_);
        abort();
        throw Error(exit_code_of(status), text);
    }
    // A communicator for the ranks with the same `color`, in their order (ncclCommSplit). Collective.
    Communicator(Communicator& whole, int color, int num_ranks)
        : rank(-1), world_size(num_ranks), watchdog_(whole.watchdog_) {
        whole.call("ncclCommSplit", [&](ncclComm_t comm) {
            ncclConfig_t* const the_same = nullptr;
            return ncclCommSplit(comm, color, whole.rank, &comm_, the_same);
        });
    }
    Communicator(const Communicator&) = delete;
    // Destroys the communicator; after a failure aborts it, without waiting for ranks that may be gone.
    ~Communicator() {
        abort_if_failed();
        const Watchdog::Watch watch(watchdog_, "end of NCCL");
        const std::lock_guard lock(mutex_);
        if (!comm_) return;
        if (ncclCommFinalize(comm_) == ncclSuccess)
            ncclCommDestroy(comm_);
        else
            ncclCommAbort(comm_);
    }

    // Calls function(communicator). Throws an Error if the call fails, or if the communicator has failed in the
    // meantime, on this rank or on another.
    template <class Function>
    void call(const char* name, Function&& function) {
        const Watchdog::Watch watch(watchdog_, name);
        const std::lock_guard lock(mutex_);
        ensure(comm_ != nullptr);
        const ncclResult_t status = function(comm_);
        // Report the first failure: calls after it only say that they came too late.
        const ncclResult_t earlier = asked();
        if (earlier == ncclSuccess && status == ncclSuccess) return;
        has_failed_ = true;
        throw_error(earlier != ncclSuccess ? earlier : status, name);
    }
    // The same for code that must not throw; errors are ignored. Does nothing after a failure.
    template <class Function>
    void try_call(const char* name, Function&& function) noexcept {
        const Watchdog::Watch watch(watchdog_, name);
        const std::lock_guard lock(mutex_);
        if (comm_ && !has_failed_) function(comm_);
    }

    // For destructors, before they wait for the GPU. After a failure, or while an exception unwinds the stack, running
    // collectives may never end. Aborting ends them, on the other ranks with an error.
    void abort_if_failed() noexcept {
        if (has_failed_ || std::uncaught_exceptions() > exceptions_) abort();
    }

    // The error of this rank or of another one; "": none, or another thread is inside NCCL. From any thread.
    std::string failure() const {
        const std::unique_lock lock(mutex_, std::try_to_lock);
        if (!lock || !comm_) return "";
        const ncclResult_t now = asked();
        return now == ncclSuccess ? "" : text_of(now, "asked in the background", comm_);
    }

private:
    static constexpr const char* kConnecting =
        "connection of the ranks by NCCL (if the hosts cannot reach each other, NCCL_SOCKET_IFNAME names the network "
        "interface to use; NCCL_DEBUG=INFO prints what was tried)";
    Watchdog* watchdog_;
    ncclComm_t comm_ = nullptr;  // null once it was aborted
    std::atomic<bool> has_failed_ = false;
    mutable std::mutex mutex_;
    const int exceptions_ = std::uncaught_exceptions();  // there are more while an exception unwinds the stack

    [[noreturn]] void throw_error(ncclResult_t status, const char* name) const {
        throw Error(exit_code_of(status), text_of(status, name, comm_));
    }
    ncclResult_t asked() const {
        ncclResult_t now = ncclSuccess;
        const ncclResult_t status = ncclCommGetAsyncError(comm_, &now);
        return status != ncclSuccess ? status : now;
    }
    void abort() noexcept {
        const Watchdog::Watch watch(watchdog_, "end of NCCL after an error");
        const std::lock_guard lock(mutex_);
        if (comm_) ncclCommAbort(std::exchange(comm_, nullptr));
    }
};

class NcclComm : public CudaComm {
public:
    // `free_before`: bytes of free GPU memory before the communicator was created.
    NcclComm(Ranks& ranks, Cuda& cuda, Order order, size_t free_before, std::unique_ptr<Communicator> communicator)
        : CudaComm(cuda, order),
          free_before_(free_before),
          ranks_(ranks),
          communicator_(std::move(communicator)),
          watchdog_(ranks.watchdog()) {
        rank = ranks.rank, world_size = ranks.world_size;
        if (watchdog_) watcher_ = std::thread([this] { watch(); });
    }
    ~NcclComm() override {
        if (!watchdog_) return;
        {
            const std::lock_guard lock(stop_mutex_);
            stop_ = true;
        }
        stopped_.notify_one();
        watcher_.join();
    }
    std::string describe() const override {
        const std::string name = format("NCCL %s, %d ranks", nccl_version().c_str(), world_size);
        if (!sums_may_differ(ranks_.local_size, has_multicast(), std::getenv)) return name;
        return name +
               " (sums inside NVLink switches may differ from run to run: NCCL_ALGO=Ring in the environment keeps them "
               "the same)";
    }

    Work broadcast(void* data, size_t bytes, int root) override {
        return start("broadcast", 1, double(bytes), [&] {
            communicator_->call("ncclBroadcast", [&](ncclComm_t comm) {
                return ncclBroadcast(data, data, bytes, ncclUint8, root, comm, stream_);
            });
        });
    }
    Work reduce_scatter(float* data, int64_t shard) override { return reduce_scatter_of(data, shard, ncclFloat32); }
    Work reduce_scatter(bf16* data, int64_t shard) override { return reduce_scatter_of(data, shard, ncclBfloat16); }
    Work all_to_all_sum(float* data, int64_t shard, float* scratch) override {
        return all_to_all_sum_of(data, data, scratch, shard, shard, ncclFloat32);
    }
    Work all_to_all_sum(float* data, const bf16* terms, int64_t shard) override {
        return all_to_all_sum_of(data, terms, reinterpret_cast<bf16*>(data), 2 * shard, shard, ncclBfloat16);
    }
    Work all_gather(void* data, size_t shard_bytes) override {
        return start(
            "all_gather", 1, double(shard_bytes) * shards(),
            [&] {
                group().call("ncclAllGather", [&](ncclComm_t comm) {
                    const void* own = static_cast<char*>(data) + size_t(this->shard()) * shard_bytes;
                    return ncclAllGather(own, data, shard_bytes, ncclUint8, comm, stream_);
                });
            },
            shards());
    }
    Work all_reduce(float* data, int64_t n) override { return all_reduce_of(data, n, ncclFloat32); }
    Work all_reduce(uint64_t* data, int64_t n) override { return all_reduce_of(data, n, ncclUint64); }

    // A collective whose buffer is registered on some ranks only is undefined in NCCL. So if registering fails on one
    // rank, no rank registers.
    void* allocate(size_t bytes) override {
        const size_t size = bytes > 0 ? bytes : 1;
        void *data = nullptr, *handle = nullptr;
        std::string no_memory, no_registration;
        ncclResult_t status = ncclMemAlloc(&data, size);
        if (status != ncclSuccess) {
            data = nullptr, no_memory = ncclGetErrorString(status);
            cudaGetLastError();  // not an error of the next launch
        } else {
            group().try_call("ncclCommRegister",
                             [&](ncclComm_t comm) { status = ncclCommRegister(comm, data, size, &handle); });
            if (status != ncclSuccess) no_registration = ncclGetErrorString(status);
        }
        const bool all_have_memory = agree("ncclMemAlloc", no_memory, "ordinary memory is used on all ranks");
        const bool all_registered = agree("ncclCommRegister", no_registration,
                                          "no rank registers its memory, and collectives copy through NCCL's buffers");
        if (handle && !(all_have_memory && all_registered)) {
            group().try_call("ncclCommDeregister", [&](ncclComm_t comm) { ncclCommDeregister(comm, handle); });
            handle = nullptr;
        }
        if (!all_have_memory) {
            if (data) ncclMemFree(data);
            return cuda_.allocate(bytes);
        }
        buffers_[data] = handle;
        cuda_.used_bytes += bytes;
        cuda_.peak_bytes = std::max(cuda_.peak_bytes, cuda_.used_bytes);
        cuda_check(cudaMemsetAsync(data, 0xFF, size, cuda_.stream), "filling %zu bytes with NaN", size);
        return data;
    }
    // Must not throw, like ~Cuda: arenas call it in their destructors, perhaps because of an error, and that first
    // error must be reported.
    void release(void* data, size_t bytes) noexcept override {
        abort_if_failed();
        cudaStreamSynchronize(stream_);
        const auto found = buffers_.find(data);
        if (found == buffers_.end()) return cuda_.release(data, bytes);
        cudaStreamSynchronize(cuda_.stream);
        if (found->second)
            group().try_call("ncclCommDeregister", [&](ncclComm_t comm) { ncclCommDeregister(comm, found->second); });
        buffers_.erase(found);
        cuda_.used_bytes -= bytes;
        ncclMemFree(data);
    }

    // Each with few bytes and with many, for which NCCL has other algorithms, with connections and buffers of their
    // own.
    bool sums_in_order() const override { return ranks_.local_size == world_size; }
    void split(int num_shards) override {
        Comm::split(num_shards);
        auto group = std::make_unique<Communicator>(*communicator_, rank / num_shards, num_shards);
        auto owners = std::make_unique<Communicator>(*communicator_, rank % num_shards, world_size / num_shards);
        const std::lock_guard lock(stop_mutex_);  // the watching thread reads both
        group_ = std::move(group), owners_ = std::move(owners);
    }

    void warm_up(bool all_to_all) override {
        constexpr size_t kFew = 4 << 10, kMany = 8 << 20;
        const auto shard = [&](size_t bytes, size_t element) { return int64_t(bytes / element / size_t(world_size)); };
        Arena arena(*this, "warm-up", all_to_all ? 2 * kMany : kMany);
        for (const size_t bytes : {kFew, kMany}) {
            wait(broadcast(arena.base, bytes, 0));
            wait(all_gather(arena.base, size_t(shard(bytes, 1))));
            wait(reduce_scatter(reinterpret_cast<float*>(arena.base), shard(bytes, sizeof(float))));
            wait(reduce_scatter(reinterpret_cast<bf16*>(arena.base), shard(bytes, sizeof(bf16))));
            wait(all_reduce(reinterpret_cast<float*>(arena.base), int64_t(bytes / sizeof(float))));
            wait(all_reduce(reinterpret_cast<uint64_t*>(arena.base), int64_t(bytes / sizeof(uint64_t))));
            if (all_to_all)
                wait(all_to_all_sum(reinterpret_cast<float*>(arena.base), shard(bytes, sizeof(float)),
                                    reinterpret_cast<float*>(arena.base + kMany)));
        }
        cuda_.synchronize();
        take_times();
        { const Arena done = std::move(arena); }
        taken_bytes_ = free_before_ - std::min(free_before_, cuda_.free_bytes());
    }
    size_t taken_bytes() const override { return taken_bytes_; }

private:
    const size_t free_before_;
    size_t taken_bytes_ = 0;
    Ranks& ranks_;
    std::unique_ptr<Communicator> communicator_;
    std::unique_ptr<Communicator> group_, owners_;  // with split(): the ranks of a group, and the owners of a shard
    std::map<void*, void*> buffers_;                // from ncclMemAlloc: the handles of their registration
    std::set<std::string> complaints_;              // failed calls that were reported

    Watchdog* watchdog_;  // null: nobody to wait for
    std::thread watcher_;
    std::mutex stop_mutex_;
    std::condition_variable stopped_;
    bool stop_ = false;

    // The communicator that scatters and gathers buckets, with which buffers are registered.
    Communicator& group() { return group_ ? *group_ : *communicator_; }
    void abort_if_failed() noexcept {
        for (Communicator* one : {group_.get(), owners_.get(), communicator_.get()})
            if (one) one->abort_if_failed();
    }

    template <class T>
    Work reduce_scatter_of(T* data, int64_t shard, ncclDataType_t type) {
        T* const own = data + this->shard() * shard;
        const Work work = start(
            "reduce_scatter", 1, double(shard) * shards() * sizeof(T),
            [&] {
                group().call("ncclReduceScatter", [&](ncclComm_t comm) {
                    return ncclReduceScatter(data, own, size_t(shard), type, ncclSum, comm, stream_);
                });
            },
            shards());
        return is_split() ? all_reduce_of(own, shard, type, owners_.get()) : work;
    }
    // Rank r's terms of this rank's shard go to arrived + r * stride.
    template <class T>
    Work all_to_all_sum_of(float* data, const T* terms, T* arrived, int64_t stride, int64_t shard,
                           ncclDataType_t type) {
        return start("all_to_all", 1, double(shard) * world_size * sizeof(T), [&] {
            communicator_->call("ncclSend and ncclRecv", [&](ncclComm_t comm) {
                ncclResult_t first = ncclGroupStart();
                const auto add = [&](ncclResult_t status) {
                    if (first == ncclSuccess) first = status;
                };
                for (int r = 0; r < world_size; r++) {
                    if (r == rank) continue;
                    add(ncclSend(terms + r * shard, size_t(shard), type, r, comm, stream_));
                    add(ncclRecv(arrived + r * stride, size_t(shard), type, r, comm, stream_));
                }
                add(ncclGroupEnd());
                return first;
            });
            const OnStream on(cuda_, stream_);
            sum_terms(cuda_, data + rank * shard, terms + rank * shard, arrived, stride, rank, world_size, shard);
        });
    }
    template <class T>
    Work all_reduce_of(T* data, int64_t n, ncclDataType_t type, Communicator* part = nullptr) {
        Communicator& among = part ? *part : *communicator_;
        return start(
            "all_reduce", 2, double(n) * sizeof(T),
            [&] {
                among.call("ncclAllReduce", [&](ncclComm_t comm) {
                    return ncclAllReduce(data, data, size_t(n), type, ncclSum, comm, stream_);
                });
            },
            among.world_size);
    }

    // Whether a call succeeded on all ranks. If not, rank 0 prints once on which rank it failed, why, and what is done
    // `instead`.
    bool agree(const char* name, const std::string& why_not, const char* instead) {
        const std::vector<std::string> all = ranks_.all_gather(why_not);
        const auto first = std::find_if(all.begin(), all.end(), [](const std::string& why) { return !why.empty(); });
        if (first == all.end()) return true;
        if (rank == 0 && complaints_.insert(name).second)
            std::fprintf(stderr, "warning: NCCL %s, %s on rank %d: %s: %s\n", nccl_version().c_str(), name,
                         int(first - all.begin()), first->c_str(), instead);
        return false;
    }

    // Whether the NVLink switch of these GPUs can sum: CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED, which the runtime API
    // has as a reserved number.
    bool has_multicast() const {
        int supported = 0;
        if (cudaDeviceGetAttribute(&supported, cudaDevAttrReserved132, cuda_.ordinal) != cudaSuccess)
            cudaGetLastError();
        return supported != 0;
    }

    // The checking thread. The host may wait for the GPU forever, and only ending the process stops that. Checks ten
    // times per second, so that a collective is seen soon after it began. CUDA's calls can block while another thread
    // is inside the library, so this thread is under a Watch, too.
    void watch() {
        cudaSetDevice(cuda_.ordinal);  // otherwise querying events would create a context on the first GPU
        std::unique_lock lock(stop_mutex_);
        for (int errors = 0; !stopped_.wait_for(lock, std::chrono::milliseconds(100), [&] { return stop_; });) {
            const std::string why = look(errors);
            if (!why.empty()) watchdog_->give_up(why);
        }
    }
    std::string look(int& errors) {
        constexpr int kGrace = 20;  // turns in which the training thread may report a CUDA error itself
        const Watchdog::Watch turn(watchdog_, "look at the GPU's collectives");
        for (const Communicator* one : {communicator_.get(), group_.get(), owners_.get()}) {
            const std::string failure = one ? one->failure() : "";
            if (!failure.empty()) return failure;
        }
        try {
            return overdue(watchdog_->timeout_s);
        } catch (const Error& error) {
            return ++errors > kGrace ? error.what() : "";
        }
    }
};

}  // namespace

std::string nccl_version() {
    int code = 0;
    return ncclGetVersion(&code) == ncclSuccess ? library_version_text(size_t(code)) : "of an unknown version";
}

bool sums_may_differ(int local_size, bool has_multicast, const std::function<const char*(const char*)>& environment) {
    const char* nvls = environment("NCCL_NVLS_ENABLE");
    return has_multicast && local_size > 2 && !environment("NCCL_ALGO") && !(nvls && std::string(nvls) == "0");
}

std::unique_ptr<Comm<Cuda>> make_nccl_comm(Ranks& ranks, Cuda& cuda, Order order) {
    const size_t free_before = cuda.free_bytes();
    auto communicator = std::make_unique<Communicator>(ranks);
    return std::make_unique<NcclComm>(ranks, cuda, order, free_before, std::move(communicator));
}
