// Attention that stays within documents, all the way from the data to losses.
#include <gtest/gtest.h>

#include "tapehead/core/view.h"
#include "tapehead/models/batch_gradient.h"
#include "tapehead/ops/random.h"
#include "tapehead/tests/models/training_fixture.h"

namespace tapehead {
namespace {

class DocumentMaskTest : public TrainingFixture {
 protected:
  static constexpr int64_t kContext = 12, kDocuments = 30;

  /// Documents of 1 to 7 tokens, so that a context holds several.
  Dataset documents() const {
    DocumentTableWriter table(folder_ + "/documents");
    std::vector<int32_t> tokens;
    Generator random{.seed = 4};
    for (int64_t i = 0; i < kDocuments; ++i) {
      table.append(1 + i * i % 7, 0);
      for (int64_t t = 0; t < 1 + i * i % 7; ++t) tokens.push_back(static_cast<int32_t>(random.below(11)));
    }
    table.commit();
    TokenFile::write(folder_ + "/tokens", tokens, 11);
    std::vector<TokenFile> files;
    files.push_back(TokenFile::open(folder_ + "/tokens"));
    std::vector<TokenStream> streams;
    streams.emplace_back(std::move(files), DocumentTable::open(folder_ + "/documents"));
    return Dataset(std::move(streams));
  }

  /// A batch is all there is. Rotary positions are relative: what a document means does
  /// not depend on its place.
  TrainConfig config() const {
    TrainConfig c = tiny_config();
    c.model = {.architecture = "llama",
               .vocab_size = 11,
               .n_layer = 2,
               .n_head = 2,
               .n_embd = 8,
               .n_positions = kContext};
    const Dataset data = documents();
    c.batch_size = Windows(data, kContext).size();
    c.document_mask = true;
    return c;
  }

  /// Makes the weights so large that attention matters.
  static void amplify(const LanguageModel& model) {
    const NoGradGuard no_grad;
    Generator random{.seed = 6};
    for (const auto& [name, p] : model.parameters())
      Tensor(p).copy_from(random_normal(p.shape(), 0, 0.5, random));
  }

  /// The mean loss when each document stands alone, without a mask.
  double loss_of_documents_alone(const LanguageModel& model) const {
    const NoGradGuard no_grad;
    const Dataset data = documents();
    const Windows windows(data, kContext, /*within_documents=*/true);
    const Batch all = windows.read(0, windows.size());
    const auto first_seen = all.first_seen.to_vector<int64_t>();
    double sum = 0;
    for (int64_t row = 0; row < windows.size(); ++row) {
      for (int64_t begin = 0, end = 0; begin < kContext; begin = end) {
        while (end < kContext && first_seen[static_cast<size_t>(row * kContext + end)] == begin) ++end;
        const auto part = [&](const Tensor& x) { return slice(slice(x, 0, row, row + 1), 1, begin, end); };
        sum += model.loss(part(all.ids), part(all.targets), HeadConfig().evaluation_args()).item();
      }
    }
    return sum / static_cast<double>(all.target_tokens);
  }
};

TEST_F(DocumentMaskTest, AStepsLossIsThatOfTheDocumentsAlone) {
  for (const int64_t micro_batch : {0, 3}) {
    TrainConfig c = config();
    c.micro_batch_size = micro_batch;
    Trainer masked(c, documents());
    amplify(masked.model());
    const double expected = loss_of_documents_alone(masked.model());
    EXPECT_NEAR(masked.step().loss, expected, 1e-6 * expected) << micro_batch;
    c.document_mask = false;
    Trainer unmasked(c, documents());
    amplify(unmasked.model());
    EXPECT_GT(std::abs(unmasked.step().loss - expected), 1e-4 * expected);
  }
}

TEST_F(DocumentMaskTest, SoIsAnEvaluations) {
  const Trainer trainer(config(), documents(), documents());
  amplify(trainer.model());
  const double expected = loss_of_documents_alone(trainer.model());
  EXPECT_NEAR(evaluate(trainer.model(), documents(), 4, {}, true).loss, expected, 1e-6 * expected);
  EXPECT_GT(std::abs(evaluate(trainer.model(), documents(), 4).loss - expected), 1e-4 * expected);
}

TEST_F(DocumentMaskTest, ARunKeepsItThroughItsEvaluationsAndAResume) {
  TrainConfig c = config();
  c.steps = 2;
  Trainer whole(c, documents(), documents());
  amplify(whole.model());
  whole.step();
  whole.save(path_);
  Trainer resumed = Trainer::resume(path_, documents(), documents());
  const double expected = loss_of_documents_alone(resumed.model());
  EXPECT_NEAR(resumed.step().loss, expected, 1e-6 * expected);
  EXPECT_NEAR(resumed.run().evaluation->loss, loss_of_documents_alone(resumed.model()), 1e-6 * expected);
}

}  // namespace
}  // namespace tapehead
