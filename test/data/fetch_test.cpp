// Shards that are brought ahead of their use and dropped after it: the batches are those of shards on the disk, few
// files are there at a time, and what is not the listed shard counts for nothing.
#include "llmc/data/fetch.h"
#include <atomic>
#include <filesystem>
#include <fstream>
#include <functional>
#include <mutex>
#include <set>
#include <thread>
#include "llmc/base/file.h"  // read_file, FileWriter
#include "llmc/base/rng.h"   // Rng
#include "llmc/data/loader.h"
#include "test/processes.h"   // in_processes
#include "test/test_clock.h"  // wait_until
#include "test/testing.h"

namespace {

namespace fs = std::filesystem;
using Ids = std::vector<int32_t>;
constexpr int V = 500, kSeparator = 7;

void put(const std::string& path, const std::string& content) {
    FileWriter(path).write(content.data(), content.size());
}

// Shards in the folder `far`, their list in `near`, and what is brought from one to the other.
struct Far {
    ScratchFolder scratch;
    const std::string far = scratch / "far", near = scratch / "near";
    std::mutex mutex;
    std::vector<std::string> brought;       // in this order
    size_t most = 0;                        // files of shards in near/fetched at any moment, with those on their way
    std::function<std::string(int)> fails;  // before the attempt of this number, from 1: why it fails

    explicit Far(const std::vector<int>& sizes, bool has_mask = false) {
        fs::create_directory(far), fs::create_directory(near);
        Rng rng(5, Stream::tests);
        for (size_t s = 0; s < sizes.size(); s++) {
            ShardWriter writer(far + "/" + name(s), V, has_mask ? ShardMask::some_learned : ShardMask::all_learned);
            Ids ids;
            for (int i = 0; i < sizes[s]; i++) {
                const int32_t id = i == 0 || rng.below(12) == 0 ? kSeparator : int32_t(10 + rng.below(V - 10));
                ids.push_back(has_mask && rng.below(3) == 0 ? ~id : id);
            }
            writer.append(ids.data(), int64_t(ids.size()));
            writer.finish();
        }
        write_shard_list(far);
        fs::copy(far + "/" + kShardList, near);
    }
    static std::string name(size_t s) { return "train_00000" + std::to_string(s) + ".bin"; }
    std::string fetched(size_t s) const { return near + "/fetched/" + name(s); }

    std::vector<std::string> there() const {
        std::vector<std::string> names;
        std::error_code none;
        for (const auto& entry : fs::directory_iterator(near + "/fetched", none))
            if (const std::string file = entry.path().filename(); file != "lock") names.push_back(file);
        std::sort(names.begin(), names.end());
        return names;
    }
    FetchConfig fetch() {
        return {.bring =
                    [this](const std::string& file, const std::string& path, double, const std::function<bool()>&) {
                        const std::lock_guard guard(mutex);
                        brought.push_back(file);
                        std::string why = fails ? fails(int(brought.size())) : "";
                        if (why.empty()) fs::copy(far + "/" + file, path, fs::copy_options::overwrite_existing);
                        most = std::max(most, there().size());
                        return why;
                    },
                .limit_s = 5,
                .patience_s = 30};
    }
    LoaderConfig config(const std::string& folder, DataOrder order, bool shuffle, Packing packing) const {
        return {.pattern = folder + "/train_*.bin",
                .batch_size = 2,
                .seq_len = 16,
                .batches_per_step = 2,
                .shuffle = shuffle,
                .seed = 3,
                .vocab_size = V,
                .packing = packing,
                .document_token = kSeparator,
                .order = order};
    }
};

struct Kind {
    const char* name;
    DataOrder order;
    bool shuffle;
    Packing packing;
};
const std::vector<Kind> kKinds = {{"in order", DataOrder::own, false, Packing::stream},
                                  {"shards", DataOrder::shards, true, Packing::stream},
                                  {"best-fit", DataOrder::own, true, Packing::best_fit},
                                  {"best-fit in order", DataOrder::own, false, Packing::best_fit},
                                  {"pad", DataOrder::shards, true, Packing::pad},
                                  {"llmc", DataOrder::llmc, true, Packing::stream},
                                  {"llmc in order", DataOrder::llmc, false, Packing::stream}};

// The tokens and targets of the next batches.
Ids next_batches(DataLoader& loader, int n) {
    Ids all;
    for (int i = 0; i < n; i++) {
        const Batch& batch = loader.next();
        all.insert(all.end(), batch.tokens.begin(), batch.tokens.end());
        all.insert(all.end(), batch.targets.begin(), batch.targets.end());
    }
    return all;
}

}  // namespace

