// The sharding plan for many shapes and numbers of ranks: every element has exactly one owner, and all is aligned.
#include "llmc/optim/sharding.h"
#include <algorithm>
#include <map>
#include <set>
#include "llmc/optim/gradient_layout.h"  // gradient_layout, gradient_list
#include "llmc/optim/matrix_buckets.h"   // lpt
#include "llmc/optim/state_layout.h"     // state_bytes
#include "test/optim/parameter_lists.h"
#include "test/testing.h"

static GptShape preset(const std::string& name) {
    for (const GptPreset& preset : kGptPresets)
        if (name == preset.name) return preset.shape;
    FAIL("no preset " << name);
    return {};
}

static std::string text_of(const GptShape& s, const ShardingOptions& o) {
    return format("%ld layers, C %ld, T %ld, V %ld; %d ranks, muon %d, buckets of %ld", s.num_layers, s.channels,
                  s.max_seq_len, s.vocab_size, o.world_size, o.whole_matrices, o.bucket_elements);
}

static std::string text_of(const Family& f, const ShardingOptions& o) {
    return format(
               "%ld layers, NH %ld, NKV %ld, HS %ld, F %ld, swiglu %d, gates %d, untied %d, odd layer %ld; %d ranks, ",
               f.layers, f.heads, f.kv_heads, f.head_size, f.hidden, f.swiglu, f.gates, f.untied, f.odd_layer,
               o.world_size) +
           format("muon %d, buckets of %ld", o.whole_matrices, o.bucket_elements);
}

// Gates, and what one layer alone has: in the tests their names say so.
static bool is_gate(const Parameter& p) { return p.name.find("gate") != std::string::npos; }

