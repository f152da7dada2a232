/*
A tensor for files and tests: a name, a type, a shape and a pointer to bytes that it does not own. Ops take raw pointers
and sizes instead.
*/
#pragma once
#include <cstdint>
#include <string>
#include <vector>
#include "llmc/base/dtype.h"  // DType, size_of

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
