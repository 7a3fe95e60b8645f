#include "tapehead/tools/run_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "tapehead/core/error.h"
#include "tapehead/core/file.h"
#include "tapehead/tools/run_folder.h"

namespace tapehead {

RunLock::RunLock(const std::string& folder) : folder_(folder), path_(folder + "/lock") {
  make_folder(folder_);
  while (!take()) {
  }
  remove_unfinished_files(folder_);
}

// False where the file was removed by its last owner between opening and locking: the lock on it protects nothing.
bool RunLock::take() {
  descriptor_ = open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  check<SystemError>(descriptor_ >= 0, "cannot open {}: {}", path_, std::strerror(errno));
  if (flock(descriptor_, LOCK_EX | LOCK_NB) != 0) {
    const int reason = errno;
    close(descriptor_);
    check<SystemError>(reason == EWOULDBLOCK, "cannot lock {}: {}", path_, std::strerror(reason));
    fail<ValueError>(
        "[train] process {} is at work in {}: wait until it ends, stop it, or name another folder with --out",
        read_file(path_), folder_);
  }
  struct stat locked, named;
  const bool same =
      fstat(descriptor_, &locked) == 0 && stat(path_.c_str(), &named) == 0 && locked.st_ino == named.st_ino;
  const std::string process = std::to_string(getpid());
  if (same && ftruncate(descriptor_, 0) == 0 &&
      pwrite(descriptor_, process.data(), process.size(), 0) == std::ssize(process))
    return true;
  const int reason = errno;
  close(descriptor_);
  check<SystemError>(!same, "cannot write to {}: {}", path_, std::strerror(reason));
  return false;
}

void RunLock::release() {
  if (descriptor_ < 0) return;
  unlink(path_.c_str());
  close(std::exchange(descriptor_, -1));
  rmdir(folder_.c_str());  // refused where there is anything in it
}

}  // namespace tapehead
