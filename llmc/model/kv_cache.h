/*
What a model keeps of the tokens so far to continue texts a token at a time: of every layer the keys and values that its
window reaches, and for smear the last token's embedding. Rows are texts of their own, each as long as it is.

  KvCache<Device, T> cache(device, shape, model.windows, rows, context, most);
  model.prefill(cache, 0, prompt);                  row 0 is this text now; model.logits(n - 1, 1) follow its n tokens
  cache.copy_row(0, 1);                             and row 1 too
  model.decode(cache, {17, 42});                    one more token a row; model.logits(0, 2) follow them

No layer sees further back than `context` tokens, the newest included, and up to them the logits are those of a pass
over the whole text: on the CPU in fp32 the same bits, elsewhere as far as the order of sums is the same. Rows may grow
up to `most` tokens. Beyond `context`, with rotary positions alone, the layers' windows slide on: a token then depends
on others through tokens that are forgotten, as under any sliding window.
*/
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>
#include "llmc/base/check.h"     // require, ensure
#include "llmc/base/memory.h"    // Arena, aligned
#include "llmc/base/op_types.h"  // KeyValueShape, rotary_table
#include "llmc/model/shape.h"    // GptShape

template <class Device, class T>
class KvCache {
public:
    struct Layer {
        KeyValueShape shape;
        T *keys, *values;
    };
    std::vector<Layer> layers;
    std::vector<int32_t> lengths;                           // of each row
    float* rotary_table = nullptr;                          // (most, 2, HS / 2)
    T *pairs = nullptr, *smeared = nullptr;                 // (rows, 2, C): the last two embeddings, smear's output
    const int32_t *positions = nullptr, *starts = nullptr;  // (rows), on the device, of the step under way

    KvCache(Device& device, const GptShape& shape, const std::vector<int64_t>& windows, int64_t rows, int64_t context,
            int64_t most)
        : layers(layers_of(shape, windows, rows, context)),
          lengths(size_t(rows)),
          device_(device),
          channels_(shape.channels),
          most_(most),
          document_starts_(size_t(rows)),
          to_device_(device, sent_tokens(rows, context)) {
        const Architecture& arch = shape.architecture;
        require(arch.rotary_positions || most <= shape.max_seq_len,
                "a text of %ld tokens: the model has learned %ld positions", most, shape.max_seq_len);
        const int64_t table = arch.rotary_positions ? most * shape.head_size() : 0;
        const int64_t pair = arch.smear ? rows * 2 * shape.channels : 0;
        arena_ = Arena(device, "keys and values", arena_bytes(shape, layers, rows, most));
        for (Layer& layer : layers) {
            layer.keys = arena_.take<T>(rows * layer.shape.row_size());
            layer.values = arena_.take<T>(rows * layer.shape.row_size());
        }
        if (pair > 0) pairs = arena_.take<T>(pair), smeared = arena_.take<T>(pair);
        if (table == 0) return;
        rotary_table = arena_.take<float>(table);
        const std::vector<float> turns = ::rotary_table(most, shape.head_size(), arch.rotary);
        copy_to_device(device, rotary_table, turns.data(), table);
    }

    // What such a cache takes of the device's memory.
    static size_t bytes(const GptShape& shape, const std::vector<int64_t>& windows, int64_t rows, int64_t context,
                        int64_t most) {
        return arena_bytes(shape, layers_of(shape, windows, rows, context), rows, most) +
               size_t(sent_tokens(rows, context)) * sizeof(int32_t);
    }

    int64_t rows() const { return int64_t(lengths.size()); }

    // A row is to become what another is.
    void copy_row(int64_t from, int64_t to) {
        for (const Layer& layer : layers) {
            const int64_t n = layer.shape.row_size();
            copy_on_device(device_, layer.keys + to * n, layer.keys + from * n, n);
            copy_on_device(device_, layer.values + to * n, layer.values + from * n, n);
        }
        if (pairs) copy_on_device(device_, newest(to), newest(from), channels_);
        lengths[size_t(to)] = lengths[size_t(from)];
        document_starts_[size_t(to)] = document_starts_[size_t(from)];
    }

