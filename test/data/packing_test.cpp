// Best-fit packing against a plain scan by nanochat's rule: the rows, their ranks, and resuming.
#include "llmc/data/packing.h"
#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>
#include "llmc/data/loader.h"
#include "llmc/train/run_inputs.h"  // choose_packing
#include "test/testing.h"

namespace {
using Ids = std::vector<int32_t>;
using Documents = std::vector<Ids>;
constexpr int kSeparator = 7, V = 1 << 20;

// Documents of the separator and tokens that occur nowhere else, so that a row says what it is made of.
Documents documents_of(const std::vector<int>& lengths) {
    Documents documents;
    int32_t token = 100;
    for (const int length : lengths) {
        documents.push_back({kSeparator});
        for (int i = 1; i < length; i++) documents.back().push_back(token++);
    }
    return documents;
}

std::vector<int> random_lengths(size_t n, int longest, uint64_t seed) {
    Rng rng(seed, Stream::tests);
    std::vector<int> lengths(n);
    for (int& length : lengths) {
        length = 1 + int(rng.below(uint64_t(longest)));
        if (rng.below(10) == 0) length *= 3;
    }
    return lengths;
}

// A shard for each group of documents.
struct Shards {
    ScratchFolder scratch;
    Documents documents;  // of all shards
    explicit Shards(const std::vector<Documents>& groups) {
        for (const Documents& group : groups) {
            Ids ids;
            for (const Ids& document : group) ids.insert(ids.end(), document.begin(), document.end());
            write(next_++, ids);
            documents.insert(documents.end(), group.begin(), group.end());
        }
    }
    void write(size_t s, const Ids& ids, int vocab_size = V) const {
        ShardWriter writer(path(s), vocab_size);
        writer.append(ids.data(), int64_t(ids.size()));
        writer.finish();
    }
    std::string path(size_t s) const { return scratch / "train_00000" + std::to_string(s) + ".bin"; }
    LoaderConfig config(int B, int T, bool shuffle = false) const {
        return {.pattern = scratch / "train_*.bin",
                .batch_size = B,
                .seq_len = T,
                .shuffle = shuffle,
                .seed = 3,
                .vocab_size = V,
                .packing = Packing::best_fit,
                .document_token = kSeparator};
    }

private:
    size_t next_ = 0;
};

// One shard, or its documents split over two.
Shards shards_of(const Documents& documents, size_t in_first) {
    const auto middle = documents.begin() + ptrdiff_t(in_first);
    return Shards({{documents.begin(), middle}, {middle, documents.end()}});
}

// What packing should come to, one scan over all that wait for each document.
struct Packed {
    std::vector<Ids> rows;
    size_t in_first_epoch = 0;  // rows of that alone
    int64_t cropped = 0;
};
Packed scan_and_pack(const Documents& documents, int T, size_t num_rows) {
    Packed packed;
    std::vector<const Ids*> waiting;
    size_t next = 0;
    int epoch = 0;
    while (packed.rows.size() < num_rows) {
        Ids row;
        while (row.size() < size_t(T) + 1) {
            while (waiting.size() < 1000 && (next < documents.size() || waiting.empty()))
                for (int i = 0; i < 128 && (next < documents.size() || waiting.empty()); i++) {
                    if (next == documents.size()) next = 0, epoch++;
                    waiting.push_back(&documents[next++]);
                }
            const size_t space = size_t(T) + 1 - row.size(), none = waiting.size();
            size_t best = none, shortest = 0;
            for (size_t i = 0; i < waiting.size(); i++) {
                const size_t length = waiting[i]->size();
                if (length <= space && (best == none || length > waiting[best]->size())) best = i;
                if (length < waiting[shortest]->size()) shortest = i;
            }
            if (best == none) best = shortest;
            const Ids& document = *waiting[best];
            const size_t n = std::min(space, document.size());
            row.insert(row.end(), document.begin(), document.begin() + ptrdiff_t(n));
            packed.cropped += int64_t(document.size() - n);
            waiting.erase(waiting.begin() + ptrdiff_t(best));
        }
        if (epoch == 0) packed.in_first_epoch++;
        packed.rows.push_back(row);
    }
    return packed;
}

// The rows of batches: their tokens, and the last target of each.
void add_rows(std::vector<Ids>& rows, const Batch& batch, const LoaderConfig& c) {
    const ptrdiff_t T = c.seq_len;
    size_t wrong = 0;
    for (ptrdiff_t b = 0; b < c.batch_size; b++) {
        Ids row(batch.tokens.begin() + b * T, batch.tokens.begin() + (b + 1) * T);
        row.push_back(batch.targets[size_t((b + 1) * T - 1)]);
        wrong += !std::equal(row.begin() + 1, row.end(), batch.targets.begin() + b * T);
        rows.push_back(row);
    }
    CHECK(wrong == 0);
}

std::vector<Ids> next_rows(DataLoader& loader, const LoaderConfig& c, int64_t batches) {
    std::vector<Ids> rows;
    for (int64_t i = 0; i < batches; i++) add_rows(rows, loader.next(), c);
    return rows;
}

// Too many to be printed: the first row that differs, -1 if none does.
ptrdiff_t first_difference(const std::vector<Ids>& got, const std::vector<Ids>& want) {
    const auto [a, b] = std::mismatch(got.begin(), got.end(), want.begin(), want.end());
    return a == got.end() && b == want.end() ? -1 : a - got.begin();
}
}  // namespace

