// The benchmarks of single kernels: nothing else calls the program, so only this keeps it building.
#include <gtest/gtest.h>

#include <cstdio>
#include <string>

namespace tapehead {
namespace {

TEST(Kernels, AreListed) {
  FILE* program = popen("tools/bench/kernels --benchmark_list_tests", "r");
  ASSERT_NE(program, nullptr);
  std::string list;
  char part[4096];
  while (const size_t n = fread(part, 1, sizeof part, program)) list.append(part, n);
  EXPECT_EQ(pclose(program), 0);
  for (const char* kernel : {"matmul_logits", "matmul_grad_weight", "layer_norm", "adamw", "embedding"})
    EXPECT_NE(list.find(kernel), std::string::npos) << kernel << " is not in\n" << list;
}

}  // namespace
}  // namespace tapehead