// Everything that a plan promises. Counted and compared first, and checked once: a million checks would take minutes.
static void check_plan(const ParameterList& list, const std::string& text, const ShardingOptions& options) {
    const ShardingPlan plan = plan_sharding(list, options);
    INFO(text);
    const int64_t A = kParameterAlignment, L = list.model.num_layers;
    const size_t P = list.parameters.size(), W = size_t(options.world_size);
    REQUIRE(plan.world_size == options.world_size);
    REQUIRE(plan.offsets.size() == P);
    REQUIRE((plan.pieces.size() == W && plan.state_size.size() == W));

    // Buckets tile the buffer, in the order of backward, where embeddings come last.
    int64_t end = 0, padding = 0, previous = L + 1;
    for (const Bucket& bucket : plan.buckets) {
        CHECK(bucket.offset == end);
        CHECK((bucket.shard > 0 && bucket.shard % A == 0));
        CHECK(bucket.ready_after <= previous);
        end += options.world_size * bucket.shard, padding += bucket.padding, previous = bucket.ready_after;
    }
    CHECK(end == plan.buffer_size);
    CHECK(plan.padding() == padding);
    CHECK(previous == -1);

    // Parameters are aligned, and do not overlap.
    std::map<int64_t, size_t> at;
    for (size_t i = 0; i < P; i++) at[plan.offsets[i]] = i;
    REQUIRE(at.size() == P);
    int64_t last_end = 0, sizes = 0;
    for (const auto& [offset, i] : at) {
        CHECK((offset >= last_end && offset % A == 0));
        last_end = offset + list.parameters[i].size(), sizes += list.parameters[i].size();
    }
    CHECK(last_end <= plan.buffer_size);
    CHECK(padding == plan.buffer_size - sizes);

    // Pieces: every element once, each in its owner's shard of its bucket, with state of its own.
    std::vector<std::vector<std::pair<int64_t, int64_t>>> of_parameter(P);
    std::vector<std::set<size_t>> in_bucket(plan.buckets.size());
    for (size_t r = 0; r < W; r++) {
        int64_t state = 0;
        for (const ShardPiece& piece : plan.pieces[r]) {
            const Parameter& p = list.parameters[piece.parameter];
            const Bucket& bucket = plan.buckets[piece.bucket];
            const int64_t begin = plan.offsets[piece.parameter] + piece.begin;
            const int64_t shard_begin = bucket.offset + int64_t(r) * bucket.shard;
            const bool inside = shard_begin <= begin && begin + piece.size() <= shard_begin + bucket.shard;
            const bool aligned = piece.state_offset % A == 0 && (piece.is_matrix() || begin % A == 0);
            bool whole = false;  // one of its matrices
            for (int64_t k = 0, row = 0; k < int64_t(p.matrix_rows.size()); row += p.matrix_rows[size_t(k++)])
                whole |= piece.begin == row * p.shape[1] && piece.rows == p.matrix_rows[size_t(k)] &&
                         piece.cols == p.shape[1] && piece.size() == piece.rows * piece.cols;
            const bool right_kind = piece.is_matrix() == (options.whole_matrices && !p.matrix_rows.empty());
            const bool in_order = piece.state_offset >= state;
            if (!inside || !aligned || !right_kind || !in_order || (piece.is_matrix() && !whole) || piece.size() <= 0) {
                INFO(p.name << " from " << piece.begin << " to " << piece.end << " of rank " << r);
                CHECK(inside);
                CHECK(aligned);
                CHECK(right_kind);
                CHECK(in_order);
                CHECK((whole || !piece.is_matrix()));
                CHECK(piece.size() > 0);
            }
            state = piece.state_offset + piece.size();
            of_parameter[piece.parameter].push_back({piece.begin, piece.end});
            in_bucket[piece.bucket].insert(piece.parameter);
        }
        CHECK(plan.state_size[r] == aligned_elements(state));
    }
    for (size_t i = 0; i < P; i++) {
        std::sort(of_parameter[i].begin(), of_parameter[i].end());
        int64_t covered = 0;
        for (const auto& [piece_begin, piece_end] : of_parameter[i]) {
            if (piece_begin != covered) CHECK(piece_begin == covered);
            covered = piece_end;
        }
        if (covered != list.parameters[i].size()) CHECK(covered == list.parameters[i].size());
    }

    // When a bucket is complete, when it is needed, and how much of it is nobody's.
    size_t num_parameters = 0;
    for (size_t b = 0; b < plan.buckets.size(); b++) {
        int64_t lowest = L, highest = -1, used = 0, gaps = 0, largest_gate = 0;
        bool matrices = false;
        for (const size_t i : in_bucket[b]) {
            const Parameter& p = list.parameters[i];
            lowest = std::min(lowest, p.layer), highest = std::max(highest, p.layer);
            used += p.size(), gaps += aligned_elements(p.size()) - p.size();
            if (!options.whole_matrices || p.matrix_rows.empty()) continue;
            if (is_gate(p))
                largest_gate = std::max(largest_gate, aligned_elements(p.size()));
            else
                matrices = true;
        }
        CHECK((!matrices || largest_gate == 0));
        const Bucket& bucket = plan.buckets[b];
        CHECK(bucket.ready_after == lowest);
        CHECK(bucket.needed_by == lowest);
        CHECK(bucket.written_after == (lowest < 0 ? L + 1 : std::min(L + 1, highest + 2)));
        CHECK(bucket.padding == options.world_size * bucket.shard - used);
        // Of every shard less than an alignment: as little as equal, aligned shards can have; or than the largest of
        // those that must not be cut.
        if (!matrices) CHECK(bucket.padding - gaps < options.world_size * (A + largest_gate));
        if (options.world_size == 1) CHECK(bucket.padding == gaps);
        num_parameters += in_bucket[b].size();
    }
    CHECK(num_parameters == P);  // none in two buckets
    CHECK(plan.imbalance() >= 1 - 1e-12);
}

