/*
Element types by name, and a tensor for files and tests: a name, a type, a shape and a pointer to bytes that it does not
own. Ops take raw pointers and sizes instead.

The types' names are those of the safetensors format. The FP8 types are operands of GEMMs only (llmc/base/fp8.h): no
file that Anvil writes holds them. Half precision is read from other programs' files and never written.
*/
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>
#include "llmc/base/check.h"  // require

enum class DType { f32, f16, bf16, i32, u16, e4m3, e5m2 };

inline bool is_fp8(DType dtype) { return dtype == DType::e4m3 || dtype == DType::e5m2; }

inline size_t size_of(DType dtype) { return is_fp8(dtype) ? 1 : dtype == DType::f32 || dtype == DType::i32 ? 4 : 2; }

// The name of a type in safetensors files.
inline const char* name_of(DType dtype) {
    switch (dtype) {
        case DType::f32:
            return "F32";
        case DType::f16:
            return "F16";
        case DType::bf16:
            return "BF16";
        case DType::i32:
            return "I32";
        case DType::u16:
            return "U16";
        case DType::e4m3:
            return "F8_E4M3";
        case DType::e5m2:
            return "F8_E5M2";
    }
    return "?";
}

// The reverse, for the types that are not FP8. Throws an Error for any other name.
inline DType dtype_named(const std::string& name) {
    for (DType dtype : {DType::f32, DType::f16, DType::bf16, DType::i32, DType::u16})
        if (name == name_of(dtype)) return dtype;
    require(false, "unknown tensor type '%s': expected F32, F16, BF16, I32 or U16", name.c_str());
    return DType::f32;
}

using Shape = std::vector<int64_t>;

// The number of elements; 1 for the empty shape of a scalar.
inline int64_t count(const Shape& shape) {
    int64_t n = 1;
    for (int64_t extent : shape) n *= extent;
    return n;
}

struct Tensor {
    std::string name;
    DType dtype = DType::f32;
    Shape shape;
    void* data = nullptr;

    int64_t size() const { return count(shape); }
    size_t size_bytes() const { return size_t(size()) * size_of(dtype); }
};
