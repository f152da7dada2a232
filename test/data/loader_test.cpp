// The data loader against a plain implementation of its contract: the windows, their order, their ranks, and resuming.
#include <algorithm>
#include <chrono>
#include <numeric>
#include <optional>
#include <set>
#include <thread>
#include "llmc/data/loader.h"
#include "test/testing.h"

namespace {
using Ids = std::vector<int32_t>;
constexpr int V = 100000;

// Shards whose tokens are all different: shard s holds 1000*s, 1000*s + 1, ...
struct Shards {
    ScratchFolder scratch;
    explicit Shards(const std::vector<int>& sizes) {
        for (size_t s = 0; s < sizes.size(); s++) {
            Ids ids(static_cast<size_t>(sizes[s]));
            std::iota(ids.begin(), ids.end(), int32_t(1000 * s));
            write(s, ids);
        }
    }
    void write(size_t s, const Ids& ids, int vocab_size = V) const {
        ShardWriter writer(path(s), vocab_size);
        writer.append(ids.data(), int64_t(ids.size()));
        writer.finish();
    }
    std::string path(size_t s) const { return scratch / "train_00000" + std::to_string(s) + ".bin"; }
    LoaderConfig config(int B, int T, bool shuffle, uint64_t seed = 1) const {
        return {.pattern = scratch / "train_*.bin",
                .batch_size = B,
                .seq_len = T,
                .shuffle = shuffle,
                .seed = seed,
                .vocab_size = V};
    }
};

// The first tokens of the windows of a batch: with tokens all different they say which windows these are. Checks that
// each row holds consecutive tokens, and that the targets are the tokens shifted by one.
Ids windows_of(const Batch& batch, const LoaderConfig& c) {
    const size_t B = size_t(c.batch_size), T = size_t(c.seq_len);
    REQUIRE(batch.tokens.size() == B * T);
    REQUIRE(batch.targets.size() == B * T);
    Ids starts;
    size_t wrong = 0;
    for (size_t b = 0; b < B; b++) {
        starts.push_back(batch.tokens[b * T]);
        for (size_t t = 0; t < T; t++) {
            wrong += batch.tokens[b * T + t] != starts.back() + int32_t(t);
            wrong += batch.targets[b * T + t] != batch.tokens[b * T + t] + 1;
        }
    }
    CHECK(wrong == 0);
    return starts;
}

Ids next_windows(DataLoader& loader, const LoaderConfig& c, int64_t n_batches) {
    Ids all;
    for (int64_t i = 0; i < n_batches; i++)
        for (const int32_t start : windows_of(loader.next(), c)) all.push_back(start);
    return all;
}

Ids first_windows(const LoaderConfig& config, int64_t n_batches) {
    DataLoader loader(config);
    return next_windows(loader, config, n_batches);
}

Ids sorted(Ids ids) {
    std::sort(ids.begin(), ids.end());
    return ids;
}
}  // namespace

TEST_CASE("without shuffling, windows come in order from all shards, with odd B and T", "[loader]") {
    // 23 tokens: windows of 5 at 0, 5, 10, 15, and 22 = 4*5 + 2 tokens of room; 11 tokens: exactly two; 5 tokens: none.
    const Shards shards({23, 11, 5, 12});
    const LoaderConfig c = shards.config(3, 5, false);
    DataLoader loader(c);
    CHECK(loader.num_tokens() == 51);
    CHECK(loader.num_unread_tokens() == 5);
    REQUIRE(loader.shards().size() == 1);
    CHECK(loader.shards()[0].size() == 4);
    CHECK(loader.num_windows() == 8);
    const Batch& batch = loader.next();
    CHECK(batch.tokens == Ids{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14});
    CHECK(batch.targets == Ids{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15});
    CHECK(loader.state() == LoaderState{0, 3});
    CHECK(windows_of(loader.next(), c) == Ids{15, 1000, 1005});
    CHECK(loader.state() == LoaderState{0, 6});
    CHECK(windows_of(loader.next(), c) == Ids{3000, 3005, 0});  // on into the next epoch
    CHECK(loader.state() == LoaderState{1, 1});
    CHECK(windows_of(loader.next(), c) == Ids{5, 10, 15});  // cut the same way in each epoch
    CHECK(windows_of(loader.next(), c) == Ids{1000, 1005, 3000});
    CHECK(loader.state() == LoaderState{1, 7});
    CHECK(next_windows(loader, c, 3).size() == 9);
    CHECK(loader.state() == LoaderState{3, 0});
}

