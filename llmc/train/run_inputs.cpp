// See run_inputs.h.
#include "llmc/train/run_inputs.h"
#include <algorithm>
#include <filesystem>
#include "llmc/base/check.h"         // format
#include "llmc/base/hash.h"          // hex64
#include "llmc/base/terminal.h"      // peer_text
#include "llmc/comm/ranks.h"         // share_errors
#include "llmc/data/mixture.h"       // has_weights
#include "llmc/data/packing.h"       // try_packing
#include "llmc/run/child_process.h"  // why_not_run
#include "llmc/run/stop.h"           // stop_signal

std::vector<SourceFacts> RunInputs::mixture() const {
    if (!train || train->shards().size() == 1) return {};
    return train->sources();
}

std::string RunInputs::hash_of_tasks() const {
    std::string all;
    for (const TaskFile& file : tasks) all += hex64(file.hash());
    return all;
}

int separator_of(const RunFlags& flags, const KnownTokenizer& tokenizer) {
    return flags.document_token.value_or(tokenizer.tokenizer ? tokenizer.tokenizer->separator() : -1);
}

std::optional<FetchConfig> fetch_config(const RunFlags& flags) {
    if (flags.fetch.empty()) return {};
    // While a rank waits for a shard, the others wait for it, but no longer than comm-timeout.
    constexpr double kAttempt = 0.25, kAll = 0.8;
    return FetchConfig{.bring =
                           [command = flags.fetch](const std::string& name, const std::string& path, double limit_s,
                                                   const std::function<bool()>& is_over) {
                               const std::string target = std::filesystem::absolute(path);
                               return why_not_run(command, {"ANVIL_SHARD=" + name, "ANVIL_SHARD_PATH=" + target},
                                                  limit_s, is_over);
                           },
                       .limit_s = kAttempt * flags.comm_timeout_s,
                       .patience_s = kAll * flags.comm_timeout_s,
                       .is_stopped = [] { return stop_signal() != nullptr; }};
}

std::string choose_packing(RunFlags& flags, bool is_new, int separator, int64_t seq_len) {
    constexpr int64_t kMostTokens = int64_t(1) << 24;
    constexpr double kLeastKept = 0.5;
    // A value from --packing or from the checkpoint is kept; a run resumed with the default is not a new run, either.
    if (!is_new || !flags.trains() || flags.model.depth == 0 || flags.sources.contains("packing")) return "";
    const auto stays = [](const std::string& why) { return "packing: stream, not best-fit: " + why + "\n"; };
    if (flags.data_order == "llmc") return stays("--data-order " + flags.data_order);
    if (has_weights(flags.train_data)) return stays("a mixture of data sets");
    if (separator < 0)
        return stays("the token that documents begin with is not known (a tokenizer.json, or --document-token)");
    std::string found;
    for (const auto& [name, pattern] :
         {std::pair{"training", flags.train_data}, std::pair{"validation", flags.val_data}}) {
        if (pattern.empty()) continue;
        std::optional<FetchConfig> fetch = fetch_config(flags);
        if (fetch && pattern == flags.val_data) bring_missing(pattern, *fetch), fetch.reset();
        const OpenShards data = open_shards(pattern, fetch);
        const PackingTrial trial = try_packing(data.shards, separator, seq_len, kMostTokens);
        const char* const of_first = trial.tokens < kMostTokens ? "" : "first ";
        if (trial.documents == 0)
            return stays(format("no document begins in the %s%ld tokens of %s data", of_first, trial.tokens, name));
        const std::string kept =
            format("%.1f%% of the %s%ld tokens of %s data, %ld %s of %.0f tokens on average in rows of %ld",
                   100 * trial.kept(), of_first, trial.tokens, name, trial.documents,
                   trial.documents == 1 ? "document" : "documents", double(trial.tokens) / double(trial.documents),
                   seq_len + 1);
        if (trial.kept() < kLeastKept) return stays("that would keep " + kept);
        if (found.empty()) found = "packing: best-fit keeps " + kept + "\n";
    }
    flags.packing = "best-fit";
    flags.sources["packing"] = "--depth";
    return found;
}

