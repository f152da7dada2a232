/*
A model's weights in files, with the names and layouts of transformers, Anvil or llm.c. All files are checked before the
first weight is read: every tensor that the model needs must exist with the right shape, and other tensors are an Error
unless they are known to be redundant.

  const StoredModel model("hf/gpt2");                a folder of transformers or of a checkpoint, a run's folder (its
  const ParameterList list(model.shape());           newest checkpoint), or a model file of llm.c
  for (const Parameter& p : list) model.read(p, to);         p.size() floats in Anvil's layout, with zeros as padding

One list says where each parameter is in a file, for both reading and writing:

  family   names                                        layout of the blocks' matrices
  gpt2     transformer.h.0.attn.c_attn.weight, ...      transposed, (in, out): transformers has Conv1D there
  llama    model.layers.0.self_attn.q_proj.weight, ...  Q, K, V, gate and up are separate tensors, also their biases
  nanochat as llama, but fc1 and fc2 in the MLP         Q, K and V are separate tensors
  anvil    transformer. and Anvil's (parameters.h)      as in Anvil

A folder with an adapter of PEFT, which a checkpoint of a run with --lora-rank also is, is read as its base with the
adapter merged into it (adapter.h).

A head that is stored although config.json says that it is tied to the embeddings is one of its own if it differs from
them, as in transformers; of tied embeddings the head alone may be stored.

Rotary positions pair channel j of a head with channel j + HS/2, as in transformers, so Q and K are not permuted.
*/
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>
#include "llmc/base/tensor.h"           // Tensor, DType
#include "llmc/interop/model_config.h"  // ModelFamily
#include "llmc/model/parameters.h"      // ParameterList

class Adapter;

// Rows of a parameter that are a separate tensor in a file.
struct StoredTensor {
    Tensor tensor;        // as in the file, without data
    size_t parameter;     // its index in the list
    int64_t begin, rows;  // the rows of the parameter
    bool transposed;      // the file has them as columns
};

// A model's tensors in the order of the list; those of one parameter in the order of its rows.
std::vector<StoredTensor> stored_tensors(const ParameterList& list, ModelFamily family, DType dtype);

// to (cols, rows)  <-  from (rows, cols)
template <class T>
void transpose_copy(T* to, const T* from, int64_t rows, int64_t cols) {
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < cols; j++) to[j * rows + i] = from[i * cols + j];
}

// One tensor's data in the file's layout, from its parameter's values in Anvil's layout. A transposed one is in
// `scratch`.
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
    // Throws an Error that names the file and the problem. is_verified: the checkpoint's checksums have been compared
    // and are not computed again.
    // `base`: of an adapter; null: it is where the adapter's config says. It must have the hash that the adapter names,
    // which is not computed again for a given base if is_verified.
    explicit StoredModel(const std::string& path, bool is_verified = false,
                         std::shared_ptr<const StoredModel> base = nullptr);

    const GptShape& shape() const { return shape_; }
    const std::string& path() const { return path_; }  // of a run's folder: the checkpoint in use
    DType dtype() const { return dtype_; }             // of the file; half precision counts as F32
    std::string tokenizer_path() const;                // empty: there is no tokenizer
    // The adapter that is merged into the base; null: there is none. read() takes its A and B, too.
    const Adapter* adapter() const { return adapter_.get(); }
    const StoredModel* base() const { return base_.get(); }
    // Reads elements [begin, end) of a parameter, or all of it. Throws an Error if a value is not finite, because such
    // a model is unusable.
    void read(const Parameter& p, int64_t begin, int64_t end, float* to) const;
    void read(const Parameter& p, float* to) const { read(p, 0, p.size(), to); }

private:
    std::string path_;
    GptShape shape_ = {};
    DType dtype_ = DType::f32;
    std::shared_ptr<const StoredModel> base_;
    std::shared_ptr<const Adapter> adapter_;
    // Owns the open files.
    std::function<void(const Parameter&, int64_t begin, int64_t end, float*)> read_;

    void open_folder(bool is_verified);
    void open_adapter(bool is_verified);
    void open_llmc();
};
