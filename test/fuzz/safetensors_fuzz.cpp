// Headers that lie: every tensor that a file is let in with lies inside it, to the last byte.
#include "llmc/io/safetensors.h"
#include "test/fuzz/fuzzing.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    return fuzz_file(data, size, [](const std::string& path) {
        const SafetensorsReader file(path);
        unsigned sum = 0;
        for (const Tensor& tensor : file.tensors()) {
            ensure(file.find(tensor.name) == &tensor);
            const auto* bytes = static_cast<const unsigned char*>(tensor.data);
            for (size_t i = 0; i < tensor.size_bytes(); i++) sum += bytes[i];
        }
        [[maybe_unused]] volatile unsigned kept = sum;
    });
}
