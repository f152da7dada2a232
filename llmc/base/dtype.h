/*
Element types by name. The names are those of the safetensors format.
*/
#pragma once
#include <cstddef>
#include <string>
#include "llmc/base/check.h"  // require

enum class DType { f32, bf16, i32, u16 };

inline size_t size_of(DType dtype) { return dtype == DType::f32 || dtype == DType::i32 ? 4 : 2; }

inline const char* name_of(DType dtype) {
    switch (dtype) {
        case DType::f32:
            return "F32";
        case DType::bf16:
            return "BF16";
        case DType::i32:
            return "I32";
        case DType::u16:
            return "U16";
    }
    return "?";
}

inline DType dtype_named(const std::string& name) {
    for (DType dtype : {DType::f32, DType::bf16, DType::i32, DType::u16})
        if (name == name_of(dtype)) return dtype;
    require(false, "unknown tensor type '%s': expected F32, BF16, I32 or U16", name.c_str());
    return DType::f32;
}
