// The batches of an evaluation: all are evaluated once, or all ranks leave soon after one of them asks to stop.
#include "llmc/eval/batches.h"
#include <atomic>
#include <chrono>
#include <set>
#include <thread>
#include "llmc/comm/local.h"  // LocalGroup, LocalRanks
#include "test/testing.h"

namespace {

constexpr double kLookEachRound = 0;

// What happens to `batches` batches at `world_size` ranks: on `stopping` stop() is true after `after` of its own, and
// on `failing` a batch throws after as many.
struct Outcome {
    std::multiset<int64_t> done;
    int complete = 0, errors = 0;  // ranks

    Outcome(int world_size, int64_t batches, int stopping, int after, int failing = -1,
            double look_every_s = kLookEachRound) {
        LocalGroup group(world_size);
        group.run([&](int rank) {
            LocalRanks ranks(group, rank);
            int own = 0;
            try {
                const bool all = each_batch(
                    ranks, batches, [&] { return rank == stopping && own >= after; },
                    [&](int64_t i) {
                        if (rank == failing && own >= after) throw Error(kExitUsage, "bad data");
                        own++;
                        done.insert(i);
                    },
                    look_every_s);
                complete += all;
            } catch (const SharedError& error) {
                errors += contains(error.what(), "bad data");
            }
        });
    }
};

}  // namespace

TEST_CASE("every batch is evaluated once, at any number of ranks", "[batches]") {
    for (const int ranks : {1, 2, 3, 5})
        for (const int64_t batches : {0, 1, 2, 7, 15})
            for (const double every_s : {kLookEachRound, 0.5}) {
                const Outcome all(ranks, batches, -1, 0, -1, every_s);
                CHECK(all.complete == ranks);
                CHECK(int64_t(all.done.size()) == batches);
                for (int64_t i = 0; i < batches; i++) CHECK(all.done.count(i) == 1);
            }
}

TEST_CASE("a request to stop on any rank ends the batches of all, within one more of each", "[batches]") {
    for (const int ranks : {1, 2, 3})
        for (int stopping = 0; stopping < ranks; stopping++)
            for (const int after : {0, 1, 5}) {
                const Outcome some(ranks, 1000, stopping, after);
                CHECK(some.complete == 0);
                CHECK(some.errors == 0);
                CHECK(int64_t(some.done.size()) == after * ranks);
            }
    // After the last batch there is nothing to stop.
    CHECK(Outcome(1, 5, 0, 5).complete == 1);
    CHECK(Outcome(2, 6, 1, 3).complete == 2);
}

TEST_CASE("ranks look as often as the slowest of them is slow", "[batches]") {
    // A batch takes a millisecond, and a look is due after 50 of them.
    LocalGroup group(2);
    std::atomic<int64_t> done = 0;
    std::atomic<bool> stops = false;
    group.run([&](int rank) {
        LocalRanks ranks(group, rank);
        const bool all = each_batch(
            ranks, 1000000, [&] { return stops.load(); },
            [&](int64_t) {
                if (++done == 400) stops = true;
                std::this_thread::sleep_for(std::chrono::milliseconds(1));
            },
            0.05);
        CHECK_FALSE(all);
    });
    CHECK(done < 2000);  // a sleep may take longer, which makes looks more frequent
}

TEST_CASE("an error on one rank ends the batches of all, which throw it", "[batches]") {
    for (const int ranks : {1, 2, 3})
        for (int failing = 0; failing < ranks; failing++) {
            const Outcome some(ranks, 1000, -1, 4, failing);
            CHECK(some.errors == ranks);
            CHECK(int64_t(some.done.size()) < 6 * ranks);
        }
}
