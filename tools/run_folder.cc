#include "tapehead/tools/run_folder.h"

#include <filesystem>

#include "tapehead/core/error.h"

namespace tapehead {

void check_new_folder(const std::string& path) {
  std::error_code unseen;
  check<ValueError>(!std::filesystem::exists(path, unseen) || std::filesystem::is_empty(path, unseen),
                    "{} is there and not empty; name another folder", path);
}

}  // namespace tapehead