TEST_CASE("what does not learn comes after all buckets, and has no owner", "[sharding]") {
    GptShape shape{3, 2, 32, 16, 40};
    shape.lora = {.rank = 4, .alpha = 8, .targets = {true, true, false, true}};
    for (const bool whole : {false, true})
        for (const int ranks : {1, 2, 4}) {
            ParameterList list(shape);
            const ShardingPlan plan =
                ranks == 1
                    ? whole_plan(list, whole)
                    : plan_sharding(list, {.world_size = ranks, .whole_matrices = whole, .bucket_elements = 500});
            list.place(plan.offsets, plan.buffer_size);
            std::vector<int> used(size_t(plan.buffer_size), 0);
            int64_t learned = 0;
            for (const Parameter& p : list) {
                CHECK((p.offset >= plan.learned_size()) == p.is_frozen);
                for (int64_t i = 0; i < p.size(); i++) used[size_t(p.offset + i)]++;
                learned += p.is_frozen ? 0 : p.size();
            }
            CHECK(*std::max_element(used.begin(), used.end()) == 1);
            CHECK(list.learned_size() == plan.learned_size());
            for (int rank = 0; rank < ranks; rank++)
                for (const ShardPiece& piece : plan.pieces[size_t(rank)]) {
                    CHECK(list.parameters[piece.parameter].is_adapter);
                    learned -= piece.size();
                }
            CHECK(learned == 0);
            CHECK(gradient_layout(plan, false).buffer_size == plan.learned_size());
        }
}

// Gradients of ZeRO-2: played through, layer by layer, nothing is overwritten that has not been reduced for a layer.
static void check_gradients(const ParameterList& list, const ShardingOptions& options) {
    const ShardingPlan plan = plan_sharding(list, options);
    const GradientLayout layout = gradient_layout(plan, true);
    const int64_t L = list.model.num_layers;
    std::vector<int64_t> end;
    int64_t shards = 0;
    for (size_t b = 0; b < plan.buckets.size(); b++) {
        end.push_back(layout.offsets[b] + plan.buckets[b].shard * plan.shards);
        CHECK(layout.shard_offsets[b] == shards);
        shards += plan.buckets[b].shard;
    }
    CHECK(layout.shards_size == shards);
    CHECK(layout.buffer_size == *std::max_element(end.begin(), end.end()));
    CHECK(layout.buffer_size <= plan.buffer_size);
    std::vector<size_t> there;  // that are filled or reduced
    size_t overwritten = 0, not_neighbors = 0;
    for (int64_t layer = L + 1; layer >= -1; layer--) {
        // As of here, the gradients of `layer` are complete.
        std::erase_if(there, [&](size_t b) { return plan.buckets[b].ready_after - 1 >= layer; });
        for (size_t b = 0; b < plan.buckets.size(); b++) {
            if (plan.buckets[b].written_after != layer) continue;
            for (const size_t other : there)
                overwritten += layout.offsets[other] < end[b] && layout.offsets[b] < end[other];
            there.push_back(b);
        }
    }
    for (size_t b = 0; b < plan.buckets.size(); b++)
        for (size_t c = 0; c < plan.buckets.size(); c++) {
            const std::vector<size_t>& of_b = layout.neighbors[b];
            not_neighbors += (layout.offsets[c] < end[b] && layout.offsets[b] < end[c]) !=
                             (std::find(of_b.begin(), of_b.end(), c) != of_b.end());
        }
    CHECK(overwritten + not_neighbors == 0);
    ParameterList placed = list;
    placed.place(plan.offsets, plan.buffer_size);
    const ParameterList gradients = gradient_list(placed, plan, layout);
    size_t misplaced = 0;
    for (const std::vector<ShardPiece>& of_rank : plan.pieces)
        for (const ShardPiece& piece : of_rank)
            misplaced += gradients.parameters[piece.parameter].offset - layout.offsets[piece.bucket] !=
                         plan.offsets[piece.parameter] - plan.buckets[piece.bucket].offset;
    CHECK(misplaced == 0);
}

static void check_gpt2(const ShardingOptions& options, const GptShape& shape) {
    check_plan(ParameterList(shape), text_of(shape, options), options);
    check_gradients(ParameterList(shape), options);
}

