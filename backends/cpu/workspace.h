// What a kernel works in beside its arguments.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <vector>

#include "tapehead/core/error.h"

namespace tapehead {

/// Allocates as tensors are: aligned to 64, and OutOfMemoryError where there is none.
template <class T>
struct WorkspaceAllocator {
  using value_type = T;

  WorkspaceAllocator() = default;
  template <class Other>
  WorkspaceAllocator(const WorkspaceAllocator<Other>&) {}

  T* allocate(size_t count) {
    const size_t bytes = (count * sizeof(T) + 63) / 64 * 64;
    void* memory = std::aligned_alloc(64, bytes);
    check<OutOfMemoryError>(memory != nullptr, "out of memory: {} bytes for a kernel's workspace", bytes);
    return static_cast<T*>(memory);
  }
  void deallocate(T* memory, size_t) noexcept { std::free(memory); }

  bool operator==(const WorkspaceAllocator&) const = default;
};

/// Memory that is not counted, as a library's is not. Threads may make one each: parallel_for throws on what
/// they throw.
template <class T>
using Workspace = std::vector<T, WorkspaceAllocator<T>>;

}  // namespace tapehead
