// A file of JSON objects, one a line, each of a step of training: how a run keeps its history.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace tapehead {

/// Appends to such a file. Lines are written whole or not at all.
class JsonLinesLog {
 public:
  /// Of an existing file, only the lines stay that keep(step, line) is true of: others were made after the
  /// checkpoint that training goes on from. Throws SystemError if the machine refuses.
  JsonLinesLog(std::string path,
               const std::function<bool(int64_t step, const nlohmann::ordered_json& line)>& keep);
  ~JsonLinesLog();
  JsonLinesLog(const JsonLinesLog&) = delete;
  JsonLinesLog& operator=(const JsonLinesLog&) = delete;

  /// An object with a "step". Strings may hold any bytes; those that are no UTF-8 become U+FFFD.
  void append(const nlohmann::ordered_json& line);

 private:
  std::string path_;
  int descriptor_;
};

/// Calls take(step, line) for every line of a file that is an object with a step; others, such as one that
/// was cut short, are passed over. Errors are those of read_file.
void for_each_json_line(const std::string& path,
                        const std::function<void(int64_t step, const nlohmann::ordered_json& line)>& take);

}  // namespace tapehead
