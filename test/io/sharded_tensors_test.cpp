// Sharded tensors: written by any number of ranks, read with any other partition, and missing parts are named.
#include <filesystem>
#include "llmc/io/sharded_tensors.h"
#include "test/testing.h"

namespace {

// Writes 0, 1, 2, ... cut at `cuts`, a file for each part.
void write_shards(const std::string& folder, const std::vector<int64_t>& cuts, int leave_out = -1) {
    std::vector<float> values(static_cast<size_t>(cuts.back()));
    for (size_t i = 0; i < values.size(); i++) values[i] = float(i);
    const int world_size = int(cuts.size()) - 1;
    for (int r = 0; r < world_size; r++) {
        if (r == leave_out) continue;
        const int64_t begin = cuts[size_t(r)], end = cuts[size_t(r) + 1];
        const std::vector<Tensor> tensors = {
            {part_name("m.x", begin, end), DType::f32, {end - begin}, values.data() + begin}};
        SafetensorsWriter file(folder + "/" + shard_file("optimizer", r, world_size), tensors,
                               {{"optimizer", "adamw"}});
        file.write(tensors[0].data, tensors[0].size_bytes());
        file.finish();
    }
}

}  // namespace

TEST_CASE("any range is read from any cut", "[sharded_tensors]") {
    const int64_t n = 37;
    for (const std::vector<int64_t>& cuts :
         std::vector<std::vector<int64_t>>{{0, n}, {0, 1, n}, {0, 10, 10, 20, n}, {0, 36, n}}) {
        const ScratchFolder scratch;
        write_shards(scratch / "", cuts);
        const ShardedTensors state(scratch / "", "optimizer");
        CHECK(state.has("m.x"));
        CHECK_FALSE(state.has("m.x[0:37]"));
        CHECK(state.size_of("m.x") == n);
        CHECK(state.size_of("v.x") == 0);
        CHECK(state.metadata().at("optimizer") == "adamw");
        for (int64_t begin = 0; begin <= n; begin++)
            for (int64_t end = begin; end <= n; end++) {
                std::vector<float> got(static_cast<size_t>(n) + 1, -1);
                state.read(got.data(), "m.x", begin, end);
                for (int64_t i = 0; i < n + 1; i++)
                    REQUIRE(got[size_t(i)] == (i < end - begin ? float(begin + i) : -1));
            }
    }
}

TEST_CASE("tensors of bf16 are read as floats, wherever their parts lie, and other types are refused",
          "[sharded_tensors]") {
    const ScratchFolder scratch;
    const std::vector<bf16> halves = {to_bf16(1.5f), to_bf16(-3), to_bf16(0.15625f)};
    const float one = 7;
    const auto write = [&](DType dtype) {
        const std::vector<Tensor> tensors = {{"m.x[0:3]", dtype, {3}}, {"master.x[0:1]", DType::f32, {1}}};
        SafetensorsWriter file(scratch / shard_file("optimizer", 0, 1), tensors);
        file.write(halves.data(), 3 * sizeof(bf16));
        file.write(&one, sizeof one);  // after six bytes
        file.finish();
    };
    write(DType::bf16);
    const size_t before = thread_read_bytes;
    const ShardedTensors state(scratch / "", "optimizer");
    float got[4] = {};
    state.read(got, "m.x", 1, 3);
    state.read(got + 2, "m.x", 0, 1);
    state.read(got + 3, "master.x", 0, 1);
    CHECK((got[0] == -3 && got[1] == 0.15625f && got[2] == 1.5f && got[3] == 7));
    CHECK(thread_read_bytes - before == 3 * sizeof(bf16) + sizeof(float));
    write(DType::f16);
    CHECK(contains(error_of([&] { ShardedTensors(scratch / "", "optimizer"); }), "expected F32 or BF16"));
}

TEST_CASE("what no file holds is named", "[sharded_tensors]") {
    const ScratchFolder scratch;
    write_shards(scratch / "", {0, 10, 20});
    const ShardedTensors state(scratch / "", "optimizer");
    float got[30];
    CHECK(error_of([&] {
              state.read(got, "m.x", 15, 21, "another model");
          }).ends_with("element 20 of m.x is in no file; another model"));
    CHECK(error_of([&] { state.read(got, "v.x", 0, 1); }).ends_with("element 0 of v.x is in no file"));
    std::filesystem::remove(scratch / shard_file("optimizer", 0, 2));
    CHECK(contains(error_of([&] { ShardedTensors(scratch / "", "optimizer"); }), "one of the files is missing"));
    std::filesystem::remove(scratch / shard_file("optimizer", 1, 2));
    CHECK(contains(error_of([&] { ShardedTensors(scratch / "", "optimizer"); }), "no files optimizer_*"));
}

TEST_CASE("a tensor whose name is not that of a part is refused", "[sharded_tensors]") {
    for (const std::string name : {"m.x", "m.x[0:3]", "m.x[2:0]", "m.x[-1:1]", "m.x[0:2", "m.x[0]", "m.x[a:2]"}) {
        const ScratchFolder scratch;
        const float values[2] = {};
        SafetensorsWriter file(scratch / shard_file("s", 0, 1), {{name, DType::f32, {2}}});
        file.write(values, sizeof values);
        file.finish();
        CHECK(contains(error_of([&] { ShardedTensors(scratch / "", "s"); }), "[begin:end]"));
    }
}

TEST_CASE("the index says which file holds what", "[sharded_tensors]") {
    CHECK(
        shard_index("s", {{{"a[0:2]", DType::f32, {2}}}, {{"a[2:3]", DType::f32, {1}}, {"b[0:1]", DType::f32, {1}}}}) ==
        "{\n  \"metadata\": {\n    \"total_size\": 16\n  },\n  \"weight_map\": {\n"
        "    \"a[0:2]\": \"s_00000_of_00002.safetensors\",\n"
        "    \"a[2:3]\": \"s_00001_of_00002.safetensors\",\n"
        "    \"b[0:1]\": \"s_00001_of_00002.safetensors\"\n  }\n}\n");
}
