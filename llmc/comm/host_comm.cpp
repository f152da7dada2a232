// Collectives between processes on CPU buffers.
#include "llmc/comm/host_comm.h"
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include "llmc/base/check.h"   // Error, ensure, format
#include "llmc/comm/host.h"    // host_identity
#include "llmc/cpu/kernels.h"  // sum_ranks_kernel

namespace {

// A few microseconds: what a rank is late by when all do the same. More would be lost whenever the scheduler has put
// two ranks on one core, as it likes to when one wakes the other: with 2000 turns a meeting then took 55 us, on two
// cores 0.4.
constexpr int kSpins = 100;
// Between hosts: large enough for any network, small enough to stay in a cache.
constexpr int64_t kPieceBytes = 8 << 20;
constexpr size_t kStagingBytes = 1 << 20;
constexpr std::chrono::milliseconds kLookEvery(100);
constexpr timespec kSleep = {0, 100'000'000};  // kLookEvery again

// The sum of from[...], element by element, goes to each of to[...], which may be among them.
template <class T, class Out>
void add_up(Cpu& cpu, const std::vector<Out*>& to, const std::vector<T*>& from, int64_t n) {
    sum_ranks_kernel<std::remove_const_t<T>, Out>()(cpu, to.data(), from.data(), int(to.size()), int(from.size()), n);
}

template <class T>
std::vector<T*> shifted(std::vector<T*> pointers, int64_t by) {
    for (T*& p : pointers) p += by;
    return pointers;
}

// ---- waiting ---------------------------------------------------------------------------------------------------

void pause_briefly() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

// Shared between processes, so not the private kind.
void sleep_while(std::atomic<uint32_t>& word, uint32_t value) {
    syscall(SYS_futex, &word, FUTEX_WAIT, value, &kSleep, nullptr, 0);
}
void wake_all(std::atomic<uint32_t>& word) { syscall(SYS_futex, &word, FUTEX_WAKE, INT32_MAX, nullptr, nullptr, 0); }

}  // namespace

// What a rank is about to do, to be compared.
struct HostComm::Call {
    char what[16];
    int64_t allocation, offset, bytes;
    bool operator==(const Call&) const = default;
};

// In the shared memory of a host's first rank. Zeros are where everything starts.
struct HostComm::Control {
    struct alignas(64) Entry {
        std::atomic<uint32_t> arrived;  // at how many meetings
        Call call;
        char last_words[512];  // of a rank that gave up
    };
    static_assert(std::atomic<uint32_t>::is_always_lock_free);  // else they would not work between processes

    alignas(64) std::atomic<uint32_t> arrived;   // ranks, at the meeting under way
    alignas(64) std::atomic<uint32_t> meetings;  // that are over; who waits for one sleeps on it
    std::atomic<uint32_t> sleepers;
    std::atomic<int> awaited;  // the rank of another host that the first rank of this one waits for, + 1
    Entry entries[];
};

// ---- start and end ---------------------------------------------------------------------------------------------

HostComm::HostComm(Ranks& ranks, Cpu& cpu, HostCommOptions options)
    : ranks_(ranks),
      cpu_(cpu),
      watchdog_(ranks.watchdog()),
      missing_([this] { return missing(); }),
      network_(std::move(options.network)) {
    ensure(watchdog_);
    rank = ranks.rank;
    world_size = ranks.world_size;
    const std::vector<std::string> names = ranks.all_gather(options.host.empty() ? host_identity() : options.host);
    std::vector<std::string> seen;
    for (int r = 0; r < world_size; r++) {
        const size_t host = size_t(std::find(seen.begin(), seen.end(), names[size_t(r)]) - seen.begin());
        if (host == seen.size()) {
            seen.push_back(names[size_t(r)]);
            hosts_.emplace_back();
        }
        if (r == rank) {
            host_ = int(host);
            local_ = int(hosts_[host].size());
        }
        hosts_[host].push_back(r);
    }
    if (num_hosts() > 1 && !network_) {
        std::vector<int> leaders;
        for (const std::vector<int>& of_host : hosts_) leaders.push_back(of_host[0]);
        network_ = ranks.connect_hosts(leaders);
    }

    const Process process = Process::current();
    const std::vector<Process> processes = ranks.all_gather_values(process, "its process");
    for (const int r : hosts_[size_t(host_)]) processes_.push_back(processes[size_t(r)]);

    const size_t control_bytes = sizeof(Control) + size_t(local_size()) * sizeof(Control::Entry);
    control_memory_ = std::move(share(control_bytes, false, true)[0]);
    control_ = reinterpret_cast<Control*>(control_memory_.data());
    hook_ = watchdog_->add_hook([this](const std::string& why) {
        auto& words = control_->entries[local_].last_words;
        std::snprintf(words, sizeof words, "%s", why.c_str());
    });
    // A rank without a core of its own must not spin: it would keep the one it waits for from running.
    spins_ = local_size() <= sysconf(_SC_NPROCESSORS_ONLN) ? kSpins : 0;

    staging_bytes_ = std::max(kStagingBytes, size_t(world_size) * 64);
    staging_ = static_cast<char*>(allocate(staging_bytes_));
}

