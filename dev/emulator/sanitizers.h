// Defines ANVIL_MSAN or ANVIL_ASAN under that sanitizer, with g++ and with clang.
#pragma once
#if defined(__has_feature)
#if __has_feature(memory_sanitizer)
#define ANVIL_MSAN
#endif
#if __has_feature(address_sanitizer)
#define ANVIL_ASAN
#endif
#endif
#if defined(__SANITIZE_ADDRESS__)
#define ANVIL_ASAN
#endif
