#include "tapehead/tools/metrics.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "tapehead/core/file.h"

namespace tapehead {
namespace {

class Metrics : public testing::Test {
 protected:
  const std::string path_ = testing::TempDir() + "metrics.jsonl";
  void SetUp() override { std::filesystem::remove(path_); }
};

StepMetrics step(int64_t at, double loss) {
  return {.step = at, .loss = loss, .smoothed_loss = 3, .lr = 0.5, .tokens = 8, .seconds = 0.25};
}

TEST_F(Metrics, AreOneObjectALine) {
  MetricsLog log(path_, 0, 0);
  log.add(step(1, 2.5));
  log.add(Evaluation{.step = 1, .loss = 2, .tokens = 10, .accuracy = 0.25, .entropy = 3, .seconds = 1}, 0);
  EXPECT_EQ(
      read_file(path_),
      "{\"step\":1,\"loss\":2.5,\"smoothed_loss\":3.0,\"lr\":0.5,\"grad_norm\":0.0,\"tokens\":8,"
      "\"seconds\":0.25,\"epoch\":0}\n"
      "{\"step\":1,\"held_out_loss\":2.0,\"held_out_accuracy\":0.25,\"held_out_entropy\":3.0,\"tokens\":10,"
      "\"seconds\":1.0}\n");
}

TEST_F(Metrics, HaveBitsPerByteWhereBytesAreKnown) {
  MetricsLog log(path_, 0, 0);
  log.add(Evaluation{.step = 1, .loss = std::log(2.0) * 3, .tokens = 10}, 15);
  EXPECT_NE(read_file(path_).find("\"bits_per_byte\":2.0"), std::string::npos) << read_file(path_);
}

// A process that was killed has steps behind its checkpoint in its history, and perhaps half a line.
TEST_F(Metrics, OfStepsAfterTheCheckpointAreDropped) {
  {
    MetricsLog log(path_, 0, 0);
    for (int64_t at = 1; at <= 5; ++at) {
      log.add(step(at, static_cast<double>(at)));
      log.add(Evaluation{.step = at}, 0);
    }
  }
  write_file_atomically(path_, read_file(path_) + "{\"step\":2,\"lo");
  MetricsLog log(path_, 3, 2);
  log.add(step(4, 40));
  const History history = read_history(path_);
  ASSERT_EQ(history.training.size(), 4u);
  EXPECT_EQ(history.training.back().x, 4);
  EXPECT_EQ(history.training.back().y, 40);
  ASSERT_EQ(history.held_out.size(), 2u);  // the third was made after the checkpoint
}

TEST_F(Metrics, SurviveALossThatIsNoNumber) {
  MetricsLog log(path_, 0, 0);
  log.add(step(1, std::nan("")));
  log.add(step(2, 1));
  EXPECT_EQ(read_history(path_).training.size(), 1u);
}

TEST_F(Metrics, ChartNamesTheRun) {
  const std::string picture =
      loss_chart({.training = {{1, 9}, {2, 8}}, .held_out = {{2, 8.5}}}, "book.txt · 4 layers", "token");
  EXPECT_NE(picture.find("book.txt · 4 layers"), std::string::npos);
  EXPECT_NE(picture.find("nats per token"), std::string::npos);
  EXPECT_NE(picture.find(">8.50<"), std::string::npos);
}

}  // namespace
}  // namespace tapehead
