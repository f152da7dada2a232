// Who has accessed which byte, and whether anything orders two accesses.
#include <algorithm>
#include "dev/ptx/machine.h"

namespace ptx {

void join(Clocks& into, const Clocks& other) {
    if (into.size() < other.size()) into.resize(other.size());
    for (size_t i = 0; i < other.size(); i++) into[i].bits = std::max(into[i].bits, other[i].bits);
}

// ---- shared memory -----------------------------------------------------------------------------------------------

std::string Block::name_of(uint32_t at) const {
    char text[100];
    for (const SharedArray& array : grid.kernel.shared)
        if (at - array.at < array.bytes) {
            std::snprintf(text, sizeof text, "%.60s + %u", array.name.c_str(), at - array.at);
            return text;
        }
    if (at >= grid.dynamic_at && at < shared.size())
        std::snprintf(text, sizeof text, "dynamic shared memory + %u", at - grid.dynamic_at);
    else
        std::snprintf(text, sizeof text, "the shared address %u", at);
    return text;
}

static bool orders(const Block& block, const Warp& warp, uint32_t other, Moment moment, uint32_t lane) {
    if (other == warp.number) return moment.clock() < warp.clock || moment.is_of(lane);
    return moment.before(warp.clocks[block.first_clock + other]);
}

// Whether all of some values in a row are equal.
template <class T>
static bool all_equal(const T* values, uint32_t count) {
    return std::memcmp(values, values + 1, (count - 1) * sizeof(T)) == 0;
}

void Block::check_read(Warp& warp, uint32_t at, uint32_t bytes, uint32_t lane, bool by_wgmma) {
    if (at + bytes > state.size()) warp.fail("reads outside of every array: %s", name_of(at).c_str());
    std::vector<Moment>& reads = read[warp.number];
    // Bytes that one access wrote, and that are read as one, are looked at once.
    const bool are_alike = all_equal(&state[at], bytes) && all_equal(&writer[at], bytes) &&
                           all_equal(&written[at], bytes) && all_equal(&reads[at], bytes);
    const uint32_t step = are_alike ? bytes : 1;
    for (uint32_t i = at; i < at + bytes; i += step) {
        const uint8_t flags = state[i];
        if (!(flags & SharedByte::kOwned)) warp.fail("reads outside of every array: %s", name_of(i).c_str());
        if (flags & SharedByte::kLanding) warp.fail("reads %s, which a copy in flight writes", name_of(i).c_str());
        if (!(flags & SharedByte::kWritten)) warp.fail("reads %s before it is written", name_of(i).c_str());
        if (by_wgmma && flags & SharedByte::kUnfenced)
            warp.fail("reads %s, stored without fence.proxy.async", name_of(i).c_str());
        if (writer[i] && !orders(*this, warp, writer[i] - 1, written[i], lane))
            warp.fail("reads %s, which warp %u wrote: nothing orders the two", name_of(i).c_str(), writer[i] - 1);
        const uint32_t who = reads[i].clock() == warp.clock && reads[i].who() != lane ? Moment::kEveryone : lane;
        std::fill_n(&reads[i], step, Moment::at(warp.clock, who));
    }
}

void Block::check_write(Warp& warp, uint32_t at, uint32_t bytes, uint32_t lane) {
    if (at + bytes > state.size()) warp.fail("stores outside of every array: %s", name_of(at).c_str());
    const bool are_alike =
        all_equal(&state[at], bytes) && all_equal(&writer[at], bytes) && all_equal(&written[at], bytes) &&
        std::all_of(read.begin(), read.end(), [&](const auto& r) { return all_equal(&r[at], bytes); });
    const uint32_t step = are_alike ? bytes : 1;
    for (uint32_t i = at; i < at + bytes; i += step) {
        const uint8_t flags = state[i];
        if (!(flags & SharedByte::kOwned)) warp.fail("stores outside of every array: %s", name_of(i).c_str());
        if (flags & SharedByte::kLanding) warp.fail("stores to %s, which a copy in flight writes", name_of(i).c_str());
        if (writer[i] && !orders(*this, warp, writer[i] - 1, written[i], lane))
            warp.fail("stores to %s, as did warp %u: nothing orders the two", name_of(i).c_str(), writer[i] - 1);
        for (uint32_t w = 0; w < read.size(); w++)
            if (read[w][i].bits && !orders(*this, warp, w, read[w][i], lane))
                warp.fail("stores to %s, which warp %u reads: nothing orders the two", name_of(i).c_str(), w);
        std::fill_n(&writer[i], step, warp.number + 1);
        std::fill_n(&written[i], step, Moment::at(warp.clock, lane));
        std::fill_n(&state[i], step, uint8_t(flags | SharedByte::kWritten | SharedByte::kUnfenced));
    }
    if (grid.kernel.has_async_proxy) warp.unfenced_stores.push_back({at, bytes, lane});
}

void Block::check_strong(Warp& warp, uint32_t at, uint32_t bytes, bool is_write) {
    for (uint32_t i = at; i < at + bytes; i++) {
        const uint8_t flags = i < state.size() ? state[i] : 0;
        if (!(flags & SharedByte::kOwned) || (!is_write && !(flags & SharedByte::kWritten)))
            warp.fail("accesses %s, which is outside of every array or not written", name_of(i).c_str());
        if (is_write) state[i] |= SharedByte::kWritten;
    }
}

// ---- global memory -----------------------------------------------------------------------------------------------

GlobalMemory::GlobalMemory(Grid& grid) : grid_(grid) {}

GlobalMemory::Page& GlobalMemory::page(uint64_t address) {
    const uint64_t number = address / kPageBytes;
    if (number != last_number_) {
        std::unique_ptr<Page>& found = pages_[number];
        if (!found) found = std::make_unique<Page>();
        last_number_ = number, last_ = found.get();
    }
    return *last_;
}

void GlobalMemory::check_allocated(Warp& warp, uint64_t address, uint32_t bytes) {
    const char* const at = reinterpret_cast<const char*>(address);
    const auto is_inside = [&] { return at >= allocation_.first && at + bytes <= allocation_.second; };
    if (!is_inside()) allocation_ = grid_.launch.allocation_of(at);
    if (!is_inside())
        warp.fail("accesses %u bytes at %#llx, outside of every allocation", bytes, (unsigned long long)address);
}

bool GlobalMemory::is_ordered(const Warp& warp, const Access& access, uint32_t lane) const {
    const bool own_block = access.block == warp.block.number + 1;
    if (own_block && access.warp == warp.number) return access.moment.clock() < warp.clock || access.moment.is_of(lane);
    if (own_block) return access.moment.before(warp.clocks[warp.block.first_clock + access.warp]);
    if (!grid_.kernel.communicates) return false;
    return access.moment.before(warp.clocks[(access.block - 1) * (grid_.num_warps + 1) + access.warp]);
}

static uint8_t bytes_of_cell(uint64_t cell, uint64_t address, uint32_t bytes) {
    uint8_t mask = 0;
    for (uint32_t i = 0; i < 4; i++)
        if (cell + i >= address && cell + i < address + bytes) mask |= uint8_t(1 << i);
    return mask;
}

void GlobalMemory::read(Warp& warp, uint64_t address, uint32_t bytes, uint32_t lane, bool strong) {
    check_allocated(warp, address, bytes);
    for (uint64_t at = address & ~uint64_t(3); at < address + bytes; at += 4) {
        Cell& cell = page(at).cells[at % kPageBytes / 4];
        const uint8_t mask = bytes_of_cell(at, address, bytes);
        const Access& write = cell.write;
        if (write.block && write.bytes & mask && !(strong && write.strong) && !is_ordered(warp, write, lane))
            warp.fail("reads %#llx, which warp %u of block %u wrote: nothing orders the two", (unsigned long long)at,
                      unsigned(write.warp), write.block - 1);
        if (cell.read.block && cell.read.block != warp.block.number + 1)
            cell.read_by_several_blocks |= cell.read.bytes & mask;
        cell.read = {warp.block.number + 1, uint16_t(warp.number), mask, strong, Moment::at(warp.clock, lane)};
    }
}

void GlobalMemory::write(Warp& warp, uint64_t address, uint32_t bytes, uint32_t lane, bool strong) {
    check_allocated(warp, address, bytes);
    for (uint64_t at = address & ~uint64_t(3); at < address + bytes; at += 4) {
        Cell& cell = page(at).cells[at % kPageBytes / 4];
        const uint8_t mask = bytes_of_cell(at, address, bytes);
        for (const Access* other : {&cell.write, &cell.read})
            if (other->block && other->bytes & mask && !(strong && other->strong) && !is_ordered(warp, *other, lane))
                warp.fail("stores to %#llx, which warp %u of block %u %s: nothing orders the two",
                          (unsigned long long)at, unsigned(other->warp), other->block - 1,
                          other == &cell.write ? "wrote" : "reads");
        if (cell.read_by_several_blocks & mask && !grid_.kernel.communicates)
            warp.fail("stores to %#llx, which several blocks read", (unsigned long long)at);
        cell.write = {warp.block.number + 1, uint16_t(warp.number), mask, strong, Moment::at(warp.clock, lane)};
    }
}

}  // namespace ptx
