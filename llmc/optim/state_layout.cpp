// See state_layout.h.
#include "llmc/optim/state_layout.h"
#include <algorithm>
#include <map>
#include <tuple>
#include "llmc/base/check.h"   // ensure
#include "llmc/base/tensor.h"  // size_of

namespace {

// The sum of aligned sizes: two rules on a rank may each have scratch of their own.
size_t aligned_sum(const std::vector<size_t>& bytes) {
    size_t sum = 0;
    for (const size_t n : bytes) sum += aligned(n);
    return sum;
}

}  // namespace

StateRange state_range(size_t tensor, const ShardPiece& piece, const Parameter& parameter,
                       const OptimizerConfig& config) {
    const UpdateRule& rule = update_rule(config.rule(parameter.group).name);
    if (!rule.state[tensor].matrix_size)
        return {piece.begin, piece.begin + rule.state_size(tensor, piece.size(), piece.rows, piece.cols, config)};
    int64_t begin = 0, at = 0;
    for (const int64_t rows : parameter.matrix_rows) {
        if (at == piece.begin) break;
        begin += rule.state_size(tensor, rows * piece.cols, rows, piece.cols, config), at += rows * piece.cols;
    }
    return {begin, begin + rule.state_size(tensor, piece.size(), piece.rows, piece.cols, config)};
}

StateLayout::StateLayout(const ParameterList& list, const ShardingPlan& plan, int rank, const OptimizerConfig& config)
    : num_elements(plan.state_size[size_t(rank)]), batches(plan.buckets.size()), master_weights(config.master_weights) {
    std::vector<size_t> rule_of_group;
    for (const GroupRule& group : config.groups) rule_of_group.push_back(update_rule_index(group.name));
    const auto rules = UpdateRules::values();
    const std::vector<ShardPiece>& pieces = plan.pieces[size_t(rank)];
    std::vector<std::map<std::tuple<size_t, int64_t, int64_t>, std::vector<Batch>>> alike;  // of each stage
    const auto extent = [&](int64_t elements) {
        Extent bytes;
        std::copy(sizes.begin(), sizes.end(), bytes.begin());
        bytes[kMasters] = elements * int64_t(sizeof(float));
        return bytes;
    };
    int64_t stage_begin = 0;
    for (size_t i = 0; i < pieces.size(); i++) {
        const ShardPiece& piece = pieces[i];
        const size_t index = rule_of_group[size_t(list.parameters[piece.parameter].group)];
        const UpdateRule& rule = *rules[index];
        ensure(rule.state.size() <= kMostStateTensors && piece.is_matrix() == rule.whole_matrices);
        const int64_t end = piece.state_offset + aligned_elements(piece.size());
        if (stages.empty() || stages.back().bucket != piece.bucket ||
            (config.stage_elements > 0 && end - stage_begin > config.stage_elements)) {
            stage_begin = piece.state_offset;
            stages.push_back({piece.bucket, 0, 0, extent(stage_begin), {}, false});
            alike.emplace_back();
        }

        offsets.push_back(sizes);
        for (size_t k = 0; k < rule.state.size(); k++)
            sizes[k] += aligned_elements(rule.state_size(k, piece.size(), piece.rows, piece.cols, config)) *
                        int64_t(size_of(rule.state_dtype(k, config)));
        stages.back().end = extent(end);

        std::vector<Batch>& same = alike.back()[{index, piece.rows, piece.cols}];
        if (same.empty() || piece.size() > rule.batch_elements / int64_t(same.back().pieces.size() + 1))
            same.push_back({index, piece.rows, piece.cols, {}});
        same.back().pieces.push_back(i);
    }
    const int64_t all = extent(num_elements)[kMasters],
                  percent = config.stage_elements > 0 ? config.offload_percent : 0;
    for (Stage& stage : stages) {
        stage.is_offloaded = 100 * stage.end[kMasters] > (100 - percent) * all;
        if (!stage.is_offloaded) kept = stage.end;
    }
    for (size_t s = 0; s < stages.size(); s++) {
        std::vector<Batch>& of_bucket = batches[stages[s].bucket];
        stages[s].first_batch = of_bucket.size();
        for (auto& [kind, same] : alike[s])
            for (Batch& batch : same) of_bucket.push_back(std::move(batch));
        stages[s].end_batch = of_bucket.size();
    }
    std::stable_sort(stages.begin(), stages.end(), [](const Stage& a, const Stage& b) { return a.bucket > b.bucket; });
    for (size_t s = 0; s < stages.size(); s++)
        if (stages[s].is_offloaded) offloaded.push_back(s);
}

