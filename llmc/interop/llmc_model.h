/*
Model files of llm.c (its train_gpt2.py writes them, its train_gpt2.cu reads and writes them): a GPT-2 with a tied head.
All numbers are little-endian.

  offset   bytes  what
       0       4  magic:   20240326
       4       4  version: 3 (fp32) or 5 (bf16)
       8      24  positions, V, layers, heads, C, Vp: int32 each
      32     992  zero
    1024          sixteen tensors without gaps, those of the blocks stacked over all layers: wte (Vp, C), wpe, ln_1's
                  gain and bias, c_attn's weight (3C, C) and bias, the attention's c_proj, ln_2, c_fc and the MLP's
                  c_proj with weight and bias each, ln_f

Matrices are (out, in), as in Anvil. The header determines each tensor's offset and the length of the file.
*/
#pragma once
#include <functional>
#include <string>
#include <vector>
#include "llmc/base/file.h"         // MappedFile
#include "llmc/base/tensor.h"       // DType
#include "llmc/model/parameters.h"  // ParameterList

class LlmcModel {
public:
    explicit LlmcModel(const std::string& path);
    const GptShape& shape() const { return shape_; }
    DType dtype() const { return dtype_; }
    void read(const Parameter& p, int64_t begin, int64_t end, float* to) const;  // elements [begin, end) of a parameter

private:
    MappedFile file_;
    GptShape shape_ = {};
    DType dtype_ = DType::f32;
    int64_t padded_vocab_size_ = 0;
    std::vector<int64_t> offsets_;  // of each parameter in the list, in elements after the header
    std::vector<std::string> names_;
};

// `read` returns a parameter's values in Anvil's layout. Throws an Error unless the model is a GPT-2 with a tied head.
void write_llmc_model(const std::string& path, const GptShape& shape, DType dtype,
                      const std::function<void(const Parameter&, float*)>& read);