TEST_CASE("a step reads the same windows in the same order at any number of ranks", "[loader]") {
    const Shards shards({300, 101, 250});
    const int steps = 40;  // beyond the end of an epoch
    const bool in_turns = GENERATE(false, true);
    Ids want;
    LoaderState want_state;
    for (const auto& [world_size, batches] : std::vector<std::pair<int, int>>{{1, 8}, {2, 4}, {4, 2}, {8, 1}}) {
        INFO(world_size << " ranks, in turns: " << in_turns);
        Ids all;
        std::vector<Ids> by_rank;
        for (int rank = 0; rank < world_size; rank++) {
            LoaderConfig c = shards.config(2, 7, true);
            c.rank = rank, c.world_size = world_size, c.batches_per_step = batches, c.in_turns = in_turns;
            DataLoader loader(c);
            by_rank.push_back(next_windows(loader, c, steps / 2 * batches));
            DataLoader later(c);  // which goes on where the first one stands
            later.restore(loader.state());
            const Ids rest = next_windows(later, c, steps / 2 * batches);
            by_rank.back().insert(by_rank.back().end(), rest.begin(), rest.end());
            if (world_size == 1) want_state = later.state();
            CHECK(later.state() == want_state);
        }
        const ptrdiff_t n = in_turns ? 2 : 2 * batches;  // windows of a rank in a turn, or in a step
        for (ptrdiff_t step = 0; step < (in_turns ? steps * batches : steps); step++)
            for (const Ids& own : by_rank) all.insert(all.end(), own.begin() + step * n, own.begin() + (step + 1) * n);
        if (world_size == 1) want = all;
        CHECK(all == want);
    }
}

TEST_CASE("ranks with unequal shares of a step read the same windows as one, also when these change", "[loader]") {
    const Shards shards({300, 101, 250});
    constexpr int kSteps = 40, kStepRows = 12;  // beyond the end of an epoch
    LoaderConfig whole = shards.config(2, 7, true);
    whole.batches_per_step = kStepRows / 2;
    DataLoader one(whole);
    const Ids want = next_windows(one, whole, kSteps * whole.batches_per_step);
    // Rows of a batch, and batches of each rank in the first and in the second half of the steps.
    struct Rank {
        int batch_size, before, after;
    };
    for (const std::vector<Rank>& ranks :
         std::vector<std::vector<Rank>>{{{2, 5, 1}, {2, 1, 5}}, {{1, 2, 5}, {4, 1, 1}, {3, 2, 1}}}) {
        std::vector<Ids> by_rank;
        int first[2] = {0, 0};
        for (const Rank& rank : ranks) {
            LoaderConfig c = shards.config(rank.batch_size, 7, true);
            c.batches_per_step = rank.before, c.step_rows = kStepRows, c.first_row = first[0];
            DataLoader loader(c);
            by_rank.push_back(next_windows(loader, c, kSteps / 2 * rank.before));
            loader.assign(rank.after, kStepRows, first[1]);
            const Ids rest = next_windows(loader, c, kSteps / 2 * rank.after);
            by_rank.back().insert(by_rank.back().end(), rest.begin(), rest.end());
            CHECK(loader.state() == one.state());
            first[0] += rank.before * rank.batch_size, first[1] += rank.after * rank.batch_size;
        }
        Ids all;
        for (ptrdiff_t step = 0; step < kSteps; step++)
            for (size_t r = 0; r < by_rank.size(); r++) {
                const ptrdiff_t before = ranks[r].before * ranks[r].batch_size,
                                after = ranks[r].after * ranks[r].batch_size, half = kSteps / 2;
                const auto begin =
                    by_rank[r].begin() + (step < half ? step * before : half * before + (step - half) * after);
                all.insert(all.end(), begin, begin + (step < half ? before : after));
            }
        CHECK(all == want);
    }
}

