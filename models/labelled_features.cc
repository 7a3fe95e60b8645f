#include "tapehead/models/labelled_features.h"

#include <algorithm>
#include <span>

#include "tapehead/core/checksum.h"
#include "tapehead/core/safetensors.h"
#include "tapehead/models/windows.h"

namespace tapehead {

LabelledFeatures LabelledFeatures::open(const std::string& path) {
  const SafetensorsFile file = SafetensorsFile::open(path);
  for (const char* name : {"features", "targets"}) {
    check<ValueError>(file.contains(name),
                      "[train-head] {} has no tensor \"{}\": it holds features (N, F) and targets (N)", path,
                      name);
  }
  LabelledFeatures data = {.features = file.tensor("features"), .targets = file.tensor("targets")};
  check<ValueError>(
      data.features.dim() == 2 && data.features.size(1) >= 1 && is_floating(data.features.dtype()),
      "[train-head] features of {} are {} of shape {}: they must be floating, (rows, features), and one "
      "feature at least",
      path, data.features.dtype(), data.features.shape());
  check<ValueError>(data.targets.dim() == 1 && !is_floating(data.targets.dtype()),
                    "[train-head] targets of {} are {} of shape {}: they must be integers, one a row", path,
                    data.targets.dtype(), data.targets.shape());
  check<ValueError>(data.features.size(0) == data.targets.size(0),
                    "[train-head] {} has {} rows of features but {} targets: there must be one for each row",
                    path, data.features.size(0), data.targets.size(0));
  if (data.targets.dtype() != DType::i64) data.targets = data.targets.to(DType::i64);
  return data;
}

FeaturesIdentity LabelledFeatures::identity() const {
  return {.rows = features.size(0),
          .features = features.size(1),
          .dtype = features.dtype(),
          .targets =
              checksum({static_cast<const char*>(targets.raw_data()), static_cast<size_t>(targets.bytes())})};
}

HeadTrainConfig with_classes(HeadTrainConfig config, const LabelledFeatures& data) {
  config.validate();
  const int64_t most = config.classes > 0 ? config.classes : kMostHeadClasses;
  const std::span targets(data.targets.data<int64_t>(), static_cast<size_t>(data.targets.numel()));
  for (size_t row = 0; row < targets.size(); ++row) {
    check<ValueError>(
        targets[row] == kIgnoredTarget || (targets[row] >= 0 && targets[row] < most),
        "[train-head] the target of row {} is {}: it must be in [0, {}), or {} for a row that does not count",
        row, targets[row], most, kIgnoredTarget);
  }
  const auto largest = std::ranges::max_element(targets);
  check<ValueError>(largest != targets.end() && *largest >= 0,
                    "[train-head] none of the {} targets counts: there is nothing to train on",
                    targets.size());
  if (config.classes == 0) config.classes = *largest + 1;
  return config;
}

}  // namespace tapehead
