/*
The small models of every architecture that dev/fixtures/model_fixtures.py makes fixtures of.
*/
#pragma once
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>
#include "llmc/model/shape.h"  // GptShape

struct ArchitectureCase {
    const char* fixture;
    int64_t B, T;
    GptShape shape;
};

// A model with a short window of `short_window` tokens. With two layers it has no backout: that would subtract a part
// of the last layer's output from itself, a scaling that the following norm cancels, and its gradient would be noise.
inline GptShape small_shape(const char* architecture, GptShape shape, const char* windows = "L",
                            int64_t short_window = 0) {
    shape.architecture = find_architecture(architecture);
    shape.architecture.windows = windows;
    shape.architecture.short_window = short_window;
    if (shape.num_layers == 2) shape.architecture.backout = false;
    return shape;
}

// Like Qwen3 and SmolLM3, with a window in every layer.
inline GptShape qk_gains(GptShape shape) {
    Architecture& a = shape.architecture;
    a.qk_rmsnorm = true, a.rotary_layers = "RN", a.full_last_layer = false;
    return shape;
}
// Like Qwen2, with Llama 3.1's rotary scaling.
inline GptShape qkv_biases(GptShape shape) {
    Architecture& a = shape.architecture;
    a.qkv_biases = true, a.rotary.base = 100, a.rotary.scaling = {.factor = 8, .original_length = 16};
    return shape;
}
inline GptShape with_head_channels(int64_t HS, GptShape shape) {
    shape.head_channels = HS;
    return shape;
}

//                          layers, heads, channels, longest sequence, vocabulary, key/value heads, MLP
inline const std::vector<ArchitectureCase> kArchitectureCases = {
    {"nano_d4", 3, 32, small_shape("nanochat", {4, 3, 48, 32, 100, 3, 96}, "SSSL", 7)},
    {"nano_d5", 2, 19, small_shape("nanochat", {5, 2, 32, 19, 131, 1, 48}, "SSSL", 3)},
    {"nano_d2", 2, 33, small_shape("nanochat", {2, 2, 32, 33, 130, 2, 48})},
    {"stage_a", 3, 24, small_shape("stage-a", {3, 2, 32, 24, 131, 2, 96})},
    {"llama", 2, 20, small_shape("llama", {2, 4, 64, 20, 100, 2, 32})},
    {"qk_gains", 2, 21, with_head_channels(8, qk_gains(small_shape("llama", {3, 4, 48, 21, 100, 2, 40}, "S", 4)))},
    {"qkv_biases", 2, 24, with_head_channels(24, qkv_biases(small_shape("llama", {2, 3, 48, 24, 100, 1, 40})))},
    {"documents", 3, 24, small_shape("nanochat", {2, 2, 32, 24, 131, 1, 48}, "SL", 5)},  // beginning at "starts"
};
inline const ArchitectureCase& architecture_case(const std::string& fixture) {
    for (const ArchitectureCase& c : kArchitectureCases)
        if (fixture == c.fixture) return c;
    throw std::runtime_error("no case " + fixture);
}
