#include "tapehead/core/log.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>
#include <spdlog/logger.h>

#include <cstdlib>
#include <thread>

#include "tapehead/core/error.h"

namespace tapehead {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::ThrowsMessage;

std::string shown(const std::function<void()>& body) {
  testing::internal::CaptureStderr();
  body();
  return testing::internal::GetCapturedStderr();
}

class LogTest : public testing::Test {
 protected:
  LogTest() { set_log_level("info"); }
};

TEST_F(LogTest, LinesGoToStandardErrorFromTheLevelOn) {
  const auto speak = [] {
    logger().debug("quiet {}", 1);
    logger().info("loud {}", 2);
  };
  EXPECT_EQ(shown(speak), "tapehead info: loud 2\n");
  set_log_level("debug");
  EXPECT_THAT(shown(speak), HasSubstr("tapehead debug: quiet 1\n"));
  set_log_level("off");
  EXPECT_EQ(shown(speak), "");
}

TEST_F(LogTest, AnUnknownLevelIsAnError) {
  EXPECT_THAT([] { set_log_level("verbose"); }, ThrowsMessage<ValueError>(HasSubstr("\"verbose\"")));
}

TEST_F(LogTest, AWarningIsIssuedOncePerKey) {
  const auto warn = [] {
    warn_once("once/a", "first {}");  // the message is no format
    warn_once("once/a", "second");
    warn_once("once/b", "third");
  };
  const size_t before = issued_warnings().size();
  EXPECT_EQ(shown(warn), "tapehead warning: first {}\ntapehead warning: third\n");
  ASSERT_EQ(issued_warnings().size(), before + 2);
  EXPECT_EQ(issued_warnings()[before].key, "once/a");
  EXPECT_EQ(issued_warnings()[before].message, "first {}");
  EXPECT_EQ(shown(warn), "");
  EXPECT_EQ(issued_warnings().size(), before + 2);
}

TEST_F(LogTest, WarningsAreKeptThoughNotShown) {
  set_log_level("off");
  EXPECT_EQ(shown([] { warn_once("kept", "x"); }), "");
  EXPECT_EQ(issued_warnings().back().key, "kept");
}

TEST_F(LogTest, OneOfManyThreadsWarns) {
  set_log_level("off");
  const size_t before = issued_warnings().size();
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([] {
      for (int k = 0; k < 100; ++k) warn_once(fmt::format("threads/{}", k), "x");
    });
  }
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(issued_warnings().size(), before + 100);
}

// Each child is a fresh process, in which logger() is called for the first time.
TEST(LogDeathTest, TheEnvironmentGivesTheFirstLevel) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto speak = [](const char* level) {
    setenv("TAPEHEAD_LOG", level, 1);
    logger().debug("quiet");
    logger().info("loud");
    std::exit(0);
  };
  EXPECT_EXIT(speak("debug"), testing::ExitedWithCode(0), "debug: quiet\n.*info: loud");
  EXPECT_EXIT(speak("info"), testing::ExitedWithCode(0), "^tapehead info: loud\n$");
  EXPECT_EXIT(speak("nonsense"), testing::ExitedWithCode(0), "TAPEHEAD_LOG=nonsense.*\n.*info: loud");
}

}  // namespace
}  // namespace tapehead
