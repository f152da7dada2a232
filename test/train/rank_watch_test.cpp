// Ranks that check each other: diverged weights, and the slowest rank.
#include "llmc/train/rank_watch.h"
#include <cstring>
#include "llmc/cpu/kernels.h"  // Cpu
#include "test/train/small_rank.h"

TEST_CASE("one bit of one rank's weights is found, and the rank is named", "[rank_watch]") {
    for (const int odd : {0, 1, 2}) {
        LocalGroup group(3);
        std::vector<std::string> errors(3);
        std::vector<RankReport> reports(3);
        group.run([&](int rank) {
            SmallRank self(group, rank);
            RankWatch<Cpu, float> watch(self.ranks, self.comm, self.cpu);
            reports[size_t(rank)] = watch.compare(*self.model);
            if (rank == odd) {
                uint32_t bits;
                float& weight = self.model->weights.data[1234];
                std::memcpy(&bits, &weight, sizeof bits);
                bits ^= 1;
                std::memcpy(&weight, &bits, sizeof bits);
            }
            errors[size_t(rank)] = error_of([&] { watch.compare(*self.model); });
        });
        for (const RankReport& report : reports) CHECK(report.weight_hash == reports[0].weight_hash);
        INFO(errors[0]);
        CHECK(errors[0].starts_with("5: the ranks' weights are no longer the same: the hash is " +
                                    hex64(reports[0].weight_hash) + ", but not on rank " + std::to_string(odd) + " ("));
        CHECK((errors[1] == errors[0] && errors[2] == errors[0]));
    }
}

TEST_CASE("the majority is right, and of two equals the first", "[rank_watch]") {
    const auto error = [](const std::vector<uint64_t>& hashes) {
        const std::string text = error_of([&] { report_of(hashes, std::vector<double>(hashes.size(), 1)); });
        if (text.empty()) return text;
        const size_t begin = text.find("the hash is ");
        return text.substr(0, 3) + text.substr(begin + 12, text.find(". ") - begin - 12);
    };
    const std::string a = hex64(10), b = hex64(11), c = hex64(12);
    CHECK(error({10}) == "");
    CHECK(error({10, 10, 10}) == "");
    CHECK(error({10, 11}) == "5: " + a + ", but not on rank 1 (" + b + ")");
    CHECK(error({11, 10, 10}) == "5: " + a + ", but not on rank 0 (" + b + ")");
    CHECK(error({10, 11, 11, 12}) == "5: " + b + ", but not on rank 0 (" + a + "), 3 (" + c + ")");
}

TEST_CASE("the slowest rank is told from the median", "[rank_watch]") {
    const auto report = [](const std::vector<double>& times) {
        return report_of(std::vector<uint64_t>(times.size(), 7), times);
    };
    const RankReport odd = report({30, 10, 20}), even = report({5, 1, 4, 2}), one = report({8});
    CHECK(odd.min_ms == 10);
    CHECK(odd.median_ms == 20);
    CHECK(odd.max_ms == 30);
    CHECK(odd.slowest == 0);
    CHECK(even.median_ms == 3);
    CHECK(even.slowest == 0);
    CHECK(one.median_ms == 8);
    CHECK_FALSE(one.has_slow_rank());
    CHECK(odd.has_slow_rank());
    CHECK(report({10, 10, 10, 11.5}).has_slow_rank());
    CHECK_FALSE(report({10, 10, 10, 11}).has_slow_rank());
    CHECK_FALSE(report({1, 1, 1, 1.9}).has_slow_rank());  // less than a millisecond
    CHECK(report({1, 1, 1, 2}).has_slow_rank());
    CHECK_FALSE(report({10, 10, 1, 10}).has_slow_rank());  // one that is fast keeps nobody waiting
    CHECK(report({10, 10, 10, 15}).straggler_text() ==
          "rank 3 is slow: it computes 15.0 ms per step, and the median of the ranks is 10.0 (all wait for it)");

    // As a run measures it: on average since the last comparison, without what a rank has waited for others.
    LocalGroup group(3);
    group.run([&](int rank) {
        SmallRank self(group, rank);
        RankWatch<Cpu, float> watch(self.ranks, self.comm, self.cpu);
        for (const double ms : {10, 20}) watch.step(rank == 2 ? 2 * ms : ms);
        const RankReport first = watch.compare(*self.model);
        CHECK(first.slowest == 2);
        CHECK(first.max_ms == 30);
        CHECK(first.median_ms == 15);
        watch.step(rank == 0 ? 9 : 4);
        const RankReport second = watch.compare(*self.model);
        CHECK(second.slowest == 0);
        CHECK(second.max_ms == 9);
        CHECK(second.min_ms == 4);
        CHECK_FALSE(watch.has_straggler());  // each was slow once
        for (const bool twice : {true, true, false}) {
            watch.step(rank == 0 && twice ? 9 : 4);
            watch.compare(*self.model);
            CHECK(watch.has_straggler() == twice);
        }
    });
}
