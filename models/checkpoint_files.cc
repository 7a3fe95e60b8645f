#include "tapehead/models/checkpoint_files.h"

#include <fmt/core.h>

#include <algorithm>
#include <filesystem>

#include "tapehead/core/file.h"

namespace tapehead {

namespace fs = std::filesystem;

static constexpr std::string_view kExtension = ".safetensors";
static constexpr size_t kDigits = 8;

static std::string with_suffix(const std::string& latest, const std::string& suffix) {
  return fmt::format("{}-{}{}", latest.substr(0, latest.size() - kExtension.size()), suffix, kExtension);
}

std::string numbered_checkpoint(const std::string& latest, int64_t step) {
  return with_suffix(latest, fmt::format("{:0{}}", step, kDigits));
}

std::string best_checkpoint(const std::string& latest) { return with_suffix(latest, "best"); }

std::vector<std::string> numbered_checkpoints(const std::string& latest) {
  const std::string prefix = fs::path(latest).stem().string() + "-";
  const fs::path folder = fs::path(latest).parent_path();
  std::vector<std::string> found;
  for (const auto& entry : fs::directory_iterator(folder.empty() ? "." : folder)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(prefix) || !name.ends_with(kExtension)) continue;
    const std::string number = name.substr(prefix.size(), name.size() - prefix.size() - kExtension.size());
    if (number.size() >= kDigits && number.find_first_not_of("0123456789") == number.npos)
      found.push_back((folder / name).string());
  }
  // Longer numbers are larger ones.
  std::ranges::sort(found, {}, [](const std::string& path) { return std::pair(path.size(), path); });
  return found;
}

void keep_numbered(const std::string& latest, int64_t step, int64_t keep) {
  if (keep == 0) return;
  link_atomically(latest, numbered_checkpoint(latest, step));
  const std::vector<std::string> all = numbered_checkpoints(latest);
  for (int64_t i = 0; i < std::ssize(all) - keep; ++i) fs::remove(all[static_cast<size_t>(i)]);
}

void keep_as_best(const std::string& latest) { link_atomically(latest, best_checkpoint(latest)); }

}  // namespace tapehead
