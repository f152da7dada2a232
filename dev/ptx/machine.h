/*
Executes the kernels of a Module on the CPU: the second reading of every kernel. It was written from the PTX ISA and
from CUTLASS's descriptions of wgmma, TMA and mbarriers, not from dev/emulator, and it executes what nvcc made of a
kernel, not its source. A warp executes an instruction for all lanes that are there, those at the lowest address
first; warps take turns, and several blocks are resident at once. What PTX leaves undefined is a Fault:

  memory, addresses and branches that depend on a register that nothing has written (arithmetic may use one, because
  nvcc computes ahead what it may not need); a register that is used while a wgmma in flight uses it
  global memory outside of every allocation; shared memory outside of every array, before it is written, or while a
  copy to it is in flight; addresses that are not a multiple of the access
  two accesses to a byte, one of them a store, that nothing orders: barriers, mbarriers, releases and acquires do, and
  fences around atomics, as in PTX's memory model. So a missing fence is found in every order of execution
  a store that wgmma or TMA reads or overwrites without fence.proxy.async
  lanes of a warp at different barriers or shuffles, a member mask with lanes that are not there; warps that wait
  forever

Asynchronous work is done at once, as late as possible, or at random: see Order. Not modeled: time, caches, and the
errors of approximate instructions, which are rounded correctly.
*/
#pragma once
#include <array>
#include <cstring>
#include <deque>
#include <memory>
#include <random>
#include <stdexcept>
#include <unordered_map>
#include <utility>
#include "dev/ptx/module.h"

namespace ptx {

struct Fault : std::runtime_error {
    using std::runtime_error::runtime_error;
};

struct Extent {
    uint32_t x = 1, y = 1, z = 1;
};

// first: warps and blocks in order, asynchronous work at once. last: in reverse order, asynchronous work as late as
// possible. random: both at random.
enum class Order { first, last, random };

struct Launch {
    const Kernel* kernel;
    Extent grid, block;
    uint32_t dynamic_bytes;  // of shared memory
    std::vector<char> parameters;
    // Begin and end of the allocation of global memory that an address lies in; two null pointers: it lies in none.
    std::pair<const char*, const char*> (*allocation_of)(const void*);
    Order order = Order::first;
    uint32_t seed = 1;
};

// Executes a launch. Throws Fault. Returns the number of instructions, counted once for a warp.
uint64_t run(const Launch& launch);

// ---- who has seen what: vector clocks ----------------------------------------------------------------------------

// A moment of a warp: its clock, and of whose accesses at that clock it speaks: a lane's, or everyone's.
struct Moment {
    static constexpr uint32_t kEveryone = 63;    // several lanes, or all
    static constexpr uint32_t kCollective = 62;  // the warp as one: each lane knows of it, as by wgmma.wait_group
    uint32_t bits = 0;                           // 0: never
    static Moment at(uint32_t clock, uint32_t who) { return {clock << 6 | who}; }
    uint32_t clock() const { return bits >> 6; }
    uint32_t who() const { return bits & 63; }
    bool is_of(uint32_t lane) const { return who() == lane || who() == kCollective; }
    // Whether someone who has seen warp W up to `seen` has seen what happened at this moment of W.
    bool before(Moment seen) const {
        return clock() < seen.clock() || (clock() == seen.clock() && (seen.who() == kEveryone || is_of(seen.who())));
    }
};

// What has been seen of each warp that can be communicated with: those of the block, or of all blocks if the kernel
// communicates between blocks. One more per block stands for its asynchronous copies.
using Clocks = std::vector<Moment>;
void join(Clocks& into, const Clocks& other);

// ---- a block's shared memory --------------------------------------------------------------------------------------
struct SharedByte {
    static constexpr uint8_t kOwned = 1, kWritten = 2, kLanding = 4, kUnfenced = 8;
    // kUnfenced: stored without a fence.proxy.async since
};

struct Mbarrier {
    uint32_t expected = 0, pending = 0, phase = 0;
    int64_t bytes = 0;
    bool fenced = false;
    Clocks arrived, ended;  // seen by those who arrived in this phase, in the last one
};

struct NamedBarrier {
    uint32_t arrived = 0, threads = 0, generation = 0;
    Clocks clocks, left;  // `left`: what those know who have waited
};

// A copy to shared memory in flight: of a lane's cp.async, or TMA's.
struct Copy {
    std::vector<char> bytes;
    uint32_t to = 0, group = 0, lane = 0;  // cp.async
    std::vector<uint32_t> places;          // TMA: of each byte
    uint32_t mbarrier = 0;                 // that counts them
    Clocks clocks;                         // of the warp that asked for it
};

class Grid;

class Block {
public:
    Block(Grid& grid, uint32_t number);
    Grid& grid;
    uint32_t number;
    Extent index;
    uint32_t first_clock;  // of this block's warps, in Clocks
    std::vector<char> shared;
    std::vector<uint8_t> state;    // of each byte: SharedByte
    std::vector<uint32_t> writer;  // warp + 1
    std::vector<Moment> written;
    std::vector<std::vector<Moment>> read;  // by warp
    std::vector<std::unique_ptr<Warp>> warps;
    std::array<NamedBarrier, 16> barriers;
    std::unordered_map<uint32_t, Mbarrier> mbarriers;
    std::unordered_map<uint32_t, Clocks> released;  // what who acquires from this address has seen
    std::deque<Copy> copies;                        // TMA's
    uint32_t copy_clock = 0;
    std::vector<std::vector<std::array<uint64_t, 3>>> products;  // that each warpgroup has issued
    uint32_t free_registers = 0;