namespace {

std::string facts_of(const std::optional<DataLoader>& data) {
    std::string text;
    if (!data) return text;
    for (const ShardFacts& shard : data->shard_facts())
        text += shard.name + '\n' + std::to_string(shard.size_bytes) + '\n' + hex64(shard.hash) + '\n';
    return text;
}

std::vector<std::string> lines_of(const std::string& text) {
    std::vector<std::string> lines;
    for (size_t begin = 0, end; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1)
        lines.push_back(peer_text(text.substr(begin, end - begin)));
    return lines;
}

// How a rank's shards differ from rank 0's.
std::string difference_of(const std::vector<std::string>& theirs, const std::vector<std::string>& first, int rank) {
    constexpr size_t kLines = 3;
    for (size_t i = 0; i + kLines <= std::min(theirs.size(), first.size()); i += kLines) {
        const char* const name = theirs[i].c_str();
        if (theirs[i] != first[i])
            return format("shard %zu is %s on rank %d, and %s on rank 0", i / kLines, name, rank, first[i].c_str());
        if (theirs[i + 1] != first[i + 1])
            return format("%s has %s bytes on rank %d, and %s on rank 0", name, theirs[i + 1].c_str(), rank,
                          first[i + 1].c_str());
        if (theirs[i + 2] != first[i + 2]) return format("%s holds other tokens on rank %d than on rank 0", name, rank);
    }
    if (theirs.size() == first.size())
        return format("rank %d has the same shards as rank 0, with other weights or divided into other sources", rank);
    return format("rank %d has %zu shards, and rank 0 has %zu", rank, theirs.size() / kLines, first.size() / kLines);
}

}  // namespace

void check_same_data(Ranks& ranks, const char* what, const std::optional<DataLoader>& data) {
    uint64_t mine = 0;
    share_errors(ranks, [&] { mine = data ? data->data_hash() : 0; });
    const std::vector<uint64_t> all = ranks.all_gather_values(mine, what);
    if (std::all_of(all.begin(), all.end(), [&](uint64_t other) { return other == all[0]; })) return;
    std::string facts;
    share_errors(ranks, [&] { facts = facts_of(data); });
    const std::vector<std::string> of_rank = ranks.all_gather(facts);
    for (size_t r = 1; r < all.size(); r++)
        if (all[r] != all[0])
            throw SharedError(kExitUsage,
                              format("the ranks differ in %s: %s; give all hosts the same shards, in any folder", what,
                                     difference_of(lines_of(of_rank[r]), lines_of(of_rank[0]), int(r)).c_str()));
}

RunInputs::RunInputs(const RunConfig& config, const KnownTokenizer& known, World& world) {
    const RunFlags& flags = config.flags;
    LoaderConfig loader{.pattern = flags.train_data,
                        .batch_size = int(config.step.B),
                        .seq_len = int(config.step.T),
                        .rank = world.ranks.rank,
                        .world_size = world.ranks.world_size,
                        .batches_per_step = config.step.accumulation,
                        .in_turns = config.step.shards_gradients(),
                        .step_rows = config.step.step_sequences,
                        .first_row = config.step.first_sequence,
                        .shuffle = flags.shuffle,
                        .seed = flags.seed,
                        .vocab_size = int(config.shape.vocab_size),
                        .packing = flags.packing_mode(),
                        .document_token = separator_of(flags, known),
                        .order = flags.data_order == "llmc"     ? DataOrder::llmc
                                 : flags.data_order == "shards" ? DataOrder::shards
                                                                : DataOrder::own,
                        .fetch = fetch_config(flags)};
    const Watchdog::Patience patience(world.ranks.watchdog());  // validation shards may be fetched
    share_errors(world.ranks, [&] {
        if (loader.fetch && !flags.val_data.empty()) bring_missing(flags.val_data, *loader.fetch);
        if (flags.trains()) train.emplace(loader);
        loader.pattern = flags.val_data, loader.shuffle = false, loader.batches_per_step = 1;
        loader.batch_size = int(least_batch_size(config.shares)), loader.step_rows = loader.first_row = 0;
        loader.order = DataOrder::own, loader.may_repeat = true, loader.fetch.reset();
        if (!flags.val_data.empty()) val.emplace(loader);
        for (const std::string& path : flags.task_files())
            tasks.emplace_back(path).check(config.shape.vocab_size, config.step.T);
        const std::optional<Tokenizer>& tokenizer = known.tokenizer;
        if (tokenizer) token_bytes = tokenizer->token_bytes();
        if (tokenizer && flags.sample_tokens > 0) prompt = tokenizer->encode(flags.prompt, "--prompt");
    });
    if (!train) return;
    std::vector<const std::vector<TokenShard>*> sets;
    for (const std::optional<DataLoader>* loaded : {&train, &val})
        if (*loaded)
            for (const std::vector<TokenShard>& shards : (*loaded)->shards()) sets.push_back(&shards);
    scan.emplace(sets, loader.vocab_size, world.ranks.rank, world.ranks.world_size);
}
