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
  LogTest() {
    set_log_level("info");
    clear_warnings();
  }
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
    warn_once("a", "first {}");  // the message is no format
    warn_once("a", "second");
    warn_once("b", "third");
  };
  EXPECT_EQ(shown(warn), "tapehead warning: first {}\ntapehead warning: third\n");
  ASSERT_EQ(issued_warnings().size(), 2u);
  EXPECT_EQ(issued_warnings()[0].key, "a");
  EXPECT_EQ(issued_warnings()[0].message, "first {}");
  EXPECT_EQ(shown(warn), "");
  clear_warnings();
  EXPECT_TRUE(issued_warnings().empty());
  EXPECT_THAT(shown(warn), HasSubstr("third"));
}

TEST_F(LogTest, WarningsAreKeptThoughNotShown) {
  set_log_level("off");
  EXPECT_EQ(shown([] { warn_once("a", "x"); }), "");
  EXPECT_EQ(issued_warnings().size(), 1u);
}

TEST_F(LogTest, OneOfManyThreadsWarns) {
  set_log_level("off");
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([] {
      for (int k = 0; k < 100; ++k) warn_once(std::to_string(k), "x");
    });
  }
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(issued_warnings().size(), 100u);
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
