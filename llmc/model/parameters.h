/*
The parameters of a GPT, listed once. Allocation, initialisation, optimizer groups, the gradient's norm, checkpoints and
the export to Hugging Face's layout all walk this list; no code knows a parameter by its number.

  ParameterList list(shape);                      names, shapes, rules, where each starts
  Buffer weights(device, "weights", list);        one value each
  weights.pointers.blocks[3].c_fc_weight          for the model
  for (const Parameter& p : list) weights.at(p)   for everybody else

Matrices are (out, in), row-major, as torch.nn.Linear keeps them.
*/
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>
#include "llmc/base/memory.h"  // Arena
#include "llmc/base/rng.h"     // Rng
#include "llmc/base/tensor.h"  // Shape
#include "llmc/model/shape.h"  // GptShape

enum class Init {
    normal,    // N(0, 0.02), as GPT-2
    residual,  // N(0, 0.02 / sqrt(2 L)): the two projections of each block that add to the residual stream
    zeros,
    ones,
};

struct Parameter {
    std::string name;  // as in Hugging Face's GPT-2, without the prefix "transformer."
    Shape shape;
    Init init = Init::zeros;
    bool weight_decay = false;     // matrices and embeddings, never biases and norms
    bool exported_turned = false;  // Hugging Face's Conv1D keeps (in, out)
    int64_t exported_rows = 0;     // without the vocabulary's padding
    int64_t offset = 0;            // where it starts in a Buffer, in elements

    int64_t size() const { return count(shape); }
};

// Where each parameter is; T* for the weights, float* for their gradients.
template <class T>
struct GptPointers {
    struct Block {
        T *ln_1_weight, *ln_1_bias, *c_attn_weight, *c_attn_bias, *c_proj_weight, *c_proj_bias;
        T *ln_2_weight, *ln_2_bias, *c_fc_weight, *c_fc_bias, *mlp_c_proj_weight, *mlp_c_proj_bias;
    };
    T *wte, *wpe;
    std::vector<Block> blocks;
    T *ln_f_weight, *ln_f_bias;

    // The list: visit(pointer, parameter) in the order of the forward pass.
    template <class Visit>
    void each(const GptShape& s, Visit&& visit) {
        const int64_t C = s.channels;
        const auto add = [&](T*& pointer, const std::string& name, Shape shape, Init init) {
            const bool matrix = shape.size() == 2, embedding = name == "wte.weight" || name == "wpe.weight";
            visit(pointer, Parameter{name, shape, init, matrix, matrix && !embedding,
                                     name == "wte.weight" ? s.vocab_size : shape[0], 0});
        };
        blocks.resize(size_t(s.num_layers));
        add(wte, "wte.weight", {s.padded_vocab_size(), C}, Init::normal);
        add(wpe, "wpe.weight", {s.max_seq_len, C}, Init::normal);
        for (size_t l = 0; l < blocks.size(); l++) {
            Block& b = blocks[l];
            const std::string h = "h." + std::to_string(l) + ".";
            add(b.ln_1_weight, h + "ln_1.weight", {C}, Init::ones);
            add(b.ln_1_bias, h + "ln_1.bias", {C}, Init::zeros);
            add(b.c_attn_weight, h + "attn.c_attn.weight", {3 * C, C}, Init::normal);
            add(b.c_attn_bias, h + "attn.c_attn.bias", {3 * C}, Init::zeros);
            add(b.c_proj_weight, h + "attn.c_proj.weight", {C, C}, Init::residual);
            add(b.c_proj_bias, h + "attn.c_proj.bias", {C}, Init::zeros);
            add(b.ln_2_weight, h + "ln_2.weight", {C}, Init::ones);
            add(b.ln_2_bias, h + "ln_2.bias", {C}, Init::zeros);
            add(b.c_fc_weight, h + "mlp.c_fc.weight", {4 * C, C}, Init::normal);
            add(b.c_fc_bias, h + "mlp.c_fc.bias", {4 * C}, Init::zeros);
            add(b.mlp_c_proj_weight, h + "mlp.c_proj.weight", {C, 4 * C}, Init::residual);
            add(b.mlp_c_proj_bias, h + "mlp.c_proj.bias", {C}, Init::zeros);
        }
        add(ln_f_weight, "ln_f.weight", {C}, Init::ones);
        add(ln_f_bias, "ln_f.bias", {C}, Init::zeros);
    }
};

struct ParameterList {
    GptShape model;
    std::vector<Parameter> parameters;
    int64_t buffer_size = 0;     // elements of a Buffer, gaps of alignment included
    int64_t num_parameters = 0;  // without gaps and without the vocabulary's padding

    explicit ParameterList(const GptShape& model) : model(model) {
        GptPointers<float> unused;
        unused.each(model, [&](float*, Parameter p) {
            p.offset = buffer_size;
            buffer_size += int64_t(aligned(size_t(p.size()) * sizeof(float)) / sizeof(float));
            num_parameters += p.exported_rows * p.size() / p.shape[0];
            parameters.push_back(std::move(p));
        });
    }
    auto begin() const { return parameters.begin(); }
    auto end() const { return parameters.end(); }
};

// One T for every parameter: weights, gradients, or a moment of the optimizer. All zero at first.
template <class Device, class T = float>
struct Buffer {
    Arena<Device> arena;
    T* data;
    int64_t size;
    GptPointers<T> pointers;

    Buffer(Device& device, const std::string& name, const ParameterList& list)
        : arena(device, name, size_t(list.buffer_size) * sizeof(T)),
          data(arena.template take<T>(list.buffer_size)),
          size(list.buffer_size) {
        fill_zero(device, data, size);
        size_t i = 0;
        pointers.each(list.model, [&](T*& pointer, const Parameter&) { pointer = at(list.parameters[i++]); });
    }
    T* at(const Parameter& p) const { return data + p.offset; }
};

// GPT-2's initialisation. Host memory; the numbers depend on the seed alone, not on how they are stored or sharded.
inline void initialize(const ParameterList& list, const Parameter& p, float* to, uint64_t seed) {
    const double residual_scale = 1 / std::sqrt(2 * double(list.model.num_layers));
    const double std_dev = 0.02 * (p.init == Init::residual ? residual_scale : 1);
    uint64_t stream = seed;  // of its own for each name, so that a model with another layer keeps the rest
    for (const char letter : p.name) stream = mix64(stream ^ uint64_t(letter));
    Rng rng(stream, Stream::weights);
    const int64_t used = p.exported_rows * (p.size() / p.shape[0]);  // the rest is the vocabulary's padding: zero
    std::fill(to, to + p.size(), p.init == Init::ones ? 1.f : 0.f);
    if (p.init == Init::zeros || p.init == Init::ones) return;
    constexpr int64_t kChunk = 1 << 14;
#pragma omp parallel for schedule(static)
    for (int64_t begin = 0; begin < used; begin += kChunk) {
        Rng own = rng;
        own.skip(uint64_t(2 * begin));
        for (int64_t i = begin; i < std::min(used, begin + kChunk); i++) to[i] = float(std_dev * own.normal());
    }
}