TEST_CASE("rows are those of a plain scan over the documents that wait", "[packing]") {
    for (const size_t num_documents : {size_t(3), size_t(999), size_t(1128), size_t(4000)})
        for (const int T : {1, 10, 63, 300}) {
            const Shards shards = shards_of(documents_of(random_lengths(num_documents, 60, uint64_t(T))), 2);
            const auto tokens = std::accumulate(shards.documents.begin(), shards.documents.end(), size_t(0),
                                                [](size_t sum, const Ids& d) { return sum + d.size(); });
            if (tokens < 16 * size_t(T) + 1) continue;
            const LoaderConfig c = shards.config(16, T);
            DataLoader loader(c);
            const size_t in_epoch = std::min(num_documents, tokens / (size_t(T) + 1));  // at most
            const Packed want = scan_and_pack(shards.documents, T, (in_epoch * 2 / 16 + 1) * 16);
            CHECK(loader.num_windows() == int64_t(want.in_first_epoch));
            CHECK(std::isnan(loader.cropped()));
            std::vector<Ids> rows = next_rows(loader, c, int64_t(want.rows.size() / 16));
            INFO(num_documents << " documents, T = " << T);
            CHECK(first_difference(rows, want.rows) == -1);
            for (const Ids& row : rows)
                if (row[0] != kSeparator) FAIL("a row without its document's beginning");
            const double cropped = double(want.cropped), packed = double(rows.size()) * (T + 1);
            CHECK(loader.cropped() == cropped / (cropped + packed));
            CHECK(loader.state().cropped == uint64_t(want.cropped));
        }
}

TEST_CASE("tokens used, cropped and waiting are those of the documents read so far, at any moment", "[packing]") {
    const size_t in_first = 700;
    const Shards shards = shards_of(documents_of(random_lengths(3000, 40, 5)), in_first);
    std::map<std::string, int64_t> lengths;  // of documents, by how a state calls them
    std::vector<int64_t> read{0};            // tokens up to each document
    for (size_t i = 0, begin = 0; i < shards.documents.size(); i++) {
        if (i == in_first) begin = 0;
        const size_t length = shards.documents[i].size();
        lengths[(i < in_first ? "0:" : "1:") + std::to_string(begin)] = int64_t(length);
        read.push_back(read.back() + int64_t(length));
        begin += length;
    }
    const int T = 31;
    const LoaderConfig c = shards.config(35, T);
    DataLoader loader(c);
    uint64_t last_epoch = 0;
    for (int batch = 1; batch <= 200; batch++) {
        loader.next();
        const LoaderState& state = loader.state();
        const uint64_t turn = state.position >> 32, document = state.position & 0xFFFFFFFF;
        int64_t waiting = 0;
        for (size_t at = 0, end; at < state.waiting.size(); at = end + 1) {
            end = std::min(state.waiting.find(' ', at), state.waiting.size());
            waiting += lengths.at(state.waiting.substr(at, end - at));
        }
        const size_t place = turn == 2 ? shards.documents.size() : (turn == 1 ? in_first : 0) + document;
        if (state.rows != uint64_t(batch * 35) || int64_t(state.rows) * (T + 1) + int64_t(state.cropped) + waiting !=
                                                      int64_t(state.epoch) * read.back() + read[place])
            FAIL("batch " << batch);
        last_epoch = state.epoch;
    }
    CHECK(last_epoch >= 2);
}

