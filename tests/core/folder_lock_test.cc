#include "tapehead/core/folder_lock.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>

#include "tapehead/core/error.h"
#include "tapehead/core/file.h"

namespace tapehead {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

// Locks of one process exclude each other as those of two do.
class FolderLockTest : public testing::Test {
 protected:
  FolderLockTest() { fs::remove_all(folder_); }

  static void refuse(const std::string& process) { throw std::runtime_error("taken by " + process); }
  void expect_taken() const {
    EXPECT_THAT([&] { FolderLock(folder_, refuse); },
                ThrowsMessage<std::runtime_error>("taken by " + std::to_string(getpid())));
  }

  const std::string folder_ = testing::TempDir() + "folder_lock_test/inner", file_ = folder_ + "/lock";
};

TEST_F(FolderLockTest, OneHasItAndTheNextIsToldWho) {
  FolderLock lock(folder_, refuse);
  EXPECT_EQ(read_file(file_), std::to_string(getpid()));
  expect_taken();
  expect_taken();  // being refused changed nothing
  lock.release();
  EXPECT_NO_THROW(FolderLock(folder_, refuse));
}

TEST_F(FolderLockTest, GivenBackItLeavesNothingOfItsOwn) {
  { FolderLock lock(folder_, refuse); }
  EXPECT_FALSE(fs::exists(folder_));
  FolderLock lock(folder_, refuse);
  write_file_atomically(folder_ + "/other", "");
  lock.release();
  lock.release();  // once is enough
  EXPECT_FALSE(fs::exists(file_));
  EXPECT_TRUE(fs::exists(folder_ + "/other"));
}

// The file that a waiting one has locked is removed by the one before: it must not take
// the lock on that for its own.
TEST_F(FolderLockTest, WhoWaitsGetsItWhenItIsGivenBack) {
  std::optional<FolderLock> first(std::in_place, folder_, refuse);
  std::atomic<bool> waits = false, has = false, done = false;
  std::thread second([&] {
    const FolderLock lock(folder_, [&](const std::string&) { waits = true; });
    has = true;
    while (!done) std::this_thread::yield();
  });
  while (!waits) std::this_thread::yield();
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_FALSE(has);
  first.reset();
  while (!has) std::this_thread::yield();
  EXPECT_TRUE(fs::exists(file_));
  expect_taken();
  done = true;
  second.join();
}

TEST_F(FolderLockTest, AProcessThatWasKilledHasItNoMore) {
  fs::create_directories(folder_);
  const pid_t child = fork();
  if (child == 0) {
    const FolderLock lock(folder_, refuse);
    for (;;) pause();
  }
  std::error_code none;
  while (fs::file_size(file_, none) == 0 || none) std::this_thread::yield();
  EXPECT_THAT([&] { FolderLock(folder_, refuse); },
              ThrowsMessage<std::runtime_error>("taken by " + std::to_string(child)));
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  EXPECT_TRUE(fs::exists(file_));
  const FolderLock lock(folder_, refuse);
  EXPECT_EQ(read_file(file_), std::to_string(getpid()));
}

TEST_F(FolderLockTest, AFolderThatCannotBeMadeIsNamed) {
  fs::create_directories(fs::path(folder_).parent_path());
  write_file_atomically(folder_, "a file");
  EXPECT_THAT([&] { FolderLock(folder_, refuse); },
              ThrowsMessage<SystemError>(HasSubstr("cannot make the folder " + folder_)));
  fs::remove(folder_);
}

}  // namespace
}  // namespace tapehead