TEST_CASE("sharding: three layers of gradients and the embeddings at a time", "[sharding]") {
    GptShape shape = preset("gpt2-1558M");
    const ParameterList list(shape);
    const ShardingPlan plan = plan_sharding(list, {.world_size = 8});
    const GradientLayout layout = gradient_layout(plan, true);
    // A bucket for each layer; the first one has the last norm as well.
    const int64_t layer = plan.buckets[1].shard * 8, embeddings = plan.buckets.back().shard * 8;
    REQUIRE(plan.buckets.size() == 49);
    CHECK(layout.buffer_size >= 3 * layer + embeddings);
    CHECK(layout.buffer_size < 3.01 * double(layer) + double(embeddings));
    // Without sharding, they are laid out like the weights.
    const GradientLayout whole = gradient_layout(plan, false);
    CHECK(whole.buffer_size == plan.buffer_size);
    CHECK_FALSE(whole.is_sharded());
    CHECK(whole.kept_size() == plan.buffer_size);
    for (size_t b = 0; b < plan.buckets.size(); b++) CHECK(whole.offsets[b] == plan.buckets[b].offset);
}

TEST_CASE("sharding: nothing lost, nothing twice, everything aligned", "[sharding]") {
    const bool muon = GENERATE(false, true);
    std::vector<int> worlds;
    for (int world = 1; world <= 17; world += kSanitized ? 4 : 1) worlds.push_back(world);
    for (const int world : {31, 64, 128}) worlds.push_back(world);
    const std::vector<GptShape> shapes = {
        {1, 1, 1, 1, 1},   {1, 1, 7, 3, 5},      {2, 1, 8, 64, 65},    {3, 4, 128, 64, 256},  {4, 4, 128, 64, 65},
        {5, 3, 33, 9, 99}, {7, 2, 40, 17, 1000}, {12, 3, 48, 32, 300}, {13, 5, 65, 100, 129}, {24, 2, 64, 16, 64},
        {31, 1, 24, 8, 2}, {36, 2, 20, 8, 77},   {48, 5, 80, 64, 500},
    };
    for (const GptShape& shape : shapes)
        for (const int world : worlds)
            for (const int64_t bucket_elements : {int64_t(1), int64_t(100000), int64_t(8) << 20})
                check_gpt2({.world_size = world, .whole_matrices = muon, .bucket_elements = bucket_elements}, shape);
    for (const GptPreset& preset : kGptPresets)
        for (const int world : worlds) check_gpt2({.world_size = world, .whole_matrices = muon}, preset.shape);
    const std::vector<Family> families = {
        {1, 2, 1, 16, 128, false, true, true},
        {2, 2, 1, 8, 64, false, true, true},
        {4, 2, 2, 64, 512, false, true, true},
        {5, 6, 2, 16, 384, false, true, true},
        {12, 6, 6, 32, 768, false, true, true},
        {13, 4, 1, 33, 528, false, true, false},
        {6, 4, 2, 32, 344, true},
        {8, 4, 4, 32, 512, true, false, true},
        {7, 8, 1, 16, 341, true, true, true},
        {4, 2, 2, 64, 512, false, false, false, 2},
        {6, 3, 1, 24, 250, true, true, false, 0},
        {16, 8, 8, 128, 4096, false, true, true},
    };
    for (const Family& family : families)
        for (const int world : worlds)
            for (const int64_t bucket_elements : {int64_t(1), int64_t(100000)}) {
                const ShardingOptions options{
                    .world_size = world, .whole_matrices = muon, .bucket_elements = bucket_elements};
                check_plan(family.list(), text_of(family, options), options);
                check_gradients(family.list(), options);
            }
}

TEST_CASE("sharding: halves of layers with fewer key and value heads, and with gates besides", "[sharding]") {
    for (const int64_t kv_heads : {2, 4, 8}) {
        const Family family{8, 8, kv_heads, 32, 1024, false, true, true};
        const ParameterList list = family.list();
        for (const int world : {2, 4, 8, 16}) {
            INFO(text_of(family, {.world_size = world, .whole_matrices = true}));
            const ShardingPlan plan = plan_sharding(list, {.world_size = world, .whole_matrices = true});
            const int64_t half = (5 * 256 + kv_heads * 32) * 256;  // [FC, Q, K | V, O, PROJ]
            size_t whole = 0;
            for (const Bucket& bucket : plan.buckets) whole += bucket.shard == half && bucket.padding == 0;
            CHECK(whole == size_t(8 * 2 / world));
            CHECK(plan.buckets.size() == whole + 2);
            // The head comes first among the rest, and the gates after it are on one rank if there is room.
            std::set<int> owners;
            double least = 1e300, most = 0;  // work but for the gates, which are all of it that differs
            for (int rank = 0; rank < world; rank++) {
                double gates = 0;
                for (const ShardPiece& piece : plan.pieces[size_t(rank)])
                    if (is_gate(list.parameters[piece.parameter])) {
                        const double m = double(std::min(piece.rows, piece.cols)),
                                     n = double(std::max(piece.rows, piece.cols));
                        owners.insert(rank), gates += 10 * m * m * (2 * n + m);
                    }
                least = std::min(least, plan.newton_schulz_flops(rank) - gates);
                most = std::max(most, plan.newton_schulz_flops(rank) - gates);
            }
            CHECK(!owners.empty());
            CHECK(least == most);
        }
    }
}

