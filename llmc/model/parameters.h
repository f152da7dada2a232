/*
The parameters of a GPT, listed once. Allocation, initialization, optimizer groups, the gradient's norm, checkpoints and
the export to Hugging Face's layout all walk this list; no code knows a parameter by its number.

  ParameterList list(shape);                      names, shapes, groups, offsets
  Buffer weights(device, "weights", list);        memory for all of them
  weights.pointers.blocks[3].c_fc_weight          for the model
  for (const Parameter& p : list) weights.at(p)   for all other code

Matrices are (out, in), row-major, as torch.nn.Linear keeps them.

muP (Yang et al., 2022, arXiv:2203.03466, table 3, for Adam), with m = C / mup_base_width:

                              matrices of the blocks    lm_head    tied: gain and bias of ln_f    all others
  initial deviation, gain     1 / sqrt(m)               1 / m      1 / m                          1
  AdamW's learning rate       1 / m                     1 / m      1 / m                          1

A tied lm_head is the embedding, whose rate does not change, so its 1 / m is in what it reads: there is no multiplier
for other programs to know. Weight decay times learning rate stays. Muon's rate does not depend on m: its updates have
the same singular values at any width. Attention's scale: ModelConfig::shape.
*/
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <optional>
#include <string>
#include <vector>
#include "llmc/base/bf16.h"    // bf16
#include "llmc/base/fp8.h"     // suits_fp8
#include "llmc/base/memory.h"  // Arena, kAlignment
#include "llmc/base/rng.h"     // Rng
#include "llmc/base/tensor.h"  // Shape
#include "llmc/model/shape.h"  // GptShape

// A parameter's initial values:
//   constant   a
//   normal     of mean 0 and standard deviation a
//   uniform    in [a, b)
//   ramp       linear from a in the first element to b in the last
struct Init {
    enum class Kind { constant, normal, uniform, ramp } kind = Kind::constant;
    double a = 0, b = 0;

    static Init zeros() { return {}; }
    static Init constant(double value) { return {Kind::constant, value}; }
    static Init normal(double deviation) { return {deviation > 0 ? Kind::normal : Kind::constant, deviation}; }
    static Init uniform(double low, double high) { return {Kind::uniform, low, high}; }
    static Init ramp(double first, double last) { return {Kind::ramp, first, last}; }
};

// Parameters with the same update rule (llmc/optim/optimizer.h).
enum class ParameterGroup {
    matrices,  // of the blocks
    embedding,
    positions,
    head,  // lm_head, if it is not tied to the token embedding
    value_embeddings,
    vectors,  // norm weights and biases
    resid_lambdas,
    x0_lambdas,
    smear,  // the gate of smear, and the lambdas of smear and backout
};
// The groups' names in flags and logs.
inline constexpr const char* kParameterGroupNames[] = {
    "matrices", "embedding", "positions", "head", "value-embeddings", "vectors", "resid-lambdas", "x0-lambdas", "smear",
};
inline constexpr size_t kNumParameterGroups = std::size(kParameterGroupNames);

struct Parameter {
    std::string name;  // for GPT-2 Hugging Face's, without the prefix "transformer."
    Shape shape;
    Init init = {};
    ParameterGroup group = ParameterGroup::vectors;
    int64_t exported_rows = 0;  // without the vocabulary's padding
    int64_t layer = -1;         // the block to which it belongs; L: after the last block, -1: before the first
    int64_t offset = 0;         // in a Buffer, in elements
    // For Muon: the rows of each of the matrices that are stacked in it (Q, K and V; gate and up). Empty: not for Muon.
    std::vector<int64_t> matrix_rows = {};
    double rate = 1;                          // multiplies AdamW's learning rate and divides its weight decay (muP)
    bool is_frozen = false;                   // beside adapters: it does not learn
    std::optional<LinearKind> codes_of = {};  // it is there in FP8 alone, as this layer's codes, and in no Buffer
    bool is_adapter = false;                  // A or B (lora.h)

    int64_t size() const { return count(shape); }
    int64_t buffer_size() const;  // elements of a Buffer
};

// The ends of the names of an adapter's matrices.
inline constexpr const char *kLoraA = ".lora_A", *kLoraB = ".lora_B";

