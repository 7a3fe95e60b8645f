// Memory that may not be touched, where AddressSanitizer watches.
#pragma once

#include <cstddef>

#if defined(__SANITIZE_ADDRESS__)
#define CUDA_EMULATOR_ASAN
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define CUDA_EMULATOR_ASAN
#endif
#endif

#ifdef CUDA_EMULATOR_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace cuda_emulator {

inline void poison([[maybe_unused]] const void* memory, [[maybe_unused]] size_t bytes) {
#ifdef CUDA_EMULATOR_ASAN
  __asan_poison_memory_region(memory, bytes);
#endif
}

inline void unpoison([[maybe_unused]] const void* memory, [[maybe_unused]] size_t bytes) {
#ifdef CUDA_EMULATOR_ASAN
  __asan_unpoison_memory_region(memory, bytes);
#endif
}

}  // namespace cuda_emulator
