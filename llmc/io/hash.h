/*
XXH3 (64 bit) of content that arrives in pieces: what checkpoints carry for every file and tensor.

  Hasher hasher;
  hasher.update(data, bytes);   as often as needed
  hasher.digest()               the same as xxh3() of all pieces joined, and as `xxhsum -H3`
*/
#pragma once
#include <cstddef>
#include <cstdint>

class Hasher {
public:
    Hasher();
    ~Hasher();
    Hasher(const Hasher&) = delete;
    Hasher& operator=(const Hasher&) = delete;
    void reset();
    void update(const void* data, size_t bytes);
    uint64_t digest() const;

private:
    void* state_;  // an XXH3_state_t; the library's header stays in hash.cpp
};
