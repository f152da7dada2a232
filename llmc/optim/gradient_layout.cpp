// See gradient_layout.h.
#include "llmc/optim/gradient_layout.h"
#include <algorithm>
#include <numeric>
#include "llmc/base/check.h"  // ensure

// Layers are counted down in backward, as in Bucket.
static bool may_share(const Bucket& a, const Bucket& b) {
    const Bucket &first = a.ready_after > b.ready_after ? a : b, &second = &first == &a ? b : a;
    return second.written_after <= first.ready_after - 1;
}

GradientLayout gradient_layout(const ShardingPlan& plan, bool sharded) {
    const std::vector<Bucket>& buckets = plan.buckets;
    GradientLayout layout;
    if (!sharded) {
        for (const Bucket& bucket : buckets) layout.offsets.push_back(bucket.offset);
        layout.buffer_size = plan.learned_size();
        return layout;
    }
    const auto size_of = [&](size_t b) { return buckets[b].shard * plan.shards; };
    for (const Bucket& bucket : buckets) {
        layout.shard_offsets.push_back(layout.shards_size);
        layout.shards_size += bucket.shard;
    }
    // Buckets with the longest lifetimes are placed first, then those that are written first, each at the lowest free
    // offset.
    std::vector<size_t> order(buckets.size());
    std::iota(order.begin(), order.end(), size_t(0));
    const auto lives = [&](size_t b) { return buckets[b].written_after - buckets[b].ready_after; };
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return lives(a) > lives(b); });
    layout.offsets.assign(buckets.size(), -1);
    std::vector<size_t> placed;
    for (const size_t b : order) {
        int64_t at = 0;
        std::sort(placed.begin(), placed.end(),
                  [&](size_t a, size_t c) { return layout.offsets[a] < layout.offsets[c]; });
        for (const size_t other : placed)
            if (!may_share(buckets[b], buckets[other]) && layout.offsets[other] < at + size_of(b))
                at = std::max(at, layout.offsets[other] + size_of(other));
        layout.offsets[b] = at;
        layout.buffer_size = std::max(layout.buffer_size, at + size_of(b));
        placed.push_back(b);
    }
    for (size_t b = 0; b < buckets.size(); b++) {
        layout.neighbors.emplace_back();
        for (size_t c = 0; c < buckets.size(); c++)
            if (layout.offsets[c] < layout.offsets[b] + size_of(b) &&
                layout.offsets[b] < layout.offsets[c] + size_of(c))
                layout.neighbors[b].push_back(c);
    }
    return layout;
}

ParameterList gradient_list(const ParameterList& list, const ShardingPlan& plan, const GradientLayout& layout) {
    std::vector<int64_t> offsets;
    for (const Parameter& p : list) {
        if (p.is_frozen) {
            offsets.push_back(0);  // it has no gradient
            continue;
        }
        size_t b = 0;
        while (p.offset >= plan.buckets[b].offset + plan.buckets[b].shard * plan.shards) b++;
        ensure(b < plan.buckets.size());
        offsets.push_back(layout.offsets[b] + p.offset - plan.buckets[b].offset);
    }
    ParameterList placed = list;
    placed.place(offsets, layout.buffer_size);
    return placed;
}
