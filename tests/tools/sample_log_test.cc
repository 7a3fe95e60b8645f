#include "tapehead/tools/sample_log.h"

#include <gtest/gtest.h>

#include "tapehead/core/file.h"
#include "tapehead/core/view.h"

namespace tapehead {
namespace {

// Hazard: a model may have more rows than its tokenizer has tokens, and what decodes to nothing ended the run.
TEST(SampleLogTest, WritesNoTokenThatTheTokenizerHasNot) {
  const Tokenizer tokenizer = Tokenizer::train("ababab", Tokenizer::kMinVocabSize + 1);
  const auto model = make_model(
      {.vocab_size = tokenizer.vocab_size() + 8, .n_layer = 1, .n_head = 1, .n_embd = 4, .n_positions = 8});
  // Whatever it reads, the last of its tokens is by far the likeliest.
  const NoGradGuard no_grad;
  for (auto& [name, parameter] : ParameterList(model->parameters())) {
    if (name == "transformer.ln_f.weight") parameter.fill(0);
    if (name == "transformer.ln_f.bias") parameter.fill(1);
  }
  const Tensor table = model->head_weight();
  slice(table, 0, table.size(0) - 1, table.size(0)).fill(100);
  const std::string path = testing::TempDir() + "/samples.jsonl";
  SampleLog(path, 0, {"ab"}, tokenizer).write(*model, 1);
  EXPECT_TRUE(read_file(path).starts_with("{\"step\":1,\"prompt\":\"ab\",\"text\":\"")) << read_file(path);
}

}  // namespace
}  // namespace tapehead
