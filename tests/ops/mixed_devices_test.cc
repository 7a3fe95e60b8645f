// Hazard: a tensor of the host beside one of the GPU reaches a kernel as an address that is not its device's.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include "tapehead/core/memory.h"
#include "tapehead/ops/attention.h"
#include "tapehead/ops/concat.h"
#include "tapehead/ops/elementwise.h"
#include "tapehead/ops/embedding.h"
#include "tapehead/ops/layer_norm.h"
#include "tapehead/ops/linear_cross_entropy.h"
#include "tapehead/ops/matmul.h"
#include "tapehead/ops/optimizer.h"
#include "tapehead/ops/reduce.h"
#include "tapehead/ops/rotary.h"
#include "tapehead/ops/softmax.h"
#include "tapehead/tests/testing.h"

namespace tapehead {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

using List = std::vector<Tensor>;

/// An op with more than one tensor argument. Whoever writes another adds it here.
struct Case {
  std::string op;
  std::vector<std::string> names;  // of its tensors, as its errors say them
  List tensors;
  std::function<void(List&)> call;
};

Tensor some(const Shape& shape) { return random_tensor(shape, 1, 1, DType::f32); }
Tensor half(const Shape& shape) { return random_tensor(shape, 1, 1, DType::bf16); }
Tensor zeros(const Shape& shape) { return Tensor::zeros(shape, DType::i64); }

CrossEntropyArgs weights(const Tensor& of_classes, const Tensor& of_rows) {
  CrossEntropyArgs args;
  args.class_weight = of_classes;
  args.token_weight = of_rows;
  return args;
}

void head(const List& t, bool chunks) {
  LinearCrossEntropyArgs args;
  static_cast<CrossEntropyArgs&>(args) = weights(t[4], t[5]);
  args.bias = t[3];
  if (chunks) args.options = LinearCrossEntropyOptions();
  linear_cross_entropy(t[0], t[1], t[2], args);
}

std::vector<Case> cases() {
  std::vector<Case> list;
  using OfTwo = Tensor (*)(const Tensor&, const Tensor&);
  const std::pair<const char*, OfTwo> of_two[] = {
      {"add", add}, {"sub", sub}, {"mul", mul}, {"div", div}, {"matmul", matmul}};
  for (const auto& [name, op] : of_two)
    list.push_back({name, {"a", "b"}, {some({2, 2}), some({2, 2})}, [op = op](List& t) { op(t[0], t[1]); }});
  list.push_back({"linear", {"x", "weight", "bias"}, {some({3, 4}), some({2, 4}), some({2})}, [](List& t) {
                    linear(t[0], t[1], t[2]);
                  }});
  list.push_back({"layer_norm", {"x", "weight", "bias"}, {some({3, 4}), some({4}), some({4})}, [](List& t) {
                    layer_norm(t[0], t[1], t[2]);
                  }});
  list.push_back(
      {"rms_norm", {"x", "weight"}, {some({3, 4}), some({4})}, [](List& t) { rms_norm(t[0], t[1]); }});
  list.push_back(
      {"embedding", {"weight", "ids"}, {some({5, 3}), zeros({2})}, [](List& t) { embedding(t[0], t[1]); }});
  using OfList = Tensor (*)(const List&, int64_t);
  const std::pair<const char*, OfList> of_list[] = {{"concat", concat}, {"stack", stack}};
  for (const auto& [name, op] : of_list)
    list.push_back({name,
                    {"entry 0 of tensors", "entry 1 of tensors", "entry 2 of tensors"},
                    {some({2}), some({2}), some({2})},
                    [op = op](List& t) { op(t, 0); }});
  list.push_back({"scaled_dot_product_attention",
                  {"q", "k", "v", "first_seen"},
                  {some({1, 2, 3, 4}), some({1, 2, 3, 4}), some({1, 2, 3, 4}), zeros({1, 3})},
                  [](List& t) { scaled_dot_product_attention(t[0], t[1], t[2], true, {}, t[3]); }});
  list.push_back(
      {"causal_self_attention", {"qkv", "first_seen"}, {some({1, 3, 12}), zeros({1, 3})}, [](List& t) {
         causal_self_attention(t[0], 2, t[1]);
       }});
  list.push_back({"rotary",
                  {"x", "table.cosine", "table.sine"},
                  {some({1, 2, 3, 4}), some({3, 2}), some({3, 2})},
                  [](List& t) {
                    rotary(t[0], {t[1], t[2]});
                  }});
  list.push_back({"cross_entropy",
                  {"logits", "target", "class_weight", "token_weight"},
                  {some({3, 4}), zeros({3}), some({4}), some({3})},
                  [](List& t) { cross_entropy(t[0], t[1], weights(t[2], t[3])); }});
  for (const bool chunks : {false, true})
    list.push_back({"linear_cross_entropy",
                    {"input", "weight", "target", "bias", "class_weight", "token_weight"},
                    {some({3, 4}), some({5, 4}), zeros({3}), some({5}), some({5}), some({3})},
                    [chunks](List& t) { head(t, chunks); }});
  const auto entry = [](const char* name) { return std::string("entry 0 of ") + name; };
  list.push_back(
      {"adamw_step",
       {entry("parameters"), entry("gradients"), entry("first moments"), entry("second moments"),
        entry("master weights")},
       {half({3}), half({3}), some({3}), Tensor::zeros({3}), some({3})},
       [](List& t) {
         const std::span all(t);
         adamw_step({.learning_rate = 1, .beta1 = 0, .beta2 = 0, .epsilon = 1, .weight_decay = 0, .step = 1},
                    all.subspan(0, 1), all.subspan(1, 1), all.subspan(2, 1), all.subspan(3, 1),
                    all.subspan(4, 1));
       }});
  list.push_back({"sgd_step",
                  {entry("parameters"), entry("gradients"), entry("momenta"), entry("master weights")},
                  {half({3}), half({3}), some({3}), some({3})},
                  [](List& t) {
                    const std::span all(t);
                    sgd_step({.learning_rate = 1, .momentum = 0.5, .weight_decay = 0}, all.subspan(0, 1),
                             all.subspan(1, 1), all.subspan(2, 1), all.subspan(3, 1));
                  }});
  list.push_back(
      {"squared_norm", {entry("tensors"), "entry 1 of tensors"}, {some({3}), some({2})}, [](List& t) {
         squared_norm(t);
       }});
  list.push_back({"backward", {"output", "gradient"}, {some({3}), some({3})}, [](List& t) {
                    backward(neg(t[0].detach().set_requires_grad()), t[1]);
                  }});
  return list;
}

constexpr Device kHost = {Device::cpu}, kGpu = {Device::cuda};

class MixedDevicesTest : public testing::Test {
 protected:
  void SetUp() override {
    if (test_device() != kGpu) GTEST_SKIP() << "there is one device alone";
  }
};

TEST_F(MixedDevicesTest, AreRefusedByNameInEveryOp) {
  for (const auto& [most, other] : {std::pair(kHost, kGpu), std::pair(kGpu, kHost)}) {
    for (const Case& c : cases()) {
      for (size_t odd = 0; odd < c.tensors.size(); ++odd) {
        SCOPED_TRACE(fmt::format("{} on {}, {} on {}", c.op, most, c.names[odd], other));
        List tensors;
        for (size_t i = 0; i < c.tensors.size(); ++i)
          tensors.push_back(c.tensors[i].to(i == odd ? other : most));
        EXPECT_THAT(
            [&] { c.call(tensors); },
            ThrowsMessage<ValueError>(
                AllOf(HasSubstr("[" + c.op + "]"), HasSubstr(c.names[odd] + (odd == 0 ? " is on " : " on ")),
                      HasSubstr("on cpu"), HasSubstr("on cuda"), HasSubstr("with Tensor::to"))));
      }
    }
  }
}

// Hazard: a kernel of the CPU that takes its scratch from the default device.
TEST_F(MixedDevicesTest, AreNotMadeByAnOpOnOneDevice) {
  std::vector<Case> list = cases();
  // 16 bits go through f32 copies, and gradients through sums.
  list.push_back({"softmax", {}, {half({3, 4}), half({3, 4})}, [](List& t) {
                    backward(softmax(t[0].set_requires_grad(), 1), t[1]);
                  }});
  list.push_back({"layer_norm", {}, {half({3, 4}), half({4}), half({4}), half({3, 4})}, [](List& t) {
                    for (size_t i = 0; i < 3; ++i) t[i].set_requires_grad();
                    backward(layer_norm(t[0], t[1], t[2]), t[3]);
                  }});
  list.push_back({"max", {}, {some({3, 4}), some({3})}, [](List& t) {
                    backward(max(t[0].set_requires_grad(), {1}), t[1]);
                  }});
  for (const Case& c : list) {
    SCOPED_TRACE(c.op);
    List tensors;
    for (const Tensor& x : c.tensors) tensors.push_back(x.to(kGpu));
    EXPECT_NO_THROW(c.call(tensors));
    for (Tensor& x : tensors) x = x.to(kHost);
    const int64_t before = memory_stats(kGpu).allocations;
    EXPECT_NO_THROW(c.call(tensors));
    EXPECT_EQ(memory_stats(kGpu).allocations, before);
  }
}

}  // namespace
}  // namespace tapehead
