#include "tapehead/models/run_config.h"

#include <cmath>

#include "tapehead/models/batches.h"

namespace tapehead {

LinearCrossEntropyArgs HeadConfig::training_args() const {
  check<ValueError>(batch_chunk_size >= 0, "[head] batch_chunk_size is {}: it must be at least 0",
                    batch_chunk_size);
  check<ValueError>(label_smoothing >= 0 && label_smoothing <= 1,
                    "[head] label_smoothing is {}: it must be in [0, 1]", label_smoothing);
  check<ValueError>(z_loss >= 0, "[head] z_loss is {}: it must be at least 0", z_loss);
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

Schedule RunConfig::learning_rates() const {
  return {.name = schedule,
          .peak = peak_lr,
          .minimum = min_lr,
          .warmup = warmup_steps,
          .steps = steps,
          .decay = decay_steps};
}

void RunConfig::validate() const {
  const auto at_least = [&](auto value, auto least, const char* field) {
    check<ValueError>(value >= least, "[run] {} is {}: it must be at least {}", field, value, least);
  };
  at_least(steps, 1, "steps");
  at_least(batch_size, 1, "batch_size");
  at_least(peak_lr, 0.0, "peak_lr");
  at_least(min_lr, 0.0, "min_lr");
  at_least(warmup_steps, 0, "warmup_steps");
  at_least(decay_steps, 0, "decay_steps");
  at_least(clip_norm, 0.0, "clip_norm");
  at_least(skip_z_score, 0.0, "skip_z_score");
  at_least(eval_interval, 0, "eval_interval");
  at_least(save_interval, 0, "save_interval");
  at_least(keep, 0, "keep");
  head.training_args();        // throws
  learning_rates().at(steps);  // throws
  optimizer.validate();
  check<ValueError>(std::isfinite(peak_lr) && min_lr <= peak_lr,
                    "[run] min_lr is {} and peak_lr {}: min_lr must not be larger", min_lr, peak_lr);
}

}  // namespace tapehead