// Gate and up are one item, because one matmul reads them, and a layer has no halves of equal work. Figures of this
// plan, to notice when it gets worse.
TEST_CASE("sharding: SwiGLU's matrices are assigned one by one", "[sharding]") {
    const Family llama{12, 12, 4, 64, 2048, true};
    for (const auto& [world, worst_padding, worst_imbalance] :
         {std::tuple{2, 0.0, 1.0}, {4, 0.0, 1.0}, {8, 0.0, 1.003}}) {
        const ShardingPlan plan = plan_sharding(llama.list(), {.world_size = world, .whole_matrices = true});
        double padding = 0, elements = 0;
        for (size_t b = 0; b + 2 < plan.buckets.size(); b++)
            padding += double(plan.buckets[b].padding), elements += double(world * plan.buckets[b].shard);
        INFO(world << " ranks, padding " << padding / elements << ", imbalance " << plan.imbalance());
        CHECK(padding <= worst_padding * elements);
        CHECK(plan.imbalance() <= worst_imbalance);
    }
}

TEST_CASE("sharding: what one layer has and the others lack is whole among the rest", "[sharding]") {
    const ParameterList list = Family{4, 2, 2, 64, 512, false, false, false, 2}.list();
    for (const int world : {2, 3, 4, 64}) {
        const ShardingPlan plan = plan_sharding(list, {.world_size = world, .whole_matrices = true});
        const ShardingPlan without =
            plan_sharding(Family{4, 2, 2, 64, 512}.list(), {.world_size = world, .whole_matrices = true});
        REQUIRE(plan.buckets.size() == without.buckets.size());
        for (size_t b = 0; b + 2 < plan.buckets.size(); b++) CHECK(plan.buckets[b].shard == without.buckets[b].shard);
        size_t matrices = 0;
        for (const std::vector<ShardPiece>& pieces : plan.pieces)
            for (const ShardPiece& piece : pieces)
                if (list.parameters[piece.parameter].name == "h.2.gate_of_one_layer") {
                    CHECK(piece.is_matrix());
                    CHECK(piece.bucket + 2 == plan.buckets.size());
                    CHECK(piece.rows == (matrices == 1 ? 128 : 64));
                    matrices++;
                }
        CHECK(matrices == 3);
    }
}

// [FC, Q, K | V, O, PROJ] in buckets of world_size / 2 layers.
TEST_CASE("sharding: Muon's matrices of GPT-2 divide evenly, without padding", "[sharding]") {
    for (const GptPreset& preset : kGptPresets)
        for (const int world :
             std::string(preset.name).starts_with("gpt2") ? std::vector{2, 4, 8} : std::vector<int>{}) {
            INFO(preset.name << " on " << world);
            const ParameterList list(preset.shape);
            const ShardingPlan plan = plan_sharding(list, {.world_size = world, .whole_matrices = true});
            const int64_t C = preset.shape.channels, L = preset.shape.num_layers;
            size_t muon_buckets = 0;
            for (const Bucket& bucket : plan.buckets)
                if (bucket.shard == 6 * C * C && bucket.padding == 0) muon_buckets++;
            CHECK(int64_t(muon_buckets) == L * 2 / world);
            CHECK(plan.buckets.size() == muon_buckets + 2);
            CHECK(plan.imbalance() == 1.0);
            // A rank's half layers: 3 matrices each, of 18 + 6 + 6 C^3 multiply-adds of an iteration.
            const double C3 = double(C) * double(C) * double(C);
            CHECK(plan.newton_schulz_flops(world - 1) == Approx(5 * 30 * C3 * double(2 * L / world)));
            int64_t of_matrices = 0;
            for (const ShardPiece& piece : plan.pieces[0])
                if (piece.is_matrix()) of_matrices += piece.size();
            CHECK(of_matrices == 12 * L * C * C / world);
            // Backward order: the last layers come first.
            CHECK(plan.buckets[0].ready_after == L - world / 2);
            CHECK(plan.buckets[muon_buckets - 1].ready_after == 0);
        }
}

