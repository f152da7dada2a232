/*
Autoregressive generation with a KV cache (kv_cache.h), for several sequences at once:

  GptDecoder decoder(model, sequences, context, max_length);
  decoder.prefill(0, prompt);                  sequence 0 = prompt, n tokens; model.logits(n - 1, 1) predict the next
  decoder.copy(0, 1);                          sequence 1 = sequence 0
  decoder.decode({17, 42});                    appends a token to each; model.logits(0, 2) predict the next ones

Both passes are Gpt::run_forward(), so the equations of a layer are those of Gpt. They differ in their SequenceOps:
prefill also stores keys and values, and decode reads the earlier tokens' keys and values from the cache.

No layer sees further back than `context` tokens, including the newest. Up to that length the logits are those of a
forward pass over the whole sequence: with the same bits on the CPU in fp32, elsewhere up to the order of sums.
Sequences may grow to `max_length` tokens. Growing beyond `context` requires rotary positions. Then the layers' windows
slide: a token depends on tokens that have left the cache only through other tokens, as under any sliding window.
*/
#pragma once
#include <cstdint>
#include <vector>
#include "llmc/model/gpt.h"             // Gpt
#include "llmc/model/kv_cache.h"        // KvCache
#include "llmc/ops/attention.h"         // AttentionShape
#include "llmc/ops/attention_decode.h"  // KeyValueShape

template <class Device, class T>
class GptDecoder {
public:
    GptDecoder(Gpt<Device, T>& model, int64_t sequences, int64_t context, int64_t max_length)
        : model_(model), cache_(model.device, model.shape, model.windows, sequences, context, max_length) {}

    // As forward() of one prompt, which becomes a sequence of the cache.
    void prefill(int64_t sequence, const std::vector<int32_t>& prompt) {
        const int32_t* tokens = cache_.begin_sequence(sequence, prompt, model_.document_token);
        model_.begin_forward(1, int64_t(prompt.size()));
        model_.set_document_starts(tokens);
        model_.run_forward(tokens, PrefillOps{model_, cache_, sequence});
    }

    // As the last position of forward() of each sequence with its token of `next` appended.
    void decode(const std::vector<int32_t>& next) {
        const int32_t* tokens = cache_.begin_step(next, model_.document_token);
        model_.begin_forward(cache_.sequences(), 1);
        model_.run_forward(tokens, DecodeOps{model_, cache_});
        cache_.end_step(next, model_.document_token);
    }

    void copy(int64_t from, int64_t to) { cache_.copy(from, to); }

private:
    using SequenceOps = typename Gpt<Device, T>::SequenceOps;

    // Those of whole sequences, and what decode will need of this one.
    struct PrefillOps {
        Gpt<Device, T>& model;
        const KvCache<Device, T>& cache;
        int64_t sequence;

        void embedding_forward(T* out, const int32_t* tokens) const {
            SequenceOps{model}.embedding_forward(out, tokens);
        }
        void smear_forward(T* out, const T* inp) const {
            SequenceOps{model}.smear_forward(out, inp);
            const int64_t C = model.shape.channels;
            copy_on_device(model.device, cache.last_embedding(sequence), inp + (model.seq_len - 1) * C, C);
        }
        void rotary_forward(size_t l, const AttentionShape& attention) const {
            SequenceOps{model}.rotary_forward(l, attention);
        }
        void attention_forward(size_t l, const AttentionShape& attention) const {
            SequenceOps{model}.attention_forward(l, attention);
            const auto& layer = cache.layers[l];
            KeyValueShape one = layer.shape;
            one.B = 1;
            const int64_t at = sequence * one.row_size();
            model.op.attention_remember(model.device, layer.keys + at, layer.values + at, model.acts.blocks[l].qkv,
                                        nullptr, model.seq_len, one);
        }
    };

    // Of one token per sequence, each at a position of its own.
    struct DecodeOps {
        Gpt<Device, T>& model;
        const KvCache<Device, T>& cache;

        void embedding_forward(T* out, const int32_t* tokens) const {
            const GptPointers<T>& w = model.weights.pointers;
            const int64_t C = model.shape.channels;
            cache.each_position([&](int64_t first, int64_t rows, int64_t position) {
                const T* wpe = w.wpe ? w.wpe + position * C : nullptr;
                model.op.embedding_forward(model.device, out + first * C, tokens + first, w.wte, wpe, rows, 1, C);
            });
        }
        // Of pairs: each sequence's last embedding, and the one of its new token.
        void smear_forward(T* out, const T* inp) const {
            const GptPointers<T>& w = model.weights.pointers;
            const int64_t C = model.shape.channels, B = model.B;
            Device& device = model.device;
            for (int64_t b = 0; b < B; b++) copy_on_device(device, cache.new_embedding(b), inp + b * C, C);
            model.op.smear_forward(device, cache.smeared, cache.pairs, w.smear_gate, w.smear_lambda, B, 2, C,
                                   kSmearChannels);
            for (int64_t b = 0; b < B; b++) {
                copy_on_device(device, out + b * C, cache.smeared + (2 * b + 1) * C, C);
                copy_on_device(device, cache.last_embedding(b), cache.new_embedding(b), C);
            }
        }
        void rotary_forward(size_t l, AttentionShape attention) const {
            auto& a = model.acts.blocks[l];
            cache.each_position([&](int64_t first, int64_t rows, int64_t position) {
                attention.B = rows;
                float* rstd = model.shape.architecture.rotary.qk_norm
                                  ? a.qk_rstd + first * (attention.NH + attention.NKV)
                                  : nullptr;
                model.op.rotary_forward(model.device, a.qkv + first * attention.row(), rstd,
                                        cache.rotary_table + position * attention.HS, attention,
                                        model.shape.architecture.rotary);
            });
        }
        void attention_forward(size_t l, const AttentionShape&) const {
            auto& a = model.acts.blocks[l];
            const auto& layer = cache.layers[l];
            model.op.attention_remember(model.device, layer.keys, layer.values, a.qkv, cache.positions, 1, layer.shape);
            model.op.attention_decode(model.device, a.attention, a.qkv, layer.keys, layer.values, cache.positions,
                                      cache.starts, layer.shape);
        }
    };

    Gpt<Device, T>& model_;
    KvCache<Device, T> cache_;
};