// Pointers to the parameters: T* to weights, float* to gradients. Those that the architecture does not have are null.
template <class T>
struct GptPointers {
    struct Block {
        T *value_embeds = nullptr, *ve_gate = nullptr;
        T *ln_1_weight = nullptr, *ln_1_bias = nullptr, *c_attn_weight = nullptr, *c_attn_bias = nullptr;
        T *q_norm_weight = nullptr, *k_norm_weight = nullptr;
        T *c_proj_weight = nullptr, *c_proj_bias = nullptr, *ln_2_weight = nullptr, *ln_2_bias = nullptr;
        T *c_fc_weight = nullptr, *c_fc_bias = nullptr, *mlp_c_proj_weight = nullptr, *mlp_c_proj_bias = nullptr;
        T *lora_a[4] = {}, *lora_b[4] = {};  // by LinearKind
    };
    T *wte = nullptr, *wpe = nullptr;
    T *resid_lambdas = nullptr, *x0_lambdas = nullptr, *smear_gate = nullptr, *smear_lambda = nullptr;
    T* backout_lambda = nullptr;
    std::vector<Block> blocks;
    T *ln_f_weight = nullptr, *ln_f_bias = nullptr;
    T* lm_head = nullptr;  // wte if the weights are tied

    // The list: visit(pointer, parameter) in the order of the forward pass.
    template <class Visit>
    void each(const GptShape& s, Visit&& visit) {
        using Group = ParameterGroup;
        const Architecture& a = s.architecture;
        const int64_t C = s.channels, L = s.num_layers, F = s.hidden(), HS = s.head_size(), CQ = s.query_channels(),
                      KV = s.kv_heads() * HS;
        const double mup = s.mup();
        int64_t layer = -1;
        const auto add = [&](T*& pointer, const std::string& name, const Shape& shape, Init init, ParameterGroup group,
                             std::vector<int64_t> matrix_rows = {}, double rate = 1,
                             std::optional<LinearKind> codes_of = {}) {
            visit(pointer, Parameter{.name = name,
                                     .shape = shape,
                                     .init = init,
                                     .group = group,
                                     .exported_rows = shape[0],
                                     .layer = layer,
                                     .matrix_rows = std::move(matrix_rows),
                                     .rate = rate,
                                     .is_frozen = s.lora.is_on(),
                                     .codes_of = codes_of});
        };
        // One row per token, without the padding of the vocabulary.
        const auto add_table = [&](T*& pointer, const std::string& name, int64_t columns, Init init,
                                   ParameterGroup group, double rate = 1) {
            visit(pointer, Parameter{.name = name,
                                     .shape = {s.padded_vocab_size(), columns},
                                     .init = init,
                                     .group = group,
                                     .exported_rows = s.vocab_size,
                                     .layer = layer,
                                     .rate = rate,
                                     .is_frozen = s.lora.is_on()});
        };
        const auto add_norm = [&](T*& weight, T*& bias, const std::string& name, double gain = 1) {
            if (a.norm != NormKind::plain_rmsnorm)
                add(weight, name + ".weight", {C}, Init::constant(gain), Group::vectors, {}, gain);
            if (a.norm == NormKind::layernorm) add(bias, name + ".bias", {C}, Init::zeros(), Group::vectors, {}, gain);
        };
        const auto deviation = [&](int64_t inputs) {
            return a.init.by_fan_in ? a.init.matrices / std::sqrt(double(inputs)) : a.init.matrices * std::sqrt(mup);
        };
        const auto spread = [&](double d) {
            return a.init.uniform ? Init::uniform(-std::sqrt(3.) * d, std::sqrt(3.) * d) : Init::normal(d);
        };
        const auto add_linear = [&](T*& weight, T*& bias, LinearKind kind, const std::string& name,
                                    std::vector<int64_t> rows, Init init, bool has_bias) {
            const auto [inputs, outputs] = linear_size(s, kind);
            const bool is_fp8 = s.lora.fp8_base && suits_fp8(inputs, outputs);
            add(weight, name + ".weight", {outputs, inputs}, init, Group::matrices, std::move(rows), mup,
                is_fp8 ? std::optional(kind) : std::nullopt);
            if (has_bias) add(bias, name + ".bias", {outputs}, Init::zeros(), Group::vectors);
        };
        const auto add_adapter = [&](Block& b, LinearKind kind, const std::string& name) {
            if (!s.lora.adapts(kind)) return;
            const auto [inputs, outputs] = linear_size(s, kind);
            const std::vector<int64_t> rows = lora_rows(s, kind), of_a(rows.size(), s.lora.rank);
            const double bound = 1 / std::sqrt(double(inputs));
            const auto add_one = [&](T*& pointer, const char* which, const Shape& shape, Init init,
                                     const std::vector<int64_t>& of_matrices) {
                visit(pointer, Parameter{.name = name + which,
                                         .shape = shape,
                                         .init = init,
                                         .group = Group::matrices,
                                         .exported_rows = shape[0],
                                         .layer = layer,
                                         .matrix_rows = of_matrices,
                                         .is_adapter = true});
            };
            add_one(b.lora_a[kind], kLoraA, {int64_t(rows.size()) * s.lora.rank, inputs}, Init::uniform(-bound, bound),
                    of_a);
            add_one(b.lora_b[kind], kLoraB, {outputs, s.lora.rank}, Init::zeros(), rows);
        };
        const auto projection = [&](int64_t inputs) {
            const double residual_scale = 1 / std::sqrt(2 * double(L));
            return a.init.zero_projections ? Init::zeros() : spread(deviation(inputs) * residual_scale);
        };

        blocks.resize(size_t(L));
        add_table(wte, "wte.weight", C, Init::normal(a.init.embedding), Group::embedding);
        if (!a.rotary_positions)
            add(wpe, "wpe.weight", {s.max_seq_len, C}, Init::normal(a.init.embedding), Group::positions);
        if (a.smear) {
            add(smear_gate, "smear_gate.weight", {1, kSmearChannels}, Init::uniform(0, 0.02), Group::smear);
            add(smear_lambda, "smear_lambda", {1}, Init::zeros(), Group::smear);
        }
        if (a.residual_lambdas) {  // nanochat's
            add(resid_lambdas, "resid_lambdas", {L}, Init::ramp(1.15, 1.05), Group::resid_lambdas);
            add(x0_lambdas, "x0_lambdas", {L}, Init::ramp(0.2, 0.05), Group::x0_lambdas);
        }
        if (a.backout) add(backout_lambda, "backout_lambda", {1}, Init::constant(0.2), Group::smear);
        for (size_t l = 0; l < blocks.size(); l++) {
            Block& b = blocks[l];
            layer = int64_t(l);
            const std::string h = "h." + std::to_string(l) + ".";
            const bool has_values = s.has_value_embedding(layer);
            if (has_values)
                add_table(b.value_embeds, "value_embeds." + std::to_string(l) + ".weight", KV,
                          spread(deviation(C) / std::sqrt(mup)), Group::value_embeddings);
            add_norm(b.ln_1_weight, b.ln_1_bias, h + "ln_1");
            add_linear(b.c_attn_weight, b.c_attn_bias, kQkv, h + "attn.c_attn", {CQ, KV, KV}, spread(deviation(C)),
                       a.biases || a.qkv_biases);
            add_adapter(b, kQkv, h + "attn.c_attn");
            if (a.qk_rmsnorm) {
                add(b.q_norm_weight, h + "attn.q_norm.weight", {HS}, Init::constant(1), Group::vectors);
                add(b.k_norm_weight, h + "attn.k_norm.weight", {HS}, Init::constant(1), Group::vectors);
            }
            if (has_values)
                add(b.ve_gate, h + "attn.ve_gate.weight", {s.kv_heads(), kGateChannels}, Init::uniform(0, 0.02),
                    Group::matrices, {s.kv_heads()});
            add_linear(b.c_proj_weight, b.c_proj_bias, kProjection, h + "attn.c_proj", {C}, projection(CQ), a.biases);
            add_adapter(b, kProjection, h + "attn.c_proj");
            add_norm(b.ln_2_weight, b.ln_2_bias, h + "ln_2");
            add_linear(b.c_fc_weight, b.c_fc_bias, kUp, h + "mlp.c_fc",
                       a.mlp == MlpKind::swiglu ? std::vector<int64_t>{F, F} : std::vector<int64_t>{F},
                       spread(deviation(C) * a.init.mlp_factor), a.biases);
            add_adapter(b, kUp, h + "mlp.c_fc");
            add_linear(b.mlp_c_proj_weight, b.mlp_c_proj_bias, kDown, h + "mlp.c_proj", {C}, projection(F), a.biases);
            add_adapter(b, kDown, h + "mlp.c_proj");
        }
        layer = L;
        add_norm(ln_f_weight, ln_f_bias, "ln_f", a.tied_head ? mup : 1);
        if (!a.tied_head) add_table(lm_head, "lm_head.weight", C, Init::normal(a.init.head * mup), Group::head, mup);
    }
};