TEST_CASE("in the middle of a step, a loader's state is that of its beginning", "[loader]") {
    const Shards shards({300});
    LoaderConfig c = shards.config(2, 7, false);
    c.batches_per_step = 3;
    DataLoader loader(c);
    for (int i = 0; i < 8; i++) {
        CHECK(loader.state() == LoaderState{0, uint64_t(i / 3 * 6)});
        loader.next();
    }
}

TEST_CASE("batches of uint16 and uint32 shards mix", "[loader]") {
    Shards shards({7, 7});
    shards.write(0, {10, 11, 12, 13}, 256);
    shards.write(1, {70000, 70001, 70002, 70003}, V);
    CHECK(first_windows(shards.config(2, 3, false), 1) == Ids{10, 70000});
}

TEST_CASE("with shuffling, each window comes once per epoch, and later epochs see other cuts", "[loader]") {
    const int T = 7;
    const std::vector<int> sizes{300, 101, 15, 7, 250};
    const Shards shards(sizes);
    const LoaderConfig c = shards.config(1, T, true);
    DataLoader loader(c);
    std::set<int> offsets;
    for (uint64_t epoch = 0; epoch < 40; epoch++) {
        CHECK(loader.state() == LoaderState{epoch, 0});
        const Ids order = next_windows(loader, c, loader.num_windows(epoch));
        const Ids windows = sorted(order);
        CHECK(order != windows);
        const int offset = windows[0];
        CHECK(offset < T);
        offsets.insert(offset);
        if (epoch == 0) CHECK(offset == 0);
        Ids expected;
        for (size_t s = 0; s < sizes.size(); s++)
            for (int at = offset; at + T + 1 <= sizes[s]; at += T) expected.push_back(int32_t(1000 * s) + at);
        CHECK(windows == expected);
    }
    CHECK(offsets.size() == T);  // 39 draws miss one of 7 with a probability of 7*(6/7)^39 = 1.7 percent; not this seed
}

TEST_CASE("the same seed gives the same order, another seed another", "[loader]") {
    const Shards shards({3000});
    const Ids a = first_windows(shards.config(4, 8, true, 1), 200);  // two epochs
    CHECK(a == first_windows(shards.config(4, 8, true, 1), 200));
    CHECK(a != first_windows(shards.config(4, 8, true, 2), 200));
    const Ids first(a.begin(), a.begin() + 374), second(a.begin() + 374, a.begin() + 748);
    CHECK(first != second);
}

TEST_CASE("ranks share no window; together they read what one rank alone would, in the same order", "[loader]") {
    const Shards shards({203, 97, 55});
    const int B = 3, T = 5, steps = 40;  // about five epochs
    for (const bool shuffle : {false, true})
        for (const int world_size : {1, 2, 3}) {
            const Ids alone = first_windows(shards.config(B * world_size, T, shuffle), steps);
            std::vector<Ids> of_rank;
            std::vector<LoaderState> states;
            for (int rank = 0; rank < world_size; rank++) {
                LoaderConfig c = shards.config(B, T, shuffle);
                c.rank = rank;
                c.world_size = world_size;
                DataLoader loader(c);
                of_rank.push_back(next_windows(loader, c, steps));
                states.push_back(loader.state());
            }
            Ids together;
            for (int step = 0; step < steps; step++)
                for (const Ids& windows : of_rank)
                    together.insert(together.end(), windows.begin() + step * B, windows.begin() + (step + 1) * B);
            CHECK(together == alone);
            for (const LoaderState& state : states) CHECK(state == states[0]);
        }
}