HostComm::~HostComm() { watchdog_->remove_hook(hook_); }

std::string HostComm::describe() const {
    if (num_hosts() == 1) return format("shared memory, %d ranks", world_size);
    return format("shared memory and %s, %d ranks on %d hosts", network_->name(), world_size, num_hosts());
}

// As much memory of each rank of this host, or of its first one alone. What goes wrong on one does so on all.
std::vector<SharedMemory> HostComm::share(size_t bytes, bool filled, bool of_first_alone) {
    const bool has_any = leads() || !of_first_alone;
    SharedMemory mine;
    share_errors(ranks_, [&] {
        if (!has_any) return;
        mine = SharedMemory::create(bytes);
        char* const data = mine.data();
        if (filled)
            parallel_chunks(cpu_, int64_t(bytes), 1 << 21,
                            [=](int64_t begin, int64_t end) { std::memset(data + begin, 0xFF, size_t(end - begin)); });
    });
    const std::vector<std::string> records = ranks_.all_gather(has_any ? mine.record() : "");
    std::vector<SharedMemory> memory(static_cast<size_t>(local_size()));
    share_errors(ranks_, [&] {
        for (int local = 0; local < (of_first_alone ? 1 : local_size()); local++) {
            const int r = rank_of(host_, local);
            if (local != local_)
                memory[size_t(local)] = SharedMemory::open(records[size_t(r)], bytes, ranks_.name_of(r));
        }
    });
    mine.close();  // all have opened it
    memory[size_t(local_)] = std::move(mine);
    return memory;
}

void* HostComm::allocate(size_t bytes) {
    bytes = std::max<size_t>(bytes, 1);
    Allocation allocation{num_allocations_++, share(bytes, true, false)};
    allocations_.push_back(std::move(allocation));
    return allocations_.back().memory[size_t(local_)].data();
}

void HostComm::release(void* data, size_t) {
    const auto found = std::find_if(allocations_.begin(), allocations_.end(), [&](const Allocation& allocation) {
        return allocation.memory[size_t(local_)].data() == data;
    });
    ensure(found != allocations_.end());
    allocations_.erase(found);
}

const HostComm::Allocation* HostComm::allocation_of(const void* data, int64_t bytes) const {
    for (const Allocation& allocation : allocations_) {
        const SharedMemory& memory = allocation.memory[size_t(local_)];
        const int64_t offset = int64_t(reinterpret_cast<uintptr_t>(data) - reinterpret_cast<uintptr_t>(memory.data()));
        if (offset >= 0 && offset + bytes <= int64_t(memory.bytes())) return &allocation;
    }
    return nullptr;
}

CommTimes HostComm::take_times() { return std::exchange(times_, CommTimes()); }

// ---- meeting ---------------------------------------------------------------------------------------------------

// Waits for the other ranks of this host.
void HostComm::meet() {
    const uint32_t before = meetings_++;
    control_->entries[local_].arrived.store(meetings_, std::memory_order_relaxed);
    if (control_->arrived.fetch_add(1) + 1 == uint32_t(local_size())) {
        control_->arrived.store(0, std::memory_order_relaxed);
        control_->meetings.fetch_add(1);
        // One who is about to sleep has counted itself before the kernel compares `meetings` with what it saw.
        if (control_->sleepers.load() > 0) wake_all(control_->meetings);
        return;
    }
    const auto over = [&] { return control_->meetings.load(std::memory_order_acquire) != before; };
    for (int spin = 0; spin < spins_; spin++) {
        if (over()) return;
        pause_briefly();
    }
    next_look_ = Clock::now() + kLookEvery;
    while (!over()) {
        control_->sleepers.fetch_add(1);
        sleep_while(control_->meetings, before);
        control_->sleepers.fetch_sub(1);
        look_around(over);
    }
}

