// The README shows code that is compiled and run: each block stands, letter for letter, in a file here.
#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>

namespace {

std::string read_file(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(Readme, ShowsCodeThatCompiles) {
  const std::string readme = read_file("README.md");
  const std::string sources =
      read_file("tests/readme/train_a_head.cc") + read_file("tests/readme/square_test.cc");
  const std::string begin = "```cpp\n", end = "```\n";
  int blocks = 0;
  for (size_t at = readme.find(begin); at != std::string::npos; at = readme.find(begin, at)) {
    at += begin.size();
    const std::string block = readme.substr(at, readme.find(end, at) - at);
    EXPECT_NE(sources.find(block), std::string::npos) << block;
    ++blocks;
  }
  EXPECT_EQ(blocks, 3);
}

TEST(Readme, ShowsAnExampleThatLearns) {
  std::FILE* example = popen("tests/readme/train_a_head", "r");
  int step = 0;
  double loss = 0, first = 0;
  while (std::fscanf(example, "step %d: %lf nats per byte\n", &step, &loss) == 2) {
    if (first == 0) first = loss;
  }
  EXPECT_EQ(pclose(example), 0);
  EXPECT_EQ(step, 40);
  EXPECT_LT(loss, first);
}

}  // namespace