// Parameters start at multiples of 64 elements in a Buffer: 128 bytes of bf16.
inline constexpr int64_t kParameterAlignment = int64_t(kAlignment / sizeof(bf16));
inline int64_t aligned_elements(int64_t n) {
    return (n + kParameterAlignment - 1) / kParameterAlignment * kParameterAlignment;
}
inline int64_t Parameter::buffer_size() const { return codes_of ? 0 : aligned_elements(size()); }

struct ParameterList {
    GptShape model;
    std::vector<Parameter> parameters;
    int64_t buffer_size = 0;     // elements of a Buffer, with padding for alignment
    int64_t num_parameters = 0;  // without any padding
    int64_t num_learned = 0;

    explicit ParameterList(const GptShape& model) : model(model) {
        GptPointers<float> unused;
        unused.each(model, [&](float*, Parameter p) {
            const int64_t n = p.exported_rows * p.size() / p.shape[0];
            num_parameters += n, num_learned += p.is_frozen ? 0 : n;
            parameters.push_back(std::move(p));
        });
        const auto append = [&](bool frozen) {
            for (Parameter& p : parameters)
                if (p.is_frozen == frozen) p.offset = buffer_size, buffer_size += p.buffer_size();
        };
        append(false), append(true);
    }
    // Lays the Buffers out in another order: an offset for each parameter (llmc/optim/sharding.h).
    void place(const std::vector<int64_t>& offsets, int64_t size) {
        for (size_t i = 0; i < parameters.size(); i++) parameters[i].offset = offsets[i];
        buffer_size = size;
    }
    // The elements at a Buffer's beginning that hold all that learns.
    int64_t learned_size() const {
        int64_t size = buffer_size;
        for (const Parameter& p : parameters)
            if (p.is_frozen) size = std::min(size, p.offset);
        return size;
    }
    auto begin() const { return parameters.begin(); }
    auto end() const { return parameters.end(); }
};

