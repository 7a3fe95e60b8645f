#include "tapehead/tools/json_lines.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string_view>

#include "tapehead/core/error.h"
#include "tapehead/core/file.h"
#include "tapehead/core/json.h"

namespace tapehead {

using json = Json;

// Calls take(line, step, object) for every line that is an object with a step.
static void for_each_object(const std::string& path, const auto& take) {
  const MappedFile file(path);
  const std::string_view text(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size());
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line = text.substr(begin, end - begin);
    const json object = parse_json(line);
    if (object.is_object() && object.contains("step") && object.at("step").is_number_integer()) {
      take(line, object.at("step").get<int64_t>(), object);
    }
    begin = end + 1;
  }
}

void for_each_json_line(const std::string& path,
                        const std::function<void(int64_t step, const json& line)>& take) {
  for_each_object(path, [&](std::string_view, int64_t step, const json& object) { take(step, object); });
}

JsonLinesLog::JsonLinesLog(std::string path, const std::function<bool(int64_t step, const json& line)>& keep)
    : path_(std::move(path)) {
  std::string kept;
  if (std::filesystem::exists(path_)) {
    for_each_object(path_, [&](std::string_view line, int64_t step, const json& object) {
      if (keep(step, object)) kept.append(line).append("\n");
    });
  }
  write_file_atomically(path_, kept);
  descriptor_ = open(path_.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC);
  check<SystemError>(descriptor_ >= 0, "cannot open {}: {}", path_, std::strerror(errno));
}

JsonLinesLog::~JsonLinesLog() { close(descriptor_); }

void JsonLinesLog::append(const json& line) {
  struct stat before;
  check<SystemError>(fstat(descriptor_, &before) == 0, "cannot examine {}: {}", path_, std::strerror(errno));
  const std::string text = line.dump(-1, ' ', false, json::error_handler_t::replace) + "\n";
  const ssize_t written = write(descriptor_, text.data(), text.size());
  if (written == std::ssize(text)) return;
  const std::string reason = written < 0 ? std::strerror(errno) : "the disk is full";
  check<SystemError>(written <= 0 || ftruncate(descriptor_, before.st_size) == 0,
                     "cannot undo a part of a line in {}: {}", path_, std::strerror(errno));
  fail<SystemError>("cannot write to {}: {}", path_, reason);
}

}  // namespace tapehead
