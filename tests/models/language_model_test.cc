// What every architecture promises: kept keys and values, documents that do not see each
// other, blocks run again.
#include "tapehead/models/language_model.h"

#include <gtest/gtest.h>

#include <limits>
#include <utility>

#include "tapehead/core/memory.h"
#include "tapehead/core/view.h"
#include "tapehead/models/key_value_cache.h"
#include "tapehead/ops/linear_cross_entropy.h"
#include "tapehead/tests/golden_cases.h"
#include "tapehead/tests/testing.h"

namespace tapehead {
namespace {

class LanguageModelTest : public ::testing::TestWithParam<const char*> {
 protected:
  static constexpr int64_t kContext = 80;

  // Parameters large enough that every part of the model matters.
  static std::unique_ptr<LanguageModel> model(double dropout = 0, DType dtype = DType::f64) {
    ModelConfig config{.architecture = GetParam(),
                       .vocab_size = 23,
                       .n_layer = 3,
                       .n_head = 4,
                       .n_embd = 16,
                       .n_positions = kContext,
                       .dropout = dropout};
    if (config.architecture == "llama") config.n_kv_head = 2;
    auto result = make_model(config, 1, dtype);
    const NoGradGuard no_grad;
    uint64_t seed = 1;
    for (const auto& [name, p] : result->parameters())
      Tensor(p).copy_from(random_tensor(p.shape(), seed++, 0.5, dtype));
    return result;
  }