TEST_CASE("sharding: the order inside a layer of matrices", "[sharding]") {
    const ParameterList list(preset("gpt2-124M"));
    const ShardingPlan plan = plan_sharding(list, {.world_size = 2, .whole_matrices = true});
    const auto offset = [&](const std::string& name) {
        for (size_t i = 0; i < list.parameters.size(); i++)
            if (list.parameters[i].name == name) return plan.offsets[i];
        return int64_t(-1);
    };
    const int64_t C2 = 768 * 768;
    CHECK(offset("h.11.mlp.c_fc.weight") == 0);
    CHECK(offset("h.11.attn.c_attn.weight") == 4 * C2);
    CHECK(offset("h.11.attn.c_proj.weight") == 7 * C2);
    CHECK(offset("h.11.mlp.c_proj.weight") == 8 * C2);
    CHECK(offset("h.10.mlp.c_fc.weight") == 12 * C2);
    // Rank 0 has K, rank 1 has V.
    REQUIRE(plan.pieces[1][0].begin == 2 * C2);
    CHECK(plan.pieces[1][0].rows == 768);
    CHECK(plan.pieces[0][2].end == 2 * C2);
}

// Where halves do not divide, what the search finds. Padding as a part of the matrices, and the balance: figures of
// this plan, to notice when it gets worse.
TEST_CASE("sharding: Muon's matrices where they do not divide", "[sharding]") {
    struct Case {
        const char* model;
        int world;
        double padding, imbalance;
    };
    const std::vector<Case> cases = {
        {"gpt2-124M", 3, 0, 1},           {"gpt2-124M", 5, 0.1112, 1},       {"gpt2-124M", 7, 0.1667, 1.051},
        {"gpt2-124M", 16, 0.1112, 1.067}, {"gpt2-124M", 32, 0.3334, 1.601},  {"gpt2-124M", 64, 0.7778, 1.601},
        {"gpt2-355M", 5, 0.007, 1.021},   {"gpt2-355M", 32, 0.1112, 1.067},  {"gpt2-774M", 16, 0.0371, 1.023},
        {"gpt2-774M", 64, 0.1852, 1.067}, {"gpt2-1558M", 7, 0.0087, 1.0063}, {"gpt2-1558M", 16, 0, 1},
        {"gpt2-1558M", 64, 0.1112, 1.067}};
    for (const Case& c : cases) {
        INFO(c.model << " on " << c.world);
        const GptShape shape = preset(c.model);
        const ParameterList list(shape);
        const ShardingPlan plan = plan_sharding(list, {.world_size = c.world, .whole_matrices = true});
        const double matrices = 12.0 * double(shape.num_layers * shape.channels * shape.channels);
        double padding = 0;
        for (size_t b = 0; b + 2 < plan.buckets.size(); b++) padding += double(plan.buckets[b].padding);
        CHECK(padding / matrices <= c.padding);
        CHECK(plan.imbalance() <= c.imbalance);
    }
}

TEST_CASE("lpt: the largest first, each to the least loaded bin", "[sharding]") {
    const auto bins_of = [](const std::vector<Load>& items, size_t num_bins, int64_t Load::*load) {
        std::vector<std::vector<size_t>> all;
        for (const Bin& bin : lpt(items, num_bins, load)) all.push_back(bin.items);
        return all;
    };
    using Bins = std::vector<std::vector<size_t>>;
    // Graham's worst case for two machines: 7 where 6 is possible.
    const std::vector<Load> items = {{1, 2}, {1, 3}, {9, 2}, {1, 3}, {1, 2}};
    CHECK(bins_of(items, 2, &Load::work) == Bins{{1, 0, 4}, {3, 2}});
    CHECK(lpt(items, 2, &Load::work)[0].load.work == 7);
    CHECK(bins_of(items, 2, &Load::elements) == Bins{{2}, {0, 1, 3, 4}});
    CHECK(bins_of({{1, 5}}, 3, &Load::work) == Bins{{0}, {}, {}});
    CHECK(bins_of({}, 2, &Load::work) == Bins{{}, {}});
}

