/*
The tensors of a model in safetensors files: model.safetensors (or a file of another name), or else the files that are
named in model.safetensors.index.json,
{"weight_map": {"h.0.ln_1.weight": "model-00001-of-00002.safetensors", ...}}.
*/
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>
#include "llmc/io/safetensors.h"  // SafetensorsReader

// Exact. Half precision (IEEE 754 binary16) is found in other programs' files: Anvil computes in float and bfloat16.
float half_to_float(uint16_t bits);

class TensorFiles {
public:
    explicit TensorFiles(const std::string& folder, const std::string& file = "model.safetensors");

    // By name. Pointers stay valid for the lifetime of this object, also after a move.
    const std::map<std::string, Tensor>& tensors() const { return tensors_; }
    const Tensor* find(const std::string& name) const;
    std::string other_type(const std::string& name) const;  // of a tensor that Anvil does not read; "": there is none
    const std::string& where() const { return where_; }     // the file to name in messages
    // Copies elements [begin, begin + n) of an F32, F16 or BF16 tensor as floats.
    void copy(float* to, const Tensor& tensor, int64_t begin, int64_t n) const;

private:
    std::string where_;
    std::vector<SafetensorsReader> files_;
    std::map<std::string, Tensor> tensors_;
};
