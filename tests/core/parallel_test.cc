#include "tapehead/core/parallel.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>
#include <string>
#include <vector>

namespace tapehead {
namespace {

using ::testing::StrEq;
using ::testing::ThrowsMessage;

TEST(Parallel, RangesCoverAllOnce) {
  for (const int64_t n : {0, 1, 7, 1000}) {
    std::vector<int> seen(static_cast<size_t>(n));
    parallel_for(n, 3, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) ++seen[static_cast<size_t>(i)];
    });
    EXPECT_EQ(seen, std::vector<int>(static_cast<size_t>(n), 1)) << n;
  }
}

// It ended the process: no exception may leave a thread of OpenMP's.
TEST(Parallel, AnExceptionOfAnyThreadReachesTheCaller) {
  const int64_t threads = omp_get_max_threads();
  for (int64_t failing = 0; failing < threads; ++failing) {
    std::atomic<int64_t> done = 0;
    const auto call = [&] {
      parallel_for(threads, 1, [&](int64_t begin, int64_t) {
        if (begin == failing) throw std::runtime_error("refused");
        ++done;
      });
    };
    EXPECT_THAT(call, ThrowsMessage<std::runtime_error>(StrEq("refused")));
    EXPECT_EQ(done, threads - 1) << "the other ranges are done with";
  }
}

TEST(Parallel, OfSeveralExceptionsTheFirstRangesIsThrown) {
  for (int round = 0; round < 100; ++round) {
    const auto call = [&] {
      parallel_for(64, 1, [&](int64_t begin, int64_t) { throw std::runtime_error(std::to_string(begin)); });
    };
    EXPECT_THAT(call, ThrowsMessage<std::runtime_error>(StrEq("0")));
  }
}

}  // namespace
}  // namespace tapehead