std::string HostComm::name_of(int local) const {
    return format("rank %d (pid %d)", ranks_.number_in_all(rank_of(host_, local)), int(processes_[size_t(local)].pid));
}

// The ranks that this one waits for. The watchdog's thread asks.
std::string HostComm::missing() const {
    const uint32_t now = control_->entries[local_].arrived;
    std::string text;
    for (int local = 0; local < local_size(); local++)
        if (local != local_ && control_->entries[local].arrived != now)
            text += (text.empty() ? "" : ", ") + name_of(local);
    if (const int awaited = control_->awaited) text = format("rank %d on another host", awaited - 1);
    return text;
}

// What a waiting rank looks at now and then. `over` is asked again after what looks bad: as soon as it is, a rank may
// go its way and end.
template <class Over>
void HostComm::look_around(const Over& over) {
    const Clock::time_point now = Clock::now();
    if (now < next_look_) return;
    next_look_ = now + kLookEvery;
    int dead = -1;  // the first cause if we can tell: one that has not given up because of another
    for (int local = 0; local < local_size(); local++)
        if (local != local_ && !processes_[size_t(local)].alive())
            if (dead < 0 || control_->entries[local].last_words[0] == 0) dead = local;
    if (dead < 0 || over()) return;
    const char* words = control_->entries[dead].last_words;
    watchdog_->give_up(name_of(dead) + (*words ? format(" gave up: %s", words) : " has died"));
}

// Begins a collective on data (n), which is the same call on all ranks: gives every rank's `data`, after all have come.
template <class T>
std::vector<T*> HostComm::enter(T* data, int64_t n) {
    const int64_t bytes = n * int64_t(sizeof(T));
    const Allocation* allocation = allocation_of(data, bytes);
    ensure(allocation);
    const int64_t offset = reinterpret_cast<const char*>(data) - allocation->memory[size_t(local_)].data();
    Call mine = {{}, allocation->number, offset, bytes};
    std::snprintf(mine.what, sizeof mine.what, "%s", doing_);
    control_->entries[local_].call = mine;
    meet();
    std::vector<T*> all;
    for (int local = 0; local < local_size(); local++) {
        const Call& other = control_->entries[local].call;
        if (!(other == mine)) {
            const auto text = [](const Call& call) {
                return format("%s of %lld bytes at %lld in buffer %lld", call.what, static_cast<long long>(call.bytes),
                              static_cast<long long>(call.offset), static_cast<long long>(call.allocation));
            };
            throw Error(kExitInternal, format("internal: rank %d calls %s, rank %d %s; please report it", rank,
                                              text(mine).c_str(), rank_of(host_, local), text(other).c_str()));
        }
        all.push_back(reinterpret_cast<T*>(allocation->memory[size_t(local)].data() + offset));
    }
    return all;
}

void HostComm::split(int num_shards) {
    for (int r = 0; r < world_size; r++) {
        const int first = r / num_shards * num_shards;
        const auto host_of = [&](int one) {
            return std::find_if(
                       hosts_.begin(), hosts_.end(),
                       [&](const std::vector<int>& there) { return std::count(there.begin(), there.end(), one) > 0; }) -
                   hosts_.begin();
        };
        require(
            host_of(first) == host_of(r),
            "--shard-ranks %d: ranks %d to %d share the optimizer's state, and rank %d is on another host than rank "
            "%d: give a number that divides the ranks of each host, and start those of a host one after the other",
            num_shards, first, first + num_shards - 1, r, first);
    }
    Comm::split(num_shards);
}

// ---- collectives -----------------------------------------------------------------------------------------------

template <class Body>
Work HostComm::timed(const char* what, double sent_bytes, Body&& body) {
    const Clock::time_point start = Clock::now();
    doing_ = what;
    const Scope scope(cpu_.observer, SliceKind::collective, what);
    {
        const Watchdog::Watch watch(watchdog_, what, -1, &missing_);
        body();
    }
    const double ms = std::chrono::duration<double, std::milli>(Clock::now() - start).count();
    times_.busy_ms += ms;
    times_.exposed_ms += ms;
    times_.sent_bytes += sent_bytes * (world_size - 1) / world_size;
    return {};
}