TEST_CASE("the batches are those of shards on the disk, in each order, of one rank and of two", "[fetch]") {
    for (const Kind& kind : kKinds)
        for (const int ranks : {1, 2}) {
            INFO(kind.name << ", ranks: " << ranks);
            Far data({900, 500, 30, 1200, 700, 12, 800}, kind.packing == Packing::pad);
            if (kind.order == DataOrder::llmc) {
                fs::remove(data.far + "/" + Far::name(2)), fs::remove(data.far + "/" + Far::name(5));
                write_shard_list(data.far);
                fs::copy(data.far + "/" + kShardList, data.near, fs::copy_options::overwrite_existing);
            }
            for (int rank = 0; rank < ranks; rank++) {
                LoaderConfig all = data.config(data.far, kind.order, kind.shuffle, kind.packing);
                all.rank = rank, all.world_size = ranks;
                LoaderConfig few = all;
                few.pattern = data.near + "/train_*.bin", few.fetch = data.fetch();
                data.most = 0, data.brought.clear();
                DataLoader straight(all);
                const int batches = 280;  // more than two epochs
                const Ids expected = next_batches(straight, batches);
                LoaderState middle;
                {
                    DataLoader loader(few);
                    CHECK(data.brought.empty());  // where it begins is not known yet
                    CHECK(loader.data_hash() == straight.data_hash());
                    CHECK(loader.num_tokens() == straight.num_tokens());
                    loader.restore({});
                    CHECK(wait_until([&] { return data.there().size() == 2; }));  // the next one, ahead of its use
                    CHECK(next_batches(loader, batches) == expected);
                    CHECK(loader.state() == straight.state());
                    const std::lock_guard guard(data.mutex);
                    CHECK(data.brought.size() > 10);
                    CHECK(data.brought.size() <= (loader.state().epoch + 2) * straight.shards()[0].size());
                    // One in use, one ahead, and one on its way that was read past: some are smaller than a batch.
                    CHECK(data.most <= 3);
                }
                // From the middle, on an empty disk.
                fs::remove_all(data.near + "/fetched");
                DataLoader again(all);
                next_batches(again, 44);
                data.most = 0;
                DataLoader later(few);
                later.restore(again.state());
                CHECK(next_batches(later, 30) == next_batches(again, 30));
                later.restore(again.state());  // and from where it was, as when a rank gets another share
                CHECK(next_batches(later, 30) == next_batches(again, 30));
                const std::lock_guard guard(data.mutex);
                CHECK(data.most <= 3);
            }
        }
}

TEST_CASE("with --data-order shards an epoch has each window once, one shard after the other", "[fetch]") {
    Far data({330, 170, 10, 490});
    LoaderConfig c = data.config(data.far, DataOrder::shards, true, Packing::stream);
    c.batch_size = 1, c.batches_per_step = 1;
    DataLoader loader(c);
    LoaderConfig in_order = c;
    in_order.shuffle = false;
    DataLoader sorted(in_order);
    const int n = int(sorted.num_windows());
    REQUIRE(n == 20 + 10 + 30);
    std::vector<Ids> expected, found;
    for (int i = 0; i < n; i++) expected.push_back(next_batches(sorted, 1)), found.push_back(next_batches(loader, 1));
    std::vector<size_t> order;  // of the windows, by their places without shuffling
    for (const Ids& window : found)
        order.push_back(size_t(std::find(expected.begin(), expected.end(), window) - expected.begin()));
    CHECK(std::set<size_t>(order.begin(), order.end()).size() == size_t(n));
    CHECK(*std::max_element(order.begin(), order.end()) < size_t(n));
    const auto shard_of = [](size_t window) { return window < 20 ? 0 : window < 30 ? 1 : 3; };
    int turns = 1, neighbors = 0;
    for (size_t i = 1; i < order.size(); i++) {
        turns += shard_of(order[i]) != shard_of(order[i - 1]);
        neighbors += order[i] == order[i - 1] + 1;
    }
    CHECK(turns == 3);
    CHECK(neighbors < n / 4);  // shuffled inside, too
    std::vector<Ids> second;
    for (int i = 0; i < n - 3; i++) second.push_back(next_batches(loader, 1));
    CHECK(second != std::vector<Ids>(found.begin(), found.end() - 3));
    CHECK(loader.state().epoch == 1);
    c.seed = 4;
    DataLoader other(c);
    CHECK(next_batches(other, n) != [&] {
        Ids all;
        for (const Ids& window : found) all.insert(all.end(), window.begin(), window.end());
        return all;
    }());
}

