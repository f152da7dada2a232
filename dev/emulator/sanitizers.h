// ANVIL_MSAN, ANVIL_ASAN: which sanitizer this is compiled with, by g++'s name for it and by clang's.
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
