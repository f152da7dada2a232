// Warps, blocks and the grid take their turns.
#include "dev/ptx/machine.h"
#include <algorithm>
#include <bit>
#include <cstdarg>
#include <cstdio>

namespace ptx {

constexpr uint32_t kResidentBlocks = 3;
constexpr uint64_t kMostSteps = 100'000'000;  // a launch of the tests takes a tenth at most

// ---- a warp ------------------------------------------------------------------------------------------------------

Warp::Warp(Block& block, uint32_t number) : block(block), number(number) {
    const Grid& grid = block.grid;
    const Kernel& kernel = grid.kernel;
    const uint32_t threads = std::min(uint32_t(kLanes), grid.num_threads - number * kLanes);
    alive = threads == kLanes ? kAllLanes : (1u << threads) - 1;
    groups = {{alive, 0, false}};
    file.resize(kernel.file_bytes);
    written.resize(kernel.num_registers);
    in_flight.resize(kernel.num_registers);
    touched.resize(kernel.num_registers);
    local.resize(size_t(kernel.local_bytes) * kLanes);
    clocks.resize(block.first_clock + grid.num_warps + 1);
    const Extent dim = grid.launch.block, size = grid.launch.grid;
    for (const Constant& constant : kernel.constants) {
        written[constant.reg.number] = kAllLanes;
        for (uint32_t lane = 0; lane < kLanes; lane++) {
            const uint32_t thread = number * kLanes + lane;
            uint64_t value = constant.value;
            const std::string& name = constant.special;
            if (name == "%tid.x") value = thread % dim.x;
            if (name == "%tid.y") value = thread / dim.x % dim.y;
            if (name == "%tid.z") value = thread / dim.x / dim.y;
            if (name == "%laneid") value = lane;
            if (name == "%ntid.x") value = dim.x;
            if (name == "%ntid.y") value = dim.y;
            if (name == "%ntid.z") value = dim.z;
            if (name == "%ctaid.x") value = block.index.x;
            if (name == "%ctaid.y") value = block.index.y;
            if (name == "%ctaid.z") value = block.index.z;
            if (name == "%nctaid.x") value = size.x;
            if (name == "%nctaid.y") value = size.y;
            if (name == "%nctaid.z") value = size.z;
            if (name == "dynamic") value = grid.dynamic_at;
            std::memcpy(file.data() + constant.reg.at + lane * uint32_t(constant.bytes), &value,
                        size_t(constant.bytes));
        }
    }
}

const Instruction& Warp::instruction() const { return block.grid.kernel.code[pc]; }

void Warp::fail(const char* fmt, ...) const {
    char text[1000], where[200];
    va_list args;
    va_start(args, fmt);
    std::vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    std::snprintf(where, sizeof where, ", block (%u,%u,%u), warp %u: ", block.index.x, block.index.y, block.index.z,
                  number);
    throw Fault("PTX of " + block.grid.kernel.name + where + text + "\n    " + instruction().text);
}
void Warp::refuse_read(Register reg) const {
    fail(in_flight[reg.number] == 2 ? "reads a register that a wgmma in flight writes"
                                    : "reads a register before it is written");
}
void Warp::refuse_write(Register) const { fail("writes a register that a wgmma in flight uses"); }

Clocks Warp::seen(uint32_t lanes) {
    Clocks snapshot = clocks;
    const bool everyone = (lanes & alive) == alive;
    const uint32_t who = everyone || std::popcount(lanes) != 1 ? Moment::kEveryone : uint32_t(std::countr_zero(lanes));
    snapshot[clock_index()] = Moment::at(clock, who);
    clock++;
    return snapshot;
}

void Warp::merge_groups() {
    for (size_t i = 0; i < groups.size(); i++)
        for (size_t k = i + 1; k < groups.size();)
            if (groups[k].pc == groups[i].pc) {
                groups[i].lanes |= groups[k].lanes;
                groups[i].waits = false;
                groups.erase(groups.begin() + ptrdiff_t(k));
            } else {
                k++;
            }
}

void Warp::execute() {
    const Kernel& kernel = block.grid.kernel;
    size_t chosen = 0;
    if (groups.size() > 1) {
        merge_groups();
        chosen = groups.size();
        for (size_t i = 0; i < groups.size(); i++)
            if (!groups[i].waits && (chosen == groups.size() || groups[i].pc < groups[chosen].pc)) chosen = i;
        if (chosen == groups.size()) {
            pc = groups[0].pc;
            const uint32_t other = groups[1].pc;
            fail("lanes %08x wait here, others (%08x) at\n    %s", groups[0].lanes, groups[1].lanes,
                 kernel.code[other].text.c_str());
        }
    }
    const Group group = groups[chosen];
    pc = group.pc;
    if (pc >= kernel.code.size()) fail("runs past its end");
    const Instruction& instruction = kernel.code[pc];
    uint32_t lanes = group.lanes;
    if (instruction.guard >= 0) {
        const uint32_t* guard = get<uint32_t>({uint32_t(instruction.guard), instruction.guard_number}, lanes);
        uint32_t mask = 0;
        for (uint32_t lane = 0; lane < kLanes; lane++) mask |= uint32_t(guard[lane] != 0) << lane;
        lanes &= instruction.guard_is_negated ? ~mask : mask;
    }
    Group& own = groups[chosen];
    switch (instruction.flow) {
        case Flow::branch:
            if (lanes == group.lanes) {
                own.pc = instruction.target;
            } else {
                own.pc++;
                if (lanes) {
                    own.lanes &= ~lanes;
                    groups.push_back({lanes, instruction.target, false});
                }
            }
            return;
        case Flow::exit:
            alive &= ~lanes;
            own.lanes &= ~lanes;
            own.pc++;
            if (!own.lanes) groups.erase(groups.begin() + ptrdiff_t(chosen));
            if (!alive && (!products.empty() || !groups_of_products.empty())) fail("ends before its wgmma");
            block.grid.changes += lanes != 0;
            return;
        case Flow::lanes: {
            if (!lanes) break;
            const uint32_t* members = get<uint32_t>(instruction.from.back(), lanes);
            const uint32_t mask = members[std::countr_zero(lanes)];
            if (lanes & ~mask) fail("lanes %08x are not in the member mask %08x", lanes & ~mask, mask);
            // A block's last warp may be smaller than a member mask.
            if (mask & ~alive && kLanes * (number + 1) <= block.grid.num_threads)
                fail("the member mask %08x has lanes that have exited: %08x are there", mask, alive);
            if (mask & alive & ~lanes) {
                if (groups.size() == 1) fail("lanes %08x are missing", mask & alive & ~lanes);
                own.waits = true;
                return;
            }
            break;
        }
        case Flow::warp:
        case Flow::barrier:
            if (lanes != alive && lanes) {
                if (groups.size() == 1) fail("lanes %08x are missing", alive & ~lanes);
                own.waits = true;
                return;
            }
            break;
        default:
            break;
    }
    own.pc++;
    if (lanes) instruction.run(*this, instruction, lanes);
}

// ---- a block -----------------------------------------------------------------------------------------------------

Block::Block(Grid& grid, uint32_t number) : grid(grid), number(number) {
    const Extent size = grid.launch.grid;
    index = {number % size.x, number / size.x % size.y, number / size.x / size.y};
    first_clock = grid.kernel.communicates ? number * (grid.num_warps + 1) : 0;
    shared.assign(grid.shared_bytes, char(0xFF));
    state.assign(grid.shared_bytes, 0);
    for (const SharedArray& array : grid.kernel.shared)
        std::fill_n(state.begin() + array.at, array.bytes, SharedByte::kOwned);
    std::fill(state.begin() + grid.dynamic_at, state.end(), SharedByte::kOwned);
    writer.assign(grid.shared_bytes, 0);
    written.assign(grid.shared_bytes, {});
    read.assign(grid.num_warps, std::vector<Moment>(grid.shared_bytes));
    for (uint32_t i = 0; i < grid.num_warps; i++) warps.push_back(std::make_unique<Warp>(*this, i));
    products.resize((grid.num_warps + 3) / 4);
    // What a launch bound of one block lets nvcc use.
    const uint32_t registers = std::min(65536 / (grid.num_warps * kLanes) / 8 * 8, 255u);
    for (const auto& warp : warps) warp->registers = registers;
    free_registers = 65536 - registers * grid.num_warps * kLanes;
}

bool Block::is_done() const {
    return std::all_of(warps.begin(), warps.end(), [](const auto& warp) { return warp->alive == 0; });
}

// ---- the grid ----------------------------------------------------------------------------------------------------

Grid::Grid(const Launch& launch)
    : launch(launch),
      kernel(*launch.kernel),
      num_threads(launch.block.x * launch.block.y * launch.block.z),
      random(launch.seed),
      global(std::make_unique<GlobalMemory>(*this)) {
    num_warps = (num_threads + kLanes - 1) / kLanes;
    late = launch.order == Order::last || (launch.order == Order::random && random() % 2);
    dynamic_at = (kFirstShared + kernel.shared_bytes + 1023) / 1024 * 1024;
    shared_bytes = dynamic_at + launch.dynamic_bytes;
}
Grid::~Grid() = default;

// Lets each warp go on until it waits. Returns whether any could.
bool Grid::advance(Block& block) {
    bool any = false;
    for (uint32_t k = 0; k < num_warps; k++) {
        uint32_t i = launch.order == Order::last ? num_warps - 1 - k : k;
        if (launch.order == Order::random) i = uint32_t(random() % num_warps);
        Warp& warp = *block.warps[i];
        if (warp.at_barrier >= 0) {
            if (block.barriers[size_t(warp.at_barrier)].generation == warp.generation) continue;
            warp.acquire(block.barriers[size_t(warp.at_barrier)].left);
            warp.at_barrier = -1;
        }
        const uint64_t before = changes;
        uint32_t turn = launch.order == Order::random ? uint32_t(random() % 300) : ~0u;
        warp.yielded = false;
        bool went_on = false;
        while (warp.alive && warp.at_barrier < 0 && !warp.yielded && turn--) {
            warp.execute();
            went_on = true;
            if (++steps > kMostSteps) warp.fail("more than %llu instructions", (unsigned long long)kMostSteps);
        }
        any |= changes != before || (went_on && !warp.yielded);
        if (launch.order == Order::random && !block.copies.empty() && random() % 2) block.land_oldest();
    }
    return any;
}

void Grid::run() {
    const uint32_t num_blocks = launch.grid.x * launch.grid.y * launch.grid.z;
    std::vector<std::unique_ptr<Block>> resident;
    uint32_t next = 0, idle = 0;
    while (next < num_blocks || !resident.empty()) {
        while (next < num_blocks && resident.size() < kResidentBlocks) {
            const uint32_t number = launch.order == Order::last && !kernel.communicates ? num_blocks - 1 - next : next;
            resident.push_back(std::make_unique<Block>(*this, number));
            next++;
        }
        bool any = false;
        for (auto& block : resident) any |= advance(*block);
        if (!any)
            for (auto& block : resident)
                if (!block->copies.empty() && !any) block->land_oldest(), any = true;
        // In a random order a turn may fall to warps that wait.
        idle = any ? 0 : idle + 1;
        if (idle > (launch.order == Order::random ? 1000u : 2u)) {
            std::string waiting;
            const Warp* first = nullptr;
            for (const auto& block : resident)
                for (const auto& warp : block->warps) {
                    if (!warp->alive) continue;
                    if (!first) first = warp.get();
                    char text[300];
                    std::snprintf(text, sizeof text, "\n    block %u, warp %u: %.200s", block->number, warp->number,
                                  warp->instruction().text.c_str());
                    if (waiting.size() < 3000) waiting += text;
                }
            first->fail("all wait for each other:%s", waiting.c_str());
        }
        std::erase_if(resident, [&](const auto& block) {
            if (!block->is_done()) return false;
            for (const NamedBarrier& barrier : block->barriers)
                if (barrier.arrived) block->warps[0]->fail("a block ends while warps have arrived at a barrier");
            if (!block->copies.empty()) block->warps[0]->fail("a block ends while a copy to it is in flight");
            return true;
        });
    }
}

uint64_t run(const Launch& launch) {
    Grid grid(launch);
    grid.run();
    return grid.steps;
}

}  // namespace ptx
