// What of an optimizer's state is copied to the device at a time: its layout, and the bytes of both memories.
#include "llmc/optim/offload.h"
#include <map>
#include "llmc/cpu/kernels.h"
#include "llmc/optim/optimizer.h"
#include "test/optim/parameter_lists.h"
#include "test/testing.h"

namespace {

struct Case {
    bool muon, bf16_moments;
    int world_size;
    int64_t stage_elements;
    int percent;
};

void check_layout(const Case& c) {
    INFO(c.muon << c.bf16_moments << " " << c.world_size << " ranks, stages of " << c.stage_elements << ", "
                << c.percent << " %");
    ParameterList list = Family{4, 4, 2, 8, 96, false, true, true}.list();
    OptimizerConfig rules = with_rule({}, c.muon ? "muon" : "adamw");
    rules.bf16_moments = c.bf16_moments;
    const ShardingOptions options{.world_size = c.world_size, .whole_matrices = c.muon, .bucket_elements = 1 << 13};
    const ShardingPlan whole = plan_sharding(list, options);
    ShardingOptions cut = options;
    cut.piece_elements = rules.stage_elements = c.stage_elements, rules.offload_percent = c.percent;
    const ShardingPlan plan = plan_sharding(list, cut);
    CHECK((plan.offsets == whole.offsets && plan.buffer_size == whole.buffer_size));
    for (int rank = 0; rank < c.world_size; rank++) {
        const std::vector<ShardPiece>& pieces = plan.pieces[size_t(rank)];
        const StateLayout layout(list, plan, rank, rules);
        OptimizerConfig on_device = rules;
        on_device.stage_elements = 0;
        const StateLayout other(list, plan, rank, on_device);

        // The stages are all of the state, each once and in one range, from the last bucket to the first.
        std::vector<int> seen(pieces.size());
        size_t bucket = plan.buckets.size();
        size_t copied = 0, largest = 0, num_offloaded = 0;
        int64_t kept_elements = 0, next_elements = layout.num_elements;  // with the first stage that is offloaded
        for (const StateLayout::Stage& stage : layout.stages) {
            CHECK(stage.bucket <= bucket);
            bucket = stage.bucket;
            int64_t elements = 0;
            size_t bytes = 0, count = 0;
            for (size_t b = stage.first_batch; b < stage.end_batch; b++)
                for (const size_t i : layout.batches[stage.bucket][b].pieces) {
                    seen[i]++, count++;
                    CHECK(layout.is_offloaded(pieces[i]) == stage.is_offloaded);
                    elements += aligned_elements(pieces[i].size());
                    CHECK(pieces[i].state_offset * 4 >= stage.begin[StateLayout::kMasters]);
                    CHECK((pieces[i].state_offset + pieces[i].size()) * 4 <= stage.end[StateLayout::kMasters]);
                    for (size_t k = 0; k < kMostStateTensors; k++) {
                        const int64_t end = i + 1 < pieces.size() ? layout.offsets[i + 1][k] : layout.sizes[k];
                        CHECK((layout.offsets[i][k] >= stage.begin[k] && end <= stage.end[k]));
                    }
                }
            CHECK(stage.size(StateLayout::kMasters) == 4 * elements);
            CHECK((elements <= c.stage_elements || count == 1));
            for (size_t k = 0; k <= StateLayout::kMasters; k++) bytes += size_t(stage.size(k));
            const int64_t end = stage.end[StateLayout::kMasters] / 4;
            if (!stage.is_offloaded) {
                kept_elements = std::max(kept_elements, end);
                continue;
            }
            CHECK(layout.stages[layout.offloaded.at(num_offloaded++)].begin == stage.begin);
            next_elements = std::min(next_elements, end);
            copied += bytes, largest = std::max(largest, bytes);
        }
        CHECK(num_offloaded == layout.offloaded.size());
        CHECK(100 * kept_elements <= (100 - c.percent) * layout.num_elements);
        CHECK((100 * next_elements > (100 - c.percent) * layout.num_elements || num_offloaded == 0));
        CHECK(std::all_of(seen.begin(), seen.end(), [](int times) { return times == 1; }));

        CHECK(layout.host_bytes(2) == copied);
        CHECK(layout.host_bytes(4) == copied - size_t(4 * (layout.num_elements - kept_elements)));
        CHECK(layout.kept_bytes(2) + copied == other.kept_bytes(2));  // aligned ranges: nothing lies between them
        CHECK(layout.kept[StateLayout::kMasters] == 4 * kept_elements);
        CHECK(layout.slot_bytes(2) >= largest);
        CHECK((other.host_bytes(2) == 0 && other.stages.size() <= plan.buckets.size()));
        size_t scratch = 0;
        for (size_t rule = 0; rule < UpdateRules::size; rule++)
            for (const size_t bytes : layout.scratch_bytes(rule, 2)) scratch += aligned(bytes);
        CHECK(layout.memory_bytes(2) == layout.kept_bytes(2) + layout.num_slots() * layout.slot_bytes(2) + scratch);
        CHECK(layout.num_slots() == std::min<size_t>(3, num_offloaded));
        Cpu cpu(1);
        const Optimizer<Cpu, bf16> optimizer(cpu, list, plan, rank,
                                             rules);  // takes as much as the layout says, or fails
        for (size_t i = 0; i < pieces.size(); i++) CHECK(optimizer.is_offloaded(i) == layout.is_offloaded(pieces[i]));
    }
}

}  // namespace

TEST_CASE("stages hold all of the state, each in one range of every tensor", "[offload]") {
    for (const bool muon : {false, true})
        for (const bool bf16_moments : {false, true})
            for (const int world_size : {1, 2, 3, 8})
                for (const int64_t stage_elements : {64, 4096, 1 << 20})
                    for (const int percent : {100, 35, 0})
                        check_layout({muon, bf16_moments, world_size, stage_elements, percent});
}
