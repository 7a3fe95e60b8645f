#include "tapehead/models/train_config.h"

namespace tapehead {

void TrainConfig::validate() const {
  model.validate();
  check<ValueError>(dtype == DType::f32 || dtype == DType::bf16,
                    "[train] dtype is {}: a model is trained in f32 or in bf16", dtype);
  RunConfig::validate();
  check<ValueError>(micro_batch_size >= 0, "[train] micro_batch_size is {}: it must be at least 0",
                    micro_batch_size);
}

}  // namespace tapehead
