// Regression: OpenBLAS took plain SSE on a processor younger than itself, at an eighth of the speed.
#include <cblas.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "tapehead/backends/backend.h"

extern "C" char* openblas_get_corename();

namespace tapehead {
namespace {

TEST(OpenBlasTest, UsesTheVectorUnitsThatTheProcessorHas) {
#ifdef __x86_64__
  backend(Device());  // links the backend, and with it what tells OpenBLAS
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma"))
    GTEST_SKIP() << "no wide vectors here";
  const std::string core = openblas_get_corename();
  EXPECT_STRNE(core.c_str(), "Prescott");
  EXPECT_STRCASEEQ(core.c_str(), std::getenv("OPENBLAS_CORETYPE"));
#endif
}

}  // namespace
}  // namespace tapehead
