// One process at a time trains in a run's folder.
#pragma once

#include <string>

namespace tapehead {

/// The right to write in a folder: flock on FOLDER/lock, which the system gives back however the process ends.
class RunLock {
 public:
  /// Makes the folder if it is not there, and removes what a process that was killed left unfinished in it. Throws
  /// ValueError that names the process that has the right, SystemError if the machine refuses.
  explicit RunLock(const std::string& folder);
  ~RunLock() { release(); }
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

  /// Gives the right back: removes FOLDER/lock, and the folder if there is nothing in it.
  void release();

 private:
  bool take();

  std::string folder_, path_;
  int descriptor_ = -1;
};

}  // namespace tapehead
