#include "tapehead/core/sharded_safetensors.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "tapehead/core/file.h"

namespace tapehead {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

// A folder of two shards, a and b in the first, c in the second, and their index.
class ShardedSafetensorsTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = testing::TempDir() + testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
    write_safetensors(path("one.safetensors"), {{"b", Tensor::full({2}, 2)}, {"a", Tensor::full({1}, 1)}});
    write_safetensors(path("two.safetensors"), {{"c", Tensor::full({3}, 3)}});
    index(R"({"a": "one.safetensors", "b": "one.safetensors", "c": "two.safetensors"})");
  }

  std::string path(const std::string& name) const { return folder_ + "/" + name; }
  void index(const std::string& weight_map) {
    write_index(R"({"metadata": {"total_size": 24}, "weight_map": )" + weight_map + "}");
  }
  void write_index(const std::string& text) {
    write_file_atomically(path("model.safetensors.index.json"), text);
  }

  // Expects a ValueError that holds all of these.
  void expect_refusal(const std::vector<std::string>& says) const {
    try {
      ShardedSafetensors::open(folder_);
      ADD_FAILURE() << "accepted, without " << says.front();
    } catch (const ValueError& error) {
      EXPECT_THAT(error.what(), HasSubstr("[safetensors] " + folder_));
      for (const std::string& text : says) EXPECT_THAT(error.what(), HasSubstr(text));
    }
  }

  std::string folder_;
};

TEST_F(ShardedSafetensorsTest, ShardsReadAsOneFile) {
  const ShardedSafetensors file = ShardedSafetensors::open(folder_);
  EXPECT_THAT(file.names(), ElementsAre("a", "b", "c"));
  EXPECT_TRUE(file.contains("c"));
  EXPECT_THAT(file.tensor("b").to_vector<float>(), ElementsAre(2, 2));
  EXPECT_THAT(file.tensor("c").to_vector<float>(), ElementsAre(3, 3, 3));
  EXPECT_TRUE(file.tensor("c").storage()->is_foreign()) << "mapped, not copied";
  EXPECT_FALSE(file.contains("d"));
  EXPECT_THAT([&] { file.tensor("d"); },
              ThrowsMessage<ValueError>(AllOf(HasSubstr(folder_), HasSubstr("\"d\""))));
}

TEST_F(ShardedSafetensorsTest, TensorsOutliveItAndItMoves) {
  Tensor c;
  {
    ShardedSafetensors first = ShardedSafetensors::open(folder_);
    const ShardedSafetensors second = std::move(first);
    c = second.tensor("c");
  }
  EXPECT_THAT(c.to_vector<float>(), ElementsAre(3, 3, 3));
}

TEST_F(ShardedSafetensorsTest, AWholeFileGoesBeforeAnIndex) {
  write_safetensors(path("model.safetensors"), {{"x", Tensor::full({1}, 4)}});
  EXPECT_THAT(ShardedSafetensors::open(folder_).names(), ElementsAre("x"));
}

TEST_F(ShardedSafetensorsTest, RefusesFoldersWithoutWeights) {
  std::filesystem::remove(path("model.safetensors.index.json"));
  expect_refusal({"neither model.safetensors nor model.safetensors.index.json"});
  write_file_atomically(path("pytorch_model.bin"), "x");
  expect_refusal({"pytorch_model.bin", "transformers"});
}

TEST_F(ShardedSafetensorsTest, RefusesAnIndexThatIsNone) {
  for (const char* text : {"", "{", "[]", "{}", R"({"weight_map": []})", R"({"weight_map": null})"}) {
    write_index(text);
    expect_refusal({"model.safetensors.index.json"});
  }
  index(R"({"a": 1})");
  expect_refusal({"\"a\"", "no file's name"});
}

TEST_F(ShardedSafetensorsTest, ReadsNothingOutsideTheFolder) {
  for (const char* file : {"../one.safetensors", "/one.safetensors", "sub/one.safetensors", "..", ".", ""}) {
    index(fmt::format(R"({{"a": "{}"}})", file));
    EXPECT_THROW(ShardedSafetensors::open(folder_), ValueError) << file;
  }
  index(R"({"a": "../one.safetensors"})");
  expect_refusal({"\"a\"", "../one.safetensors", "beside its index"});
}

TEST_F(ShardedSafetensorsTest, NamesShardsThatAreMissing) {
  index(
      R"({"a": "one.safetensors", "b": "one.safetensors", "c": "three.safetensors", "d": "three.safetensors",
            "e": "four.safetensors"})");
  expect_refusal({"three.safetensors is missing; ", "four.safetensors is missing"});
}

TEST_F(ShardedSafetensorsTest, NamesTensorsThatAreElsewhereOrNowhere) {
  index(R"({"a": "one.safetensors", "b": "two.safetensors", "d": "two.safetensors"})");
  expect_refusal({"two.safetensors should hold \"b\" and does not",
                  "two.safetensors should hold \"d\" and does not",
                  "one.safetensors holds \"b\", which the index has in two.safetensors",
                  "two.safetensors holds \"c\", which the index does not name"});
}

TEST_F(ShardedSafetensorsTest, SaysHowMuchElseIsWrong) {
  std::string map = R"("a": "one.safetensors", "b": "one.safetensors", "c": "two.safetensors")";
  for (int i = 0; i < 12; ++i) map += fmt::format(R"(, "x{:02}": "two.safetensors")", i);
  index("{" + map + "}");
  expect_refusal({"\"x00\"", "\"x04\"", "; and 7 more"});
}

TEST_F(ShardedSafetensorsTest, RefusesAShardCutShort) {
  std::filesystem::resize_file(path("two.safetensors"),
                               std::filesystem::file_size(path("two.safetensors")) - 1);
  expect_refusal({"two.safetensors", "\"c\"", "cut short"});
}

}  // namespace
}  // namespace tapehead
