#include "tapehead/models/evaluation.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace tapehead {

void EvaluationSum::add(const Tensor& loss, const CrossEntropyStats& stats) {
  sum_.loss += loss.item();
  sum_.tokens += stats.rows;
  sum_.accuracy += static_cast<double>(stats.correct_rows);
  for (const double entropy : stats.entropy.to_vector<double>()) {
    if (!std::isnan(entropy)) sum_.entropy += entropy;  // of a target that counts
  }
}

Evaluation EvaluationSum::mean() const {
  Evaluation evaluation = sum_;
  for (double* sum : {&evaluation.loss, &evaluation.accuracy, &evaluation.entropy})
    *sum /= static_cast<double>(evaluation.tokens);
  evaluation.seconds = stopwatch_.seconds();
  return evaluation;
}

double bits_per_byte(const Evaluation& evaluation, int64_t bytes) {
  return evaluation.loss * static_cast<double>(evaluation.tokens) /
         (std::numbers::ln2 * static_cast<double>(bytes));
}

void check_vocabulary(const Dataset& data, const ModelConfig& model) {
  check<ValueError>(
      data.vocab_size() <= model.vocab_size,
      "[data] the tokens are of a vocabulary of {}, the model's has {}: another tokenizer made them",
      data.vocab_size(), model.vocab_size);
}

Evaluation evaluate(const LanguageModel& model, const Dataset& data, int64_t batch_size,
                    const HeadConfig& head, bool document_mask) {
  check_vocabulary(data, model.config());
  const Windows windows(data, model.config().n_positions, document_mask);
  check<ValueError>(
      windows.size() >= 1,
      "[evaluate] {} tokens have no target: at least 2 are needed, one to predict the other from",
      data.size());
  check<ValueError>(batch_size >= 1, "[evaluate] batch_size is {}: it must be at least 1", batch_size);
  EvaluationSum sum;
  const NoGradGuard no_grad;
  CrossEntropyStats stats;
  LinearCrossEntropyArgs args = head.evaluation_args();
  args.stats = &stats;
  for (int64_t first = 0; first < windows.size(); first += batch_size) {
    const Batch batch = windows.read(first, std::min(batch_size, windows.size() - first));
    args.counted_rows = batch.target_tokens;
    sum.add(model.loss(batch.ids, batch.targets, args, {.first_seen = batch.first_seen}), stats);
  }
  return sum.mean();
}

}  // namespace tapehead