TEST_CASE("padded rows hold whole documents, each once an epoch, and nothing that is learned beside them",
          "[packing]") {
    const int T = 63;
    const Shards shards = shards_of(documents_of(random_lengths(1300, 50, 8)), 600);
    LoaderConfig c = shards.config(8, T, true);
    c.packing = Packing::pad;
    DataLoader loader(c);
    std::multiset<Ids> want, got;
    int64_t cropped = 0;
    for (const Ids& document : shards.documents) {
        const auto length = ptrdiff_t(std::min(document.size(), size_t(T) + 1));
        cropped += int64_t(document.size()) - length;
        want.insert(Ids(document.begin(), document.begin() + length));
    }
    REQUIRE(cropped > 0);
    int64_t rows = loader.num_windows(), padding = 0, tokens = 0;
    const std::vector<TokenShard> files = open_shards(c.pattern);
    PackedRows direct(
        files, {.separator = kSeparator, .seq_len = T, .shuffle = true, .seed = 3, .vocab_size = V, .pads = true});
    for (int64_t r = 0; r < rows; r++) {
        Ids row(size_t(T) + 1);
        direct.read(row.data());
        const auto end = std::find(row.begin(), row.end(), ~kSeparator);
        CHECK(std::all_of(end, row.end(), [](int32_t token) { return token == ~kSeparator; }));
        padding += row.end() - end, tokens += T + 1;
        for (auto at = row.begin(); at != end;) {
            const auto next = std::find(at + 1, end, kSeparator);
            got.insert(Ids(at, next));
            at = next;
        }
    }
    // The last row may have begun the next epoch.
    for (const Ids& document : want) {
        if (got.count(document) == 0) FAIL("a document of " << document.size() << " tokens is missing");
    }
    CHECK(got.size() - want.size() <= size_t(T) + 1);
    CHECK(padding < tokens / 50);  // of a thousand that wait, one nearly always fits
    CHECK(direct.state().cropped <= uint64_t(2 * cropped));
    CHECK(direct.state().cropped >= uint64_t(cropped));

    // The loader says of padding that it is read, and not learned.
    Shards alone({documents_of({5, 4})});
    LoaderConfig two = alone.config(1, 7);
    two.packing = Packing::pad;
    DataLoader small(two);
    CHECK(small.next().tokens == Ids{kSeparator, 100, 101, 102, 103, kSeparator, kSeparator});
    CHECK(small.next().tokens[0] == kSeparator);
}

TEST_CASE("documents come once an epoch, shuffled in their shards, and the shards, too", "[packing]") {
    // Equally long ones are packed in the order in which they come: a row is one of them.
    std::vector<Documents> groups(5);
    const Documents all = documents_of(std::vector<int>(2500, 3));
    for (size_t i = 0; i < all.size(); i++) groups[i / 500].push_back(all[i]);
    const Shards shards(groups);
    const LoaderConfig c = shards.config(50, 2, true);
    DataLoader loader(c);
    std::vector<std::vector<Ids>> epochs;
    std::set<int> first_shards;
    for (int e = 0; e < 6; e++) {
        epochs.push_back(next_rows(loader, c, loader.num_windows(uint64_t(e)) / 50));
        std::vector<Ids> rows = epochs.back(), sorted = rows;
        REQUIRE(rows.size() == 2500);
        std::sort(sorted.begin(), sorted.end());
        CHECK(first_difference(sorted, all) == -1);
        if (e > 0) CHECK(first_difference(rows, epochs[size_t(e - 1)]) != -1);
        int changes = 0;
        const auto shard_of = [](const Ids& row) { return (row[1] - 100) / 1000; };
        for (size_t i = 1; i < rows.size(); i++) changes += shard_of(rows[i]) != shard_of(rows[i - 1]);
        CHECK(changes == 4);
        CHECK(rows[0][1] % 1000 != rows[500][1] % 1000);  // another order in each shard
        first_shards.insert(shard_of(rows[0]));
        CHECK(rows[1][1] != rows[0][1] + 2);
    }
    CHECK(first_shards.size() > 1);
    const std::vector<TokenShard> shards_in_order = open_shards(c.pattern);
    PackedRows direct(
        shards_in_order,
        {.separator = kSeparator, .seq_len = 2, .shuffle = false, .seed = 3, .vocab_size = V, .pads = false});
    Ids first(3);
    direct.read(first.data());
    CHECK(first == all[0]);
    LoaderConfig other = c;
    other.seed = 4;
    DataLoader others(other);
    CHECK(next_rows(others, other, 50) != epochs[0]);
}

