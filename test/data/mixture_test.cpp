// Mixtures of data sets: parsing --train-data, the data set of each row, and runs.
#include "llmc/data/mixture.h"
#include <cmath>
#include <numeric>
#include "llmc/data/loader.h"
#include "test/train/rank_runs.h"

namespace {

using Ids = std::vector<int32_t>;
constexpr int V = 100000;
constexpr int64_t T = 5;

// Three folders of shards whose tokens are all different: source s holds 10000 (s + 1), 10000 (s + 1) + 1, ...
struct Sources {
    ScratchFolder scratch;
    Sources() {
        for (int s = 0; s < 3; s++) {
            std::filesystem::create_directories(scratch / names[s]);
            for (int shard = 0; shard < 2; shard++) {
                Ids ids(size_t(31 + 20 * s));
                std::iota(ids.begin(), ids.end(), 10000 * (s + 1) + 1000 * shard);
                ShardWriter writer(scratch / (std::string(names[s]) + "/train_" + std::to_string(shard) + ".bin"), V);
                writer.append(ids.data(), int64_t(ids.size()));
                writer.finish();
            }
        }
    }
    std::string pattern(int s) const { return scratch / (std::string(names[s]) + "/train_*.bin"); }
    LoaderConfig config(const std::string& pattern, int B = 1) const {
        return {.pattern = pattern, .batch_size = B, .seq_len = int(T), .shuffle = true, .seed = 3, .vocab_size = V};
    }
    LoaderConfig mixed(const std::vector<std::string>& weights, int B = 1) const {
        std::string all;
        for (size_t s = 0; s < weights.size(); s++) all += (s ? "," : "") + pattern(int(s)) + ":" + weights[s];
        return config(all, B);
    }
    static constexpr const char* names[] = {"a:b,c", "plain", "0.5"};
};

// The first token of each row.
Ids next_rows(DataLoader& loader, int64_t batches) {
    Ids rows;
    for (int64_t i = 0; i < batches; i++) {
        const Batch& batch = loader.next();
        for (size_t at = 0; at < batch.tokens.size(); at += T) rows.push_back(batch.tokens[at]);
    }
    return rows;
}

Ids rows_of(const LoaderConfig& config, int64_t batches) {
    DataLoader loader(config);
    return next_rows(loader, batches);
}

Ids of_source(const Ids& rows, int s) {
    Ids own;
    for (const int32_t row : rows)
        if (row / 10000 == s + 1) own.push_back(row);
    return own;
}

std::string parsed(const std::string& text) {
    std::string all;
    for (const DataSource& source : data_sources(text)) all += format("[%s %g]", source.pattern.c_str(), source.weight);
    return all;
}

}  // namespace

TEST_CASE("--train-data: one pattern, or a list with weights", "[mixture]") {
    CHECK(parsed("a/*.bin") == "[a/*.bin 1]");
    CHECK(parsed("a/*.bin:0.7,b/*.bin:0.3") == "[a/*.bin 0.7][b/*.bin 0.3]");
    CHECK(parsed("a:3,b:1e1,c:.5") == "[a 3][b 10][c 0.5]");
    // Colons and commas in names.
    CHECK(parsed("run:7/x.bin") == "[run:7/x.bin 1]");
    CHECK(parsed("a,b/*.bin") == "[a,b/*.bin 1]");
    CHECK(parsed("C:x,y:1,b:7z/*.bin:2") == "[C:x,y 1][b:7z/*.bin 2]");
    CHECK(parsed("a[:]1") == "[a[:]1 1]");

    const auto refused = [](const std::string& text, const std::string& what) {
        CHECK(error_of([&] { data_sources(text); }) ==
              "2: " + what + " (--train-data " + text +
                  "): expected PATTERN:WEIGHT,PATTERN:WEIGHT with weights above 0, or one pattern");
    };
    refused("a:0.7,b", "'b' has no weight");
    refused("a:0.7,b:zero", "'b:zero' has no weight");
    refused("a:0.7,", "'' has no weight");
    refused("a,b:0.3", "a weight, and no other source");
    refused("a:1,b:0", "the weight of 'b' is 0");
    refused("a:1,b:-2", "the weight of 'b' is -2");
    refused("a:1,b:nan", "the weight of 'b' is nan");
    refused("a:1e999,b:1", "the weight of 'a' is inf");
    refused(":1,b:1", "there is no pattern before the weight 1");
    refused("a:1,b:1e-12", "'b' has less than 1 in 2^32 of all weight");
}

TEST_CASE("each source gives its share of the rows, in the order that it has alone", "[mixture]") {
    const Sources sources;
    const std::vector<std::string> weights = {"0.5", "0.2", "0.3"};
    const Ids rows = rows_of(sources.mixed(weights), 1000);
    int64_t given[3] = {};
    for (size_t i = 0; i < rows.size(); i++) {
        given[rows[i] / 10000 - 1]++;
        for (int s = 0; s < 3; s++)
            REQUIRE(std::fabs(double(given[s]) - std::stod(weights[size_t(s)]) * double(i + 1)) < 2);
    }
    CHECK(given[0] == 500);
    CHECK(given[1] == 200);
    CHECK(given[2] == 300);
    // The sources have 12, 20 and 28 rows, so 500 of the first are 41 epochs and more.
    CHECK(of_source(rows, 0) == rows_of(sources.config(sources.pattern(0)), 500));
    for (int s = 1; s < 3; s++) {
        LoaderConfig alone = sources.config(sources.pattern(s));
        alone.seed = mix64(3 + uint64_t(s));
        CHECK(of_source(rows, s) == rows_of(alone, s == 1 ? 200 : 300));
    }
    // Weights count by their sum, and nothing but the patterns' order decides between equals.
    CHECK(rows_of(sources.mixed({"5", "2", "3"}), 1000) == rows);
    CHECK(rows_of(sources.mixed({"0.5", "0.2", "0.31"}), 1000) != rows);
}

