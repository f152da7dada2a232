// Runs whose batch and length grow by step: they learn what runs of the same steps learn that do not, at any number of
// ranks, and after a resume before, at and after a boundary.
#include "test/train/rank_runs.h"

namespace {

// A micro-batch is 2 x 16 tokens. Rates that do not depend on the number of steps.
const FlagMap kSteps = {{"total-batch-size", "128"},
                        {"lr-schedule", "constant"},
                        {"warmup-steps", "0"},
                        {"steps", "8"},
                        {"dropout", "0.1"}};
const FlagMap kBatches = with(kSteps, {{"batch-growth", "3:256, 6:512"}});
const FlagMap kLengths = with(kSteps, {{"architecture", "llama"}, {"length-growth", "0:4, 3:8, 6:16"}});

using Losses = std::vector<std::pair<double, double>>;
Losses some(const Losses& all, size_t begin, size_t end) {
    REQUIRE(all.size() >= end);
    return {all.begin() + long(begin), all.begin() + long(end)};
}

}  // namespace

TEST_CASE("a batch that grows is that of a run whose --total-batch-size changes", "[growth]") {
    const TinyRuns runs;
    must_succeed(runs.train("grows", kBatches));
    const Losses losses = losses_in(runs.path("grows"));
    must_succeed(runs.train("by_hand", with(kSteps, {{"steps", "3"}})));
    must_succeed(runs.resume("by_hand", {{"steps", "6"}, {"total-batch-size", "256"}}));
    must_succeed(runs.resume("by_hand", {{"steps", "8"}, {"total-batch-size", "512"}}));
    CHECK(losses == losses_in(runs.path("by_hand")));
    const std::string last = step_folder(runs.path("grows"), 8), other = step_folder(runs.path("by_hand"), 8);
    CHECK(tensor_difference(last, other) == "");
    CHECK(state_in(last).data == state_in(other).data);
    CHECK(state_in(last).tokens == 3 * 128 + 3 * 256 + 2 * 512);

    // From step 0 on the list may have the whole of it.
    must_succeed(
        runs.train("listed", with(kSteps, {{"total-batch-size", "0"}, {"batch-growth", "0:128,3:256,6:512"}})));
    CHECK(losses == losses_in(runs.path("listed")));
}

TEST_CASE("rows that are cut are the sequences of a shorter --seq-len", "[growth]") {
    const TinyRuns runs;
    const FlagMap in_order = {{"shuffle", "false"}};
    must_succeed(runs.train("grows", with(kLengths, in_order)));
    FlagMap shorter = with(kLengths, with(in_order, {{"seq-len", "4"}, {"batch-size", "8"}, {"steps", "3"}}));
    shorter.erase("length-growth");
    must_succeed(runs.train("short", shorter));
    CHECK(some(losses_in(runs.path("grows")), 0, 3) == losses_in(runs.path("short")));
    // The weights after the last step of 4 tokens, and then sequences of 8, are those of a run that starts from there.
    must_succeed(runs.train("grown", with(kLengths, with(in_order, {{"length-growth", "0:4"}}))));
    CHECK(some(losses_in(runs.path("grown")), 0, 4)[3].first != losses_in(runs.path("grows"))[3].first);
    const std::string last = step_folder(runs.path("grows"), 8);
    CHECK(state_in(last).tokens == 8 * 128);
    CHECK(state_in(last).data == state_in(step_folder(runs.path("grown"), 8)).data);
}

TEST_CASE("steps that grow have the same bits on 1, 2 and 4 ranks and after a resume", "[growth][slow]") {
    const TinyRuns runs;
    const FlagMap tree = {{"grad-sum", "tree"}, {"checkpoint-every", "1"}, {"keep", "10"}};
    const FlagMap both = with(with(kLengths, tree), {{"batch-growth", "2:256, 6:512"}});
    must_succeed(runs.train("one", both));
    const Losses losses = losses_in(runs.path("one"));
    const std::string last = step_folder(runs.path("one"), 8);
    for (const char* const ranks : {"2", "4"})
        for (const char* const zero : {"1", "2"}) {
            INFO(ranks << " ranks, --zero-stage " << zero);
            const std::string name = std::string("on") + ranks + "at" + zero;
            must_succeed(runs.train(name, with(both, {{"virtual-ranks", ranks}, {"zero-stage", zero}})));
            CHECK(losses == losses_in(runs.path(name)));
            CHECK(tensor_difference(step_folder(runs.path(name), 8), last) == "");
        }
    for (const char* const step : {"1", "2", "3", "5", "6", "7"}) {
        INFO("resumed after step " << step);
        const std::string name = std::string("from") + step;
        must_succeed(runs.train(name, with(both, {{"steps", step}})));
        must_succeed(runs.resume(name, {{"steps", "8"}, {"virtual-ranks", "2"}}));
        CHECK(losses == losses_in(runs.path(name)));
        CHECK(tensor_difference(step_folder(runs.path(name), 8), last) == "");
        CHECK(state_in(step_folder(runs.path(name), 8)).data == state_in(last).data);
        CHECK(state_in(step_folder(runs.path(name), 8)).tokens == state_in(last).tokens);
    }
}

TEST_CASE("steps that cannot grow so are refused in a line", "[growth]") {
    const TinyRuns runs;
    const auto refused = [&](const FlagMap& flags, const std::string& part) {
        const Finished finished = runs.train("a", with(kSteps, flags));
        CHECK(finished.exit_code == 2);
        CHECK(contains(finished.err, part));
    };
    refused({{"batch-growth", "3:200"}},
            "batch-growth = 3:200: 200 tokens are not a multiple of a micro-batch of each rank, of 32 tokens together "
            "(--batch-size 2): the nearest are 192 and 224");
    refused({{"batch-growth", "3:160"}, {"virtual-ranks", "2"}}, "of 64 tokens together (--batch-size 2)");
    refused({{"batch-growth", "0:256"}}, "has a batch for step 0, and so has --total-batch-size");
    refused({{"length-growth", "0:6"}}, "6 does not divide --seq-len 16: the nearest that do are 4 and 8");
    refused({{"length-growth", "0:32"}}, "32 does not divide --seq-len 16");
    for (const char* const list : {"3", "3:", "3:256,3:512", "3:0", "3:256,,", "-1:256", "1:2:3", "a:256"})
        refused({{"batch-growth", list}}, "expected a step and a number from it on");
    refused({{"batch-growth", "3:256"}, {"virtual-ranks", "2"}, {"balance", "3,1"}}, "equal shares of a step");
    refused({{"batch-growth", "3:256"}, {"data-order", "llmc"}}, "--data-order llmc with batch-growth");
    refused({{"length-growth", "0:8"}, {"steps", "auto"}, {"target-param-data-ratio", "1"}}, "give --steps");
}
