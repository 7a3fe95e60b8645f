// One process at a time trains in a run's folder.
#pragma once

#include <string>

#include "tapehead/core/folder_lock.h"

namespace tapehead {

class RunLock {
 public:
  /// Makes the folder if it is not there, and removes what a process that was killed left unfinished in it.
  /// `program` begins the error. Throws ValueError that names the process that has the right, SystemError if
  /// the machine refuses.
  RunLock(const std::string& folder, const std::string& program);

  /// Gives the right back: removes FOLDER/lock, and the folder if there is nothing in it.
  void release() { lock_.release(); }

 private:
  FolderLock lock_;
};

}  // namespace tapehead
