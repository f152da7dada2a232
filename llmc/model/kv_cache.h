/*
The KV cache: keys and values of the earlier tokens of several sequences, which may have different lengths. Every layer
keeps the tokens in its window, in a ring buffer; smear keeps the last token's embedding. GptDecoder (gpt_decoder.h)
fills and reads it.

No layer sees further back than `context` tokens, the newest included; sequences may grow to `max_length`.
*/
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>
#include "llmc/base/check.h"            // require, ensure
#include "llmc/base/memory.h"           // Arena, aligned
#include "llmc/model/shape.h"           // GptShape
#include "llmc/ops/attention_decode.h"  // KeyValueShape
#include "llmc/ops/rotary.h"            // rotary_table

template <class Device, class T>
class KvCache {
public:
    struct Layer {
        KeyValueShape shape;
        T *keys, *values;
    };
    std::vector<Layer> layers;
    float* rotary_table = nullptr;                          // (max_length, 2, HS / 2)
    T *pairs = nullptr, *smeared = nullptr;                 // (sequences, 2, C): smear's input and output in decode
    const int32_t *positions = nullptr, *starts = nullptr;  // (sequences), on the device, of the current step

    KvCache(Device& device, const GptShape& shape, const std::vector<int64_t>& windows, int64_t sequences,
            int64_t context, int64_t max_length)
        : layers(layers_of(shape, windows, sequences, context)),
          device_(device),
          channels_(shape.channels),
          max_length_(max_length),
          lengths_(size_t(sequences)),
          document_starts_(size_t(sequences)),
          to_device_(device, input_ids(sequences, context)) {
        const Architecture& arch = shape.architecture;
        require(arch.rotary_positions || max_length <= shape.max_seq_len,
                "a text of %ld tokens: the model has learned %ld positions", max_length, shape.max_seq_len);
        arena_ = Arena(device, "keys and values", arena_bytes(shape, layers, sequences, max_length));
        for (Layer& layer : layers) {
            layer.keys = arena_.take<T>(sequences * layer.shape.row_size());
            layer.values = arena_.take<T>(sequences * layer.shape.row_size());
        }
        if (const int64_t n = pair_elements(shape, sequences); n > 0)
            pairs = arena_.take<T>(n), smeared = arena_.take<T>(n);
        const int64_t n = table_elements(shape, max_length);
        if (n == 0) return;
        rotary_table = arena_.take<float>(n);
        const std::vector<float> table = ::rotary_table(max_length, shape.head_size(), arch.rotary);
        copy_to_device(device, rotary_table, table.data(), n);
    }

    // Bytes of device memory of such a cache.
    static size_t bytes(const GptShape& shape, const std::vector<int64_t>& windows, int64_t sequences, int64_t context,
                        int64_t max_length) {
        return arena_bytes(shape, layers_of(shape, windows, sequences, context), sequences, max_length) +
               size_t(input_ids(sequences, context)) * sizeof(int32_t);
    }

    int64_t sequences() const { return int64_t(lengths_.size()); }

    // Sequence `to` becomes a copy of `from`.
    void copy(int64_t from, int64_t to) {
        for (const Layer& layer : layers) {
            const int64_t n = layer.shape.row_size();
            copy_on_device(device_, layer.keys + to * n, layer.keys + from * n, n);
            copy_on_device(device_, layer.values + to * n, layer.values + from * n, n);
        }
        if (pairs) copy_on_device(device_, last_embedding(to), last_embedding(from), channels_);
        lengths_[size_t(to)] = lengths_[size_t(from)];
        document_starts_[size_t(to)] = document_starts_[size_t(from)];
    }

    // For smear: the embedding of a sequence's last token, and next to it that of the token that follows.
    T* last_embedding(int64_t sequence) const { return pairs + sequence * 2 * channels_; }
    T* new_embedding(int64_t sequence) const { return last_embedding(sequence) + channels_; }