    bool is_done() const;
    void land_oldest();
    void end_phase_if_complete(Mbarrier& barrier);
    // Marks accesses, and throws what is wrong with them. `moment` is the warp's.
    void check_read(Warp& warp, uint32_t at, uint32_t bytes, uint32_t lane, bool by_wgmma = false);
    void check_write(Warp& warp, uint32_t at, uint32_t bytes, uint32_t lane);
    // Releases and acquires race with nothing: they are not marked.
    void check_strong(Warp& warp, uint32_t at, uint32_t bytes, bool is_write);
    std::string name_of(uint32_t at) const;
};

struct Group {  // lanes of a warp at one instruction
    uint32_t lanes, pc;
    bool waits;  // for other lanes
};

struct Product {  // a wgmma
    int columns;
    bool transposed_a, transposed_b, adds, a_in_registers;
    std::vector<Register> d, a;
    uint64_t a_tile, b_tile;
};

class Warp {
public:
    Warp(Block& block, uint32_t number);
    Block& block;
    uint32_t number;
    uint32_t alive;
    std::vector<Group> groups;
    uint32_t pc = 0;  // of the instruction that is executed
    bool yielded = false;

    std::vector<char> file;
    std::vector<uint32_t> written;   // of each register, the lanes that have a value
    std::vector<uint8_t> in_flight;  // 1: a wgmma reads it, 2: writes it
    std::vector<uint8_t> touched;    // since the last wgmma.fence
    std::vector<char> local;

    int at_barrier = -1;  // which named barrier it waits at
    uint32_t generation = 0;
    Clocks clocks, fenced, to_acquire;
    uint32_t clock = 1;

    std::vector<Copy> copies;  // by cp.async, in order
    uint32_t copy_group[kLanes] = {};
    std::vector<Product> products;  // since the last commit
    std::deque<std::vector<Product>> groups_of_products;
    uint32_t products_issued = 0;
    bool is_fenced_for_wgmma = false;
    std::vector<std::array<uint32_t, 3>> unfenced_stores;  // at, bytes, lane
    uint32_t registers = 0;                                // that setmaxnreg left it

    const Instruction& instruction() const;
    void execute();  // one instruction
    [[noreturn]] __attribute__((format(printf, 2, 3))) void fail(const char* fmt, ...) const;

    uint32_t clock_index() const { return block.first_clock + number; }
    Clocks seen(uint32_t lanes);  // what a release by these lanes hands on; the warp's clock advances
    void acquire(const Clocks& other) { join(clocks, other); }
    void complete_products(size_t groups_left);
    void complete_copies(uint32_t lane, uint32_t groups_left);

    // Values of a register. Throws if one of these lanes has none.
    template <class T>
    const T* get(Register reg, uint32_t lanes) {
        if ((written[reg.number] & lanes) != lanes) refuse_read(reg);
        return reinterpret_cast<const T*>(file.data() + reg.at);
    }
    // Values whose lanes may have none: `defined` loses those.
    template <class T>
    const T* peek(Register reg, uint32_t& defined) {
        if (in_flight[reg.number] == 2) refuse_read(reg);
        defined &= written[reg.number];
        return reinterpret_cast<const T*>(file.data() + reg.at);
    }
    // Where a result goes, after which lanes count as written, but for those that are not `defined`.
    template <class T>
    T* set(Register reg, uint32_t lanes, uint32_t defined = kAllLanes) {
        if (in_flight[reg.number]) refuse_write(reg);
        uint32_t& own = written[reg.number];
        own = (own & ~lanes) | (lanes & defined);
        touched[reg.number] = 1;
        return reinterpret_cast<T*>(file.data() + reg.at);
    }

private:
    void merge_groups();
    [[noreturn]] void refuse_read(Register reg) const;
    [[noreturn]] void refuse_write(Register reg) const;
};

// Global memory, and what its bytes have seen in this launch.
class GlobalMemory;

class Grid {
public:
    explicit Grid(const Launch& launch);
    ~Grid();
    const Launch& launch;
    const Kernel& kernel;
    uint32_t num_warps, num_threads;  // of a block
    uint32_t dynamic_at, shared_bytes;
    std::mt19937 random;
    std::unique_ptr<GlobalMemory> global;
    bool late = false;     // asynchronous work is done as late as possible
    uint64_t changes = 0;  // of anything that a waiting warp may wait for
    uint64_t steps = 0;

    void run();

private:
    bool advance(Block& block);
};

class GlobalMemory {
public:
    GlobalMemory(Grid& grid);
    // Marks accesses by a lane, and throws what is wrong with them. `strong`: relaxed, acquire, release or atomic.
    void read(Warp& warp, uint64_t address, uint32_t bytes, uint32_t lane, bool strong);
    void write(Warp& warp, uint64_t address, uint32_t bytes, uint32_t lane, bool strong);
    std::unordered_map<uint64_t, Clocks> released;  // what who reads this address has seen, if he acquires

private:
    struct Access {
        uint32_t block = 0;  // + 1; 0: none
        uint16_t warp = 0;
        uint8_t bytes = 0;  // of the cell's four
        bool strong = false;
        Moment moment;
    };
    struct Cell {
        Access read, write;
        uint8_t read_by_several_blocks = 0;  // its bytes
    };
    static constexpr uint64_t kPageBytes = 4096;
    struct Page {
        Cell cells[kPageBytes / 4];
    };
    Page& page(uint64_t address);
    bool is_ordered(const Warp& warp, const Access& access, uint32_t lane) const;
    void check_allocated(Warp& warp, uint64_t address, uint32_t bytes);

    Grid& grid_;
    std::pair<const char*, const char*> allocation_{};  // of the last access
    std::unordered_map<uint64_t, std::unique_ptr<Page>> pages_;
    uint64_t last_number_ = ~uint64_t(0);
    Page* last_ = nullptr;
};

}  // namespace ptx