TEST_CASE("each source of a mixture has its shards brought", "[fetch]") {
    Far one({700, 500, 900}), two({400, 800});
    const std::string far = one.far + "/*.bin:2," + two.far + "/*.bin:1",
                      near = one.near + "/*.bin:2," + two.near + "/*.bin:1";
    LoaderConfig all = one.config(one.far, DataOrder::shards, true, Packing::stream);
    all.pattern = far;
    LoaderConfig few = all;
    few.pattern = near;
    few.fetch = one.fetch();
    few.fetch->bring = [&](const std::string& file, const std::string& path, double limit_s, const auto& is_over) {
        return (contains(path, one.near) ? one : two).fetch().bring(file, path, limit_s, is_over);
    };
    DataLoader straight(all), loader(few);
    CHECK(loader.data_hash() == straight.data_hash());
    CHECK(next_batches(loader, 120) == next_batches(straight, 120));
    CHECK(one.most <= 2);
    CHECK(two.most <= 2);
}

TEST_CASE("a command that fails, cuts a shard or brings another one is tried again", "[fetch]") {
    Far data({700, 500, 500});
    const std::string whole = read_file(data.far + "/" + Far::name(0));
    FetchConfig fetch = data.fetch();
    int attempts = 0;
    fetch.bring = [&](const std::string& file, const std::string& path, double, const auto&) -> std::string {
        if (file != Far::name(0)) return data.fetch().bring(file, path, 1, [] { return false; });
        attempts++;
        CHECK_FALSE(fs::exists(data.fetched(0)));
        if (attempts == 1) return "ended with exit code 9";
        std::string content = whole;
        if (attempts == 2) content.resize(content.size() - 2);
        if (attempts == 3) content[content.size() / 2] ^= 1;  // as long, and a shard
        put(path, content);
        return "";
    };
    {
        OpenShards shards = open_shards(data.near + "/*.bin", fetch);
        Ids ids(700), expected(700);
        shards.shards[0].read(0, 700, ids.data(), V);  // after pauses of 1, 2 and 4 s
        TokenShard(data.far + "/" + Far::name(0)).read(0, 700, expected.data(), V);
        CHECK(attempts == 4);
        CHECK(ids == expected);
        CHECK(data.there() == std::vector<std::string>{Far::name(0)});
    }
    // What is there by that name and is not it: the machine crashed, say.
    put(data.fetched(1), read_file(data.far + "/" + Far::name(2)));
    OpenShards shards = open_shards(data.near + "/*.bin", fetch);
    Ids ids(500), expected(500);
    shards.shards[1].read(0, 500, ids.data(), V);
    TokenShard(data.far + "/" + Far::name(1)).read(0, 500, expected.data(), V);
    CHECK(ids == expected);
}

TEST_CASE("a shard that does not come is an error after a time, and at once when the run is to stop", "[fetch]") {
    Far data({700, 500});
    data.fails = [](int) { return "ended with exit code 9"; };
    FetchConfig fetch = data.fetch();
    fetch.patience_s = 0.2;
    const auto read = [](const OpenShards& shards) {
        int32_t id = 0;
        return error_of([&] { shards.shards[0].read(0, 1, &id, V); });
    };
    const std::string error = read(open_shards(data.near + "/*.bin", fetch));
    CHECK(contains(error,
                   "2: --fetch: train_000000.bin is not there after 0 s: the command ended with exit code 9; see"));
    std::atomic<bool> is_stopped = true;
    fetch.patience_s = 100, fetch.is_stopped = [&] { return bool(is_stopped); };
    CHECK(contains(read(open_shards(data.near + "/*.bin", fetch)), "was waited for when the run was told to stop"));
    // A loader ends though its thread waits for a shard, and stops a command that hangs.
    is_stopped = false;
    std::atomic<bool> hangs = false, is_over = false;
    LoaderConfig config = data.config(data.near, DataOrder::shards, true, Packing::stream);
    config.fetch = fetch;
    config.fetch->bring = [&](const std::string&, const std::string&, double, const std::function<bool()>& over) {
        for (hangs = true; !over(); sleep_s(0.001)) continue;
        is_over = true;
        return "was stopped";
    };
    {
        DataLoader loader(config);
        loader.restore({});
        REQUIRE(wait_until([&] { return bool(hangs); }));
    }
    CHECK(is_over);
    CHECK(data.there().empty());
}

