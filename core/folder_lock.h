// One process at a time writes in a folder.
#pragma once

#include <functional>
#include <string>

namespace tapehead {

/// The right to write in a folder: flock on FOLDER/lock, which the system gives back however
/// the process ends.
class FolderLock {
 public:
  /// Makes the folder if it is not there. `on_taken` is told the number of the process that has the right, if
  /// there is one; unless it throws, the right is waited for. Throws SystemError if the machine refuses.
  FolderLock(const std::string& folder, const std::function<void(const std::string& process)>& on_taken);
  ~FolderLock() { release(); }
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

  /// Gives the right back: removes FOLDER/lock, and the folder if there is nothing in it.
  void release();

 private:
  bool take(const std::function<void(const std::string& process)>& on_taken);
  [[noreturn]] void refuse(const char* what) const;

  std::string folder_, path_;
  int descriptor_ = -1;
};

}  // namespace tapehead
