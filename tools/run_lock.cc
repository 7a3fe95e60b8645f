#include "tapehead/tools/run_lock.h"

#include "tapehead/core/error.h"
#include "tapehead/core/file.h"

namespace tapehead {

RunLock::RunLock(const std::string& folder, const std::string& program)
    : lock_(folder, [&](const std::string& process) {
        fail<ValueError>(
            "[{}] process {} is at work in {}: wait until it ends, stop it, or name another folder with "
            "--out",
            program, process, folder);
      }) {
  remove_unfinished_files(folder);
}

}  // namespace tapehead