// The list of gradients: what does not learn has none.
inline ParameterList gradients_of(const ParameterList& list) {
    ParameterList learned = list;
    learned.buffer_size = list.learned_size();
    return learned;
}

// Beside adapters: where each parameter has the gradient that an op computes along with others though nobody wants it,
// that of a norm or a learned factor. Layers share this memory; what one op writes lies apart.
struct DiscardedGradients {
    std::vector<int64_t> offsets;  // of each parameter; -1: it learns, or its GEMM or sum is left out
    int64_t size = 0;

    explicit DiscardedGradients(const ParameterList& list) {
        int64_t layer = -1, end = 0;
        for (const Parameter& p : list) {
            using enum ParameterGroup;
            const bool is_left_out = p.group == embedding || p.group == positions || p.group == head ||
                                     (p.group == matrices && !p.name.ends_with("ve_gate.weight"));
            if (p.layer != layer) layer = p.layer, end = 0;
            offsets.push_back(p.is_frozen && !is_left_out ? end : -1);
            if (offsets.back() >= 0) end += aligned_elements(p.size());
            size = std::max(size, end);
        }
    }
};

// Memory for all parameters: weights of type T, or gradients. Zero at first.
template <class Device, class T = float>
struct Buffer {
    Arena arena;
    T* data;
    int64_t size;
    GptPointers<T> pointers;

    // `source` allocates the memory: the device, or a Comm. Allocates nothing unless `wanted`.
    template <class Source>
    Buffer(Device& device, Source& source, const std::string& name, const ParameterList& list, bool wanted = true)
        : arena(wanted ? Arena(source, name, size_t(list.buffer_size) * sizeof(T)) : Arena()),
          data(wanted ? arena.take<T>(list.buffer_size) : nullptr),
          size(wanted ? list.buffer_size : 0),
          pointers() {
        if (wanted) fill_zero(device, data, size);
        size_t i = 0;
        pointers.each(list.model, [&](T*& pointer, const Parameter& p) {
            pointer = wanted && !p.codes_of ? at(list.parameters[i]) : nullptr, i++;
        });
        if (!pointers.lm_head) pointers.lm_head = pointers.wte;
    }
    T* at(const Parameter& p) const { return data + p.offset; }
};

// Writes the initial values of p to host memory. They depend only on the seed and the name, not on dtype or sharding.
inline void initialize(const Parameter& p, float* to, uint64_t seed) {
    using Kind = Init::Kind;
    uint64_t stream = seed;  // one per name, so that models of different depth agree on their common layers
    for (const char letter : p.name) stream = mix64(stream ^ uint64_t(letter));
    Rng rng(stream, Stream::weights);
    const int64_t used = p.exported_rows * (p.size() / p.shape[0]);  // the rest, the vocabulary's padding, is zero
    const Init init = p.init;
    if (init.kind == Kind::constant || init.kind == Kind::ramp) {
        const double step = init.kind == Kind::ramp && used > 1 ? (init.b - init.a) / double(used - 1) : 0;
        for (int64_t i = 0; i < used; i++) to[i] = float(init.a + step * double(i));
        std::fill(to + used, to + p.size(), 0.f);
        return;
    }
    std::fill(to + used, to + p.size(), 0.f);
    const int64_t draws = init.kind == Kind::normal ? 2 : 1;
    constexpr int64_t kChunk = 1 << 14;
#pragma omp parallel for schedule(static)
    for (int64_t begin = 0; begin < used; begin += kChunk) {
        Rng own = rng;
        own.skip(uint64_t(draws * begin));
        for (int64_t i = begin; i < std::min(used, begin + kChunk); i++)
            to[i] =
                float(init.kind == Kind::normal ? init.a * own.normal() : init.a + (init.b - init.a) * own.uniform());
    }
}
