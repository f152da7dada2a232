// The kernel of document_starts against the CPU's function. Integers, so equal.
#include "llmc/cuda/document_starts.cuh"
#include "llmc/cpu/document_starts.h"
#include "test/cuda_testing.h"  // OnDevice

// Rows within a warp, of several, of a whole round and of more; beginnings in nearly every token to none at all.
TEST_CASE("document_starts's kernel agrees with the CPU", "[document_starts]" ON_DEVICE) {
    const auto [B, T] =
        GENERATE(table<int, int>({{1, 1}, {3, 31}, {2, 33}, {5, 100}, {2, 1024}, {2, 1025}, {1, 3000}}));
    const int64_t V = GENERATE(1, 3, 50, 2000);
    const int32_t first_token = GENERATE(0, -1);
    INFO(B << " x " << T << ", one token in " << V << " is 0, and documents begin with " << first_token);
    Rng rng(uint64_t(T), Stream::tests);
    Ints tokens, want(size_t(B * T));
    for (int64_t i = 0; i < B * T; i++) tokens.push_back(int32_t(rng.below(uint64_t(V))));
    Cpu cpu;
    document_starts(cpu, want.data(), tokens.data(), first_token, B, T);
    Cuda cuda;
    const OnDevice<int32_t> d_tokens(cuda, tokens);
    OnDevice<int32_t> starts(cuda, tokens.size());
    document_starts(cuda, starts.data, d_tokens.data, first_token, B, T);
    CHECK(starts.values() == want);
}
