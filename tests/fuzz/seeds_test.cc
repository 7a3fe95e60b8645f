// Gives a fuzzer the inputs that are kept in a folder: a few that reach far, and every
// one that was once a finding.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "tapehead/tests/fuzz/fuzzer.h"

namespace {

TEST(Fuzzer, TakesEverySeed) {
  int seeds = 0;
  for (const auto& entry : std::filesystem::directory_iterator(std::getenv("SEEDS"))) {
    SCOPED_TRACE(entry.path().string());
    std::ifstream file(entry.path(), std::ios::binary);
    const std::string bytes{std::istreambuf_iterator<char>(file), {}};
    LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
    ++seeds;
  }
  EXPECT_GE(seeds, 10);
}

}  // namespace
