// Which checkpoints of a run stay: beside the latest at PATH/NAME.safetensors, hard links
// that cost no second writing.
//
//   NAME-00000250.safetensors   that of step 250, under `keep`
//   NAME-best.safetensors       that of the lowest held-out loss
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tapehead {

/// `latest` is the path of the latest one, and ends in .safetensors.
std::string numbered_checkpoint(const std::string& latest, int64_t step);
std::string best_checkpoint(const std::string& latest);

/// The numbered ones that are there, by step.
std::vector<std::string> numbered_checkpoints(const std::string& latest);

/// Keeps the latest, which is of `step`, under its number, and of the numbered ones the
/// last `keep`. Throws SystemError if the machine refuses.
void keep_numbered(const std::string& latest, int64_t step, int64_t keep);

/// Keeps the latest as the best.
void keep_as_best(const std::string& latest);

}  // namespace tapehead