TEST_CASE("a state restores exactly: anywhere, across epochs, at another batch size and world size", "[loader]") {
    const Shards shards({203, 97, 55});
    const int T = 5;
    Rng rng(3, Stream::tests);
    for (const bool shuffle : {false, true}) {
        const Ids all = first_windows(shards.config(1, T, shuffle), 1000);  // about 14 epochs
        for (int trial = 0; trial < 30; trial++) {
            const LoaderConfig before = shards.config(1 + int(rng.below(9)), T, shuffle);
            const int64_t batches = int64_t(rng.below(60));
            DataLoader loader(before);
            next_windows(loader, before, batches);
            const LoaderState state = loader.state();

            LoaderConfig after = shards.config(1 + int(rng.below(9)), T, shuffle);
            after.world_size = 1 + int(rng.below(3));
            after.rank = int(rng.below(uint64_t(after.world_size)));
            DataLoader other(after);
            next_windows(other, after, int64_t(rng.below(3)));  // wherever it was before
            other.restore(state);
            CHECK(other.state() == state);
            const int64_t from = batches * before.batch_size + after.rank * after.batch_size;
            CHECK(windows_of(other.next(), after) == Ids(all.begin() + from, all.begin() + from + after.batch_size));

            loader.restore({0, 0});
            CHECK(next_windows(loader, before, 1) == Ids(all.begin(), all.begin() + before.batch_size));
        }
    }
}

TEST_CASE("the end of an epoch and the start of the next are one place", "[loader]") {
    const Shards shards({41});
    const LoaderConfig c = shards.config(3, 5, true);
    DataLoader loader(c);
    REQUIRE(loader.num_windows(0) == 8);
    loader.restore({0, 8});
    const Ids a = next_windows(loader, c, 5);
    const LoaderState state = loader.state();
    loader.restore({1, 0});
    CHECK(next_windows(loader, c, 5) == a);
    CHECK(loader.state() == state);
}

TEST_CASE("a position beyond the epoch is refused, and the loader goes on as before", "[loader]") {
    const Shards shards({41});
    const LoaderConfig c = shards.config(2, 5, false);
    DataLoader loader(c);
    next_windows(loader, c, 1);
    const std::string error = error_of([&] { loader.restore({3, 9}); });
    CHECK(contains(error, "2: the data position 9 of epoch 3 is beyond the 8 windows of 5 tokens"));
    CHECK(contains(error, "--seq-len"));
    CHECK(contains(error_of([&] { loader.restore({0, uint64_t(1) << 63}); }), "is beyond"));
    CHECK(loader.state() == LoaderState{0, 2});
    CHECK(next_windows(loader, c, 1) == Ids{10, 15});
}

TEST_CASE("prefetching changes nothing: not the batch in use, not the state, not the order", "[loader]") {
    const Shards shards({997});
    const LoaderConfig c = shards.config(3, 5, true);
    const Ids expected = first_windows(c, 60);
    DataLoader loader(c);
    Rng rng(5, Stream::tests);
    Ids got;
    for (int i = 0; i < 60; i++) {
        const LoaderState before = loader.state();
        if (rng.below(2)) std::this_thread::sleep_for(std::chrono::microseconds(rng.below(3000)));
        CHECK(loader.state() == before);
        const Batch& batch = loader.next();
        const Batch copy = batch;
        if (rng.below(2)) std::this_thread::sleep_for(std::chrono::microseconds(rng.below(3000)));
        CHECK(batch.tokens == copy.tokens);  // the thread has had the time to write the next one, and did so elsewhere
        CHECK(batch.targets == copy.targets);
        for (const int32_t start : windows_of(batch, c)) got.push_back(start);
    }
    CHECK(got == expected);
    DataLoader abandoned(c);  // destroyed with a batch on its way
}

TEST_CASE("a token outside the vocabulary surfaces in next(), with file, index, id and vocabulary", "[loader]") {
    const Shards shards({8, 50});
    Ids ids(50, 7);
    ids[31] = 256;
    shards.write(1, ids);
    LoaderConfig c = shards.config(2, 5, false);
    c.vocab_size = 256;
    DataLoader loader(c);
    loader.next();  // windows 0 of shard 0 and 0 of shard 1
    loader.next();
    loader.next();
    const LoaderState good = loader.state();
    const std::string error = error_of([&] { loader.next(); });  // tokens 25..30 and 30..35 of shard 1
    CHECK(contains(error, "2: " + shards.path(1) + ": token 31 has the id 256, outside the vocabulary of 256"));
    CHECK(error_of([&] { loader.next(); }) == error);
    CHECK(loader.state() == good);
    loader.restore({0, 0});
    CHECK(loader.next().tokens == Ids{0, 1, 2, 3, 4, 7, 7, 7, 7, 7});
}

