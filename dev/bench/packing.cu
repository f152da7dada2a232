// Speed of best-fit packing: choosing documents by an ordered set and by a plain scan over all candidates, finding
// document starts, and making rows without and with their tokens. Lengths are log-normal with a median of 400 tokens,
// as in web text.
#include "dev/bench/bench.h"  // Bench, BENCHMARK
#if BENCH_CUDA
int main(int, char**) { return 0; }
#else
#include <unistd.h>
#include <filesystem>
#include "llmc/data/packing.h"  // BestFit, PackedRows

constexpr int64_t kSeqLen = 2048;

// What BestFit replaces.
struct PlainScan {
    std::vector<Document> waiting;
    void add(const Document& document) { waiting.push_back(document); }
    size_t size() const { return waiting.size(); }
    Document take(int64_t space) {
        size_t best = waiting.size(), shortest = 0;
        for (size_t i = 0; i < waiting.size(); i++) {
            const int32_t length = waiting[i].length;
            if (length <= space && (best == waiting.size() || length > waiting[best].length)) best = i;
            if (length < waiting[shortest].length) shortest = i;
        }
        if (best == waiting.size()) best = shortest;
        const Document document = waiting[best];
        waiting.erase(waiting.begin() + ptrdiff_t(best));
        return document;
    }
};

// Packs whole rows as long as a thousand documents wait. Returns the part of the tokens that was cropped.
template <class Waiting>
double pack(const std::vector<int32_t>& lengths) {
    Waiting waiting;
    double packed = 0, cropped = 0;
    for (size_t next = 0; next < lengths.size();) {
        for (int64_t at = 0; at < kSeqLen + 1;) {
            for (; waiting.size() < 1000 && next < lengths.size(); next++)
                waiting.add({0, int32_t(next), lengths[next]});
            const Document document = waiting.take(kSeqLen + 1 - at);
            const int64_t n = std::min<int64_t>(document.length, kSeqLen + 1 - at);
            at += n;
            packed += double(n);
            cropped += double(document.length - n);
        }
    }
    return cropped / (packed + cropped);
}

struct TemporaryFolder {
    std::string path = std::filesystem::temp_directory_path() / ("anvil_packing_" + std::to_string(getpid()));
    TemporaryFolder() { std::filesystem::create_directory(path); }
    ~TemporaryFolder() { std::filesystem::remove_all(path); }
};

template <class>
void measure(Bench& bench, const BenchShape& s) {
    if (&s != &kShapes[0] && !bench.flags.smoke) return;  // its own sizes
    Rng rng(1, Stream::tests);
    std::vector<int32_t> lengths(bench.flags.smoke ? 2000 : 20000);
    for (int32_t& length : lengths) length = 1 + int32_t(400 * std::exp(rng.normal()));
    const auto print = [](const char* what, double count, const char* unit, const Timing& timing) {
        std::printf("%-34s %9.3f ms  %8.2f million %s a second\n", what, timing.median * 1e3,
                    count / timing.median * 1e-6, unit);
    };
    double cropped = 0;
    const double documents = double(lengths.size());
    print("choosing, ordered set", documents, "documents",
          bench.stopwatch.time([&] { cropped = pack<BestFit>(lengths); }));
    print("choosing, plain scan", documents, "documents", bench.stopwatch.time([&] {
        require(pack<PlainScan>(lengths) == cropped, "the plain scan packs otherwise");
    }));
    std::printf("%-34s %9.1f %% of the tokens, T = %d\n", "cropped", 100 * cropped, int(kSeqLen));

    const TemporaryFolder folder;
    const std::string path = folder.path + "/train.bin";
    ShardWriter writer(path, 65536);
    for (const int32_t length : lengths) {
        std::vector<int32_t> document(size_t(length), 1);
        document[0] = 0;
        writer.append(document.data(), length);
    }
    writer.finish();
    std::vector<TokenShard> shards;
    shards.emplace_back(path);
    const TokenShard& shard = shards[0];
    print("finding documents", double(shard.num_tokens()), "tokens", bench.stopwatch.time([&] {
        for (int64_t at = -1; (at = shard.find(0, at + 1)) < shard.num_tokens();) {
        }
    }));
    PackedRows rows(shards, {.separator = 0, .seq_len = kSeqLen, .shuffle = true, .seed = 1, .vocab_size = 65536});
    std::vector<int32_t> row(size_t(kSeqLen) + 1);
    constexpr int kRows = 256;
    rows.skip(1);  // after which the documents of the shard are known
    print("rows of other ranks", kRows * kSeqLen, "tokens", bench.stopwatch.time([&] { rows.skip(kRows); }));
    print("rows", kRows * kSeqLen, "tokens", bench.stopwatch.time([&] {
        for (int i = 0; i < kRows; i++) rows.read(row.data());
    }));
    print("the state of a step", 1, "states", bench.stopwatch.time([&] { rows.state(); }));
}

BENCHMARK("packing", Bound::memory, measure)
#endif