TEST_CASE("sharding: by element, buckets are whole layers up to a size", "[sharding]") {
    const ParameterList list(preset("gpt2-124M"));
    const int64_t C = 768, layer = 12 * C * C + 13 * C;
    const auto ready_after = [&](int64_t bucket_elements) {
        std::vector<int64_t> layers;
        for (const Bucket& bucket : plan_sharding(list, {.world_size = 4, .bucket_elements = bucket_elements}).buckets)
            layers.push_back(bucket.ready_after);
        return layers;
    };
    CHECK(ready_after(1) == std::vector<int64_t>{12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0, -1});
    CHECK(ready_after(5 * layer) == std::vector<int64_t>{7, 2, 0, -1});
    CHECK(ready_after(5 * layer - 1) == std::vector<int64_t>{8, 4, 0, -1});
    CHECK(ready_after(12 * layer) == std::vector<int64_t>{0, -1});
}

TEST_CASE("sharding: buckets grow with the ranks, unless their size is given", "[sharding]") {
    const ParameterList list(preset("gpt2-1558M"));  // layers of 30.7M
    const auto num_buckets = [&](int world_size, int64_t bucket_elements) {
        return plan_sharding(list, {.world_size = world_size, .bucket_elements = bucket_elements}).buckets.size();
    };
    CHECK(num_buckets(8, 0) == 48 + 1);
    CHECK(num_buckets(8, 8 << 20) == num_buckets(8, 0));
    CHECK(num_buckets(64, 0) == 24 + 1);
    CHECK(num_buckets(512, 0) == 3 + 1);
    CHECK(num_buckets(512, 8 << 20) == num_buckets(8, 0));
}

TEST_CASE("sharding: the plan depends on nothing but the list and the options", "[sharding]") {
    const GptShape shape{5, 3, 33, 9, 99};
    for (const bool muon : {false, true}) {
        const ShardingOptions options{.world_size = 6, .whole_matrices = muon};
        ParameterList list(shape);
        const ShardingPlan first = plan_sharding(list, options);
        list.place(first.offsets, first.buffer_size);
        const ShardingPlan second = plan_sharding(list, options);
        CHECK(first.offsets == second.offsets);
        CHECK(first.buffer_size == second.buffer_size);
        CHECK(first.table({1, 2, 3, 4, 5, 6}) == second.table({1, 2, 3, 4, 5, 6}));
        for (size_t r = 0; r < 6; r++) {
            REQUIRE(first.pieces[r].size() == second.pieces[r].size());
            for (size_t i = 0; i < first.pieces[r].size(); i++) {
                CHECK(first.pieces[r][i].parameter == second.pieces[r][i].parameter);
                CHECK(first.pieces[r][i].begin == second.pieces[r][i].begin);
            }
        }
    }
}

