#include "tapehead/core/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "tapehead/core/error.h"

namespace tapehead {
namespace {

// Closes on every way out of a function that only reads.
struct Descriptor {
  int value;
  ~Descriptor() { ::close(value); }
};

// Opens for reading, and learns the size; `size` is 0 for pipes.
int open_to_read(const std::string& path, int64_t* size) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) {
    const int reason = errno;
    check<ValueError>(reason != ENOENT && reason != ENOTDIR,
                      "[read_file] there is no file {}; check the path", path);
    fail<SystemError>("[read_file] cannot open {}: {}", path, std::strerror(reason));
  }
  struct stat status;
  const bool known = ::fstat(descriptor, &status) == 0;
  if (!known || S_ISDIR(status.st_mode)) {
    const int reason = errno;
    ::close(descriptor);
    check<SystemError>(known, "[read_file] cannot examine {}: {}", path, std::strerror(reason));
    fail<ValueError>("[read_file] {} is a folder; name a file in it", path);
  }
  *size = status.st_size;
  return descriptor;
}

// A name is durable once its folder is. Some file systems cannot sync a folder (EINVAL): nothing to be done.
bool sync_folder_of(const std::string& path) {
  const std::string folder = std::filesystem::path(path).parent_path().string();
  const int descriptor = ::open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) {
    return false;
  }
  const bool synced = ::fsync(descriptor) == 0 || errno == EINVAL;
  const int reason = errno;
  ::close(descriptor);
  errno = reason;
  return synced;
}

// Where a file stands until it is whole. Nobody else makes one of this name.
std::string temporary_name(const std::string& path) {
  static std::atomic<int64_t> made{0};
  return fmt::format("{}.tmp.{}.{}", path, ::getpid(), made++);
}

bool is_temporary_name(const std::string& name) {
  const size_t at = name.rfind(".tmp.");
  if (at == name.npos) return false;
  const std::string numbers = name.substr(at + 5);  // PID.COUNT
  return std::count(numbers.begin(), numbers.end(), '.') == 1 &&
         numbers.find_first_not_of(".0123456789") == numbers.npos;
}

}  // namespace

std::string read_file(const std::string& path) {
  int64_t size = 0;
  const Descriptor file{open_to_read(path, &size)};
  std::string bytes;
  // One byte more than the file has, so that a whole file takes one read and one look at its end.
  bytes.resize(static_cast<size_t>(size) + 1);
  size_t filled = 0;
  while (true) {
    const ssize_t got = ::read(file.value, bytes.data() + filled, bytes.size() - filled);
    if (got < 0 && errno == EINTR) {
      continue;
    }
    check<SystemError>(got >= 0, "[read_file] cannot read {}: {}", path, std::strerror(errno));
    if (got == 0) {
      break;
    }
    filled += static_cast<size_t>(got);
    if (filled == bytes.size()) {
      bytes.resize(2 * bytes.size());
    }
  }
  bytes.resize(filled);
  return bytes;
}

void write_file_atomically(const std::string& path, std::string_view bytes) {
  AtomicFile file(path);
  file.write(bytes);
  file.commit();
}

void link_atomically(const std::string& existing, const std::string& path) {
  const std::string temporary = temporary_name(path);
  if (::link(existing.c_str(), temporary.c_str()) != 0) {
    write_file_atomically(path, read_file(existing));
    return;
  }
  if (::rename(temporary.c_str(), path.c_str()) != 0 || !sync_folder_of(path)) {
    const int reason = errno;
    ::unlink(temporary.c_str());
    fail<SystemError>("[write_file] cannot give {} the name {}: {}", existing, path, std::strerror(reason));
  }
  // Renaming a link to its own file does nothing, and leaves the other name.
  ::unlink(temporary.c_str());
}

std::string base_name(const std::string& path) {
  const auto normal = std::filesystem::path(path).lexically_normal();
  return (normal.has_filename() ? normal : normal.parent_path()).filename().string();
}

void make_folder(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  check<SystemError>(!error && std::filesystem::is_directory(path), "cannot make the folder {}: {}", path,
                     error ? error.message() : "a file is in its place");
}

void remove_unfinished_files(const std::string& folder) {
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (is_temporary_name(entry.path().filename().string())) std::filesystem::remove(entry.path());
  }
}

AtomicFile::AtomicFile(std::string path) : path_(std::move(path)) {
  do {
    temporary_ = temporary_name(path_);
    descriptor_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  } while (descriptor_ < 0 && errno == EEXIST);
  if (descriptor_ < 0) {
    refuse("create");
  }
}

AtomicFile::~AtomicFile() {
  if (descriptor_ >= 0) {
    ::close(descriptor_);
  }
  if (!temporary_.empty()) {
    ::unlink(temporary_.c_str());
  }
}

void AtomicFile::write(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t put = ::write(descriptor_, bytes.data(), bytes.size());
    if (put < 0 && errno == EINTR) {
      continue;
    }
    if (put < 0) {
      refuse("write");
    }
    bytes.remove_prefix(static_cast<size_t>(put));
  }
}

void AtomicFile::overwrite(int64_t offset, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t put = ::pwrite(descriptor_, bytes.data(), bytes.size(), offset);
    if (put < 0 && errno == EINTR) {
      continue;
    }
    if (put < 0) {
      refuse("write");
    }
    bytes.remove_prefix(static_cast<size_t>(put));
    offset += put;
  }
}

void AtomicFile::commit() {
  if (::fsync(descriptor_) != 0) {
    refuse("sync");
  }
  // Some file systems report a full disk only here.
  if (::close(std::exchange(descriptor_, -1)) != 0) {
    refuse("close");
  }
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) {
    refuse("rename the finished file to");
  }
  temporary_.clear();
  if (!sync_folder_of(path_)) {
    refuse("sync the folder of");
  }
}

void AtomicFile::refuse(const char* what) const {
  fail<SystemError>("[write_file] cannot {} {}: {}", what, path_, std::strerror(errno));
}

MappedFile::MappedFile(const std::string& path) {
  int64_t size = 0;
  const Descriptor file{open_to_read(path, &size)};
  // The kernel maps no empty range; an empty span says the same.
  if (size == 0) {
    return;
  }
  const auto length = static_cast<size_t>(size);
  // Private, so that writing copies; no swap is set aside for copies that are seldom made.
  void* address = ::mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, file.value, 0);
  check<SystemError>(address != MAP_FAILED, "[read_file] cannot map {} ({} bytes): {}", path, size,
                     std::strerror(errno));
  bytes_ = {static_cast<std::byte*>(address), length};
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) {
    ::munmap(bytes_.data(), bytes_.size());
  }
}

void MappedFile::release_before(int64_t end) {
  constexpr int64_t kStep = 1 << 20;  // whole pages, and enough of them to be worth a call
  end = end / kStep * kStep;
  if (end < released_) released_ = 0;  // read from the front again
  if (released_ == end) return;
  ::madvise(bytes_.data() + released_, static_cast<size_t>(end - released_), MADV_DONTNEED);
  released_ = end;
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : bytes_(std::exchange(other.bytes_, {})), released_(other.released_) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(bytes_, other.bytes_);
  std::swap(released_, other.released_);
  return *this;
}

}  // namespace tapehead
