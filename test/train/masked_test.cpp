// Masked targets: steps against PyTorch, and runs on shards with a mask.
#include "llmc/cpu/kernels.h"
#include "llmc/data/shards.h"         // ShardWriter
#include "test/program.h"             // run, program
#include "test/train/masked_steps.h"  // check_masked_steps

TEST_CASE("twenty steps over targets of which some count agree with PyTorch", "[masked]") {
    Cpu cpu;
    check_masked_steps(cpu);
}

TEST_CASE("a step without a target that counts is left out", "[masked]") {
    Cpu cpu(1);
    Gpt<Cpu> model(cpu, kFixtureShape, 1, kT);
    model.initialize_weights(1);
    Optimizer<Cpu> optimizer(cpu, model.parameters, {});
    Stepper<Cpu> stepper(model, optimizer, {.B = 1, .T = kT, .accumulation = 2, .grad_clip = 1}, 0);
    MaskedRows rows{std::vector<int32_t>(size_t(4 * (kT + 1)), 5), std::vector<int32_t>(size_t(4 * kT), 0)};
    rows.learned[size_t(3 * kT)] = 1;
    const Floats before(model.weights.data, model.weights.data + model.weights.size);
    const auto step = [&] {
        stepper.start(rows, OptimizerConfig().rates(1e-3));
        return stepper.finish();
    };
    const StepResult none = step();
    CHECK((!none.applied && none.targets() == 0 && std::isnan(none.loss)));
    CHECK((Floats(model.weights.data, model.weights.data + model.weights.size) == before));
    const StepResult one = step();
    CHECK((one.applied && one.targets() == 1));
    CHECK(std::fabs(one.loss - std::log(301.)) < 1);
}

namespace {
// Documents of the separator 0, some tokens that are read and some that are learned: the learned ones follow from the
// first token alone.
struct MaskedShards {
    ScratchFolder scratch;
    MaskedShards() {
        write(scratch / "train_000000.bin", 300, 1);
        write(scratch / "val_000000.bin", 40, 2);
    }
    static void write(const std::string& path, int documents, uint64_t seed) {
        ShardWriter writer(path, 60, ShardMask::some_learned);
        Rng rng(seed, Stream::tests);
        for (int i = 0; i < documents; i++) {
            const int first = 1 + int(rng.below(8)), noise = int(rng.below(5)), answers = 1 + int(rng.below(3));
            std::vector<int32_t> ids = {~0, ~first};
            for (int n = 0; n < noise; n++) ids.push_back(~int32_t(20 + rng.below(40)));
            ids.push_back(~10);
            for (int n = 0; n < answers; n++) ids.push_back(first + 10);
            ids.push_back(11 + 8);
            writer.append(ids.data(), int64_t(ids.size()));
        }
        writer.finish();
    }
    Finished train(const std::string& out, const std::string& flags, int steps = 80) const {
        return run(program("train_gpt") + " --train-data '" + scratch / "train_*.bin' --val-data '" +
                   scratch / "val_*.bin' --vocab-size 60 --document-token 0 --num-layers 1 --num-heads 2 " +
                   "--channels 32 --seq-len 16 --batch-size 2 --total-batch-size 128 --steps " + std::to_string(steps) +
                   " --warmup-steps 0 --learning-rate 1e-2 --lr-schedule constant --sample-tokens 0 --grad-sum tree "
                   "--dtype fp32 " +
                   "--threads 1 --keep 9 --val-tokens 0 --val-every 80 --out-dir " + scratch / out + " " + flags);
    }
};
}  // namespace

TEST_CASE("a run on shards with a mask learns what it says, with the same bits at two ranks and resumed", "[masked]") {
    const MaskedShards data;
    const auto weights = [&](const std::string& out) {
        return read_file(data.scratch / out + "/step_00000080/model.safetensors");
    };
    for (const std::string packing : {"--packing pad ", "--packing stream "}) {
        INFO(packing);
        const Finished one = data.train("one", packing);
        INFO(one.err);
        REQUIRE(one.exit_code == 0);
        const std::string log = read_file(data.scratch / "one/log.jsonl");
        CHECK(contains(log, "\"ignored\":"));
        // The answer repeats the first token, plus 10, one to three times, and ends: a guess of how often is all that
        // is left, 1.1 nats for one of three, of less than every second token. Noise, which is not learned, has 3.7.
        const size_t at = log.rfind("\"type\":\"val\"");
        REQUIRE(at != std::string::npos);
        const double loss = std::stod(log.substr(log.find("\"loss\":", at) + 7));
        CHECK(loss < 1);
        CHECK(loss > 0.1);
        REQUIRE(data.train("two", packing + "--virtual-ranks 2").exit_code == 0);
        CHECK((weights("two") == weights("one")));
        std::filesystem::remove_all(data.scratch / "two");
        REQUIRE(data.train("two", packing, 15).exit_code == 0);
        const Finished resumed = data.train("two", packing + "--resume auto");
        INFO(resumed.err);
        REQUIRE(resumed.exit_code == 0);
        CHECK((weights("two") == weights("one")));
        for (const char* name : {"one", "two"}) std::filesystem::remove_all(data.scratch / name);
    }
}

TEST_CASE("rows too short for what is learned end a run with that cause, and a validation says it", "[masked]") {
    const MaskedShards data;
    const auto short_rows = [&](const std::string& out, const std::string& flags) {
        return run(program("train_gpt") + " --train-data '" + data.scratch / "train_*.bin' --val-data '" +
                   data.scratch / "val_*.bin' --vocab-size 60 --document-token 0 --num-layers 1 --num-heads 2 " +
                   "--channels 32 --seq-len 1 --batch-size 2 --warmup-steps 0 --sample-tokens 0 --dtype fp32 " +
                   "--threads 1 --packing pad --out-dir " + data.scratch / out + " " + flags);
    };
    const Finished ended = short_rows("a", "--steps 80");
    INFO(ended.err);
    CHECK(ended.exit_code == kExitUsage);
    CHECK(contains(ended.err,
                   "error: 10 steps in a row, up to step 10, had no target to learn: what is learned does "
                   "not fit into --seq-len 1 ("));
    CHECK(contains(ended.err, "% of the tokens are cropped): raise it, or shorten the documents of --train-data"));
    CHECK_FALSE(contains(ended.err, "--learning-rate"));
    const Finished validated = short_rows("b", "--steps 3");
    CHECK(validated.exit_code == 0);
    CHECK(contains(validated.err,
                   "warning: no validation loss: none of its targets is learned; what is learned does "
                   "not fit into --seq-len 1 ("));
}

TEST_CASE("shards whose masks leave nothing to learn are refused", "[masked]") {
    const MaskedShards data;
    ShardWriter writer(data.scratch / "train_000000.bin", 60, ShardMask::some_learned);
    const std::vector<int32_t> ids(1000, ~3);
    writer.append(ids.data(), 1000);
    writer.finish();
    const Finished finished = data.train("one", "");
    CHECK(finished.exit_code == 2);
    CHECK(contains(finished.err, "the masks of the shards leave no token to learn"));
}