TEST_CASE("the rows of a mixture are the same for any batches and ranks, and after a restore", "[mixture]") {
    const Sources sources;
    const Ids rows = rows_of(sources.mixed({"1", "2", "4"}), 240);
    CHECK(rows_of(sources.mixed({"1", "2", "4"}, 6), 40) == rows);
    for (const int ranks : {2, 3}) {
        Ids together;
        std::vector<std::unique_ptr<DataLoader>> loaders;
        LoaderConfig config = sources.mixed({"1", "2", "4"}, 2);
        config.batches_per_step = 2;
        config.world_size = ranks;
        for (config.rank = 0; config.rank < ranks; config.rank++)
            loaders.push_back(std::make_unique<DataLoader>(config));
        while (together.size() < rows.size())
            for (const auto& loader : loaders)
                for (const int32_t row : next_rows(*loader, 2)) together.push_back(row);
        CHECK(together == rows);
        for (const auto& loader : loaders) CHECK(loader->state() == loaders[0]->state());
    }
    // From every place, on another number of ranks.
    DataLoader straight(sources.mixed({"1", "2", "4"}));
    for (size_t i = 0; i < 60; i++) {
        DataLoader other(sources.mixed({"1", "2", "4"}, 4));
        other.restore(straight.state());
        REQUIRE(next_rows(other, 3) == Ids(rows.begin() + long(i), rows.begin() + long(i) + 12));
        uint64_t given = 0;
        for (const SourceFacts& facts : straight.sources()) given += facts.tokens;
        REQUIRE(given == i * T);
        next_rows(straight, 1);
    }
    const LoaderState here = straight.state();
    const Ids next = rows_of(sources.mixed({"1", "2", "4"}), 66);
    for (const std::string bad :
         {"1,0,0,0,0,", "x;y;z", "1,0,0,0,0,;1,0,0,0,0,;1,0,0,0", "0,0,0,0,0,;0,0,99,0,0,;0,0,0,0,0,"}) {
        CHECK(contains(error_of([&] { straight.restore({.waiting = bad}); }), "2: "));
        straight.restore(here);
        CHECK(next_rows(straight, 6) == Ids(next.begin() + 60, next.end()));
    }
}

TEST_CASE("data with other weights are other data", "[mixture]") {
    const Sources sources;
    const uint64_t one = DataLoader(sources.mixed({"1", "2"})).data_hash();
    CHECK(DataLoader(sources.mixed({"1", "2"})).data_hash() == one);
    CHECK(DataLoader(sources.mixed({"1", "3"})).data_hash() != one);
    CHECK(error_of([&] { DataLoader(sources.config("nowhere/*.bin:1," + sources.pattern(1) + ":1")); }) ==
          "2: no file matches 'nowhere/*.bin': expected token shards; make them with data/tokenize or "
          "data/tinyshakespeare.sh");
}

TEST_CASE("a run on a mixture, packed or not: on ranks, resumed, and its end", "[mixture]") {
    const TinyRuns runs(20000);  // with all symbols of the other stories
    must_succeed(run(program("data/tokenize") + " --stories 3000 --seed 5 --tokenizer " +
                     runs.path("data/tokenizer.json") + " --out " + runs.path("more")));
    const std::string mixture = runs.path("data/train_*.bin") + ":3," + runs.path("more/train_*.bin") + ":1";
    for (const std::string packing : {"stream", "best-fit"}) {
        FlagMap flags = with(kEight, {{"train-data", mixture}, {"packing", packing}, {"steps", "12"}});
        if (packing == "best-fit") flags["document-token"] = "0";  // the line's end: documents of a line
        const std::string name = packing + "1";
        const Finished whole = runs.train(name, with(flags, {{"checkpoint-every", "5"}, {"keep", "9"}}));
        must_succeed(whole);
        const std::string straight = runs.path(name);
        CHECK(contains(whole.out, "data: 75.00% of all rows from the "));
        // 12 steps of 256 tokens.
        CHECK(contains(whole.out, " tokens of " + runs.path("data/train_*.bin") + ", 75.00% of all\n"));
        CHECK(contains(whole.out, " tokens of " + runs.path("more/train_*.bin") + ", 25.00% of all\n"));
        CHECK(contains(records_in(straight, "end")[0], "\"weight\":3.0,\"tokens\":2304}"));

        must_succeed(runs.train(packing + "4", with(flags, {{"virtual-ranks", "4"}})));
        CHECK(losses_in(runs.path(packing + "4")) == losses_in(straight));
        const std::string again = runs.path(packing + " again");
        must_succeed(run(command_of({{"resume", step_folder(straight, 5)}, {"out-dir", again}})));
        CHECK(difference(step_folder(again, 12), step_folder(straight, 12)) == "");

        const Finished other = run(command_of({{"resume", step_folder(straight, 5)},
                                               {"out-dir", runs.path(packing + " other")},
                                               {"train-data", mixture + "00"}}));
        must_succeed(other);
        CHECK(contains(other.err, ": the shards or weights of --train-data, or the token"));
    }
    const Finished refused = runs.train("x", {{"val-data", mixture}});
    CHECK(refused.exit_code == kExitUsage);
    CHECK(contains(refused.err, "expected one pattern without weights"));
    CHECK(std::count(refused.err.begin(), refused.err.end(), '\n') == 1);
}
