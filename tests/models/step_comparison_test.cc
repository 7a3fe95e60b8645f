#include "tapehead/models/step_comparison.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tapehead/core/tape_observer.h"
#include "tapehead/tests/models/training_fixture.h"

namespace tapehead {
namespace {

/// A kernel that is wrong: spoils one element of the `call`-th result of `op`, or of the
/// gradient of its input 0.
class WrongKernel final : public TapeObserver {
 public:
  WrongKernel(std::string op, int64_t call, bool in_gradient)
      : op_(std::move(op)), calls_left_(call), in_gradient_(in_gradient) {}

  void on_result(const char* op, Tensor& result, std::span<const Tensor>) override {
    if (!in_gradient_ && op == op_ && --calls_left_ == 0) spoil(result);
  }
  void on_gradient(const char* op, size_t input, Tensor& sum) override {
    if (!in_gradient_ || op != op_ || input != 0 || --calls_left_ != 0) return;
    sum = sum.clone();
    spoil(sum);
  }

 private:
  static void spoil(const Tensor& x) {
    Tensor first = x.alias({}, {}, x.offset());
    first.fill(first.item() * 1.1 + 0.1);
  }

  std::string op_;
  int64_t calls_left_;
  bool in_gradient_;
};

class StepComparisonTest : public TrainingFixture {
 protected:
  static TrainConfig config(const char* architecture, const char* optimizer, DType dtype) {
    TrainConfig c = tiny_config();
    c.model.architecture = architecture;
    if (c.model.architecture == "llama") c.model.n_kv_head = 1;
    c.optimizer.name = optimizer;
    c.dtype = dtype;
    c.micro_batch_size = 3;
    return c;
  }

  /// Of a step on the host and on the device under test.
  std::vector<Difference> compare(const TrainConfig& c) const {
    const Dataset data = training();
    const Batch batch = Windows(data, c.model.n_positions, true).read(0, c.batch_size);
    return compare_step(c, make_model(c.model, 1, c.dtype)->parameters(), batch, Device{}, default_device());
  }

  static const Difference* first_wrong(const std::vector<Difference>& differences, const TrainConfig& c) {
    for (const Difference& d : differences) {
      if (d.error > step_tolerance(d.dtype, longest_sum(c))) return &d;
    }
    return nullptr;
  }
};

TEST_F(StepComparisonTest, DevicesAgreeInEveryOperation) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (TrainConfig c :
         {config("gpt2", "adamw", dtype), config("llama", "muon", dtype), config("gpt2", "sgd", dtype)}) {
      c.recompute_activations = c.optimizer.name == "sgd";
      c.model.attention_bias = c.model.architecture == "llama";  // whose keys' gradient cancels
      const std::vector<Difference> all = compare(c);
      const Difference* wrong = first_wrong(all, c);
      EXPECT_EQ(wrong, nullptr) << wrong->op << " " << wrong->call << " " << wrong->shape.str() << " "
                                << wrong->error;
      // Every device computes for itself.
      EXPECT_EQ(std::ranges::any_of(all, [](const Difference& d) { return d.error > 0; }),
                default_device() != Device{});
    }
  }
}

TEST_F(StepComparisonTest, AWrongKernelIsNamed) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const TrainConfig c = config("gpt2", "adamw", dtype);
    const int64_t micro_batches = 2, norms = 2 * c.model.n_layer + 1, layers = c.model.n_layer;
    {
      const WrongKernel wrong("layer_norm", micro_batches * norms + 3, false);
      const auto all = compare(c);
      const Difference* first = first_wrong(all, c);
      ASSERT_NE(first, nullptr) << name(dtype);
      EXPECT_EQ(first->op, "layer_norm");
      EXPECT_EQ(first->input, std::nullopt);
      EXPECT_EQ(first->call, 3);
      EXPECT_EQ(first->shape, Shape({3, 6, 8}));
      EXPECT_EQ(
          std::ranges::count_if(
              all, [&](const Difference& d) { return d.error > step_tolerance(d.dtype, longest_sum(c)); }),
          1)
          << "what follows is not blamed";
    }
    const WrongKernel wrong("gelu_tanh", micro_batches * layers + 2, true);
    const auto all = compare(c);
    const Difference* first = first_wrong(all, c);
    ASSERT_NE(first, nullptr) << name(dtype);
    EXPECT_EQ(first->op, "gelu_tanh");
    EXPECT_EQ(first->input, std::optional<size_t>(0));
    EXPECT_EQ(first->call, 2);
  }
}

TEST_F(StepComparisonTest, TheOptimizersTensorsHaveTheirNames) {
  const TrainConfig c = config("gpt2", "adamw", DType::bf16);
  const std::vector<Difference> all = compare(c);
  const auto find = [&](const std::string& name) { return std::ranges::find(all, name, &Difference::name); };
  for (const char* name : {"transformer.h.1.mlp.c_fc.weight", "first.transformer.wte.weight",
                           "second.transformer.ln_f.bias", "master.transformer.wpe.weight"}) {
    ASSERT_NE(find(name), all.end()) << name;
    EXPECT_EQ(find(name)->op, "adamw");
  }
  EXPECT_EQ(all.back().name, "master.transformer.ln_f.bias");
}

TEST_F(StepComparisonTest, TheToleranceGrowsWithTheLongestSum) {
  TrainConfig c = config("gpt2", "adamw", DType::f32);
  EXPECT_EQ(longest_sum(c), 4 * 8);  // the MLP's width; 3 rows of 6 tokens, 11 words
  c.micro_batch_size = 0;
  c.batch_size = 100;
  EXPECT_EQ(longest_sum(c), 600);
  EXPECT_DOUBLE_EQ(step_tolerance(DType::f32, 400), 20 * 0x1p-21);
  EXPECT_DOUBLE_EQ(step_tolerance(DType::bf16, 400), 0x1p-9 + 20 * 0x1p-21);
}

}  // namespace
}  // namespace tapehead
