// The loss of a model on tokens that it was not trained on.
#pragma once

#include "tapehead/core/stopwatch.h"
#include "tapehead/models/batches.h"
#include "tapehead/models/train_config.h"

namespace tapehead {

struct Evaluation {
  int64_t step = 0;     ///< steps made before it
  double loss = 0;      ///< nats per target token
  int64_t tokens = 0;   ///< target tokens
  double accuracy = 0;  ///< share of them that the model held likeliest
  double entropy = 0;   ///< of its predictions, in nats: the mean over the targets
  double seconds = 0;
};

/// A measurement that is made in parts.
class EvaluationSum {
 public:
  /// `loss`, a scalar, is the sum over the targets that the statistics are of.
  void add(const Tensor& loss, const CrossEntropyStats& stats);

  /// Of all parts, and the time since it was made. There was a target.
  Evaluation mean() const;

 private:
  Evaluation sum_;
  Stopwatch stopwatch_;
};

/// Bits per byte of text: what losses under different tokenizers are compared by. `bytes`
/// is the size of the text that the evaluated tokens stand for.
double bits_per_byte(const Evaluation& evaluation, int64_t bytes);

/// Throws ValueError if the tokens' vocabulary is larger than the model's.
void check_vocabulary(const Dataset& data, const ModelConfig& model);

/// Mean loss of `model` over all windows of `data`, each target counted once. No gradient, no dropout.
/// Throws ValueError if there is no target, or the tokens' vocabulary is larger than the model's.
Evaluation evaluate(const LanguageModel& model, const Dataset& data, int64_t batch_size = 16,
                    const HeadConfig& head = {}, bool document_mask = false);

}  // namespace tapehead