TEST_CASE("a step packs the same rows at any number of ranks", "[packing]") {
    const Shards shards = shards_of(documents_of(random_lengths(1300, 50, 8)), 600);
    for (const bool shuffle : {false, true}) {
        const LoaderConfig whole = shards.config(8, 63, shuffle);
        DataLoader alone(whole);
        const std::vector<Ids> want = next_rows(alone, whole, 100);  // beyond an epoch
        for (const int world_size : {1, 2, 4, 8}) {
            const int batches = 8 / world_size / (world_size < 8 ? 2 : 1), B = 8 / world_size / batches;
            std::vector<std::vector<Ids>> of_rank;
            for (int rank = 0; rank < world_size; rank++) {
                LoaderConfig c = shards.config(B, 63, shuffle);
                c.rank = rank, c.world_size = world_size, c.batches_per_step = batches;
                DataLoader loader(c);
                of_rank.push_back(next_rows(loader, c, 100 * batches));
                CHECK(loader.state() == alone.state());
            }
            std::vector<Ids> got;
            const ptrdiff_t n = B * batches;  // rows of a rank in a step
            for (ptrdiff_t step = 0; step < 100; step++)
                for (const auto& own : of_rank)
                    got.insert(got.end(), own.begin() + step * n, own.begin() + (step + 1) * n);
            CHECK(first_difference(got, want) == -1);
        }
    }
}

TEST_CASE("a packer's state restores to the row, at another batch size and number of ranks", "[packing]") {
    const Shards shards = shards_of(documents_of(random_lengths(1500, 50, 9)), 600);
    const int T = 40;
    Rng rng(3, Stream::tests);
    for (const bool shuffle : {false, true}) {
        const LoaderConfig many = shards.config(100, T, shuffle);
        DataLoader straight(many);
        const std::vector<Ids> all = next_rows(straight, many, 35);  // about three epochs
        REQUIRE(straight.state().epoch >= 2);
        for (int trial = 0; trial < 20; trial++) {
            const LoaderConfig before = shards.config(1 + int(rng.below(30)), T, shuffle);
            const int64_t batches = int64_t(rng.below(100));
            DataLoader loader(before);
            next_rows(loader, before, batches);
            LoaderConfig after = shards.config(1 + int(rng.below(9)), T, shuffle);
            after.world_size = 1 + int(rng.below(3));
            after.rank = int(rng.below(uint64_t(after.world_size)));
            after.batches_per_step = 1 + int64_t(rng.below(3));
            DataLoader other(after);
            next_rows(other, after, int64_t(rng.below(5)));  // wherever it was before
            other.restore(loader.state());
            CHECK(other.state() == loader.state());
            const LoaderState restored = other.state();
            const int64_t step = after.batch_size * after.batches_per_step;
            for (int64_t i = 0; i < 3 * after.batches_per_step; i++) {
                const int64_t from = batches * before.batch_size + after.rank * step + i * after.batch_size +
                                     i / after.batches_per_step * (after.world_size - 1) * step;
                CHECK(next_rows(other, after, 1) ==
                      std::vector<Ids>(all.begin() + from, all.begin() + from + after.batch_size));
            }
            CHECK(other.state().rows == restored.rows + uint64_t(3 * step * after.world_size));
            CHECK(other.state().cropped >= restored.cropped);
        }
    }
}

