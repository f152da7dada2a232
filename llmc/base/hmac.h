/*
HMAC-SHA-256 (RFC 2104, FIPS 180-4): proof of a secret that does not give it away.

  const Digest proof = hmac_sha256(key, "rank 1 " + nonce);
  equal_digests(proof, theirs)                                   in a time that does not tell where they differ

As strong as the key, up to 256 bits. For messages of some hundred bytes: plain code, no tables and no instructions of a
certain processor.
*/
#pragma once
#include <array>
#include <cstdint>
#include <string>

using Digest = std::array<uint8_t, 32>;

Digest sha256(const std::string& message);
Digest hmac_sha256(const std::string& key, const std::string& message);
bool equal_digests(const Digest& a, const Digest& b);

// Bytes that nobody can guess, from the kernel.
std::string random_bytes(size_t n);
