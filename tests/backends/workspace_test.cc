#include "tapehead/backends/cpu/workspace.h"

#include <gtest/gtest.h>

#include <cstdint>

#include "tapehead/core/parallel.h"
#include "tapehead/tests/testing.h"

namespace tapehead {
namespace {

TEST(Workspace, StandsAsTensorsDo) {
  for (const size_t count : {1, 3, 1000}) {
    const Workspace<float> numbers(count);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(numbers.data()) % 64, 0u);
    EXPECT_EQ(numbers, Workspace<float>(count, 0.f));
  }
}

// It ended the process.
TEST(Workspace, AThreadThatFindsNoMemoryIsAnOutOfMemoryErrorOfTheCaller) {
  const auto call = [] {
    parallel_for(64, 1, [](int64_t, int64_t) { const Workspace<float> numbers(size_t{1} << 59); });
  };
  expect_error<OutOfMemoryError>(call, "2305843009213693952 bytes for a kernel's workspace");
}

}  // namespace
}  // namespace tapehead