TEST_CASE("a state of other data is refused, and the packer goes on as before", "[packing]") {
    const Shards shards = shards_of(documents_of(random_lengths(50, 20, 2)), 20);
    const LoaderConfig c = shards.config(2, 15);
    DataLoader loader(c), straight(c);
    loader.next(), straight.next();
    const LoaderState good = loader.state();
    const auto error = [&](uint64_t turn, const std::string& waiting) {
        return error_of([&] { loader.restore({.position = turn << 32, .waiting = waiting}); });
    };
    CHECK(contains(error(3, ""), "2: the data position is in shard 3 of an epoch, and there are 2; is this the data"));
    for (const std::string waiting :
         {"0:0 2:0", "0:0 0:1", "0:-1", "x", "0:", "0", ":", "0:99999999", "4294967296:0", "0:0  "})
        CHECK(contains(error(0, waiting), "in the state of the data: no document begins there; is this the data"));
    CHECK(error(2, "0:0") == "");
    loader.restore(good);
    CHECK(contains(error(0, "0:1"), "'0:1' in the state"));
    CHECK(next_rows(loader, c, 3) == next_rows(straight, c, 3));
}

TEST_CASE("shards with few separators, or none", "[packing]") {
    const Shards shards({documents_of({6, 30})});
    const LoaderConfig c = shards.config(1, 9);

    // Tokens before the first document are left out, and so is a shard in which none begins.
    shards.write(1, {50, 51, 52, kSeparator, 53, kSeparator, 54});
    shards.write(2, Ids(400, 60));
    shards.write(3, {kSeparator}, 256);  // of uint16
    DataLoader loader(c);
    const Ids front{kSeparator, 100, 101, 102, 103, 104};
    Ids first = front;
    for (const int32_t token : {kSeparator, 53, kSeparator, 54}) first.push_back(token);
    std::vector<Ids> rows = next_rows(loader, c, 2);
    CHECK(rows[0] == first);
    CHECK(rows[1] == Ids{kSeparator, kSeparator, 105, 106, 107, 108, 109, 110, 111, 112});
    CHECK(loader.state().cropped == 21);
    CHECK(loader.cropped() == 21. / 41);

    // One document, longer than a row; and one shorter than a row, again and again.
    for (size_t s = 1; s <= 3; s++) shards.write(s, {60});
    shards.write(0, documents_of({5000})[0]);
    DataLoader one(c);
    rows = next_rows(one, c, 3);
    for (const Ids& row : rows) CHECK(row == Ids{kSeparator, 100, 101, 102, 103, 104, 105, 106, 107, 108});
    CHECK(one.num_windows() == 1);
    shards.write(0, {60, 60, 60, 60, 60, 60, 60, kSeparator, 61, 62});
    DataLoader small(c);
    CHECK(next_rows(small, c, 1)[0] == Ids{kSeparator, 61, 62, kSeparator, 61, 62, kSeparator, 61, 62, kSeparator});
    CHECK(small.num_windows() == 0);

    shards.write(0, Ids(50, 60));
    const auto error = [](const LoaderConfig& config) { return error_of([&] { DataLoader none(config); }); };
    CHECK(contains(error(c), "2: --packing best-fit and pad: no document begins in " + shards.path(0) +
                                 " nor in the other shards, none of its tokens is the separator 7; give the "
                                 "--document-token that it was made with"));
    LoaderConfig unnamed = c;
    unnamed.document_token = -1;
    CHECK(contains(error(unnamed), "2: --packing best-fit and pad need the token that documents begin with: give "));
    unnamed.document_token = 65536 + 60;  // 60 in sixteen bits
    for (size_t s = 0; s <= 3; s++) shards.write(s, Ids(50, 60), 256);
    CHECK(contains(error(unnamed), "none of its tokens is the separator 65596"));
}

TEST_CASE("an id outside the vocabulary surfaces where it is packed, and again", "[packing]") {
    const Shards shards({documents_of({8, 8, 8, 8})});
    LoaderConfig c = shards.config(1, 7);
    c.batches_per_step = 4;
    c.vocab_size = 100 + 2 * 7 + 3;  // the fourth token of the third document is outside
    DataLoader loader(c);
    next_rows(loader, c, 2);
    const LoaderState state = loader.state();
    const std::string error = error_of([&] { loader.next(); });
    CHECK(contains(error, "2: " + shards.path(0) + ": token 20 has the id 117, outside the vocabulary of 117"));
    CHECK(error_of([&] { loader.next(); }) == error);
    CHECK(loader.state() == state);
    loader.restore({});
    CHECK(next_rows(loader, c, 1)[0] == shards.documents[0]);
}