Work HostComm::broadcast(void* data, size_t bytes, int root) {
    return timed("broadcast", double(bytes), [&] { broadcast_of(static_cast<char*>(data), int64_t(bytes), root); });
}
Work HostComm::reduce_scatter(float* data, int64_t shard) {
    return timed("reduce-scatter", 4. * double(shard) * shards(), [&] { reduce_scatter_of(data, shard); });
}
Work HostComm::reduce_scatter(bf16* data, int64_t shard) {
    return timed("reduce-scatter", 2. * double(shard) * shards(), [&] { reduce_scatter_of(data, shard); });
}
Work HostComm::all_to_all_sum(float* data, int64_t shard, float*) {
    return timed("all-to-all", 4. * double(shard) * world_size,
                 [&] { all_to_all_sum_of<float>(data + rank * shard, data, shard); });
}
Work HostComm::all_to_all_sum(float* data, const bf16* terms, int64_t shard) {
    return timed("all-to-all", 2. * double(shard) * world_size,
                 [&] { all_to_all_sum_of(data + rank * shard, terms, shard); });
}
Work HostComm::all_gather(void* data, size_t shard_bytes) {
    return timed("all-gather", double(shard_bytes) * shards(),
                 [&] { all_gather_of(static_cast<char*>(data), int64_t(shard_bytes)); });
}
Work HostComm::all_reduce(float* data, int64_t n) {
    return timed("all-reduce", 2 * 4. * double(n), [&] { all_reduce_of(data, n); });
}
Work HostComm::all_reduce(uint64_t* data, int64_t n) {
    return timed("all-reduce", 2 * 8. * double(n), [&] { all_reduce_of(data, n); });
}

// Parts that threads and ranks write begin at multiples of this many elements: no cache line is of two of them.
static int64_t part_size(int64_t n, int64_t parts) { return (n + parts * 64 - 1) / (parts * 64) * 64; }

template <class T>
void HostComm::reduce_scatter_of(T* data, int64_t shard) {
    if (!allocation_of(data, shards() * shard * int64_t(sizeof(T)))) {
        T* const piece = reinterpret_cast<T*>(staging_);
        const int64_t most = int64_t(staging_bytes_ / sizeof(T)) / world_size;
        for (int64_t begin = 0; begin < shard; begin += most) {
            const int64_t n = std::min(most, shard - begin);
            for (int s = 0; s < shards(); s++) std::copy_n(data + s * shard + begin, n, piece + s * n);
            reduce_scatter_of(piece, n);
            std::copy_n(piece + this->shard() * n, n, data + this->shard() * shard + begin);
        }
        return;
    }
    if (is_split() && num_hosts() > 1) return all_reduce_of(data, shards() * shard);
    const std::vector<T*> all = enter(data, shards() * shard);
    if (is_split()) {
        // Each of a shard's owners adds up a part of it, for all of them.
        const int owners = world_size / shards();
        const int64_t part = part_size(shard, owners), first = std::min(shard, rank / shards() * part);
        const int64_t begin = this->shard() * shard + first;
        std::vector<T*> to;
        for (int owner = 0; owner < owners; owner++)
            to.push_back(all[size_t(owner * shards() + this->shard())] + begin);
        add_up(cpu_, to, shifted(all, begin), std::min(shard - first, part));
    } else if (num_hosts() == 1) {
        add_up(cpu_, std::vector<T*>{data + rank * shard}, shifted(all, rank * shard), shard);
    } else {
        add_up_to_first(all, world_size * shard);
        if (leads()) reduce_scatter_hosts(data, shards_of(shard));
        meet();
        if (!leads()) copy(data + rank * shard, all[0] + rank * shard, shard * int64_t(sizeof(T)));
    }
    meet();  // until all have read, nobody may write
}

