/*
Collectives between virtual ranks: each against its definition, at 1 to 8 ranks.
*/
#include "llmc/comm/local.h"
#include "test/testing.h"

namespace {

// Values that make the order of a sum visible.
float term(int rank, int64_t i) { return float(std::sin(double(i * 31 + rank * 7 + 1))) * (rank % 2 ? 1e-3f : 1e3f); }

template <class Body>
void with_ranks(int world_size, Body&& body) {
    LocalGroup group(world_size);
    group.run([&](int rank) {
        Cpu cpu(1);
        LocalComm<Cpu> comm(group, rank, cpu);
        body(comm);
    });
}

}  // namespace

TEST_CASE("sum_tree adds neighbors first, the largest power of two to the left", "[local_comm]") {
    for (const auto& [n, text] : std::vector<std::pair<int, std::string>>{
             {1, "0"}, {2, "(01)"}, {3, "((01)2)"}, {6, "(((01)(23))(45))"}, {7, "(((01)(23))((45)6))"}}) {
        struct Text {
            std::string s;
            Text operator+(const Text& other) const { return {"(" + s + other.s + ")"}; }
        };
        CHECK(sum_tree(n, [](int i) { return Text{std::to_string(i)}; }).s == text);
    }
}

TEST_CASE("virtual ranks scatter, gather, reduce and broadcast", "[local_comm]") {
    for (const int world_size : {1, 2, 3, 4, 5, 8}) {
        const int64_t shard = 100, n = world_size * shard;
        with_ranks(world_size, [&](LocalComm<Cpu>& comm) {
            const int rank = comm.rank;
            const auto want = [&](int64_t i) { return sum_tree(world_size, [&](int r) { return term(r, i); }); };
            std::vector<float> data(static_cast<size_t>(n));
            const auto refill = [&] {
                for (int64_t i = 0; i < n; i++) data[size_t(i)] = term(rank, i);
            };
            refill();
            comm.wait(comm.reduce_scatter(data.data(), shard));
            for (int64_t i = rank * shard; i < (rank + 1) * shard; i++) REQUIRE(data[size_t(i)] == want(i));

            std::fill(data.begin() + rank * shard, data.begin() + (rank + 1) * shard, float(rank + 1));
            comm.wait(comm.all_gather(data.data(), size_t(shard) * sizeof(float)));
            for (int64_t i = 0; i < n; i++) REQUIRE(data[size_t(i)] == float(i / shard + 1));

            refill();
            comm.wait(comm.all_reduce(data.data(), n));
            for (int64_t i = 0; i < n; i++) REQUIRE(data[size_t(i)] == want(i));

            refill();
            comm.wait(comm.broadcast(data.data(), size_t(n) * sizeof(float), world_size - 1));
            for (int64_t i = 0; i < n; i++) REQUIRE(data[size_t(i)] == term(world_size - 1, i));

            std::vector<uint64_t> counts = {uint64_t(rank), ~uint64_t(0)};
            comm.wait(comm.all_reduce(counts.data(), 2));
            REQUIRE(counts[0] == uint64_t(world_size * (world_size - 1) / 2));
            REQUIRE(counts[1] == uint64_t(-world_size));

            std::vector<bf16> halves(static_cast<size_t>(n));
            for (int64_t i = 0; i < n; i++) halves[size_t(i)] = to_bf16(term(rank, i));
            comm.wait(comm.reduce_scatter(halves.data(), shard));
            for (int64_t i = rank * shard; i < (rank + 1) * shard; i++) {
                const float sum = sum_tree(world_size, [&](int r) { return to_float(to_bf16(term(r, i))); });
                REQUIRE(to_float(halves[size_t(i)]) == to_float(to_bf16(sum)));
            }

            for (int64_t i = 0; i < n; i++) halves[size_t(i)] = to_bf16(term(rank, i));
            comm.wait(comm.all_to_all_sum(data.data(), halves.data(), shard));
            for (int64_t i = rank * shard; i < (rank + 1) * shard; i++)
                REQUIRE(data[size_t(i)] == sum_tree(world_size, [&](int r) { return to_float(to_bf16(term(r, i))); }));
            refill();
            comm.wait(comm.all_to_all_sum(data.data(), shard, nullptr));
            for (int64_t i = rank * shard; i < (rank + 1) * shard; i++) REQUIRE(data[size_t(i)] == want(i));
        });
    }
}

TEST_CASE("groups of virtual ranks share the shards, and every owner gets the sum over all ranks", "[local_comm]") {
    const std::vector<std::pair<int, int>> splits = {{3, 1}, {4, 2}, {6, 3}, {8, 8}};
    for (const auto& [world_size, shards] : splits)
        with_ranks(world_size, [&, all = world_size, of = shards](LocalComm<Cpu>& comm) {
            comm.split(of);
            const int64_t shard = 100, n = of * shard, begin = comm.rank % of * shard;
            REQUIRE(comm.shard() == comm.rank % of);
            REQUIRE(comm.is_split() == (of < all));
            std::vector<float> data(static_cast<size_t>(n));
            for (int64_t i = 0; i < n; i++) data[size_t(i)] = term(comm.rank, i);
            comm.wait(comm.reduce_scatter(data.data(), shard));
            for (int64_t i = begin; i < begin + shard; i++)
                REQUIRE(data[size_t(i)] == sum_tree(all, [&](int r) { return term(r, i); }));
            // From the ranks of the group alone.
            std::fill(data.begin() + begin, data.begin() + begin + shard, float(comm.rank));
            comm.wait(comm.all_gather(data.data(), size_t(shard) * sizeof(float)));
            for (int64_t i = 0; i < n; i++) REQUIRE(data[size_t(i)] == float(comm.rank / of * of + i / shard));
        });
}

TEST_CASE("virtual ranks exchange records", "[local_comm]") {
    LocalGroup group(3);
    group.run([&](int rank) {
        LocalRanks ranks(group, rank);
        REQUIRE(ranks.all_gather(std::string(size_t(rank), 'x')) == std::vector<std::string>{"", "x", "xx"});
        REQUIRE(ranks.broadcast("from " + std::to_string(rank), 2) == "from 2");
        ranks.barrier();
    });
}

TEST_CASE("a virtual rank that fails ends the others, wherever they are", "[local_comm]") {
    for (const int failing : {0, 1, 2}) {
        LocalGroup group(3);
        int ended = 0, went_on = 0;
        bool failed = false;
        const auto body = [&](int rank) {
            LocalRanks ranks(group, rank);
            try {
                for (int i = 0; i < 2; i++) {
                    ranks.barrier();
                    went_on += failed;
                    if (rank == failing) {
                        failed = true;
                        throw Error(kExitUsage, "no space");
                    }
                }
            } catch (const Error& error) {
                ended += error.exit_code == kExitRank;
                throw;
            }
        };
        REQUIRE_THROWS_WITH(group.run(body), "no space");
        CHECK(ended == 2);
        CHECK(went_on == 0);  // not even out of the meeting that the failing one came to last
    }
}
