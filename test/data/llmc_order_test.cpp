// --data-order llmc against llm.c itself: the output of its dataloader.h (f1e2ace) for the same shards, from
// dataloader_init(&loader, "train_*.bin", 2, 5, rank, ranks, shuffle) and 2000 calls of dataloader_next_batch().
#include "llmc/data/loader.h"
#include "test/program.h"  // TinyRuns, run

namespace {
using Ids = std::vector<int32_t>;

// Token i of shard s is 1000 s + i. They have 9, 5 and 7 blocks of two ranks, 19, 11 and 14 of one.
struct LlmcShards {
    ScratchFolder scratch;
    LlmcShards() {
        const int sizes[] = {200, 111, 150};
        for (int s = 0; s < 3; s++) {
            ShardWriter writer(scratch / "train_00000" + std::to_string(s) + ".bin", 3000);
            for (int32_t i = 0; i < sizes[s]; i++) {
                const int32_t id = 1000 * s + i;
                writer.append(&id, 1);
            }
            writer.finish();
        }
    }
    LoaderConfig config(int rank, int world_size, bool shuffle, int64_t batches = 1) const {
        return {.pattern = scratch / "train_*.bin",
                .batch_size = 2,
                .seq_len = 5,
                .rank = rank,
                .world_size = world_size,
                .batches_per_step = batches,
                .shuffle = shuffle,
                .seed = 7,
                .vocab_size = 3000,
                .order = DataOrder::llmc};
    }
};

// The first token of each row of the first batches, and a hash of these.
struct Seen {
    Ids starts;
    int64_t hash = 0;
    void add(DataLoader& loader, int batches) {
        for (int i = 0; i < batches; i++) {
            const Batch& batch = loader.next();
            for (const int32_t start : {batch.tokens[0], batch.tokens[5]}) {
                starts.push_back(start);
                hash = (hash * 31 + start) % 1000003;
            }
            CHECK((batch.targets[9] == batch.tokens[9] + 1 && batch.tokens[5] == batch.tokens[0] + 5));
        }
    }
};

struct Expected {
    int world_size, rank;
    bool shuffle;
    Ids first;     // of each row of the first batches
    int64_t hash;  // of 2000 batches
};
const Expected kOfLlmc[] = {
    {1,
     0,
     true,
     {2030, 2035, 2010, 2015, 2070, 2075, 2020, 2025, 2080, 2085, 2120, 2125, 2090, 2095, 2110, 2115,
      2050, 2055, 2000, 2005, 2100, 2105, 2060, 2065, 2130, 2135, 2040, 2045, 1100, 1105, 1060, 1065},
     407029},
    {2,
     0,
     true,
     {2040, 2045, 2000, 2005, 2100, 2105, 2060, 2065, 2020, 2025, 2120, 2125, 2080, 2085, 1040, 1045,
      1080, 1085, 1060, 1065, 1020, 1025, 1000, 1005, 120,  125,  140,  145,  100,  105,  60,   65},
     59646},
    {2,
     1,
     true,
     {2070, 2075, 2110, 2115, 2090, 2095, 2050, 2055, 2130, 2135, 2030, 2035, 2010, 2015, 150, 155,
      10,   15,   30,   35,   130,  135,  110,  115,  170,  175,  50,   55,   70,   75,   90,  95},
     924312},
    {1, 0, false, {0, 5, 10, 15, 20, 25, 30, 35, 40, 45, 50, 55, 60, 65, 70, 75}, 499566},
    {2, 0, false, {0, 5, 20, 25, 40, 45, 60, 65, 80, 85, 100, 105, 120, 125, 140, 145}, 600474},
    {2, 1, false, {10, 15, 30, 35, 50, 55, 70, 75, 90, 95, 110, 115, 130, 135, 150, 155}, 217771},
};
}  // namespace

TEST_CASE("--data-order llmc gives llm.c's batches, with and without shuffling, on one rank and two", "[llmc_order]") {
    const LlmcShards shards;
    for (const Expected& want : kOfLlmc)
        // A step of several batches is nothing that llm.c's loader knows of.
        for (const int batches : {1, 4}) {
            INFO("ranks " << want.world_size << ", rank " << want.rank << ", shuffled " << want.shuffle << ", "
                          << batches << " batches a step");
            DataLoader loader(shards.config(want.rank, want.world_size, want.shuffle, batches));
            Seen seen;
            seen.add(loader, 2000);
            CHECK(Ids(seen.starts.begin(), seen.starts.begin() + ptrdiff_t(want.first.size())) == want.first);
            CHECK(seen.hash == want.hash);
        }
}