TEST_CASE("sharding: the table", "[sharding]") {
    const ParameterList list(preset("gpt2-124M"));
    // 4 ranks: 6 half layers of 6 C^2 each, 3 matrices a half; 5 x 30 C^3 a half. State: Muon's matrices 2 floats, the
    // rest 3; of the rest a rank has a quarter, to the next multiple of 64 in each of two buckets.
    const ShardingPlan of_four = plan_sharding(list, {.world_size = 4, .whole_matrices = true});
    const std::string text = of_four.table(state_bytes(list, of_four, with_rule({}, "muon"), true));
    INFO(text);
    const double flops = 6 * 5 * 30 * 768.0 * 768 * 768;
    const int64_t small = 12 * 13 * 768 + 2 * 768, ends = (50304 + 1024) * 768;
    const double state = 4 * (2 * 6.0 * 6 * 768 * 768 + 3.0 * double(small / 4 + ends / 4)) / (1 << 20);
    CHECK(contains(text, format("  3        %12.2f         18 %22.3f\n", state, flops * 1e-9)));
    CHECK(contains(text, "sharding over 4 ranks, 8 buckets\n"));
    CHECK(contains(text, "padding: 0 of 124475904 elements (0.00%); the largest rank over the mean: 1.000"));
    // Many ranks: a range.
    const ShardingPlan of_many = plan_sharding(list, {.world_size = 17, .whole_matrices = false});
    const std::string many = of_many.table(state_bytes(list, of_many, {}, false));
    INFO(many);
    CHECK(contains(many, "  least "));
    CHECK(contains(many, "  most "));
    CHECK(!contains(many, "  3 "));
    CHECK(contains(error_of([&] { plan_sharding(list, {.world_size = 0}); }), "2: sharding over 0 ranks"));
}

// What is large goes when backward has it, so that the communication has work to hide behind.
TEST_CASE("sharding: the rest goes between the matrices, and a large head first", "[sharding]") {
    const Family family{8, 2, 2, 16, 64, false, true, true};  // V C = 40 x 32
    const auto ready_after = [&](int64_t bucket_elements) {
        std::vector<int64_t> layers;
        const ShardingOptions options{.world_size = 4, .whole_matrices = true, .bucket_elements = bucket_elements};
        for (const Bucket& bucket : plan_sharding(family.list(), options).buckets) layers.push_back(bucket.ready_after);
        return layers;
    };
    // The head; matrices of two layers at a time, each after the gate of one of them; the embeddings.
    CHECK(ready_after(20) == std::vector<int64_t>{8, 7, 6, 5, 4, 3, 2, 1, 0, -1});
    CHECK(ready_after(40 * 32 - 1) == std::vector<int64_t>{8, 6, 4, 2, 1, 0, -1});
    CHECK(ready_after(40 * 32) == std::vector<int64_t>{6, 4, 2, 1, 0, -1});  // the head and all gates: 1
}

// 128, 192 and 128 elements on three ranks: shards of 192 are enough, with one gap.
TEST_CASE("sharding: a gap before what must not be cut is no longer than needed", "[sharding]") {
    ParameterList list({2, 1, 16, 1, 1});
    const auto gate = [](const char* name, int64_t rows) {
        return Parameter{.name = name, .shape = {rows, 16}, .layer = 0, .matrix_rows = {rows}};
    };
    list.parameters = {gate("a", 8), gate("b", 12), gate("c", 8)};  // none of them in layer 1
    const ShardingPlan plan = plan_sharding(list, {.world_size = 3, .whole_matrices = true});
    REQUIRE(plan.buckets.size() == 1);
    CHECK(plan.buckets[0].shard == 192);
    CHECK(plan.offsets == std::vector<int64_t>{0, 192, 384});
}

// Halves of a layer must be equal in elements, because shards are, and in work. GPT-2's are both or neither.
TEST_CASE("sharding: layers whose halves are equal in one way only are not halved", "[sharding]") {
    using Matrix = std::pair<int64_t, int64_t>;
    for (const auto& [x, y] : {std::pair{Matrix{8, 64}, Matrix{16, 32}}, std::pair{Matrix{16, 184}, Matrix{32, 32}}}) {
        ParameterList list({1, 1, 16, 1, 1});
        list.parameters = {
            {.name = "pair", .shape = {32, 16}, .layer = 0, .matrix_rows = {16, 16}},
            {.name = "x", .shape = {x.first, x.second}, .layer = 0, .matrix_rows = {x.first}},
            {.name = "y", .shape = {y.first, y.second}, .layer = 0, .matrix_rows = {y.first}},
        };
        const ShardingPlan plan = plan_sharding(list, {.world_size = 2, .whole_matrices = true});
        REQUIRE(plan.buckets.size() == 1);
        size_t of_pair = 0;  // on one rank: it was one item
        for (const ShardPiece& piece : plan.pieces[0]) of_pair += piece.parameter == 0;
        CHECK((of_pair == 0 || of_pair == 2));
    }
}
