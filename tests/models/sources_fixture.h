// A folder of a test's own, with sources in it.
#pragma once

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace tapehead {

class SourcesTest : public testing::Test {
 protected:
  SourcesTest() {
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }

  std::string path(const std::string& name) const { return (folder_ / name).string(); }

  std::string write(const std::string& name, const std::string& bytes) const {
    std::filesystem::create_directories((folder_ / name).parent_path());
    std::ofstream(path(name), std::ios::binary) << bytes;
    return path(name);
  }

  // Lines of words, numbered.
  static std::string lines(int count, int first = 0) {
    std::string text;
    for (int i = first; i < first + count; ++i)
      text += fmt::format("line {} tells of {} apples\n", i, i * i % 37) + (i % 7 == 0 ? "\n" : "");
    return text;
  }

  static std::string json_lines(int count) {
    std::string text;
    for (int i = 0; i < count; ++i)
      text += fmt::format("{{\"text\": \"document {} of {}\"}}\n", i, i * i % 31);
    return text;
  }

  const std::filesystem::path folder_ = std::filesystem::path(testing::TempDir()) /
                                        testing::UnitTest::GetInstance()->current_test_info()->name();
};

}  // namespace tapehead
