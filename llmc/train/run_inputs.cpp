// See run_inputs.h.
#include "llmc/train/run_inputs.h"
#include "llmc/comm/ranks.h"  // share_errors

int separator_of(const RunFlags& flags, const KnownTokenizer& tokenizer) {
    return flags.document_token.value_or(tokenizer.tokenizer ? tokenizer.tokenizer->separator() : -1);
}

RunInputs::RunInputs(const RunConfig& config, const KnownTokenizer& known, World& world) {
    const RunFlags& flags = config.flags;
    LoaderConfig loader{.pattern = flags.train_data,
                        .batch_size = int(config.step.B),
                        .seq_len = int(config.step.T),
                        .rank = world.ranks.rank,
                        .world_size = world.ranks.world_size,
                        .batches_per_step = config.step.accumulation,
                        .shuffle = flags.shuffle,
                        .seed = flags.seed,
                        .vocab_size = int(config.shape.vocab_size),
                        .packing = flags.packing_mode(),
                        .document_token = separator_of(flags, known)};
    share_errors(world.ranks, [&] {
        if (flags.trains()) train.emplace(loader);
        loader.pattern = flags.val_data, loader.shuffle = false, loader.batches_per_step = 1;
        if (!flags.val_data.empty()) val.emplace(loader);
        for (const std::string& path : flags.task_files())
            tasks.emplace_back(path).check(config.shape.vocab_size, config.step.T);
        const std::optional<Tokenizer>& tokenizer = known.tokenizer;
        if (tokenizer) token_bytes = tokenizer->token_bytes();
        if (tokenizer && flags.sample_tokens > 0) prompt = tokenizer->encode(flags.prompt, "--prompt");
    });
    if (!train) return;
    std::vector<const std::vector<TokenShard>*> sets = {&train->shards()};
    if (val) sets.push_back(&val->shards());
    scan.emplace(sets, loader.vocab_size, world.ranks.rank, world.ranks.world_size);
}
