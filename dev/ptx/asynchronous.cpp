/*
What runs beside a warp: copies to shared memory, and the matrix products of a warpgroup. Layouts of wgmma's operands
are CUTLASS's canonical ones (include/cute/arch/mma_sm90_desc.hpp, include/cute/atom/mma_traits_sm90_gmma.hpp), rules
those of the PTX ISA, chapters mbarrier, cp.async.bulk.tensor and wgmma.
*/
#include "dev/ptx/asynchronous.h"
#include <algorithm>
#include <bit>

namespace ptx {

// ---- mbarriers ---------------------------------------------------------------------------------------------------

static Mbarrier& mbarrier_at(Warp& warp, uint32_t at) {
    const auto found = warp.block.mbarriers.find(at);
    if (found == warp.block.mbarriers.end()) warp.fail("there is no mbarrier at %s", warp.block.name_of(at).c_str());
    return found->second;
}

void Block::end_phase_if_complete(Mbarrier& barrier) {
    if (barrier.pending != 0 || barrier.bytes != 0) return;
    barrier.phase++;
    barrier.pending = barrier.expected;
    barrier.ended = std::move(barrier.arrived);
    barrier.arrived.clear();
    grid.changes++;
}

void mbarrier_init(Warp& warp, uint32_t at, uint32_t arrivals) {
    if (at % 8) warp.fail("an mbarrier at %u: its address must be a multiple of 8", at);
    warp.block.check_write(warp, at, 8, 0);
    if (arrivals == 0 || arrivals >= 1 << 20) warp.fail("an mbarrier of %u arrivals", arrivals);
    warp.block.mbarriers[at] = {.expected = arrivals, .pending = arrivals, .arrived = {}, .ended = {}};
}

void mbarrier_fence_init(Warp& warp) {
    for (auto& [at, barrier] : warp.block.mbarriers) barrier.fenced = true;
}

void mbarrier_arrive(Warp& warp, uint32_t at, uint32_t bytes, const Clocks& seen) {
    Mbarrier& barrier = mbarrier_at(warp, at);
    barrier.bytes += bytes;
    if (barrier.pending == 0) warp.fail("an arrival too many at the mbarrier at %s", warp.block.name_of(at).c_str());
    barrier.pending--;
    join(barrier.arrived, seen);
    warp.block.grid.changes++;
    warp.block.end_phase_if_complete(barrier);
}

bool mbarrier_test(Warp& warp, uint32_t at, uint32_t parity) {
    const Mbarrier& barrier = mbarrier_at(warp, at);
    if (parity > 1) warp.fail("waits for parity %u", parity);
    if ((barrier.phase & 1) == parity) return false;
    warp.acquire(barrier.ended);
    return true;
}

// ---- copies ------------------------------------------------------------------------------------------------------

static void begin_copy(Warp& warp, Copy&& copy, uint32_t lane) {
    Block& block = warp.block;
    Mbarrier& barrier = mbarrier_at(warp, copy.mbarrier);
    if (!barrier.fenced) warp.fail("a copy counts on an mbarrier that no fence.mbarrier_init followed");
    for (const uint32_t at : copy.places) {
        const uint8_t flags = at < block.state.size() ? block.state[at] : 0;
        if (flags & SharedByte::kUnfenced)
            warp.fail("overwrites %s, stored without fence.proxy.async", block.name_of(at).c_str());
        const auto fences = warp.unfenced_stores.size();
        block.check_write(warp, at, 1, lane);
        warp.unfenced_stores.resize(fences);
        block.state[at] |= SharedByte::kLanding;
    }
    copy.clocks = warp.clocks;
    copy.clocks[warp.clock_index()] = Moment::at(warp.clock++, Moment::kEveryone);
    block.copies.push_back(std::move(copy));
    if (!block.grid.late) block.land_oldest();
}

void Block::land_oldest() {
    Copy copy = std::move(copies.front());
    copies.pop_front();
    copy_clock++;
    const Moment moment = Moment::at(copy_clock, Moment::kEveryone);
    for (size_t i = 0; i < copy.places.size(); i++) {
        const uint32_t at = copy.places[i];
        shared[at] = copy.bytes[i];
        state[at] = SharedByte::kOwned | SharedByte::kWritten;
        writer[at] = grid.num_warps + 1;
        written[at] = moment;
    }
    Mbarrier& barrier = mbarriers.at(copy.mbarrier);
    join(barrier.arrived, copy.clocks);
    barrier.arrived[first_clock + grid.num_warps] = moment;
    barrier.bytes -= int64_t(copy.places.size());
    grid.changes++;
    end_phase_if_complete(barrier);
}

void tma_load(Warp& warp, uint32_t to, const TensorMap& map, uint32_t mbarrier, const int32_t (&corner)[4],
              uint32_t lane) {
    if (to % 1024) warp.fail("a swizzled copy to %u: expected a multiple of 1024", to);
    Copy copy;
    copy.mbarrier = mbarrier;
    uint32_t place = 0;
    for (int d = 0; d < map.box[3]; d++)
        for (int c = 0; c < map.box[2]; c++)
            for (int b = 0; b < map.box[1]; b++)
                for (int a = 0; a < map.box[0]; a++) {
                    const int64_t index[4] = {corner[0] + a, corner[1] + b, corner[2] + c, corner[3] + d};
                    bool is_inside = true;
                    int64_t offset = 0;
                    for (int i = 0; i < 4; i++) {
                        is_inside &= index[i] >= 0 && index[i] < map.dims[i];
                        offset += index[i] * map.strides[i];
                    }
                    char value[2] = {};
                    if (is_inside) {
                        const char* from = map.base + offset;
                        warp.block.grid.global->read(warp, reinterpret_cast<uint64_t>(from), 2, lane, false);
                        std::memcpy(value, from, 2);
                    }
                    for (uint32_t i = 0; i < 2; i++) {
                        copy.places.push_back(to + ((place + i) ^ ((place >> 7 & 7) << 4)));
                        copy.bytes.push_back(value[i]);
                    }
                    place += 2;
                }
    begin_copy(warp, std::move(copy), lane);
}

void bulk_load(Warp& warp, uint32_t to, uint64_t from, uint32_t bytes, uint32_t mbarrier, uint32_t lane) {
    if (to % 16 || from % 16 || bytes % 16) warp.fail("a bulk copy whose addresses or size are no multiples of 16");
    Copy copy;
    copy.mbarrier = mbarrier;
    warp.block.grid.global->read(warp, from, bytes, lane, false);
    copy.bytes.assign(reinterpret_cast<const char*>(from), reinterpret_cast<const char*>(from) + bytes);
    for (uint32_t i = 0; i < bytes; i++) copy.places.push_back(to + i);
    begin_copy(warp, std::move(copy), lane);
}

void fence_async(Warp& warp, uint32_t lanes) {
    std::erase_if(warp.unfenced_stores, [&](const auto& store) {
        const auto& [at, bytes, lane] = store;
        if (!(lanes >> lane & 1)) return false;
        for (uint32_t i = at; i < at + bytes; i++)
            if (warp.block.writer[i] == warp.number + 1) warp.block.state[i] &= uint8_t(~SharedByte::kUnfenced);
        return true;
    });
}

void cp_async(Warp& warp, uint32_t to, uint64_t from, uint32_t read_bytes, uint32_t lane) {
    if (to % 16 || from % 16) warp.fail("cp.async of 16 bytes: its addresses must be multiples of 16");
    if (read_bytes > 16) warp.fail("cp.async reads %u bytes of 16", read_bytes);
    Copy copy;
    copy.to = to, copy.lane = lane, copy.group = warp.copy_group[lane];
    copy.bytes.resize(16);
    if (read_bytes) {
        warp.block.grid.global->read(warp, from, read_bytes, lane, false);
        std::memcpy(copy.bytes.data(), reinterpret_cast<const void*>(from), read_bytes);
    }
    warp.block.check_write(warp, to, 16, lane);
    for (uint32_t i = to; i < to + 16; i++) warp.block.state[i] |= SharedByte::kLanding;
    warp.copies.push_back(std::move(copy));
}

void Warp::complete_copies(uint32_t lane, uint32_t groups_left) {
    std::erase_if(copies, [&](const Copy& copy) {
        if (copy.lane != lane || copy.group + groups_left >= copy_group[lane]) return false;
        for (uint32_t i = copy.to; i < copy.to + 16; i++) block.state[i] &= uint8_t(~SharedByte::kLanding);
        block.check_write(*this, copy.to, 16, lane);
        std::memcpy(block.shared.data() + copy.to, copy.bytes.data(), 16);
        return true;
    });
}

// ---- matrix products ---------------------------------------------------------------------------------------------

static float bf16_at(const Block& block, uint32_t at) {
    uint16_t bits;
    std::memcpy(&bits, block.shared.data() + at, 2);
    return std::bit_cast<float>(uint32_t(bits) << 16);
}

// Where element (mn, k) of a tile lies: rows of k, or, transposed, k rows of M or N. Units of 16 bytes, 8 x 8 elements.
struct Tile {
    uint32_t start, leading, stride;
    Tile(const Warp& warp, uint64_t bits)
        : start(uint32_t(bits & 0x3FFF) << 4),
          leading(uint32_t(bits >> 16 & 0x3FFF) << 4),
          stride(uint32_t(bits >> 32 & 0x3FFF) << 4) {
        const uint64_t known = 0x3FFF | 0x3FFFull << 16 | 0x3FFFull << 32 | 3ull << 62;
        if (bits & ~known || bits >> 62 != 1)
            warp.fail("the matrix descriptor %#llx: expected a swizzle of 128 bytes and no base offset",
                      (unsigned long long)bits);
    }
    uint32_t place(uint32_t mn, uint32_t k, bool transposed) const {
        const uint32_t unit = mn / 8;
        const uint32_t at = start + (transposed ? 16 * (unit % 8) + leading * (unit / 8) + 128 * (k % 8) +
                                                      stride * (k / 8) + 2 * (mn % 8)
                                                : 128 * (mn % 8) + stride * unit + 2 * k);
        return at ^ ((at >> 7 & 7) << 4);
    }
};

constexpr uint32_t kTerms = 16;  // of k, in one product of bf16

static void check_tile(Warp& warp, const Tile& tile, uint32_t first, uint32_t rows, bool transposed) {
    for (uint32_t mn = first; mn < first + rows; mn += transposed ? 8 : 1)
        for (uint32_t k = 0; k < kTerms; k += transposed ? 1 : 8)
            warp.block.check_read(warp, tile.place(mn, k, transposed), 16, Moment::kCollective, true);
}

// One warp's 16 rows of d (64, columns) = a b.
static void multiply(Warp& warp, const Product& product) {
    const Block& block = warp.block;
    float a[16][kTerms], b[256][kTerms];
    const uint32_t columns = uint32_t(product.columns);
    if (product.a_in_registers) {
        for (uint32_t i = 0; i < 4; i++) {
            const auto* packed = reinterpret_cast<const uint32_t*>(warp.file.data() + product.a[i].at);
            for (uint32_t lane = 0; lane < kLanes; lane++)
                for (uint32_t half = 0; half < 2; half++)
                    a[lane / 4 + i % 2 * 8][lane % 4 * 2 + i / 2 * 8 + half] =
                        std::bit_cast<float>((packed[lane] >> 16 * half & 0xFFFF) << 16);
        }
    } else {
        const Tile tile(warp, product.a_tile);
        const uint32_t first = warp.number % 4 * 16;
        check_tile(warp, tile, first, 16, product.transposed_a);
        for (uint32_t row = 0; row < 16; row++)
            for (uint32_t k = 0; k < kTerms; k++)
                a[row][k] = bf16_at(block, tile.place(first + row, k, product.transposed_a));
    }
    const Tile tile(warp, product.b_tile);
    check_tile(warp, tile, 0, columns, product.transposed_b);
    for (uint32_t column = 0; column < columns; column++)
        for (uint32_t k = 0; k < kTerms; k++)
            b[column][k] = bf16_at(block, tile.place(column, k, product.transposed_b));
    for (uint32_t i = 0; i < columns / 2; i++) {
        auto* d = reinterpret_cast<float*>(warp.file.data() + product.d[i].at);
        for (uint32_t lane = 0; lane < kLanes; lane++) {
            const float* row = a[lane / 4 + i / 2 % 2 * 8];
            const float* column = b[i / 4 * 8 + lane % 4 * 2 + i % 2];
            double sum = product.adds ? double(d[lane]) : 0;
            for (uint32_t k = 0; k < kTerms; k++) sum += double(row[k]) * double(column[k]);
            d[lane] = float(sum);
        }
    }
}

void wgmma(Warp& warp, Product&& product) {
    if (warp.number / 4 * 4 + 3 >= warp.block.grid.num_warps) warp.fail("a warpgroup has four warps");
    if (!warp.is_fenced_for_wgmma) warp.fail("no wgmma.fence precedes it");
    for (const auto& registers : {product.d, product.a})
        for (const Register& reg : registers)
            if (warp.touched[reg.number]) warp.fail("a register was written since the last wgmma.fence");
    for (const Register& reg : product.a)
        if (warp.written[reg.number] != kAllLanes || warp.in_flight[reg.number] == 2)
            warp.fail("multiplies registers before they are written");
    for (const Register& reg : product.d) {
        if (product.adds && warp.written[reg.number] != kAllLanes && warp.in_flight[reg.number] != 2)
            warp.fail("adds to registers before they are written");
        warp.in_flight[reg.number] = 2;
        warp.written[reg.number] = 0;
    }
    for (const Register& reg : product.a) warp.in_flight[reg.number] = 1;
    // All warps of a warpgroup issue the same products.
    auto& issued = warp.block.products[warp.number / 4];
    const std::array<uint64_t, 3> own = {product.a_tile, product.b_tile,
                                         uint64_t(product.columns) << 8 | uint64_t(product.adds) << 2 |
                                             uint64_t(product.transposed_a) << 1 | uint64_t(product.transposed_b)};
    if (warp.products_issued == issued.size()) issued.push_back(own);
    if (issued[warp.products_issued++] != own) warp.fail("the warps of a warpgroup issue different products");
    if (warp.block.grid.late) {
        if (!product.a_in_registers)
            check_tile(warp, Tile(warp, product.a_tile), warp.number % 4 * 16, 16, product.transposed_a);
        check_tile(warp, Tile(warp, product.b_tile), 0, uint32_t(product.columns), product.transposed_b);
    } else {
        multiply(warp, product);
    }
    warp.products.push_back(std::move(product));
}

void Warp::complete_products(size_t groups_left) {
    while (groups_of_products.size() > groups_left) {
        const std::vector<Product> group = std::move(groups_of_products.front());
        groups_of_products.pop_front();
        for (const Product& product : group) {
            if (block.grid.late) {
                multiply(*this, product);
            } else {  // they are read until now
                if (!product.a_in_registers)
                    check_tile(*this, Tile(*this, product.a_tile), number % 4 * 16, 16, product.transposed_a);
                check_tile(*this, Tile(*this, product.b_tile), 0, uint32_t(product.columns), product.transposed_b);
            }
        }
        for (const Product& product : group)
            for (const auto& registers : {product.d, product.a})
                for (const Register& reg : registers) in_flight[reg.number] = 0, written[reg.number] = kAllLanes;
    }
    // What a later group still uses stays in flight.
    for (const auto& group : groups_of_products)
        for (const Product& product : group) {
            for (const Register& reg : product.d) in_flight[reg.number] = 2, written[reg.number] = 0;
            for (const Register& reg : product.a) in_flight[reg.number] = 1;
        }
}

}  // namespace ptx
