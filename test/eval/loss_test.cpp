// The validation loss covers the tokens that were asked for, whatever the batch size and the number of ranks.
#include "llmc/eval/loss.h"
#include "llmc/comm/local.h"   // LocalGroup, LocalRanks
#include "llmc/cpu/kernels.h"  // Cpu
#include "llmc/data/shards.h"  // ShardWriter
#include "test/testing.h"      // ScratchFolder

namespace {

constexpr int64_t T = 16, V = 60;
constexpr int kBatchSizes[] = {1, 2, 3, 7, 64}, kRanks[] = {1, 2, 3, 5};

// Documents of a separator and some tokens, of which about a third are not learned.
struct Documents {
    ScratchFolder scratch;
    explicit Documents(int number) {
        ShardWriter writer(scratch / "val_000000.bin", V, ShardMask::some_learned);
        Rng rng(5, Stream::tests);
        for (int i = 0; i < number; i++) {
            std::vector<int32_t> ids = {~0};
            for (int n = int(rng.below(20)); n >= 0; n--) {
                const int32_t id = 1 + int32_t(rng.below(V - 1));
                ids.push_back(rng.below(3) == 0 ? ~id : id);
            }
            writer.append(ids.data(), int64_t(ids.size()));
        }
        writer.finish();
    }
    LoaderConfig config(int batch_size, Packing packing) const {
        return {.pattern = scratch / "val_*.bin",
                .batch_size = batch_size,
                .seq_len = T,
                .vocab_size = V,
                .packing = packing,
                .document_token = 0,
                .may_repeat = true};
    }
};

std::vector<int32_t> bytes_of_tokens() {
    std::vector<int32_t> bytes;
    for (int32_t id = 0; id < V; id++) bytes.push_back(id % 4);
    return bytes;
}

// As `evaluate`, by ranks that are threads; their results, which must be the same.
Evaluation by_ranks(const Documents& data, Packing packing, int batch_size, int world_size, int64_t tokens) {
    std::vector<Evaluation> all(static_cast<size_t>(world_size));
    LocalGroup group(world_size);
    group.run([&](int rank) {
        Cpu cpu(1);
        LocalRanks ranks(group, rank);
        LoaderConfig config = data.config(batch_size, packing);
        config.rank = rank, config.world_size = world_size;
        DataLoader loader(config);
        Gpt<Cpu> model(cpu, {1, 2, 16, T, V}, batch_size, T);
        model.initialize_weights(3);
        for (int64_t i = 0; i < model.weights.size; i++) model.weights.data[i] *= 8;  // losses that differ
        evaluate(model, loader, ranks, batch_size, T, tokens, bytes_of_tokens());     // each call sees the same tokens
        all[size_t(rank)] = evaluate(model, loader, ranks, batch_size, T, tokens, bytes_of_tokens());
    });
    for (const Evaluation& each : all) {
        CHECK(each.loss == all[0].loss);
        CHECK(each.bits_per_byte == all[0].bits_per_byte);
        CHECK(each.targets == all[0].targets);
    }
    return all[0];
}

// The mean loss of the learned targets in the first rows, one row at a time.
Evaluation by_hand(const Documents& data, Packing packing, int64_t rows) {
    Cpu cpu(1);
    DataLoader loader(data.config(1, packing));
    Gpt<Cpu> model(cpu, {1, 2, 16, T, V}, 1, T);
    model.initialize_weights(3);
    for (int64_t i = 0; i < model.weights.size; i++) model.weights.data[i] *= 8;
    double loss = 0, text_loss = 0;
    int64_t targets = 0, bytes = 0;
    for (int64_t row = 0; row < rows; row++) {
        const Batch batch = loader.next();
        model.forward(batch.tokens.data(), 1, T);
        model.loss(batch.targets.data());
        for (int64_t t = 0; t < T; t++) {
            const int32_t target = batch.targets[size_t(t)];
            if (target < 0) continue;
            loss += double(model.acts.losses[t]), targets++;
            if (target % 4 > 0) text_loss += double(model.acts.losses[t]);
            bytes += target % 4;
        }
    }
    return {.loss = loss / double(targets),
            .bits_per_byte = text_loss / (std::numbers::ln2 * double(bytes)),
            .targets = targets};
}

}  // namespace

TEST_CASE("a validation covers the asked tokens at any batch size and number of ranks", "[loss]") {
    const Documents data(40);
    for (const Packing packing : {Packing::stream, Packing::best_fit, Packing::pad}) {
        const int64_t rows = DataLoader(data.config(1, packing)).num_windows();
        REQUIRE(rows > 21);
        for (const int64_t tokens : {int64_t(0), 11 * T + T / 2}) {  // all; eleven rows and a half
            const Evaluation want = by_hand(data, packing, tokens == 0 ? rows : 11);
            for (const int batch_size : kBatchSizes)
                for (const int ranks : kRanks) {
                    INFO("packing " << int(packing) << ", " << tokens << " tokens, --batch-size " << batch_size << ", "
                                    << ranks << " ranks");
                    const Evaluation got = by_ranks(data, packing, batch_size, ranks, tokens);
                    CHECK(got.targets == want.targets);
                    // Double sums of some hundred floats.
                    CHECK(got.loss == Approx(want.loss).epsilon(1e-12));
                    CHECK(got.bits_per_byte == Approx(want.bits_per_byte).epsilon(1e-12));
                }
        }
    }
}

TEST_CASE("a validation set of fewer rows than a batch, or than the tokens asked for, is evaluated once", "[loss]") {
    const Documents data(4);
    for (const Packing packing : {Packing::stream, Packing::best_fit, Packing::pad}) {
        const int64_t rows = std::max<int64_t>(1, DataLoader(data.config(1, packing)).num_windows());
        const Evaluation want = by_hand(data, packing, rows);
        for (const auto& [batch_size, ranks] : {std::pair{1, 1}, {64, 1}, {2, 3}, {64, 5}}) {
            const Evaluation got = by_ranks(data, packing, batch_size, ranks, 1000 * T);
            CHECK(got.targets == want.targets);
            CHECK(got.loss == Approx(want.loss).epsilon(1e-12));
        }
    }
}
