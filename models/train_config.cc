#include "tapehead/models/train_config.h"

#include "tapehead/models/batches.h"
#include "tapehead/models/training_rules.h"

namespace tapehead {

LinearCrossEntropyArgs HeadConfig::training_args() const {
  check<ValueError>(batch_chunk_size >= 0, "[train] head.batch_chunk_size is {}, and must be at least 0",
                    batch_chunk_size);
  check<ValueError>(label_smoothing >= 0 && label_smoothing <= 1,
                    "[train] head.label_smoothing is {}, and must be in [0, 1]", label_smoothing);
  check<ValueError>(z_loss >= 0, "[train] head.z_loss is {}, and must be at least 0", z_loss);
  LinearCrossEntropyArgs args;
  args.ignore_index = kIgnoredTarget;
  args.loss_dtype = DType::f32;
  args.zero_if_empty = true;
  args.label_smoothing = label_smoothing;
  args.z_loss = z_loss;
  LinearCrossEntropyOptions::Fields fields = {
      .acc_policy = acc_policy, .recompute = recompute, .gradient_filter = gradient_filter};
  if (batch_chunk_size > 0) {
    fields.batch_chunk_size = batch_chunk_size;
    fields.chunking_method.reset();
  } else {
    fields.chunking_method = chunking_method;
  }
  args.options = LinearCrossEntropyOptions(fields);
  return args;
}

LinearCrossEntropyArgs HeadConfig::evaluation_args() const {
  LinearCrossEntropyArgs args = training_args();
  args.label_smoothing = args.z_loss = 0;
  args.reduction = Reduction::sum;
  return args;
}

void TrainConfig::validate() const {
  model.validate();
  check<ValueError>(dtype == DType::f32 || dtype == DType::bf16,
                    "[train] dtype is {}: a model is trained in f32 or in bf16", dtype);
  check_training(*this, "train");
  check<ValueError>(micro_batch_size >= 0, "[train] micro_batch_size is {}: it must be at least 0",
                    micro_batch_size);
}

Schedule TrainConfig::learning_rates() const { return schedule_of(*this); }

}  // namespace tapehead
