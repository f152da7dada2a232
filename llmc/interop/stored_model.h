/*
A model's weights in files, with the names and layouts of transformers, Anvil or llm.c. Files are checked before the
first weight is read: every tensor that the model needs exists with the right shape, and none would be ignored.

  const StoredModel model("hf/gpt2");                a folder of transformers or a checkpoint's, a run's (its newest
  const ParameterList list(model.shape());           checkpoint), or a model file of llm.c
  for (const Parameter& p : list) model.read(p, to);         p.size() floats in our layout, the padding zero

One list says where each parameter is in a file, for reading and for writing:

  family   names                                        matrices of the blocks
  gpt2     transformer.h.0.attn.c_attn.weight, ...      transposed, (in, out): transformers has Conv1D there
  llama    model.layers.0.self_attn.q_proj.weight, ...  Q, K and V, gate and up are tensors of their own, so are biases
  nanochat as Llama's, fc1 and fc2 in the MLP           Q, K and V are tensors of their own
  anvil    transformer. and ours (parameters.h)         as ours

Rotary positions pair channel j of a head with channel j + HS/2 in transformers as here, so Q and K stay as they are.
*/
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>
#include "llmc/base/dtype.h"            // DType
#include "llmc/base/tensor.h"           // Tensor
#include "llmc/interop/model_config.h"  // ModelFamily
#include "llmc/model/parameters.h"      // ParameterList

// Rows of a parameter that are a separate tensor in a file.
struct StoredTensor {
    Tensor tensor;        // as in the file, without data
    size_t parameter;     // its number in the list
    int64_t begin, rows;  // which rows of it
    bool transposed;      // the file has them as columns
};

// A model's tensors in the order of the list, those of a parameter in the order of its rows.
std::vector<StoredTensor> stored_tensors(const ParameterList& list, ModelFamily family, DType dtype);

// to (cols, rows)  <-  from (rows, cols)
template <class T>
void transpose_copy(T* to, const T* from, int64_t rows, int64_t cols) {
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < cols; j++) to[j * rows + i] = from[i * cols + j];
}

// One tensor's data in the file's layout, from its parameter's in ours; through `scratch` where it is transposed.
template <class T>
const T* stored_data(const StoredTensor& stored, const Parameter& p, const T* values, std::vector<T>& scratch) {
    const int64_t cols = p.size() / p.shape[0];
    const T* rows = values + stored.begin * cols;
    if (!stored.transposed) return rows;
    scratch.resize(size_t(stored.rows * cols));
    transpose_copy(scratch.data(), rows, stored.rows, cols);
    return scratch.data();
}

class StoredModel {
public:
    // Throws an Error that names the file and the problem. If is_verified, the checkpoint's checksums are not computed
    // again.
    explicit StoredModel(const std::string& path, bool is_verified = false);

    const GptShape& shape() const { return shape_; }
    const std::string& path() const { return path_; }  // a run's: the checkpoint that was taken
    DType dtype() const { return dtype_; }             // of the file; half precision counts as F32
    std::string tokenizer_path() const;                // empty: the files have none
    // Elements [begin, end) of a parameter, or all of it. Throws an Error if a value is not finite: such a model is
    // unusable.
    void read(const Parameter& p, int64_t begin, int64_t end, float* to) const;
    void read(const Parameter& p, float* to) const { read(p, 0, p.size(), to); }

private:
    std::string path_;
    GptShape shape_ = {};
    DType dtype_ = DType::f32;
    // Keeps the files open.
    std::function<void(const Parameter&, int64_t begin, int64_t end, float*)> read_;

    void open_folder(bool is_verified);
    void open_llmc();
};
