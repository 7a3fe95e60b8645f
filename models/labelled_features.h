// Features that were computed elsewhere, and the classes of their rows: what a head is trained on.
//
// Shape letters: N rows, F features.
#pragma once

#include <string>

#include "tapehead/core/tensor.h"
#include "tapehead/models/head_train_config.h"

namespace tapehead {

/// The features that a head is trained on, as far as they can be told from others without
/// reading all of them.
struct FeaturesIdentity {
  int64_t rows = 0, features = 0;
  DType dtype = DType::f32;
  std::string targets;  ///< XXH3 of the targets as i64

  bool operator==(const FeaturesIdentity&) const = default;
};

/// Rows and the class of each.
struct LabelledFeatures {
  /// (N, F) floating, contiguous, on the host; may be mapped from a file: batches copy
  /// the rows that they take.
  Tensor features;
  Tensor targets;  ///< (N) i64, on the host; -100: a row that does not count

  /// "features" and "targets" of a safetensors file, mapped. Throws ValueError that names the file and what
  /// is wrong: one of them missing, another shape or dtype, no feature, or rows and targets that differ in
  /// number.
  static LabelledFeatures open(const std::string& path);

  FeaturesIdentity identity() const;
};

/// `config` with the number of classes of `data`, where it names none. Throws ValueError on a config that
/// cannot be, on a target outside the classes, naming its row, and where none counts.
HeadTrainConfig with_classes(HeadTrainConfig config, const LabelledFeatures& data);

}  // namespace tapehead
