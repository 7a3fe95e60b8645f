#include "tapehead/tools/data_progress.h"

#include <fmt/core.h>

#include <cstdio>

#include "tapehead/tools/format.h"

namespace tapehead {

DatasetProgress tell_on(ProgressLine& line) {
  return {
      .on_hash = [&line](int64_t done, int64_t bytes) { line.show_bytes("sources ", done, bytes); },
      .on_merge =
          [&line](int64_t done, int64_t limit) {
            if (line.due())
              line.show(fmt::format("tokenizer  {} of {} merges", format_count(done), format_count(limit)));
          },
      .on_encode = [&line](int64_t done, int64_t bytes) { line.show_bytes("encoding", done, bytes); },
      .on_note =
          [&line](const std::string& text) {
            line.clear();
            fmt::print("{}\n", text);
            std::fflush(stdout);
          }};
}

}  // namespace tapehead