TEST_CASE("a packed run is the same when it is resumed, and at two ranks", "[packing]") {
    const ScratchFolder scratch;
    std::string command = program("data/tokenize") + " --tokenizer byte --out " + scratch / "data";
    Rng rng(1, Stream::tests);
    for (int i = 0; i < 60; i++) {
        const std::string path = scratch / "document" + std::to_string(100 + i);
        std::string text;
        for (uint64_t n = 5 + rng.below(60); text.size() < n;) text += char('a' + rng.below(26));
        write_file_atomically(path + ".txt", text);
        command += " " + path + ".txt";
    }
    const Finished prepared = run(command);
    INFO(prepared.err);
    REQUIRE(prepared.exit_code == 0);
    std::string model = "--num-layers 1 --num-heads 2 --channels 16 --seq-len 16 ";
    std::string warnings, printed;  // of the last run
    const auto train = [&](const std::string& out, const std::string& flags) {
        const Finished finished =
            run(program("train_gpt") + " --train-data '" + scratch / "data/train_*.bin' --val-data '" +
                scratch / "data/val_*.bin' " + model +
                "--batch-size 2 --total-batch-size 128 --warmup-steps 0 --lr-schedule constant --sample-tokens 0 "
                "--grad-sum tree --dtype fp32 --summary " +
                "--threads 1 --keep 9 --val-tokens 0 --out-dir " + scratch / out + " " + flags);
        INFO(finished.err);
        REQUIRE(finished.exit_code == 0);
        warnings = finished.err, printed = finished.out;
        return finished.out.substr(finished.out.find("\n---\n"));
    };
    const auto of = [](const std::string& text, const std::string& name) {
        const size_t at = text.find(name);
        return at == std::string::npos ? "none" : text.substr(at, text.find('\n', at) - at);
    };
    const auto weights = [&](const std::string& out) {
        return read_file(scratch / out + "/step_00000060/model.safetensors");
    };
    const std::string best_fit = "--packing best-fit ";
    const std::string straight = train("straight", best_fit + "--steps 60");
    CHECK(contains(read_file(scratch / "straight/step_00000060/state.json"), "\"waiting\": \"0:"));
    CHECK(contains(read_file(scratch / "straight/log.jsonl"), "\"cropped\":0."));
    CHECK(contains(of(straight, "cropped_percent"), "cropped_percent:    "));

    train("resumed", best_fit + "--steps 25");
    const std::string resumed = train("resumed", best_fit + "--steps 60 --resume auto --virtual-ranks 2");
    CHECK((weights("resumed") == weights("straight")));
    for (const std::string name : {"val_loss", "val_bpb", "cropped_percent"})
        CHECK(of(resumed, name) == of(straight, name));
    CHECK(warnings == "");
    const std::string stream = train("stream", "--steps 60");
    CHECK(of(stream, "cropped_percent") == "none");
    CHECK((weights("stream") != weights("straight")));
    train("stream", best_fit + "--steps 61 --resume auto");
    CHECK(contains(warnings, ": --packing; reading the data from their start\n"));
    train("resumed", best_fit + "--steps 61 --resume auto --document-token 97");
    CHECK(contains(warnings, ": --document-token; reading the data from their start\n"));

    // nanochat's model is packed so unless something else is asked for, or was when it began.
    model = "--depth 1 --model configs/smoke.conf --seq-len 32 ";
    const auto is_packed = [&] { return contains(printed, "from --depth: --packing best-fit"); };
    CHECK(of(train("deep", "--steps 2"), "cropped_percent") != "none");
    CHECK(is_packed());
    CHECK(contains(printed, "\npacking: best-fit keeps "));
    CHECK(of(train("deep", "--steps 3 --resume auto"), "cropped_percent") != "none");
    CHECK(!is_packed());
    CHECK(contains(printed, "from the checkpoint: "));
    CHECK(of(train("old", "--steps 2 --packing stream"), "cropped_percent") == "none");
    CHECK(!contains(printed, "packing: "));
    CHECK(of(train("old", "--steps 3 --resume auto"), "cropped_percent") == "none");
    CHECK((warnings == "" && !contains(printed, "packing: ")));
    CHECK(of(train("two", "--steps 2 --virtual-ranks 2"), "cropped_percent") != "none");
    CHECK(is_packed());
}

