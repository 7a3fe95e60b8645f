// What a model writes as it learns: samples.jsonl of a run.
#pragma once

#include <string>
#include <vector>

#include "tapehead/models/language_model.h"
#include "tapehead/models/tokenizer.h"
#include "tapehead/tools/json_lines.h"

namespace tapehead {

class SampleLog {
 public:
  /// A line for each of `prompts` at every write(). Of an existing file, lines of evaluations up to
  /// `evaluated_step` stay.
  SampleLog(const std::string& path, int64_t evaluated_step, std::vector<std::string> prompts,
            const Tokenizer& tokenizer);

  /// {"step":100,"prompt":"Once","text":" upon a time ..."}: always drawn with the same random numbers, so
  /// that only the model differs.
  void write(const LanguageModel& model, int64_t step);

 private:
  JsonLinesLog lines_;
  std::vector<std::string> prompts_;
  const Tokenizer* tokenizer_;
};

}  // namespace tapehead
