#include "tapehead/core/file.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "tapehead/core/error.h"

namespace tapehead {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

class FileTest : public testing::Test {
 protected:
  FileTest() {
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }

  std::vector<std::string> names() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
      names.push_back(entry.path().filename().string());
    }
    return names;
  }

  const std::string folder_ =
      testing::TempDir() + testing::UnitTest::GetInstance()->current_test_info()->name();
  const std::string path_ = folder_ + "/file";
};

// No file may grow beyond a size: what a full disk does to write(), without a disk to fill.
class LimitFileSize {
 public:
  explicit LimitFileSize(rlim_t bytes) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit{bytes, before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    handler_ = std::signal(SIGXFSZ, SIG_IGN);
  }
  ~LimitFileSize() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }

 private:
  rlimit before_{};
  void (*handler_)(int) = SIG_DFL;
};

TEST_F(FileTest, EveryByteComesBack) {
  std::string bytes;
  for (int i = 0; i < 100'000; ++i) {
    bytes += static_cast<char>(i % 257);
  }
  for (const std::string& written : {std::string(), std::string("\0\r\n", 3), bytes}) {
    write_file_atomically(path_, written);
    EXPECT_EQ(read_file(path_), written);
    const MappedFile mapped(path_);
    EXPECT_EQ(std::string(reinterpret_cast<const char*>(mapped.bytes().data()), mapped.bytes().size()),
              written);
  }
  EXPECT_THAT(names(), ElementsAre("file"));
}

