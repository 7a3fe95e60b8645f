#include "tapehead/models/head_train_config.h"

namespace tapehead {

void HeadTrainConfig::validate() const {
  RunConfig::validate();
  check<ValueError>(
      optimizer.name != "muon",
      "[train-head] optimizer is muon, for the matrices of layers, and a head is none: take adamw or sgd");
  check<ValueError>(classes >= 0 && classes <= kMostHeadClasses,
                    "[train-head] classes is {}: it must be at least 0 and at most {}", classes,
                    kMostHeadClasses);
  check<ValueError>(held_out >= 0 && held_out < 1, "[train-head] held_out is {}: it must be in [0, 1)",
                    held_out);
}

}  // namespace tapehead
