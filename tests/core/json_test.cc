#include "tapehead/core/json.h"

#include "tapehead/core/file.h"
#include "tapehead/tests/testing.h"

namespace tapehead {
namespace {

class JsonFile : public testing::Test {
 protected:
  const std::string path_ =
      testing::TempDir() + testing::UnitTest::GetInstance()->current_test_info()->name() + ".json";
};

TEST_F(JsonFile, AnObjectKeepsItsOrder) {
  write_file_atomically(path_, R"({"z": 1, "a": [2]})");
  EXPECT_EQ(read_json_object("test", path_).dump(), R"({"z":1,"a":[2]})");
  EXPECT_EQ(find_json_object(path_).dump(), R"({"z":1,"a":[2]})");
}

TEST_F(JsonFile, WhatIsNoObjectIsToldOrNull) {
  for (const char* text : {"", "[1]", "null", "{\"cut\": "}) {
    write_file_atomically(path_, text);
    expect_error<ValueError>([&] { read_json_object("test", path_); },
                             "[test] " + path_ + " holds no JSON object");
    EXPECT_TRUE(find_json_object(path_).is_null()) << text;
  }
}

TEST_F(JsonFile, NoFileIsToldOrNull) {
  expect_error<ValueError>([&] { read_json_object("test", path_); }, "there is no file " + path_);
  EXPECT_TRUE(find_json_object(path_).is_null());
}

}  // namespace
}  // namespace tapehead
