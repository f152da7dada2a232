/*
Parameter lists of models other than GPT-2, for tests of code that works on any list: plans, optimizers.

  const ParameterList list = Family{.layers = 4, .heads = 2, .kv_heads = 1, .head_size = 32, .hidden = 256}.list();
*/
#pragma once
#include <string>
#include <utility>
#include <vector>
#include "llmc/model/parameters.h"  // ParameterList

// A model like nanochat or Llama.
struct Family {
    int64_t layers, heads, kv_heads, head_size, hidden;  // L, NH, NKV, HS, F
    bool swiglu = false, gates = false, untied = false;
    int64_t odd_layer = -1;  // has a matrix that the others lack

    ParameterList list() const {
        const int64_t C = heads * head_size, V = 40;
        ParameterList list({layers, heads, C, 16, V});
        list.parameters.clear();
        const auto add = [&](const std::string& name, Shape shape, int64_t layer, ParameterGroup group,
                             std::vector<int64_t> rows = {}) {
            list.parameters.push_back({.name = name,
                                       .shape = std::move(shape),
                                       .group = group,
                                       .layer = layer,
                                       .matrix_rows = std::move(rows)});
        };
        using enum ParameterGroup;
        add("wte.weight", {V, C}, -1, embedding);
        add("resid_lambdas", {layers}, -1, resid_lambdas);
        add("x0_lambdas", {layers}, -1, x0_lambdas);
        add("smear_gate.weight", {1, 24}, -1, smear);
        for (int64_t l = 0; l < layers; l++) {
            const std::string h = "h." + std::to_string(l) + ".";
            const bool gated = gates && l % 2 == (layers - 1) % 2;
            if (gated) add(h + "value_embedding", {V, kv_heads * head_size}, -1, value_embeddings);
            if (!gates) add(h + "ln_1.weight", {C}, l, vectors);
            const int64_t kv = kv_heads * head_size;
            add(h + "attn.c_attn.weight", {C + 2 * kv, C}, l, matrices, {C, kv, kv});
            if (gated) add(h + "attn.ve_gate.weight", {kv_heads, 12}, l, matrices, {kv_heads});
            add(h + "attn.c_proj.weight", {C, C}, l, matrices, {C});
            if (l == odd_layer) add(h + "gate_of_one_layer", {2 * C, C}, l, matrices, {C / 2, C, C - C / 2});
            if (swiglu)
                add(h + "mlp.c_fc.weight", {2 * hidden, C}, l, matrices, {hidden, hidden});
            else
                add(h + "mlp.c_fc.weight", {hidden, C}, l, matrices, {hidden});
            add(h + "mlp.c_proj.weight", {C, hidden}, l, matrices, {C});
        }
        if (untied) add("lm_head.weight", {V, C}, layers, ParameterGroup::head);
        list.buffer_size = 0;
        for (Parameter& p : list.parameters)
            p.offset = list.buffer_size, list.buffer_size += aligned_elements(p.size());
        return list;
    }
};