TEST_CASE("the last target of a window is checked, too", "[loader]") {
    const Shards shards({6});
    shards.write(0, {1, 2, 3, 4, 5, 99});
    LoaderConfig c = shards.config(1, 5, false);
    c.vocab_size = 99;
    DataLoader loader(c);
    CHECK(contains(error_of([&] { loader.next(); }), "token 5 has the id 99"));
}

TEST_CASE("an id above 2^31 is printed as it stands in the file", "[loader]") {
    const Shards shards({6});
    std::string text = read_file(shards.path(0));
    text[1024 + 3] = char(0xff);
    write_file_atomically(shards.path(0), text);
    DataLoader loader(shards.config(1, 5, false));
    CHECK(contains(error_of([&] { loader.next(); }), "token 0 has the id 4278190080"));
}

TEST_CASE("too few tokens for one batch: how many there are, how many it takes, what to lower", "[loader]") {
    const Shards shards({30, 31});
    LoaderConfig c = shards.config(12, 5, false);
    c.world_size = 3;           // a step of all ranks may go through several epochs
    DataLoader just_enough(c);  // 61 = 12*5 + 1
    c.seq_len = 6;
    const std::string error = error_of([&] { DataLoader loader(c); });
    CHECK(contains(error, "61 tokens in 2 shards, and one batch needs 73 (12 sequences * 6 tokens + 1)"));
    CHECK(contains(error, "--batch-size or --seq-len"));

    DataLoader all_of_it(shards.config(60, 1, false));
    CHECK(contains(error_of([&] { DataLoader loader(shards.config(61, 1, false)); }), "one batch needs 62"));

    CHECK(DataLoader(shards.config(1, 29, false)).num_unread_tokens() == 0);
    CHECK(DataLoader(shards.config(1, 30, false)).num_unread_tokens() == 30);

    const std::string short_shards = error_of([&] { DataLoader loader(shards.config(1, 40, false)); });
    CHECK(contains(short_shards, "none of the 2 shards holds the 41 tokens of one sequence"));
    CHECK(contains(error_of([&] { DataLoader loader(shards.config(0, 5, false)); }), "2: --batch-size 0: expected"));
    CHECK(contains(error_of([&] { DataLoader loader(shards.config(1, 0, false)); }), "2: --seq-len 0: expected"));
    c.pattern = shards.scratch / "val_*.bin";
    CHECK(contains(error_of([&] { DataLoader loader(c); }), "no file matches"));
}

TEST_CASE("one window is enough for any number of epochs, whatever their offset", "[loader]") {
    const Shards shards({6});
    const LoaderConfig c = shards.config(1, 5, true);
    DataLoader loader(c);
    CHECK(next_windows(loader, c, 50) == Ids(50, 0));
    CHECK(loader.state() == LoaderState{50, 0});
    const Shards more({6, 6});  // and a batch may be longer than an epoch
    CHECK(sorted(first_windows(more.config(2, 5, true), 3)) == Ids{0, 0, 0, 1000, 1000, 1000});
}

TEST_CASE("the hash of the data tells data sets apart", "[loader]") {
    const Shards shards({5000, 300});
    const auto hash = [&] { return DataLoader(shards.config(1, 5, true)).data_hash(); };
    const uint64_t original = hash();
    CHECK(hash() == original);
    CHECK(DataLoader(shards.config(7, 3, false)).data_hash() == original);  // of the data, not of how they are used
    for (const size_t at : {size_t(1024), size_t(1500), read_file(shards.path(0)).size() - 1}) {
        const std::string text = read_file(shards.path(0));
        std::string changed = text;
        changed[at] = char(changed[at] ^ 1);
        write_file_atomically(shards.path(0), changed);
        CHECK(hash() != original);
        write_file_atomically(shards.path(0), text);
        CHECK(hash() == original);
    }
    shards.write(2, {1, 2, 3});
    CHECK(hash() != original);
}
