// Token shards: what the header promises is there.
#include <vector>
#include "llmc/data/shards.h"
#include "test/fuzz/fuzzing.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    return fuzz_file(data, size, [](const std::string& path) {
        const TokenShard shard(path);
        std::vector<int32_t> tokens(size_t(shard.num_tokens()));
        shard.copy(0, shard.num_tokens(), tokens.data());
    });
}