std::vector<size_t> StateLayout::scratch_bytes(size_t rule, size_t weight_size) const {
    const auto bytes_of = UpdateRules::values()[rule]->scratch_bytes;
    std::vector<size_t> most;
    if (!bytes_of) return most;
    for (const std::vector<Batch>& bucket : batches)
        for (const Batch& batch : bucket) {
            if (batch.rule != rule) continue;
            const std::vector<size_t> bytes =
                bytes_of(int64_t(batch.pieces.size()), batch.rows, batch.cols, weight_size);
            most.resize(bytes.size());
            for (size_t k = 0; k < bytes.size(); k++) most[k] = std::max(most[k], bytes[k]);
        }
    return most;
}

size_t StateLayout::master_bytes(size_t weight_size) const {
    return has_masters(weight_size) ? aligned(size_t(num_elements) * sizeof(float)) : 0;
}

size_t StateLayout::kept_bytes(size_t weight_size) const {
    size_t sum = 0;
    for (size_t k = 0; k < num_tensors(weight_size); k++) sum += aligned(size_t(kept[k]));
    return sum;
}

size_t StateLayout::slot_bytes(size_t weight_size) const {
    size_t sum = 0;
    for (size_t k = 0; k < num_tensors(weight_size); k++) sum += aligned(size_t(most_bytes(k)));
    return sum;
}

size_t StateLayout::host_bytes(size_t weight_size) const {
    size_t sum = 0;
    for (const size_t stage : offloaded)
        for (size_t k = 0; k < num_tensors(weight_size); k++) sum += size_t(stages[stage].size(k));
    return sum;
}

size_t StateLayout::memory_bytes(size_t weight_size) const {
    size_t sum = kept_bytes(weight_size) + num_slots() * slot_bytes(weight_size);
    for (size_t rule = 0; rule < UpdateRules::size; rule++) sum += aligned_sum(scratch_bytes(rule, weight_size));
    return sum;
}

OptimizerMemory optimizer_memory(const ParameterList& list, const ShardingPlan& plan, const OptimizerConfig& config,
                                 size_t weight_size) {
    OptimizerMemory most;
    for (int rank = 0; rank < plan.shards; rank++) {
        const StateLayout layout(list, plan, rank, config);
        most.device = std::max(most.device, layout.memory_bytes(weight_size));
        most.master_weights = std::max(most.master_weights, layout.master_bytes(weight_size));
        most.kept = std::max(most.kept, layout.kept_bytes(weight_size));
        most.host = std::max(most.host, layout.host_bytes(weight_size));
    }
    return most;
}

int64_t state_bytes(const ParameterList& list, const ShardingPlan& plan, int rank, const OptimizerConfig& config,
                    bool master_weights) {
    int64_t bytes = 0;
    for (const ShardPiece& piece : plan.pieces[size_t(rank)]) {
        const UpdateRule& rule = update_rule(config.rule(list.parameters[piece.parameter].group).name);
        size_t of_element = master_weights && config.master_weights ? sizeof(float) : 0;
        for (size_t k = 0; k < rule.state.size(); k++)
            if (!rule.state[k].matrix_size)
                of_element += size_t(rule.state_size(k, 1, 0, 0, config)) * size_of(rule.state_dtype(k, config));
        bytes += aligned_elements(piece.size()) * int64_t(of_element);
    }
    return bytes;
}

std::vector<int64_t> state_bytes(const ParameterList& list, const ShardingPlan& plan, const OptimizerConfig& config,
                                 bool master_weights) {
    std::vector<int64_t> all;
    for (int rank = 0; rank < plan.world_size; rank++)
        all.push_back(state_bytes(list, plan, rank, config, master_weights));
    return all;
}
