// See hash.h.
#include "llmc/base/hash.h"

// GCC 12 warns about its own AVX-512 intrinsics when they are inlined (GCC bug 105593).
#pragma GCC diagnostic ignored "-Wuninitialized"
#if !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#define XXH_INLINE_ALL
#include <xxhash.h>
#include "llmc/base/check.h"  // ensure, format

static XXH3_state_t* state_of(void* state) { return static_cast<XXH3_state_t*>(state); }

Hasher::Hasher() : state_(XXH3_createState()) {
    ensure(state_);
    reset();
}

Hasher::~Hasher() { XXH3_freeState(state_of(state_)); }

void Hasher::reset() { XXH3_64bits_reset(state_of(state_)); }

void Hasher::update(const void* data, size_t bytes) {
    if (bytes > 0) XXH3_64bits_update(state_of(state_), data, bytes);
}

uint64_t Hasher::digest() const { return XXH3_64bits_digest(state_of(state_)); }

uint64_t xxh3(const void* data, size_t bytes) { return XXH3_64bits(data, bytes); }

std::string hex64(uint64_t value) { return format("%016lx", value); }
