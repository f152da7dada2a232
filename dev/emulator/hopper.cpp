// See hopper.h. Compiled without the race checker's -fsanitize=thread.
#include "dev/emulator/hopper.h"
#include <algorithm>
#include <cstring>
#include <deque>
#include <vector>
#include "dev/emulator/sanitizers.h"  // ANVIL_MSAN
#include "llmc/base/check.h"          // format

#ifdef ANVIL_MSAN
#include <sanitizer/msan_interface.h>
#endif

namespace emulator {
namespace {

constexpr uint32_t kBase = 1024;            // the address of the block's dynamic memory
constexpr unsigned kChunk = 16;             // bytes: the unit of swizzling, and of tracking async reads and copies
constexpr unsigned kCell = 2;               // bytes: the unit of tracking ordinary stores, one bf16
constexpr uint32_t kInFlight = 0x7FA5C3E1;  // a NaN that no arithmetic yields: fills d while its wgmma is in flight
constexpr int kRegisters = 65536;           // per SM

// Applies the 128-byte swizzle to an address.
constexpr uint32_t swizzled(uint32_t address) { return address ^ (address >> 3 & 0x70); }

struct BarrierState {
    void* address;
    int expected, pending;
    int64_t bytes = 0, phase = 0;  // bytes: expected, but not yet landed
    unsigned maker;
    bool fenced = false;
    std::vector<std::pair<unsigned, int>> waiting{};  // thread, parity
    std::vector<int64_t> seen{};                      // by thread: the last phase that it saw end, plus 2
    int64_t most_seen = 0;
};
struct Copy {
    const char* op;
    uint32_t to;  // offset in dynamic shared memory
    size_t bytes;
    TensorMap map;
    std::array<int, 4> corner;
    const char* from;  // null: the map's box at this corner; else `bytes` from here, in their order
    void* barrier;
    Site site;
};
struct NamedBarrier {
    int threads = 0, arrived = 0;
    Site site{};
    std::vector<unsigned> waiting{};
    std::vector<bool> came{};
};

// The accumulator d of one or more products in flight.
struct Chain {
    float* d[32];
    int N, pending = 0;
    std::vector<float> sums;  // (16, N)
};
struct Product {
    Wgmma of;
    unsigned group, chain;
    const uint32_t* a[32];
    uint32_t a_was[32][4];
    Site site;
};
struct WarpState {
    bool fenced = false;
    unsigned groups = 0, issued = 0;
    std::deque<Product> products{};
    std::vector<Chain> chains{};
    int registers = 0;
};
struct Issued {
    uint64_t a, b;
    int N;
    bool transposed_a, transposed_b, add, in_registers;
    bool operator==(const Issued&) const = default;
};

// Of the running block.
struct State {
    bool active = false;
    std::vector<BarrierState> barriers;
    std::vector<NamedBarrier> named;
    std::vector<Copy> copies;
    std::vector<WarpState> warps;
    std::vector<std::vector<Issued>> issued;  // by warpgroup
    std::vector<unsigned> finishing;          // threads that wait for products, in the order in which they came
    std::vector<unsigned> without_registers;  // threads
    int free_registers = 0;
    SharedSpan shared{};
    std::vector<char> async;                           // shared memory as the asynchronous proxy sees it
    std::vector<uint8_t> landing;                      // by chunk: copies to it that are in flight
    std::vector<std::pair<uint16_t, int64_t>> landed;  // by chunk: the barrier, plus 1, and its value of `seen`
    std::vector<uint16_t> readers;                     // by chunk: products in flight that read it
    std::vector<uint16_t> dirty;                       // by cell, for the race checker: the storing thread, plus 1
    std::string text;                                  // here, because fail() destroys nothing on the fiber's stack
};
State state;

unsigned num_warps() { return (unsigned(current.block_dim.x * current.block_dim.y * current.block_dim.z) + 31) / 32; }

void begin() {
    if (state.active) return;
    state.active = true;
    state.named.assign(16, {});
    state.warps.assign(num_warps(), {});
    state.issued.assign((num_warps() + 3) / 4, {});
    const int threads = int(num_warps()) * 32, most = std::min(255, kRegisters / threads);
    for (WarpState& warp : state.warps) warp.registers = most == 255 ? 256 : most / 8 * 8;
}
void begin_shared() {
    begin();
    if (state.shared.data) return;
    state.shared = dynamic_shared();
    const size_t bytes = (state.shared.bytes + kChunk - 1) / kChunk * kChunk;
    state.async.assign(bytes, char(0xFF));  // as new shared memory is filled
    state.landing.assign(bytes / kChunk, 0);
    state.landed.assign(bytes / kChunk, {0, 0});
    state.readers.assign(bytes / kChunk, 0);
#ifdef ANVIL_RACE
    state.dirty.assign(bytes / kCell, 0);
#endif
}

WarpState& own_warp() {
    begin();
    return state.warps[current.thread->warp];
}

BarrierState& barrier_at(void* address, const char* op, Site site) {
    begin();
    for (BarrierState& barrier : state.barriers)
        if (barrier.address == address) return barrier;
    fail("%s at %s:%d: there is no mbarrier at %p", op, site.file, site.line, address);
}

bool is_over(const BarrierState& barrier, int parity) { return (barrier.phase & 1) != parity; }
void note_seen(BarrierState& barrier, unsigned thread) {
    barrier.seen[thread] = barrier.most_seen = barrier.phase - 1 + 2;
}

void end_phase(BarrierState& barrier, Site site) {
    if (barrier.pending > 0) return;
    if (barrier.bytes < 0)
        fail("an mbarrier at the end of a phase has %ld bytes more than it was told to expect, at %s:%d",
             long(-barrier.bytes), site.file, site.line);
    if (barrier.bytes > 0) return;
    barrier.phase++;
    barrier.pending = barrier.expected;
    std::erase_if(barrier.waiting, [&](const std::pair<unsigned, int>& waiting) {
        if (!is_over(barrier, waiting.second)) return false;
        note_seen(barrier, waiting.first);
        wake(waiting.first);
        return true;
    });
}

void land(const Copy& copy) {
    const TensorMap& map = copy.map;
    BarrierState& barrier = barrier_at(copy.barrier, copy.op, copy.site);
    const auto landed = std::pair(uint16_t(&barrier - state.barriers.data() + 1), barrier.phase + 2);
    const auto bring = [&](uint32_t to, const void* chunk) {
        std::memcpy(state.shared.data + to, chunk, kChunk);
        std::memcpy(state.async.data() + to, chunk, kChunk);
        state.landing[to / kChunk]--;
        state.landed[to / kChunk] = landed;
    };
    for (uint32_t at = 0; copy.from && at < copy.bytes; at += kChunk) bring(copy.to + at, copy.from + at);
    int row = 0;
    for (int i3 = 0; !copy.from && i3 < map.box[3]; i3++)
        for (int i2 = 0; i2 < map.box[2]; i2++)
            for (int i1 = 0; i1 < map.box[1]; i1++, row++) {
                const int64_t at[4] = {copy.corner[0], copy.corner[1] + i1, copy.corner[2] + i2, copy.corner[3] + i3};
                bool inside = true;
                for (int k = 1; k < 4; k++) inside &= at[k] >= 0 && at[k] < map.dims[k];
                uint16_t values[64] = {};
                const int64_t first = std::max<int64_t>(0, -at[0]), end = std::min<int64_t>(64, map.dims[0] - at[0]);
                if (inside && first < end)
                    std::memcpy(values + first,
                                map.base + at[3] * map.strides[3] + at[2] * map.strides[2] + at[1] * map.strides[1] +
                                    (at[0] + first) * 2,
                                size_t(end - first) * 2);
                for (unsigned chunk = 0; chunk < 8; chunk++)
                    bring(swizzled(copy.to + uint32_t(row) * 128 + chunk * kChunk), values + chunk * 8);
            }
#ifdef ANVIL_MSAN
    __msan_unpoison(state.shared.data + copy.to, copy.bytes);
#endif
    barrier.bytes -= int(copy.bytes);
    end_phase(barrier, copy.site);
}

// ---- wgmma -------------------------------------------------------------------------------------------------------

// What is wrong with a matrix descriptor; null if it is valid. Advancing it along k must stay inside a row of 128
// bytes. Addresses are swizzled, not offsets, so a tile must begin where the swizzle pattern does.
const char* wrong(uint64_t tile, bool transposed, int columns) {
    const auto bits = [&](int first, int n) { return unsigned(tile >> first & ((uint64_t(1) << n) - 1)); };
    const unsigned start = bits(0, 14) << 4, next = bits(16, 14) << 4, eight_rows = bits(32, 14) << 4;
    if (bits(62, 2) != 1) return "its swizzle is not that of 128 bytes";
    if (bits(14, 2) || bits(30, 2) || bits(46, 3) || bits(52, 10)) return "bits are set that mean nothing";
    if (bits(49, 3)) return "its base offset is not 0";
    if (eight_rows != 1024) return "8 rows of 128 bytes are not 1024 bytes away from the next";
    if (start & 0x380) return "its start is not the first of 8 rows, a multiple of 1024";
    if (transposed && start & 0x7F) return "its start is not the first of 64 columns";
    if (transposed && columns > 64 && (next == 0 || next % 1024)) return "the next 64 columns are nowhere";
    if (!transposed && (start & 0x7F) + 32 > 128) return "16 elements of k do not end in their row of 128 bytes";
    return nullptr;
}

// Calls visit(row, part, offset) for each chunk of rows [first, first + n) of a tile with 16 elements of k per row.
template <class Visit>
void visit_rows(uint64_t tile, int first, int n, Visit visit) {
    const uint32_t start = uint32_t(tile & 0x3FFF) << 4;
    for (int row = first; row < first + n; row++)
        for (int part = 0; part < 2; part++)
            visit(row, part,
                  swizzled(start + uint32_t(row / 8) * 1024 + uint32_t(row % 8) * 128 + uint32_t(part) * 16) - kBase);
}
// Calls visit(k, its first column, offset) for each chunk of columns [first, first + n) of a transposed tile: 16 rows,
// one per k.
template <class Visit>
void visit_columns(uint64_t tile, int first, int n, Visit visit) {
    const uint32_t start = uint32_t(tile & 0x3FFF) << 4, next = uint32_t(tile >> 16 & 0x3FFF) << 4;
    for (int k = 0; k < 16; k++)
        for (int column = first; column < first + n; column += 8)
            visit(k, column,
                  swizzled(start + uint32_t(column / 64) * next + uint32_t(k / 8) * 1024 + uint32_t(k % 8) * 128 +
                           uint32_t(column % 64) * 2) -
                      kBase);
}
template <class Visit>
void visit_chunks(const Product& p, unsigned warp, Visit visit) {
    const int first = int(warp % 4) * 16;
    if (!p.of.a_registers && p.of.transposed_a)
        visit_columns(p.of.a_tile, first, 16, [&](int, int, uint32_t at) { visit(at); });
    else if (!p.of.a_registers)
        visit_rows(p.of.a_tile, first, 16, [&](int, int, uint32_t at) { visit(at); });
    if (p.of.transposed_b)
        visit_columns(p.of.b_tile, 0, p.of.N, [&](int, int, uint32_t at) { visit(at); });
    else
        visit_rows(p.of.b_tile, 0, p.of.N, [&](int, int, uint32_t at) { visit(at); });
}

void check_readable(const Product& p, uint32_t at) {
    if (at + kChunk > state.shared.bytes)
        fail("wgmma at %s:%d reads byte %u of %zu of shared memory", p.site.file, p.site.line, at, state.shared.bytes);
    if (state.landing[at / kChunk])
        fail("wgmma at %s:%d reads byte %u of shared memory, which a tma_load is still bringing", p.site.file,
             p.site.line, at);
    const auto [barrier, seen] = state.landed[at / kChunk];
    if (barrier && state.barriers[barrier - 1u].most_seen < seen)
        fail("wgmma at %s:%d reads byte %u of shared memory, which a tma_load brought, and nobody has waited for it",
             p.site.file, p.site.line, at);
    bool stored = std::memcmp(state.shared.data + at, state.async.data() + at, kChunk) != 0;
    for (uint32_t cell = at / kCell; !state.dirty.empty() && cell < (at + kChunk) / kCell; cell++)
        stored |= state.dirty[cell] != 0;
    if (stored)
        fail("wgmma at %s:%d reads byte %u of shared memory, which was stored to without fence_async() after it",
             p.site.file, p.site.line, at);
}

void check_in_flight(const Chain& chain, Site site) {
    for (float* const d : chain.d)
        for (int i = 0; i < chain.N / 2; i++) {
            uint32_t bits;
            std::memcpy(&bits, d + i, sizeof bits);
            if (bits != kInFlight) fail("wgmma at %s:%d: its d was written to before the wait", site.file, site.line);
        }
}
// Calls element(lane, i, row, column) for each element that each lane holds of a warp's (16, N).
template <class Element>
void for_fragment(int N, Element element) {
    for (int lane = 0; lane < 32; lane++)
        for (int i = 0; i < N / 2; i++) element(lane, i, lane / 4 + i / 2 % 2 * 8, i / 4 * 8 + lane % 4 * 2 + i % 2);
}

EMULATOR_UNBOUNDED void issue(void** operands, uint32_t mask, void* argument) {
    const Site site = *static_cast<const Site*>(argument);
    if (mask != 0xFFFFFFFF) fail("wgmma at %s:%d by part of a warp: mask %08x", site.file, site.line, mask);
    begin_shared();
    const unsigned number = current.thread->warp;
    if (num_warps() < number / 4 * 4 + 4) fail("wgmma at %s:%d by part of a warpgroup", site.file, site.line);
    WarpState& warp = own_warp();
    const Wgmma& first = *static_cast<Wgmma*>(operands[0]);
    const auto issued_by = [](const Wgmma& w) {
        return Issued{w.a_tile, w.b_tile, w.N, w.transposed_a, w.transposed_b, w.add, w.a_registers != nullptr};
    };
    const Issued as_issued = issued_by(first);
    for (int lane = 1; lane < 32; lane++)
        if (!(issued_by(*static_cast<Wgmma*>(operands[lane])) == as_issued))
            fail("wgmma at %s:%d: lane %d has other operands than lane 0", site.file, site.line, lane);
    std::vector<Issued>& all = state.issued[number / 4];
    if (warp.issued == all.size())
        all.push_back(as_issued);
    else if (!(all[warp.issued] == as_issued))
        fail("wgmma at %s:%d: warp %u has other operands than the others of its warpgroup", site.file, site.line,
             number);
    warp.issued++;
    if (!warp.fenced)
        fail("wgmma at %s:%d without wgmma_fence() since the last wait or wgmma_pin()", site.file, site.line);
    const char* const fault_a = first.a_registers ? nullptr : wrong(first.a_tile, first.transposed_a, 64);
    const char* const fault_b = wrong(first.b_tile, first.transposed_b, first.N);
    if (fault_a || fault_b)
        fail("wgmma at %s:%d: of tile %s, %s", site.file, site.line, fault_a ? "a" : "b", fault_a ? fault_a : fault_b);

    unsigned c = 0;
    while (c < warp.chains.size() && !(warp.chains[c].pending && warp.chains[c].d[0] == first.d)) c++;
    if (c == warp.chains.size()) {
        for (c = 0; c < warp.chains.size() && warp.chains[c].pending; c++) {
        }
        if (c == warp.chains.size()) warp.chains.emplace_back();
        Chain& chain = warp.chains[c];
        chain.N = first.N;
        for (int lane = 0; lane < 32; lane++) chain.d[lane] = static_cast<Wgmma*>(operands[lane])->d;
        chain.sums.assign(size_t(16 * first.N), 0);
        if (first.add)
            for_fragment(first.N, [&](int lane, int i, int row, int column) {
                chain.sums[size_t(row * first.N + column)] = chain.d[lane][i];
            });
        for (float* const d : chain.d)
            for (int i = 0; i < first.N / 2; i++) std::memcpy(d + i, &kInFlight, sizeof kInFlight);
    } else {
        check_in_flight(warp.chains[c], site);
        if (warp.chains[c].N != first.N) fail("wgmma at %s:%d: its d is part of another's", site.file, site.line);
    }
    warp.chains[c].pending++;

    Product& p = warp.products.emplace_back(Product{first, warp.groups, c, {}, {}, site});
    for (int lane = 0; lane < 32 && first.a_registers; lane++) {
        p.a[lane] = static_cast<Wgmma*>(operands[lane])->a_registers;
        std::memcpy(p.a_was[lane], p.a[lane], sizeof p.a_was[lane]);
    }
    visit_chunks(p, number, [&](uint32_t at) {
        check_readable(p, at);
        state.readers[at / kChunk]++;
    });
}

float number_of(uint16_t bits) { return __builtin_bit_cast(float, uint32_t(bits) << 16); }

EMULATOR_UNBOUNDED void finish(WarpState& warp, unsigned number, const Product& p) {
    visit_chunks(p, number, [&](uint32_t at) {
        state.readers[at / kChunk]--;
        check_readable(p, at);
    });
    const char* const memory = state.async.data();
    const int N = p.of.N;
    float a[16][16];
    if (p.of.a_registers) {
        for (int lane = 0; lane < 32; lane++) {
            if (std::memcmp(p.a[lane], p.a_was[lane], sizeof p.a_was[lane]) != 0)
                fail("wgmma at %s:%d: its a was written to before the wait", p.site.file, p.site.line);
            for (int i = 0; i < 4; i++)
                for (int half = 0; half < 2; half++)
                    a[lane / 4 + i % 2 * 8][lane % 4 * 2 + i / 2 * 8 + half] =
                        number_of(uint16_t(p.a_was[lane][i] >> 16 * half));
        }
    } else {
        const int first = int(number % 4) * 16;
        const auto put = [&](int row, int k, uint16_t bits) { a[row - first][k] = number_of(bits); };
        if (p.of.transposed_a)
            visit_columns(p.of.a_tile, first, 16, [&](int k, int row, uint32_t at) {
                uint16_t bits[8];
                std::memcpy(bits, memory + at, sizeof bits);
                for (int i = 0; i < 8; i++) put(row + i, k, bits[i]);
            });
        else
            visit_rows(p.of.a_tile, first, 16, [&](int row, int part, uint32_t at) {
                uint16_t bits[8];
                std::memcpy(bits, memory + at, sizeof bits);
                for (int i = 0; i < 8; i++) put(row, part * 8 + i, bits[i]);
            });
    }
    using Row = float __attribute__((vector_size(32)));
    Row b[16][32];
    const auto put = [&](int k, int column, uint16_t bits) { b[k][column / 8][column % 8] = number_of(bits); };
    if (p.of.transposed_b)
        visit_columns(p.of.b_tile, 0, N, [&](int k, int column, uint32_t at) {
            uint16_t bits[8];
            std::memcpy(bits, memory + at, sizeof bits);
            for (int i = 0; i < 8; i++) put(k, column + i, bits[i]);
        });
    else
        visit_rows(p.of.b_tile, 0, N, [&](int row, int part, uint32_t at) {
            uint16_t bits[8];
            std::memcpy(bits, memory + at, sizeof bits);
            for (int i = 0; i < 8; i++) put(part * 8 + i, row, bits[i]);
        });
    Chain& chain = warp.chains[p.chain];
    for (int row = 0; row < 16; row++)
        for (int n = 0; n < N / 8; n++) {
            Row sum = {}, before;
            for (int k = 0; k < 16; k++) sum += a[row][k] * b[k][n];
            float* const to = chain.sums.data() + row * N + n * 8;
            std::memcpy(&before, to, sizeof before);
            if (p.of.add) sum += before;
            std::memcpy(to, &sum, sizeof sum);
        }
    if (--chain.pending) return;
    check_in_flight(chain, p.site);
    for_fragment(
        N, [&](int lane, int i, int row, int column) { chain.d[lane][i] = chain.sums[size_t(row * N + column)]; });
}

void finish_groups(void**, uint32_t, void* argument) {
    const unsigned left = *static_cast<unsigned*>(argument), number = current.thread->warp;
    WarpState& warp = own_warp();
    while (!warp.products.empty() && warp.products.front().group + left < warp.groups) {
        finish(warp, number, warp.products.front());
        warp.products.pop_front();
    }
    warp.fenced = false;
}
void whole_warp(void**, uint32_t mask, void* argument) {
    if (mask != 0xFFFFFFFF) fail("%s by part of a warp: mask %08x", static_cast<const char*>(argument), mask);
}
void whole_warp_operation(const char* op, Site site) {
    warp_operation(op, site, 0xFFFFFFFF, nullptr, whole_warp, const_cast<char*>(op));
}

}  // namespace

uint32_t shared_address(const void* pointer, const char* op, Site site) {
    begin_shared();
    const size_t offset = size_t(static_cast<const char*>(pointer) - state.shared.data);
    if (offset >= state.shared.bytes)
        fail("%s at %s:%d: not in the block's dynamic shared memory", op, site.file, site.line);
    return uint32_t(offset) + kBase;
}

void mbarrier_init(void* barrier, int arrivals, Site site) {
    begin_shared();
    if (arrivals < 1 || arrivals >= 1 << 20)
        fail("mbarrier_init at %s:%d: %d arrivals: expected 1 to 1048575", site.file, site.line, arrivals);
    shared_address(barrier, "mbarrier_init", site);
    for (const BarrierState& other : state.barriers)
        if (other.address == barrier) fail("mbarrier_init at %s:%d: there is one already", site.file, site.line);
    BarrierState made{barrier, arrivals, arrivals, 0, 0, current.thread->number};
    made.seen.assign(num_warps() * 32, 0);
    state.barriers.push_back(std::move(made));
}
void mbarrier_fence_init() {
    for (BarrierState& barrier : state.barriers) barrier.fenced |= barrier.maker == current.thread->number;
}
void mbarrier_arrive(void* address, int bytes, const char* op, Site site) {
    BarrierState& barrier = barrier_at(address, op, site);
    if (barrier.pending == 0)
        fail("%s at %s:%d: the phase has its %d arrivals already", op, site.file, site.line, barrier.expected);
    barrier.bytes += bytes;
    barrier.pending--;
    end_phase(barrier, site);
}
void mbarrier_wait(void* address, int parity, Site site) {
    BarrierState& barrier = barrier_at(address, "mbarrier_wait", site);
    const unsigned thread = current.thread->number;
    if (is_over(barrier, parity)) {
        if (barrier.seen[thread] == barrier.phase - 1 + 2)
            fail("mbarrier_wait at %s:%d: parity %d is that of a phase whose end this thread has seen", site.file,
                 site.line, parity);
        return note_seen(barrier, thread);
    }
    barrier.waiting.push_back({thread, parity});
    park("mbarrier_wait", site);
}

void named_barrier(int number, int threads, bool waits, Site site) {
    begin();
    const char* const op = waits ? "barrier_sync" : "barrier_arrive";
    whole_warp_operation(op, site);
    if (number < 1 || number > 15) fail("%s at %s:%d: number %d: expected 1 to 15", op, site.file, site.line, number);
    NamedBarrier& barrier = state.named[size_t(number)];
    if (barrier.arrived == 0)
        barrier.threads = threads, barrier.site = site, barrier.came.assign(num_warps() * 32, false);
    if (threads % 32 || threads <= 0 || barrier.threads != threads)
        fail("%s at %s:%d: barrier %d for %d threads, in whole warps, and for %d at %s:%d", op, site.file, site.line,
             number, threads, barrier.threads, barrier.site.file, barrier.site.line);
    if (barrier.came[current.thread->number])
        fail("%s at %s:%d: this thread is at barrier %d already, and others are not", op, site.file, site.line, number);
    barrier.came[current.thread->number] = true;
    if (++barrier.arrived < threads) {
        if (!waits) return;
        barrier.waiting.push_back(current.thread->number);
        return park(op, site);
    }
    for (const unsigned thread : barrier.waiting) wake(thread);
    barrier.waiting.clear();
    barrier.arrived = 0;
}

// Begins an asynchronous copy to shared memory.
static void bring(const Copy& copy) {
    const auto& [op, to, bytes, map, corner, from, barrier, site] = copy;
    if (!barrier_at(barrier, op, site).fenced)
        fail("%s at %s:%d: its mbarrier was made without mbarrier_fence_init() after it", op, site.file, site.line);
    if (to + bytes > state.shared.bytes)
        fail("%s at %s:%d: %zu bytes from %u on, of %zu of shared memory", op, site.file, site.line, bytes, to,
             state.shared.bytes);
    for (size_t chunk = to / kChunk; chunk < (to + bytes) / kChunk; chunk++) {
        if (state.readers[chunk])
            fail("%s at %s:%d to byte %zu of shared memory, which a wgmma still reads", op, site.file, site.line,
                 chunk * kChunk);
        if (state.landing[chunk]++)
            fail("%s at %s:%d to byte %zu of shared memory, which another is still bringing", op, site.file, site.line,
                 chunk * kChunk);
    }
    std::memset(state.shared.data + to, 0xFF, bytes);
    std::memset(state.async.data() + to, 0xFF, bytes);
    for (size_t cell = to / kCell; !state.dirty.empty() && cell < (to + bytes) / kCell; cell++)
        if (state.dirty[cell])
            fail("%s at %s:%d to byte %zu of shared memory, which was stored to without fence_async() after it", op,
                 site.file, site.line, cell * kCell);
#ifdef ANVIL_MSAN
    __msan_poison(state.shared.data + to, bytes);
#endif
    state.copies.push_back(copy);
}
void tma_load(void* to, const TensorMap& map, void* barrier, std::array<int, 4> corner, Site site) {
    const uint32_t offset = shared_address(to, "tma_load", site) - kBase;
    if (offset % 1024)
        fail("tma_load at %s:%d: byte %u of shared memory is not a multiple of 1024", site.file, site.line, offset);
    const size_t rows = size_t(map.box[1]) * size_t(map.box[2]) * size_t(map.box[3]);
    bring({"tma_load", offset, rows * 128, map, corner, nullptr, barrier, site});
}
void bulk_load(void* to, const void* from, int bytes, void* barrier, Site site) {
    const uint32_t offset = shared_address(to, "bulk_load", site) - kBase;
    if (offset % 16 || reinterpret_cast<uintptr_t>(from) % 16 || bytes % 16 || bytes <= 0)
        fail("bulk_load at %s:%d: %d bytes from %p to byte %u of shared memory: expected multiples of 16", site.file,
             site.line, bytes, from, offset);
    bring({"bulk_load", offset, size_t(bytes), {}, {}, static_cast<const char*>(from), barrier, site});
}

void fence_async() {
    begin_shared();
    const auto show = [&](size_t at, size_t bytes) {
        std::memcpy(state.async.data() + at, state.shared.data + at, bytes);
    };
    if (state.dirty.empty()) return show(0, state.shared.bytes);
    // Cells without a reported store are copied, too: the compiler does not report a value that a function returns into
    // memory.
    for (size_t cell = 0; cell < state.dirty.size(); cell++)
        if (state.dirty[cell] == current.thread->number + 1 || state.dirty[cell] == 0) {
            show(cell * kCell, std::min<size_t>(kCell, state.shared.bytes - cell * kCell));
            state.dirty[cell] = 0;
        }
}
void note_generic_store(uintptr_t address, size_t bytes) {
    const SharedSpan shared = dynamic_shared();
    const size_t offset = address - reinterpret_cast<uintptr_t>(shared.data);
    if (offset >= shared.bytes) return;
    begin_shared();
    if (state.landing[offset / kChunk])
        fail("a store to byte %zu of shared memory, which a tma_load is still bringing", offset);
    for (size_t cell = offset / kCell; cell <= (offset + bytes - 1) / kCell && cell < state.dirty.size(); cell++)
        state.dirty[cell] = uint16_t(current.thread->number + 1);
}

void give_registers(int n, Site site) {
    whole_warp_operation("give_registers", site);
    int& own = own_warp().registers;
    if (own == n) return;  // another lane of the warp has done it
    if (own < n) fail("give_registers at %s:%d: down to %d, of %d a thread", site.file, site.line, n, own);
    state.free_registers += (own - n) * 32;
    own = n;
    for (const unsigned thread : state.without_registers) wake(thread);
    state.without_registers.clear();
}
void take_registers(int n, Site site) {
    whole_warp_operation("take_registers", site);
    int& own = own_warp().registers;
    if (own > n) fail("take_registers at %s:%d: up to %d, of %d a thread", site.file, site.line, n, own);
    while (own < n) {
        if (state.free_registers < (n - own) * 32) {
            state.without_registers.push_back(current.thread->number);
            park("take_registers", site);
        } else {
            state.free_registers -= (n - own) * 32;
            own = n;
        }
    }
}

void wgmma(const Wgmma& own, Site site) {
    Wgmma operands = own;
    warp_operation("wgmma", site, 0xFFFFFFFF, &operands, issue, &site);
}
void wgmma_fence(Site site) {
    whole_warp_operation("wgmma_fence", site);
    own_warp().fenced = true;
}
void wgmma_pin() { own_warp().fenced = false; }
void wgmma_commit(Site site) {
    warp_operation(
        "wgmma_commit", site, 0xFFFFFFFF, nullptr, [](void**, uint32_t, void*) { own_warp().groups++; }, nullptr);
}
void wgmma_wait(int groups_left, Site site) {
    const WarpState& warp = own_warp();
    unsigned left = unsigned(groups_left);
    if (!warp.products.empty() && warp.products.front().group + left < warp.groups) {
        state.finishing.push_back(current.thread->number);
        park("wgmma_wait", site);
    }
    warp_operation("wgmma_wait", site, 0xFFFFFFFF, nullptr, finish_groups, &left);
}

void hopper_begin_block() {
    if (!state.active) return;
    state = {};
}

bool hopper_progress(Schedule schedule, unsigned random) {
    if (state.copies.empty() && state.finishing.empty()) return false;
    const bool copies_first = schedule == Schedule::in_order || (schedule == Schedule::random && random % 2);
    if (!state.copies.empty() && (copies_first || state.finishing.empty())) {
        const size_t n = state.copies.size();
        const size_t i = schedule == Schedule::in_order ? 0 : schedule == Schedule::reverse ? n - 1 : random / 2 % n;
        const Copy copy = state.copies[i];
        state.copies.erase(state.copies.begin() + ptrdiff_t(i));
        land(copy);
        return true;
    }
    const unsigned warp = (schedule == Schedule::reverse ? state.finishing.back() : state.finishing.front()) / 32;
    std::erase_if(state.finishing, [&](unsigned thread) {
        if (thread / 32 != warp) return false;
        wake(thread);
        return true;
    });
    return true;
}

std::string hopper_state() {
    std::string text;
    if (!state.active) return text;
    for (const BarrierState& b : state.barriers)
        if (!b.waiting.empty() || b.pending != b.expected || b.bytes)
            text += format("\n  the mbarrier at byte %u: phase %ld, %d of %d arrivals and %ld bytes missing",
                           unsigned(static_cast<char*>(b.address) - state.shared.data), long(b.phase), b.pending,
                           b.expected, long(b.bytes));
    for (size_t i = 0; i < state.named.size(); i++)
        if (state.named[i].arrived)
            text += format("\n  barrier %zu: %d of %d threads", i, state.named[i].arrived, state.named[i].threads);
    if (!state.without_registers.empty()) text += format("\n  %d registers are free", state.free_registers);
    return text;
}

void hopper_end_block() {
    if (!state.active) return;
    if (!state.copies.empty())
        fail("%s at %s:%d was never waited for", state.copies[0].op, state.copies[0].site.file,
             state.copies[0].site.line);
    for (const WarpState& warp : state.warps)
        if (!warp.products.empty())
            fail("wgmma at %s:%d was never waited for", warp.products[0].site.file, warp.products[0].site.line);
    for (size_t i = 0; i < state.warps.size(); i++)
        if (state.warps[i].issued != state.issued[i / 4].size())
            fail("warp %zu has %u products, and its warpgroup %zu", i, state.warps[i].issued,
                 state.issued[i / 4].size());
    state.text = hopper_state();
    if (!state.text.empty()) fail("at the end of the block:%s", state.text.c_str());
}

}  // namespace emulator