TEST_F(FileTest, APipeIsReadToItsEnd) {
  const std::string bytes(300'000, 'p');
  ASSERT_EQ(::mkfifo(path_.c_str(), 0600), 0);
  std::thread writer([&] {
    FILE* pipe = std::fopen(path_.c_str(), "w");
    std::fwrite(bytes.data(), 1, bytes.size(), pipe);
    std::fclose(pipe);
  });
  EXPECT_EQ(read_file(path_), bytes);
  writer.join();
}

TEST_F(FileTest, WhatTheUserGotWrongIsAValueErrorThatNamesThePath) {
  EXPECT_THAT([&] { read_file(path_); },
              ThrowsMessage<ValueError>(AllOf(HasSubstr("no file"), HasSubstr(path_))));
  EXPECT_THAT([&] { read_file(folder_); },
              ThrowsMessage<ValueError>(AllOf(HasSubstr("folder"), HasSubstr(folder_))));
  EXPECT_THROW(MappedFile{path_}, ValueError);
  EXPECT_THROW(MappedFile{folder_}, ValueError);
}

TEST_F(FileTest, AFileThatMayNotBeReadIsASystemError) {
  write_file_atomically(path_, "secret");
  std::filesystem::permissions(path_, std::filesystem::perms::none);
  if (::geteuid() == 0) {
    GTEST_SKIP() << "root may read everything";
  }
  EXPECT_THAT([&] { read_file(path_); },
              ThrowsMessage<SystemError>(AllOf(HasSubstr("Permission denied"), HasSubstr(path_))));
}

TEST_F(FileTest, AnUncommittedFileLeavesTheOldOne) {
  write_file_atomically(path_, "old");
  {
    AtomicFile file(path_);
    file.write("new");
    EXPECT_EQ(read_file(path_), "old");
  }
  EXPECT_EQ(read_file(path_), "old");
  EXPECT_THAT(names(), ElementsAre("file"));
}

TEST_F(FileTest, PartsAreOneFileOnceCommitted) {
  AtomicFile file(path_);
  file.write("one ");
  file.write("");
  file.write("two");
  file.commit();
  EXPECT_EQ(read_file(path_), "one two");
  EXPECT_THAT(names(), ElementsAre("file"));
}

TEST_F(FileTest, AFullDiskLeavesTheOldFileAndNoHalfOne) {
  write_file_atomically(path_, "old");
  {
    const LimitFileSize limit(1000);
    EXPECT_THAT([&] { write_file_atomically(path_, std::string(5000, 'x')); },
                ThrowsMessage<SystemError>(AllOf(HasSubstr(path_), HasSubstr("File too large"))));
  }
  EXPECT_EQ(read_file(path_), "old");
  EXPECT_THAT(names(), ElementsAre("file"));
}

TEST_F(FileTest, AFolderThatIsNotThereIsASystemErrorThatNamesThePath) {
  const std::string path = folder_ + "/missing/file";
  EXPECT_THAT([&] { write_file_atomically(path, "x"); },
              ThrowsMessage<SystemError>(AllOf(HasSubstr(path), HasSubstr("No such file or directory"))));
}

TEST_F(FileTest, AFolderInTheFilesPlaceIsASystemErrorAndNothingIsLeft) {
  std::filesystem::create_directory(path_);
  EXPECT_THAT([&] { write_file_atomically(path_, "x"); },
              ThrowsMessage<SystemError>(AllOf(HasSubstr(path_), HasSubstr("directory"))));
  EXPECT_THAT(names(), ElementsAre("file"));
}

TEST_F(FileTest, FoldersAreMadeWithThoseAboveAndAFileInOnesPlaceIsNamed) {
  make_folder(folder_ + "/a/b");
  make_folder(folder_ + "/a/b");
  write_file_atomically(folder_ + "/a/b/file", "x");
  for (const std::string& path : {folder_ + "/a/b/file", folder_ + "/a/b/file/c"})
    EXPECT_THAT([&] { make_folder(path); },
                ThrowsMessage<SystemError>(HasSubstr("cannot make the folder " + path)));
}

TEST_F(FileTest, OfTwoOpenAtOnceTheLastCommittedStays) {
  AtomicFile one(path_);
  AtomicFile two(path_);
  one.write("one");
  two.write("two");
  two.commit();
  one.commit();
  EXPECT_EQ(read_file(path_), "one");
  EXPECT_THAT(names(), ElementsAre("file"));
}

TEST_F(FileTest, WhatACrashedProcessOfTheSameNumberLeftIsNotWrittenInto) {
  for (int i = 0; i < 1000; ++i) {
    std::ofstream(path_ + ".tmp." + std::to_string(::getpid()) + "." + std::to_string(i)) << "left over";
  }
  write_file_atomically(path_, "new");
  EXPECT_EQ(read_file(path_), "new");
}

TEST_F(FileTest, WritersOfOnePathDoNotMix) {
  std::vector<std::thread> writers;
  for (const char letter : {'a', 'b', 'c', 'd'}) {
    writers.emplace_back([this, letter] {
      for (int i = 0; i < 20; ++i) {
        write_file_atomically(path_, std::string(10'000, letter));
      }
    });
  }
  for (std::thread& writer : writers) {
    writer.join();
  }
  const std::string bytes = read_file(path_);
  EXPECT_EQ(bytes, std::string(10'000, bytes[0]));
  EXPECT_THAT(names(), ElementsAre("file"));
}

TEST_F(FileTest, ABareNameIsInTheWorkingFolder) {
  const auto before = std::filesystem::current_path();
  std::filesystem::current_path(folder_);
  write_file_atomically("bare", "x");
  EXPECT_EQ(read_file("bare"), "x");
  std::filesystem::current_path(before);
}

TEST_F(FileTest, ANewFileHasThePermissionsOfAnyOther) {
  const mode_t before = ::umask(022);
  write_file_atomically(path_, "x");
  ::umask(before);
  struct stat status;
  ASSERT_EQ(::stat(path_.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0644);
}

TEST_F(FileTest, BytesWrittenBeforeAreOverwritten) {
  AtomicFile file(path_);
  file.write("0000 counted");
  file.overwrite(1, "12");
  file.write(" things");
  file.commit();
  EXPECT_EQ(read_file(path_), "0120 counted things");
}

TEST_F(FileTest, ReleasedBytesComeInAgainAsTheyAreInTheFile) {
  constexpr int64_t kStep = 1 << 20;
  std::string bytes;
  for (int64_t i = 0; i < 3 * kStep + 100; ++i) bytes += static_cast<char>(i % 251);
  write_file_atomically(path_, bytes);
  MappedFile file(path_);
  const auto text = [&] {
    return std::string(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size());
  };
  for (int pass = 0; pass < 2; ++pass) {
    EXPECT_EQ(text(), bytes);
    // Pages of our own tell what was released: they are lost then.
    for (int64_t step = 0; step < 3; ++step)
      file.private_bytes()[static_cast<size_t>(step * kStep)] = std::byte{255};
    file.release_before(kStep - 1);
    EXPECT_EQ(file.bytes()[0], std::byte{255});
    file.release_before(2 * kStep + 5);
    EXPECT_NE(file.bytes()[0], std::byte{255});
    EXPECT_NE(file.bytes()[kStep], std::byte{255});
    EXPECT_EQ(file.bytes()[2 * kStep], std::byte{255});
    file.release_before(std::ssize(bytes));
  }
}

TEST(BaseName, IsTheLastNameOfFilesAndFolders) {
  EXPECT_EQ(base_name("runs/book"), "book");
  EXPECT_EQ(base_name("runs/book/"), "book");
  EXPECT_EQ(base_name("runs/./book/../book.txt"), "book.txt");
  EXPECT_EQ(base_name("book"), "book");
}

}  // namespace
}  // namespace tapehead