TEST_CASE("files of the user's own are used and stay, and what a killed run left is removed", "[fetch]") {
    Far data({500, 500, 500, 500});
    fs::copy(data.far + "/" + Far::name(1), data.near);
    LoaderConfig c = data.config(data.near, DataOrder::own, false, Packing::stream);
    c.fetch = data.fetch();
    fs::create_directory(data.near + "/fetched");
    for (const std::string& left : {Far::name(3), Far::name(2) + ".part.77", std::string("other.bin")})
        put(data.near + "/fetched/" + left, "left");
    {
        DataLoader loader(c);
        loader.next();
        CHECK(data.brought[0] == Far::name(0));
        for (const std::string& file : data.there()) CHECK(file == Far::name(0));
        next_batches(loader, 60);
    }
    CHECK(fs::exists(data.near + "/" + Far::name(1)));
    CHECK(std::count(data.brought.begin(), data.brought.end(), Far::name(1)) == 0);
    CHECK(data.there().size() <= 2);
    // One that is another shard, and one that the list does not have.
    put(data.near + "/" + Far::name(1), read_file(data.far + "/" + Far::name(2)));
    CHECK(contains(error_of([&] { DataLoader loader(c); }), "holds other tokens than its list says: copy it again"));
    fs::remove(data.near + "/" + Far::name(1));
    fs::copy(data.far + "/" + Far::name(1), data.near + "/train_9.bin");
    CHECK(contains(error_of([&] { DataLoader loader(c); }),
                   "train_9.bin is not in shards.json beside it: make the list"));
}

TEST_CASE("processes of a host share what one of them brings", "[fetch]") {
    Far data({500, 700, 600, 400, 500});
    const LoaderConfig c = data.config(data.near, DataOrder::shards, true, Packing::stream);
    LoaderConfig all = c;
    all.pattern = data.far + "/train_*.bin";
    const std::vector<Finished> ended = in_processes(3, [&](int rank) {
        LoaderConfig mine = c, straight = all;
        mine.rank = straight.rank = rank, mine.world_size = straight.world_size = 3;
        mine.fetch = data.fetch();
        mine.fetch->bring = [&](const std::string& file, const std::string& path, double, const auto&) {
            std::ofstream(data.scratch / "names", std::ios::app) << file + "\n";
            sleep_s(0.02);
            fs::copy(data.far + "/" + file, path);
            return "";
        };
        DataLoader loader(mine), expected(straight);
        // As steps do, each waits for the slowest one.
        for (int i = 0; i < 40; i++) {
            ensure(next_batches(loader, 1) == next_batches(expected, 1));
            put(data.scratch / "at." + std::to_string(i) + "." + std::to_string(rank), "");
            for (int other = 0; other < 3; other++)
                ensure(wait_until([&] {
                    return fs::exists(data.scratch / "at." + std::to_string(i) + "." + std::to_string(other));
                }));
            ensure(data.there().size() <= 3);
        }
    });
    for (const Finished& rank : ended) {
        INFO(rank.err);
        CHECK(rank.exit_code == 0);
    }
    // Five shards, at their turns once or twice, of which each process alone would bring all.
    const std::string names = read_file(data.scratch / "names");
    const auto times = std::count(names.begin(), names.end(), '\n');
    CHECK(times >= 6);
    CHECK(times <= 14);
}

TEST_CASE("validation shards that are missing are brought once, and stay", "[fetch]") {
    Far data({300, 300});
    bring_missing(data.near + "/train_*0.bin", data.fetch());
    CHECK(data.brought == std::vector<std::string>{Far::name(0)});
    CHECK(fs::exists(data.near + "/" + Far::name(0)));
    bring_missing(data.near + "/train_*0.bin", data.fetch());
    CHECK(data.brought.size() == 1);
    fs::remove(data.near + "/" + kShardList);
    bring_missing(data.near + "/train_*.bin", data.fetch());  // no list: the error comes when they are opened
    CHECK(data.brought.size() == 1);
}

TEST_CASE("a list that is missing or damaged is an error that says what to do", "[fetch]") {
    Far data({300, 300});
    const std::string list = data.near + "/" + kShardList, text = read_file(list);
    const auto error = [&](const std::string& pattern = "/train_*.bin") {
        return error_of([&] { open_shards(data.near + pattern, data.fetch()); });
    };
    CHECK(error() == "");
    CHECK(contains(error("/val_*.bin"), "matches 'val_*.bin'; give the pattern"));
    const auto with = [&](const std::string& from, const std::string& to) {
        std::string changed = text;
        changed.replace(changed.find(from), from.size(), to);
        put(list, changed);
        return error();
    };
    CHECK(contains(with("train_000001", "../../etc"), "a shard's name is that of a file"));
    CHECK(contains(with("train_000001", "train_000000"), "a shard is there twice"));
    CHECK(contains(with("300,", "301,"), "a shard's bytes are not those of its tokens"));
    CHECK(contains(with("300,", "-300,"), "expected \"name\", \"tokens\" and \"bytes\" of each shard"));
    CHECK(
        contains(with("\"shards\"", "\"files\""), "with at least one shard; make it again, with data/tokenize --list"));
    fs::remove(list);
    CHECK(contains(error(), "shards.json: no such file: --fetch needs the list of the shards"));
}
