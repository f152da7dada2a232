// See checkpointing.h.
#include "llmc/train/checkpointing.h"

GptShape checkpoint_shape(const std::string& folder) {
    const std::string path = folder + "/config.json";
    return read_model_config(read_file(path), path).shape;
}