template <class T>
void HostComm::all_to_all_sum_of(float* sum, const T* terms, int64_t shard) {
    if (!allocation_of(terms, world_size * shard * int64_t(sizeof(T)))) {
        T* const piece = reinterpret_cast<T*>(staging_);
        const int64_t most = int64_t(staging_bytes_ / sizeof(T)) / world_size;
        for (int64_t begin = 0; begin < shard; begin += most) {
            const int64_t n = std::min(most, shard - begin);
            for (int r = 0; r < world_size; r++) std::copy_n(terms + r * shard + begin, n, piece + r * n);
            all_to_all_sum_of<T>(sum + begin, piece, n);
        }
        return;
    }
    const std::vector<const T*> all = enter(terms, world_size * shard);
    if (num_hosts() == 1) {
        add_up(cpu_, std::vector<float*>{sum}, shifted(all, rank * shard), shard);
        return meet();
    }
    if (!terms_memory_.data()) terms_memory_ = std::move(share(kPieceBytes, false, true)[0]);
    // Terms of this host's shards that come from elsewhere: of each shard a piece, from one rank after the other.
    int64_t pairs = 1;  // of an owner on a host and a rank elsewhere, on the host that has most of them
    for (const std::vector<int>& there : hosts_)
        pairs = std::max(pairs, int64_t(there.size()) * (world_size - int64_t(there.size())));
    const int64_t most = kPieceBytes / int64_t(sizeof(T)) / pairs;
    ensure(most > 0);
    const T* const arrived = reinterpret_cast<const T*>(terms_memory_.data());
    for (int64_t begin = 0; begin < shard; begin += most) {
        const int64_t n = std::min(most, shard - begin);
        if (leads()) exchange_terms(all, shard, begin, n);
        meet();
        std::vector<const T*> of_ranks(static_cast<size_t>(world_size));
        const T* from = arrived;
        for (int host = 0; host < num_hosts(); host++) {
            const std::vector<int>& there = hosts_[size_t(host)];
            for (size_t i = 0; i < there.size(); i++)
                of_ranks[size_t(there[i])] = host == host_ ? all[i] + rank * shard + begin
                                                           : from + (local_ * int64_t(there.size()) + int64_t(i)) * n;
            if (host != host_) from += local_size() * int64_t(there.size()) * n;
        }
        add_up(cpu_, std::vector<float*>{sum + begin}, of_ranks, n);
        meet();
    }
}

template <class T>
void HostComm::all_reduce_of(T* data, int64_t n) {
    if (!allocation_of(data, n * int64_t(sizeof(T)))) {
        T* const piece = reinterpret_cast<T*>(staging_);
        const int64_t most = int64_t(staging_bytes_ / sizeof(T));
        for (int64_t begin = 0; begin < n; begin += most) {
            const int64_t count = std::min(most, n - begin);
            std::copy_n(data + begin, count, piece);
            all_reduce_of(piece, count);
            std::copy_n(piece, count, data + begin);
        }
        return;
    }
    const std::vector<T*> all = enter(data, n);
    if (num_hosts() == 1) {
        const int64_t part = part_size(n, world_size), begin = std::min(n, local_ * part);
        const std::vector<T*> mine = shifted(all, begin);
        add_up(cpu_, mine, mine, std::min(n - begin, part));
    } else {
        add_up_to_first(all, n);
        if (leads()) {
            Ranges parts;
            const int64_t part = part_size(n, num_hosts());
            for (int host = 0; host < num_hosts(); host++)
                parts.push_back({{std::min(n, host * part), std::min(n, (host + 1) * part)}});
            reduce_scatter_hosts(data, parts);
            all_gather_hosts(reinterpret_cast<char*>(data), parts, sizeof(T));
        }
        meet();
        if (!leads()) copy(data, all[0], n * int64_t(sizeof(T)));
    }
    meet();
}

void HostComm::all_gather_of(char* data, int64_t shard_bytes) {
    if (!allocation_of(data, shards() * shard_bytes)) {
        const int64_t most = int64_t(staging_bytes_) / world_size;
        for (int64_t begin = 0; begin < shard_bytes; begin += most) {
            const int64_t n = std::min(most, shard_bytes - begin);
            std::copy_n(data + shard() * shard_bytes + begin, n, staging_ + shard() * n);
            all_gather_of(staging_, n);
            for (int s = 0; s < shards(); s++) std::copy_n(staging_ + s * n, n, data + s * shard_bytes + begin);
        }
        return;
    }
    const std::vector<char*> all = enter(data, shards() * shard_bytes);
    const auto fetch = [&](int r, const char* from) {
        const int64_t at = r % shards() * shard_bytes;
        copy(data + at, from + at, shard_bytes);
    };
    // Everyone begins with the next one, so that not all read the same.
    for (int i = 1; i < local_size(); i++) {
        const int local = (local_ + i) % local_size(), r = rank_of(host_, local);
        if (r / shards() == rank / shards()) fetch(r, all[size_t(local)]);
    }
    if (num_hosts() > 1 && !is_split()) {
        if (leads()) all_gather_hosts(data, shards_of(shard_bytes), 1);
        meet();
        for (int host = 0; !leads() && host < num_hosts(); host++)
            if (host != host_)
                for (const int r : hosts_[size_t(host)]) fetch(r, all[0]);
    }
    meet();
}

