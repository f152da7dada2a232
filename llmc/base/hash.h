/*
XXH3 (64-bit): the checksum of every file and tensor in a checkpoint, and the identity of a data set.

  hex64(xxh3(data, bytes))      "78af5f94892f3950", as `xxhsum -H3 FILE` prints it

  Hasher hasher;
  hasher.update(data, bytes);   as often as needed
  hasher.digest()               xxh3() of all pieces joined
*/
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

// The XXH3 of `bytes` bytes.
uint64_t xxh3(const void* data, size_t bytes);
std::string hex64(uint64_t value);  // sixteen digits

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
