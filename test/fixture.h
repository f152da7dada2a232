/*
Reference tensors made with PyTorch by dev/fixtures/make_fixtures.py, one safetensors file per topic.

  Fixture f("layernorm");                              test/fixtures/layernorm.safetensors
  const Floats want = f.floats("small/out");
  const std::vector<int32_t> targets = f.ints("small/targets");
  const Shape shape = f.shape("small/inp");            {B, T, C}

A missing file or name, or a wrong element type, is an Error that fails the test.
*/
#pragma once
#include <bit>
#include <cstring>
#include <string>
#include <vector>
#include "llmc/base/tensor.h"     // Tensor, Shape
#include "llmc/io/safetensors.h"  // SafetensorsReader
#include "test/testing.h"         // Floats

struct Fixture {
    SafetensorsReader file;

    explicit Fixture(const std::string& topic) : file("test/fixtures/" + topic + ".safetensors") {}

    const std::vector<Tensor>& tensors() const { return file.tensors(); }
    bool has(const std::string& name) const { return file.find(name) != nullptr; }
    Shape shape(const std::string& name) const { return file.at(name).shape; }

    // The elements of an F32 tensor, or of a BF16 tensor widened (exact).
    Floats floats(const std::string& name) const {
        const Tensor& tensor = file.at(name);
        if (tensor.dtype == DType::f32) return elements<float>(tensor);
        expect(tensor, DType::bf16);
        Floats values;
        for (uint16_t bits : elements<uint16_t>(tensor)) values.push_back(std::bit_cast<float>(uint32_t(bits) << 16));
        return values;
    }

    // The elements of an I32 tensor, or of a U16 tensor widened.
    std::vector<int32_t> ints(const std::string& name) const {
        const Tensor& tensor = file.at(name);
        if (tensor.dtype == DType::i32) return elements<int32_t>(tensor);
        expect(tensor, DType::u16);
        const std::vector<uint16_t> values = elements<uint16_t>(tensor);
        return std::vector<int32_t>(values.begin(), values.end());
    }

private:
    void expect(const Tensor& tensor, DType dtype) const {
        require(tensor.dtype == dtype, "%s: tensor %s is %s, expected %s", file.path().c_str(), tensor.name.c_str(),
                name_of(tensor.dtype), name_of(dtype));
    }

    template <class T>
    static std::vector<T> elements(const Tensor& tensor) {
        std::vector<T> values(size_t(tensor.size()));
        if (!values.empty()) std::memcpy(values.data(), tensor.data, tensor.size_bytes());
        return values;
    }
};