void HostComm::broadcast_of(char* data, int64_t bytes, int root) {
    if (!allocation_of(data, bytes)) {
        for (int64_t begin = 0; begin < bytes; begin += int64_t(staging_bytes_)) {
            const int64_t n = std::min(int64_t(staging_bytes_), bytes - begin);
            if (rank == root) std::copy_n(data + begin, n, staging_);
            broadcast_of(staging_, n, root);
            std::copy_n(staging_, n, data + begin);
        }
        return;
    }
    const std::vector<char*> all = enter(data, bytes);
    int from_host = 0;
    while (std::count(hosts_[size_t(from_host)].begin(), hosts_[size_t(from_host)].end(), root) == 0) from_host++;
    if (host_ == from_host) {
        for (int local = 0; local < local_size(); local++)
            if (rank_of(host_, local) == root && local != local_) copy(data, all[size_t(local)], bytes);
    }
    if (num_hosts() > 1) {
        if (leads()) broadcast_hosts(data, bytes, from_host);
        meet();
        if (host_ != from_host && !leads()) copy(data, all[0], bytes);
    }
    meet();
}

void HostComm::copy(void* to, const void* from, int64_t bytes) {
    parallel_chunks(cpu_, bytes, 1 << 20, [=](int64_t begin, int64_t end) {
        std::memcpy(static_cast<char*>(to) + begin, static_cast<const char*>(from) + begin, size_t(end - begin));
    });
}

// ---- between hosts ---------------------------------------------------------------------------------------------

// The host's sum, all of it, in the buffer of its first rank: each rank makes a part.
template <class T>
void HostComm::add_up_to_first(const std::vector<T*>& all, int64_t n) {
    const int64_t part = part_size(n, local_size()), begin = std::min(n, local_ * part);
    add_up(cpu_, std::vector<T*>{all[0] + begin}, shifted(all, begin), std::min(n - begin, part));
    meet();
}

HostComm::Ranges HostComm::shards_of(int64_t shard) const {
    Ranges shards;
    for (const std::vector<int>& ranks : hosts_) {
        shards.emplace_back();
        for (const int r : ranks) shards.back().push_back({r * shard, (r + 1) * shard});
    }
    return shards;
}

// step(ranges of the hosts) for pieces of at most `most` elements: the same ones in the same order on all hosts.
template <class Step>
void HostComm::each_piece(const Ranges& ranges, int64_t most, Step&& step) const {
    size_t parts = 0;
    int64_t longest = 0;
    for (const std::vector<Range>& of_host : ranges) {
        parts = std::max(parts, of_host.size());
        for (const Range& range : of_host) longest = std::max(longest, range.end - range.begin);
    }
    for (size_t part = 0; part < parts; part++)
        for (int64_t begin = 0; begin < longest; begin += most) {
            std::vector<Range> pieces;
            for (const std::vector<Range>& of_host : ranges) {
                const Range range = part < of_host.size() ? of_host[part] : Range{0, 0};
                const int64_t first = std::min(range.begin + begin, range.end);
                pieces.push_back({first, std::min(first + most, range.end)});
            }
            step(pieces);
        }
}