TEST_CASE("--data-order llmc goes on where a state says, in a later epoch too", "[llmc_order]") {
    const LlmcShards shards;
    for (const int before : {0, 4, 20, 24, 100}) {  // 21 blocks are an epoch
        const LoaderConfig config = shards.config(1, 2, true, 2);
        DataLoader loader(config), later(config);
        CHECK(loader.num_windows() == 21 * 4);
        Seen begun, went_on, resumed;
        begun.add(loader, before);
        CHECK(loader.state() == LoaderState{uint64_t(before / 21), uint64_t(before % 21)});
        resumed.add(later, 3);  // elsewhere first
        later.restore(loader.state());
        resumed = {};
        went_on.add(loader, 50), resumed.add(later, 50);
        CHECK(went_on.starts == resumed.starts);
        CHECK(later.state() == loader.state());
    }
}

TEST_CASE("what --data-order llmc cannot read is refused", "[llmc_order]") {
    const LlmcShards shards;
    CHECK(contains(
        error_of([&] { DataLoader loader(shards.config(0, 12, true)); }),
        "train_000001.bin: 111 tokens, and with --data-order llmc each shard needs 121 (12 ranks * 2 sequences "
        "* 5 tokens + 1); lower --batch-size or --seq-len"));
    DataLoader loader(shards.config(0, 2, true));
    CHECK(contains(error_of([&] { loader.restore({.epoch = 0, .position = 21}); }),
                   "the data position 21 of epoch 0 is beyond the 21 blocks of --data-order llmc"));
}

TEST_CASE("a run with --data-order llmc resumes to the bit, and knows when its batches are others",
          "[llmc_order][plain]") {
    const TinyRuns runs;  // 1800 tokens: 28 blocks of 2 ranks, in the 10th step of three an epoch ends
    FlagMap flags{{"data-order", "llmc"},    {"virtual-ranks", "2"}, {"total-batch-size", "192"}, {"steps", "14"},
                  {"checkpoint-every", "7"}, {"keep", "9"},          {"val-tokens", "0"}};
    must_succeed(runs.train("whole", flags));
    const std::string whole = runs.path("whole");
    const LoaderState half = state_in(step_folder(whole, 7)).data;
    CHECK(half.epoch == 0);
    CHECK(half.position == 7 * 3);
    CHECK(state_in(step_folder(whole, 14)).data.epoch == 1);
    const auto resumed = [&](const std::string& name, const FlagMap& changes) {
        FlagMap all{{"resume", step_folder(whole, 7)}, {"virtual-ranks", "2"}, {"out-dir", runs.path(name)}};
        for (const auto& [flag, value] : changes) all[flag] = value;
        return run(command_of(all));
    };
    const Finished same = resumed("same", {});
    must_succeed(same);
    CHECK(same.err == "");
    CHECK(difference(step_folder(runs.path("same"), 14), step_folder(whole, 14)) == "");
    for (const auto& [flag, value] : FlagMap{{"virtual-ranks", "1"}, {"batch-size", "1"}, {"data-order", "own"}}) {
        const Finished other = resumed("other_" + flag, {{flag, value}});
        must_succeed(other);
        INFO(flag);
        CHECK(contains(other.err, "reading the data from their start"));
    }
    // Another seed, the same batches; and what is not llm.c's is refused.
    CHECK(resumed("seed", {{"seed", "8"}}).err == "");
    flags["packing"] = "best-fit";
    const Finished packed = runs.train("packed", flags);
    CHECK((packed.exit_code == 2 && contains(packed.err, "--data-order llmc with --packing")));
    flags.erase("packing");
    flags["train-data"] = runs.path("data/train_*.bin") + ":1," + runs.path("data/val_*.bin") + ":2";
    CHECK(contains(runs.train("mixed", flags).err, "--data-order llmc with weights"));
}