  static Tensor ids(int64_t rows, int64_t positions, uint64_t seed = 1) {
    return random_indices({rows, positions}, 23, seed);
  }
};

INSTANTIATE_TEST_SUITE_P(Architectures, LanguageModelTest, ::testing::Values("gpt2", "llama"));

// ---- Keys and values that are kept

TEST_P(LanguageModelTest, ReadsOnWithACacheAsWithoutOne) {
  const NoGradGuard no_grad;
  const auto m = model();
  const Tensor text = ids(2, kContext), whole = m->hidden(text);
  for (const std::vector<int64_t>& parts : std::vector<std::vector<int64_t>>{
           {kContext}, {5, 1, 1, 66, 1, 6}, {64, 16}, std::vector<int64_t>(kContext, 1)}) {
    KeyValueCache cache(*m, 2);
    int64_t begin = 0;
    for (const int64_t part : parts) {
      const Tensor h = m->hidden(slice(text, 1, begin, begin + part), {.cache = &cache});
      expect_close(h, slice(whole, 1, begin, begin + part), 1e-11, 1e-11,
                   fmt::format("{} from {} on", part, begin));
      begin += part;
      EXPECT_EQ(cache.length(), begin);
    }
  }
}

TEST_P(LanguageModelTest, GoesOnFromATruncatedCache) {
  const NoGradGuard no_grad;
  const auto m = model();
  KeyValueCache cache(*m);
  m->hidden(ids(1, 20), {.cache = &cache});
  cache.truncate(7);
  const Tensor text = ids(1, 20), other = ids(1, 5, 2);
  std::vector<int64_t> both = slice(text, 1, 0, 7).to_vector<int64_t>();
  for (const int64_t id : other.to_vector<int64_t>()) both.push_back(id);
  const Tensor expected = m->hidden(Tensor::from<int64_t>({1, 12}, both));
  expect_close(m->hidden(other, {.cache = &cache}), slice(expected, 1, 7, 12), 1e-11, 1e-11,
               "after truncation");
}

TEST_P(LanguageModelTest, CacheErrors) {
  const auto m = model();
  KeyValueCache cache(*m, 2);
  expect_error<RuntimeError>([&] { m->hidden(ids(2, 3), {.cache = &cache}); }, "grad mode is on");
  const NoGradGuard no_grad;
  m->hidden(ids(2, 78), {.cache = &cache});
  expect_error<ValueError>([&] { m->hidden(ids(2, 3), {.cache = &cache}); },
                           "it holds 78 of 80 positions, and 3 more");
  expect_error<ValueError>([&] { m->hidden(ids(1, 1), {.cache = &cache}); }, "for a cache of 2 rows");
  expect_error<ValueError>([&] { cache.truncate(79); }, "truncate to 79 positions: it holds 78");
  expect_error<ValueError>([&] { KeyValueCache(*m, 0); }, "0 rows");
  m->hidden(ids(2, 2), {.cache = &cache});  // what did not fit left no trace
  EXPECT_EQ(cache.length(), kContext);
}

// 8 · n_embd, a Llama's inner width, overflowed before any check; so did 3 · n_embd.
TEST_P(LanguageModelTest, SizesWhoseProductsOverflowAreRefused) {
  const int64_t most = std::numeric_limits<int32_t>::max();
  for (const auto& [field, name] : {std::pair(&ModelConfig::vocab_size, "vocab_size"),
                                    {&ModelConfig::n_layer, "n_layer"},
                                    {&ModelConfig::n_head, "n_head"},
                                    {&ModelConfig::n_embd, "n_embd"},
                                    {&ModelConfig::n_positions, "n_positions"},
                                    {&ModelConfig::n_inner, "n_inner"},
                                    {&ModelConfig::n_kv_head, "n_kv_head"},
                                    {&ModelConfig::head_dim, "head_dim"}}) {
    for (const int64_t size : {most + 1, std::numeric_limits<int64_t>::max()}) {
      ModelConfig config{.architecture = GetParam(), .n_head = 1};
      config.*field = size;
      expect_error<ValueError>([&] { config.validate(); },
                               fmt::format("{} is {}: it must be at most {}", name, size, most));
    }
  }
  ModelConfig({.architecture = GetParam(), .n_head = 1, .n_embd = most - 1}).validate();
}

// Room for all of a long context at once would be dear: of 131072 positions, gibibytes.
TEST_P(LanguageModelTest, ACacheGrowsTwofoldWithWhatItHolds) {
  const NoGradGuard no_grad;
  const auto m = model();
  KeyValueCache cache(*m, 2);
  const ModelConfig& c = m->config();
  const auto expect_room = [&](int64_t positions) {
    EXPECT_EQ(memory_stats(default_device(), "key_value_cache").live_bytes,
              2 * c.n_layer * 2 * c.kv_heads() * positions * c.head_width() * size_of(m->dtype()))
        << cache.length();
  };
  expect_room(0);
  const auto expect = [&](int64_t more, int64_t room) {
    m->hidden(ids(2, more), {.cache = &cache});
    expect_room(room);
  };
  expect(5, 5);
  expect(1, 10);
  expect(4, 10);
  expect(23, 33);
  cache.truncate(3);
  expect(20, 33);
  expect(11, 66);
  expect(33, 80);  // and no more than the context
}

// ---- Documents

// Documents of 30, 1 and 39 tokens in one row: none depends on another, not even by rounding.
TEST_P(LanguageModelTest, DocumentsDoNotSeeEachOther) {
  const NoGradGuard no_grad;
  const auto m = model();
  std::vector<int64_t> first(70, 0);
  first[30] = 30;
  std::fill(first.begin() + 31, first.end(), 31);
  const ForwardArgs args{.first_seen = Tensor::from<int64_t>({1, 70}, first)};
  const Tensor text = ids(1, 70), h = m->hidden(text, args);
  Tensor changed = text.clone();
  slice(changed, 1, 0, 31).copy_from(ids(1, 31, 2));
  expect_close(slice(m->hidden(changed, args), 1, 31, 70), slice(h, 1, 31, 70), 0, 0, "the last document");
  if (std::string(GetParam()) == "llama") {  // whose positions count by their distance alone
    expect_close(m->hidden(slice(text, 1, 31, 70)), slice(h, 1, 31, 70), 1e-5, 1e-5, "by itself");
  }
}

// ---- Blocks run again

struct Pass {
  double loss;
  std::vector<Tensor> gradients;
  int64_t peak_bytes;
  uint64_t next_number;
};

Pass pass(const LanguageModel& m, const Tensor& ids, bool recompute) {
  zero_grad(m.parameters());
  const MemoryScope scope("pass");
  reset_peak(default_device(), "pass");
  Generator numbers{.seed = 5};
  const Tensor loss = m.loss(ids, ids, {}, {.dropout = &numbers, .recompute = recompute});
  backward(loss);
  Pass result{loss.item(), {}, memory_stats(default_device(), "pass").peak_bytes, numbers.next};
  for (const auto& [name, p] : m.parameters()) result.gradients.push_back(p.grad().clone());
  return result;
}

TEST_P(LanguageModelTest, RecomputationChangesNoBitAndKeepsLess) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const auto m = model(0.2, dtype);
    const Tensor text = ids(3, kContext);
    const Pass kept = pass(*m, text, false), again = pass(*m, text, true);
    EXPECT_EQ(kept.loss, again.loss);
    EXPECT_EQ(kept.next_number, again.next_number);
    for (size_t i = 0; i < kept.gradients.size(); ++i)
      EXPECT_EQ(kept.gradients[i].to_vector<float>(), again.gradients[i].to_vector<float>())
          << m->parameters()[i].first;
    EXPECT_LT(again.peak_bytes, kept.peak_bytes * 2 / 3) << name(dtype);
  }
}

}  // namespace
}  // namespace tapehead