// Every pair of hosts exchanges what the other one owns, and each adds up what is its own.
template <class T>
void HostComm::reduce_scatter_hosts(T* data, const Ranges& ranges) {
    const int64_t most = kPieceBytes / int64_t(sizeof(T));
    each_piece(ranges, most, [&](const std::vector<Range>& pieces) {
        const Range mine = pieces[size_t(host_)];
        const int64_t n = mine.end - mine.begin;
        received_.resize(std::max(received_.size(), size_t(num_hosts() * n) * sizeof(T)));
        std::vector<T*> sums;
        for (int host = 0; host < num_hosts(); host++)
            sums.push_back(host == host_ ? data + mine.begin : reinterpret_cast<T*>(received_.data()) + host * n);
        for (int i = 1; i < num_hosts(); i++) {
            const int to = (host_ + i) % num_hosts(), from = (host_ + num_hosts() - i) % num_hosts();
            const Range theirs = pieces[size_t(to)];
            exchange(data + theirs.begin, (theirs.end - theirs.begin) * int64_t(sizeof(T)), to, sums[size_t(from)],
                     n * int64_t(sizeof(T)), from);
        }
        add_up(cpu_, std::vector<T*>{data + mine.begin}, sums, n);
    });
}

// Every pair of hosts exchanges elements [begin, begin + n) of each other's shards, of every one of its ranks. They
// arrive in terms_memory_, by host, then shard, then sender.
template <class T>
void HostComm::exchange_terms(const std::vector<const T*>& of_locals, int64_t shard, int64_t begin, int64_t n) {
    std::vector<T*> arriving;
    T* next = reinterpret_cast<T*>(terms_memory_.data());
    const auto pairs = [&](int host) { return local_size() * int64_t(hosts_[size_t(host)].size()); };
    for (int host = 0; host < num_hosts(); host++) {
        arriving.push_back(next);
        if (host != host_) next += pairs(host) * n;
    }
    for (int i = 1; i < num_hosts(); i++) {
        const int to = (host_ + i) % num_hosts(), from = (host_ + num_hosts() - i) % num_hosts();
        packed_.resize(std::max(packed_.size(), size_t(pairs(to) * n) * sizeof(T)));
        T* leaving = reinterpret_cast<T*>(packed_.data());
        for (const int owner : hosts_[size_t(to)])
            for (const T* terms : of_locals) leaving = std::copy_n(terms + owner * shard + begin, n, leaving);
        exchange(packed_.data(), pairs(to) * n * int64_t(sizeof(T)), to, arriving[size_t(from)],
                 pairs(from) * n * int64_t(sizeof(T)), from);
    }
}

void HostComm::all_gather_hosts(char* data, const Ranges& ranges, int64_t element_bytes) {
    each_piece(ranges, kPieceBytes / element_bytes, [&](const std::vector<Range>& pieces) {
        const auto begin = [&](int host) { return data + pieces[size_t(host)].begin * element_bytes; };
        const auto bytes = [&](int host) {
            return (pieces[size_t(host)].end - pieces[size_t(host)].begin) * element_bytes;
        };
        for (int i = 1; i < num_hosts(); i++) {
            const int to = (host_ + i) % num_hosts(), from = (host_ + num_hosts() - i) % num_hosts();
            exchange(begin(host_), bytes(host_), to, begin(from), bytes(from), from);
        }
    });
}

// Along a chain of hosts: each forwards a piece while it receives the next one.
void HostComm::broadcast_hosts(char* data, int64_t bytes, int from_host) {
    const int next = (host_ + 1) % num_hosts(), previous = (host_ + num_hosts() - 1) % num_hosts();
    const auto size_at = [&](int64_t begin) {
        return begin < 0 ? 0 : std::clamp<int64_t>(bytes - begin, 0, kPieceBytes);
    };
    for (int64_t begin = 0; begin < bytes + kPieceBytes; begin += kPieceBytes) {
        const int64_t out = next == from_host ? 0 : size_at(begin - kPieceBytes);
        const int64_t in = host_ == from_host ? 0 : size_at(begin);
        exchange(data + (out ? begin - kPieceBytes : 0), out, next, data + (in ? begin : 0), in, previous);
    }
}

void HostComm::exchange(const void* send, int64_t send_bytes, int to, void* receive, int64_t receive_bytes, int from) {
    if (send_bytes == 0 && receive_bytes == 0) return;
    const int to_rank = rank_of(to, 0), from_rank = rank_of(from, 0);
    control_->awaited = 1 + (receive_bytes ? from_rank : to_rank);
    next_look_ = Clock::now() + kLookEvery;
    network_->exchange(send, size_t(send_bytes), to_rank, receive, size_t(receive_bytes), from_rank, [&](int awaited) {
        control_->awaited.store(1 + awaited, std::memory_order_relaxed);
        look_around([] { return false; });
    });
    control_->awaited = 0;
}
