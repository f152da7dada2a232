// Model files of llm.c: what the header promises is there.
#include <vector>
#include "llmc/interop/llmc_model.h"
#include "test/fuzz/fuzzing.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    return fuzz_file(data, size, [](const std::string& path) {
        const LlmcModel model(path);
        const ParameterList list(model.shape());
        std::vector<float> values;
        for (const Parameter& p : list) {
            values.resize(size_t(p.size()));
            model.read(p, 0, p.size(), values.data());
        }
    });
}
