/*
An arena: one block of memory for one purpose ("weights", "gradients", "activations"), allocated once at the start and
handed out front to back. It is first filled with NaN bytes, so that reads of uninitialized memory show.

  Arena arena(device, "weights", bytes);
  float* wte = arena.take<float>(Vp * C);        128-byte aligned

The memory comes from a device or, for buffers of collectives, from a Comm: anything with allocate(bytes) and
release(pointer, bytes).
*/
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include "llmc/base/check.h"  // ensure

inline constexpr size_t kAlignment = 128;  // bytes: two cache lines; NCCL's shards should be aligned so

inline size_t aligned(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

struct Arena {
    std::string name;
    char* base = nullptr;
    size_t capacity_bytes = 0, used_bytes = 0;

    Arena() = default;
    template <class Source>
    Arena(Source& source, std::string name, size_t bytes)
        : name(std::move(name)),
          base(static_cast<char*>(source.allocate(bytes))),
          capacity_bytes(bytes),
          release_([&source](void* data, size_t size) { source.release(data, size); }) {}
    Arena(const Arena&) = delete;
    Arena& operator=(const Arena&) = delete;
    Arena(Arena&& other) noexcept { *this = std::move(other); }
    Arena& operator=(Arena&& other) noexcept {
        std::swap(name, other.name);
        std::swap(base, other.base);
        std::swap(capacity_bytes, other.capacity_bytes);
        std::swap(used_bytes, other.used_bytes);
        std::swap(release_, other.release_);
        return *this;
    }
    ~Arena() {
        if (base) release_(base, capacity_bytes);
    }

    template <class T>
    T* take(int64_t n) {
        T* pointer = reinterpret_cast<T*>(base + used_bytes);
        used_bytes += aligned(size_t(n) * sizeof(T));
        ensure(used_bytes <= capacity_bytes);
        return pointer;
    }

private:
    std::function<void(void*, size_t)> release_;
};
