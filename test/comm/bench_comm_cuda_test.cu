// bench-comm between virtual ranks on one GPU.
#include "test/cuda_testing.h"  // ON_DEVICE
#include "test/testing.h"

TEST_CASE("bench-comm measures virtual ranks on a GPU", "[bench_comm]" ON_DEVICE) {
    const Finished ended = run(program("train_gpt") + " bench-comm --mib 1 --device cuda --virtual-ranks 2");
    INFO(ended.out << ended.err);
    REQUIRE(ended.exit_code == 0);
    CHECK(contains(ended.out, "virtual ranks"));
    CHECK(contains(ended.out, "\n| all-gather | 1024 | "));
}