TEST_CASE("a trial packs what an epoch packs", "[packing]") {
    constexpr int64_t kAll = INT64_MAX;
    const auto try_all = [](const Shards& shards, int T, int64_t most) {
        return try_packing(open_shards(shards.config(1, T).pattern), kSeparator, T, most);
    };
    for (const size_t num_documents : {size_t(3), size_t(1128), size_t(4000)})
        for (const int T : {10, 63, 300}) {
            const Shards shards = shards_of(documents_of(random_lengths(num_documents, 60, uint64_t(T))), 2);
            const auto tokens = std::accumulate(shards.documents.begin(), shards.documents.end(), int64_t(0),
                                                [](int64_t sum, const Ids& d) { return sum + int64_t(d.size()); });
            const PackingTrial trial = try_all(shards, T, kAll);
            CHECK((trial.tokens == tokens && trial.documents == int64_t(num_documents)));
            if (tokens > T) CHECK(trial.packed / (T + 1) == DataLoader(shards.config(1, T)).num_windows());
        }
    const Shards one({documents_of({5000})});
    CHECK(try_all(one, 9, kAll).packed == 10);
    CHECK(try_all(one, 9, kAll).kept() == 10. / 5000);

    // What is before a document counts as lost. Those that begin in time are looked at in full, and no others.
    const Shards four({documents_of({4, 30, 5}), documents_of({6})});
    four.write(0, {50, 51, kSeparator, 1, 2, 3, kSeparator, 1, 2, kSeparator, 1});
    const auto tried = [&](int64_t most) {
        const PackingTrial trial = try_all(four, 3, most);
        return std::vector<int64_t>{trial.tokens, trial.documents, trial.packed};
    };
    CHECK(tried(2) == std::vector<int64_t>{2, 0, 0});
    CHECK(tried(3) == std::vector<int64_t>{6, 1, 4});
    CHECK(tried(7) == std::vector<int64_t>{9, 2, 7});
    CHECK(tried(11) == std::vector<int64_t>{11, 3, 8});
    CHECK(tried(12) == std::vector<int64_t>{17, 4, 12});
    CHECK(tried(kAll) == tried(12));
}

TEST_CASE("--depth packs documents of which rows keep at least half", "[packing]") {
    const Shards shards = shards_of(documents_of(random_lengths(300, 60, 4)), 100);
    const Shards pieces({documents_of({900, 40, 900})});
    RunFlags asked;
    asked.model.depth = 2;
    asked.train_data = shards.config(1, 1).pattern, asked.val_data = "";
    const auto line = [](RunFlags flags, int T, const std::string& packing, int separator = kSeparator,
                         bool is_new = true) {
        const std::string said = choose_packing(flags, is_new, separator, T);
        CHECK(flags.packing == packing);
        if (flags.packing == "best-fit") CHECK(flags.sources["packing"] == "--depth");
        return said;
    };
    CHECK(line(asked, 63, "best-fit").starts_with("packing: best-fit keeps "));
    CHECK(contains(line(asked, 63, "best-fit"), " tokens of training data, 300 documents of "));

    RunFlags large = asked;
    large.train_data = pieces.config(1, 1).pattern;
    CHECK(line(large, 63, "stream") ==
          "packing: stream, not best-fit: that would keep 7.0% of the 1840 tokens of "
          "training data, 3 documents of 613 tokens on average in rows of 64\n");
    CHECK(line(large, 439, "stream") != "");
    CHECK(line(large, 459, "best-fit") != "");
    RunFlags other = asked;
    other.val_data = large.train_data;
    CHECK(contains(line(other, 63, "stream"), "7.0% of the 1840 tokens of validation data"));

    CHECK(contains(line(asked, 63, "stream", -1), "the token that documents begin with is not known"));
    CHECK(contains(line(asked, 63, "stream", 8), "no document begins in the "));
    other = asked, other.train_data += ":1," + large.train_data + ":2";
    CHECK(line(other, 63, "stream") == "packing: stream, not best-fit: a mixture of data sets\n");
    other = asked, other.data_order = "llmc";
    CHECK(line(other, 63, "stream") == "packing: stream, not best-fit: --data-order llmc\n");

    CHECK(line(asked, 63, "stream", kSeparator, false) == "");
    other = asked, other.sources["packing"] = "the command line";
    CHECK(line(other, 63, "stream") == "");
    other = asked, other.model.depth = 0;
    CHECK(line(other, 63, "stream") == "");
    other = asked, other.command = Command::eval;
    CHECK(line(other, 63, "stream") == "");
}
