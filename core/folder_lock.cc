#include "tapehead/core/folder_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "tapehead/core/error.h"
#include "tapehead/core/file.h"

namespace tapehead {

static std::string read_process(int descriptor) {
  char text[32];
  const ssize_t size = pread(descriptor, text, sizeof(text), 0);
  return {text, static_cast<size_t>(size > 0 ? size : 0)};
}

FolderLock::FolderLock(const std::string& folder,
                       const std::function<void(const std::string& process)>& on_taken)
    : folder_(folder), path_(folder + "/lock") {
  while (!take(on_taken)) {
  }
}

void FolderLock::refuse(const char* what) const {
  const int reason = errno;
  if (descriptor_ >= 0) close(descriptor_);
  fail<SystemError>("cannot {} {}: {}", what, path_, std::strerror(reason));
}

// False where its last owner removed the folder before the file was opened, or the file
// before it was locked: the lock on that protects nothing.
bool FolderLock::take(const std::function<void(const std::string& process)>& on_taken) {
  make_folder(folder_);
  descriptor_ = open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (descriptor_ < 0 && errno == ENOENT) return false;
  if (descriptor_ < 0) refuse("open");
  if (flock(descriptor_, LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) refuse("lock");
    try {
      on_taken(read_process(descriptor_));
    } catch (...) {
      close(descriptor_);
      throw;
    }
    while (flock(descriptor_, LOCK_EX) != 0) {
      if (errno != EINTR) refuse("lock");
    }
  }
  struct stat locked, named;
  const bool same =
      fstat(descriptor_, &locked) == 0 && stat(path_.c_str(), &named) == 0 && locked.st_ino == named.st_ino;
  if (!same) {
    close(descriptor_);
    return false;
  }
  const std::string process = std::to_string(getpid());
  if (ftruncate(descriptor_, 0) != 0 ||
      pwrite(descriptor_, process.data(), process.size(), 0) != std::ssize(process))
    refuse("write to");
  return true;
}

void FolderLock::release() {
  if (descriptor_ < 0) return;
  unlink(path_.c_str());
  close(std::exchange(descriptor_, -1));
  rmdir(folder_.c_str());  // refused where there is anything in it
}

}  // namespace tapehead
