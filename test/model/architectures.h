/*
Small models of every architecture, as scripts/model_fixtures.py has them.
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

// With a short window of so many tokens, and without backout if there are two layers: it would take the last one's
// output, which the norm after it undoes, so that its gradient is noise.
inline GptShape small_shape(const char* architecture, GptShape shape, const char* windows = "L",
                            int64_t short_window = 0) {
    shape.architecture = find_architecture(architecture);
    shape.architecture.windows = windows;
    shape.architecture.short_window = short_window;
    if (shape.num_layers == 2) shape.architecture.backout = false;
    return shape;
}

//                          layers, heads, channels, longest sequence, vocabulary, key/value heads, MLP
inline const std::vector<ArchitectureCase> kArchitectureCases = {
    {"nano_d4", 3, 32, small_shape("nanochat", {4, 3, 48, 32, 100, 3, 96}, "SSSL", 7)},
    {"nano_d5", 2, 19, small_shape("nanochat", {5, 2, 32, 19, 131, 1, 48}, "SSSL", 3)},
    {"nano_d2", 2, 33, small_shape("nanochat", {2, 2, 32, 33, 130, 2, 48})},
    {"stage_a", 3, 24, small_shape("stage-a", {3, 2, 32, 24, 131, 2, 96})},
    {"llama", 2, 20, small_shape("llama", {2, 4, 64, 20, 100, 2, 32})},
    {"documents", 3, 24, small_shape("nanochat", {2, 2, 32, 24, 131, 1, 48}, "SL", 5)},  // which begin at "starts"
};
inline const ArchitectureCase& architecture_case(const std::string& fixture) {
    for (const ArchitectureCase& c : kArchitectureCases)
        if (fixture == c.fixture) return c;
    throw std::runtime_error("no case " + fixture);
}
