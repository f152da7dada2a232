// config.json of models: whatever is let in can be written and read again.
#include <string>
#include "llmc/interop/model_config.h"
#include "test/fuzz/fuzzing.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    return fuzz([&] {
        const ConfiguredModel model =
            read_model_config(std::string(reinterpret_cast<const char*>(data), size), "config.json");
        const std::string text = model_config(model.shape, DType::f32);
        const ConfiguredModel again = read_model_config(text, "what was written");
        ensure(same_model(again.shape, model.shape) && again.family == family_of(model.shape));
    });
}
