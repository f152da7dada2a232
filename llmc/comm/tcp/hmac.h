/*
HMAC-SHA-256 (RFC 2104, FIPS 180-4): proves knowledge of a secret without revealing it.

  const Digest proof = hmac_sha256(key, "rank 1 " + nonce);
  equal_digests(proof, theirs)                                   in constant time

As strong as the key, up to 256 bits. Portable code without special instructions, for messages of a few hundred bytes.
*/
#pragma once
#include <array>
#include <cstdint>
#include <string>

using Digest = std::array<uint8_t, 32>;

// The SHA-256 of a message of any length.
Digest sha256(const std::string& message);
// The HMAC of a message; the key may have any length.
Digest hmac_sha256(const std::string& key, const std::string& message);
// Takes the same time wherever the digests differ.
bool equal_digests(const Digest& a, const Digest& b);

// Unpredictable bytes, from the kernel.
std::string random_bytes(size_t n);