    // The embedding of a row's newest token, and of the one that follows it now.
    T* newest(int64_t row) const { return pairs + row * 2 * channels_; }
    T* next(int64_t row) const { return newest(row) + channels_; }

    // body(first, n, position) for every run of rows [first, first + n) whose tokens are at the same position.
    template <class Body>
    void each_position(Body&& body) const {
        for (size_t first = 0, end; first < lengths.size(); first = end) {
            for (end = first + 1; end < lengths.size() && lengths[end] == lengths[first];) end++;
            body(int64_t(first), int64_t(end - first), int64_t(lengths[first]));
        }
    }

    // Of the model: a row begins anew with `tokens`, which are sent to the device.
    const int32_t* begin_row(int64_t row, const std::vector<int32_t>& tokens, int32_t document_token) {
        lengths[size_t(row)] = 0, document_starts_[size_t(row)] = 0;
        for (const int32_t token : tokens) append(size_t(row), token, document_token);
        return to_device_.send(tokens.data(), int64_t(tokens.size()));
    }
    // Each row's next token is sent to the device, with its position and its document's start; end_step()
    // makes it the newest.
    const int32_t* begin_step(const std::vector<int32_t>& next, int32_t document_token) {
        ensure(next.size() == lengths.size());
        const size_t n = next.size();
        sent_ = next;
        sent_.insert(sent_.end(), lengths.begin(), lengths.end());
        for (size_t row = 0; row < n; row++) {
            ensure(lengths[row] > 0 && lengths[row] < most_);
            sent_.push_back(next[row] == document_token ? lengths[row] : document_starts_[row]);
        }
        const int32_t* tokens = to_device_.send(sent_.data(), int64_t(sent_.size()));
        positions = tokens + n, starts = positions + n;
        return tokens;
    }
    void end_step(const std::vector<int32_t>& next, int32_t document_token) {
        for (size_t row = 0; row < next.size(); row++) append(row, next[row], document_token);
    }

private:
    Device& device_;
    int64_t channels_, most_;
    std::vector<int32_t> document_starts_, sent_;
    typename Device::template ToDevice<int32_t> to_device_;
    Arena arena_;

    static int64_t sent_tokens(int64_t rows, int64_t context) { return std::max(3 * rows, context); }
    static std::vector<Layer> layers_of(const GptShape& shape, const std::vector<int64_t>& windows, int64_t rows,
                                        int64_t context) {
        std::vector<Layer> layers;
        for (const int64_t window : windows)
            layers.push_back({{.B = rows,
                               .NH = shape.num_heads,
                               .NKV = shape.kv_heads(),
                               .HS = shape.head_size(),
                               .window = window < 0 ? context - 1 : std::min(window, context - 1),
                               .scale = float(shape.architecture.score_scale)},
                              nullptr,
                              nullptr});
        return layers;
    }
    static size_t arena_bytes(const GptShape& shape, const std::vector<Layer>& layers, int64_t rows, int64_t most) {
        const Architecture& arch = shape.architecture;
        const int64_t table = arch.rotary_positions ? most * shape.head_size() : 0;
        const int64_t pair = arch.smear ? rows * 2 * shape.channels : 0;
        size_t bytes = aligned(size_t(table) * sizeof(float)) + 2 * aligned(size_t(pair) * sizeof(T));
        for (const Layer& layer : layers) bytes += 2 * aligned(size_t(rows * layer.shape.row_size()) * sizeof(T));
        return bytes;
    }

    void append(size_t row, int32_t token, int32_t document_token) {
        if (token == document_token) document_starts_[row] = lengths[row];
        lengths[row]++;
    }
};