    // body(first, n, position) for each run of sequences [first, first + n) whose new tokens have the same position.
    template <class Body>
    void each_position(Body&& body) const {
        for (size_t first = 0, end; first < lengths_.size(); first = end) {
            for (end = first + 1; end < lengths_.size() && lengths_[end] == lengths_[first];) end++;
            body(int64_t(first), int64_t(end - first), int64_t(lengths_[first]));
        }
    }

    // Starts a sequence anew with these tokens; returns them in device memory.
    const int32_t* begin_sequence(int64_t sequence, const std::vector<int32_t>& tokens, int32_t document_token) {
        lengths_[size_t(sequence)] = 0, document_starts_[size_t(sequence)] = 0;
        for (const int32_t token : tokens) append(size_t(sequence), token, document_token);
        return to_device_.send(tokens.data(), int64_t(tokens.size()));
    }
    // Sends each sequence's next token, its position and its document's start; returns the tokens in device memory.
    // They count as part of their sequences from end_step() on.
    const int32_t* begin_step(const std::vector<int32_t>& next, int32_t document_token) {
        ensure(next.size() == lengths_.size());
        const size_t n = next.size();
        input_ = next;
        input_.insert(input_.end(), lengths_.begin(), lengths_.end());
        for (size_t i = 0; i < n; i++) {
            ensure(lengths_[i] > 0 && lengths_[i] < max_length_);
            input_.push_back(next[i] == document_token ? lengths_[i] : document_starts_[i]);
        }
        const int32_t* tokens = to_device_.send(input_.data(), int64_t(input_.size()));
        positions = tokens + n, starts = positions + n;
        return tokens;
    }
    void end_step(const std::vector<int32_t>& next, int32_t document_token) {
        for (size_t i = 0; i < next.size(); i++) append(i, next[i], document_token);
    }

private:
    Device& device_;
    int64_t channels_, max_length_;
    std::vector<int32_t> lengths_, document_starts_;  // of each sequence
    std::vector<int32_t> input_;                      // of a step: tokens, positions, document starts
    typename Device::template ToDevice<int32_t> to_device_;
    Arena arena_;

    // The most integers that are sent at once: a step's, or a prompt.
    static int64_t input_ids(int64_t sequences, int64_t context) { return std::max(3 * sequences, context); }
    static int64_t table_elements(const GptShape& shape, int64_t max_length) {
        return shape.architecture.rotary_positions ? max_length * shape.head_size() : 0;
    }
    static int64_t pair_elements(const GptShape& shape, int64_t sequences) {
        return shape.architecture.smear ? sequences * 2 * shape.channels : 0;
    }
    static std::vector<Layer> layers_of(const GptShape& shape, const std::vector<int64_t>& windows, int64_t sequences,
                                        int64_t context) {
        std::vector<Layer> layers;
        for (const int64_t window : windows)
            layers.push_back({{.B = sequences,
                               .NH = shape.num_heads,
                               .NKV = shape.kv_heads(),
                               .HS = shape.head_size(),
                               .window = window < 0 ? context - 1 : std::min(window, context - 1),
                               .scale = float(shape.architecture.score_scale)},
                              nullptr,
                              nullptr});
        return layers;
    }
    static size_t arena_bytes(const GptShape& shape, const std::vector<Layer>& layers, int64_t sequences,
                              int64_t max_length) {
        size_t bytes = aligned(size_t(table_elements(shape, max_length)) * sizeof(float)) +
                       2 * aligned(size_t(pair_elements(shape, sequences)) * sizeof(T));
        for (const Layer& layer : layers) bytes += 2 * aligned(size_t(sequences * layer.shape.row_size()) * sizeof(T));
        return bytes;
    }

    void append(size_t i, int32_t token, int32_t document_token) {
        if (token == document_token) document_starts_[i] = lengths_[i];
        lengths_[i]++;
    }
};
