/*
An arena: one block of memory for one purpose ("weights", "gradients", "activations"), taken once at the start and
handed out front to back. It is filled with NaN bytes when taken, so that whatever is read before it is written shows.

  Arena<Cpu> arena(device, "weights", bytes);
  float* wte = arena.take<float>(Vp * C);        64-byte aligned

A Device supplies allocate(bytes) and release(pointer, bytes).
*/
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include "llmc/base/check.h"  // ensure

inline constexpr size_t kAlignment = 128;  // bytes: a cache-line pair, and what NCCL's shards want

inline size_t aligned(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

template <class Device>
struct Arena {
    std::string name;
    Device* device = nullptr;
    char* base = nullptr;
    size_t capacity_bytes = 0, used_bytes = 0;

    Arena() = default;
    Arena(Device& device, std::string name, size_t bytes)
        : name(std::move(name)),
          device(&device),
          base(static_cast<char*>(device.allocate(bytes))),
          capacity_bytes(bytes) {}
    Arena(const Arena&) = delete;
    Arena& operator=(const Arena&) = delete;
    Arena(Arena&& other) noexcept { *this = std::move(other); }
    Arena& operator=(Arena&& other) noexcept {
        std::swap(name, other.name);
        std::swap(device, other.device);
        std::swap(base, other.base);
        std::swap(capacity_bytes, other.capacity_bytes);
        std::swap(used_bytes, other.used_bytes);
        return *this;
    }
    ~Arena() {
        if (base) device->release(base, capacity_bytes);
    }

    template <class T>
    T* take(int64_t n) {
        T* pointer = reinterpret_cast<T*>(base + used_bytes);
        used_bytes += aligned(size_t(n) * sizeof(T));
        ensure(used_bytes <= capacity_bytes);
        return pointer;
    }
};
