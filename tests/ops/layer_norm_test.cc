#include "tapehead/ops/layer_norm.h"

#include <gtest/gtest.h>
#include <omp.h>

#include <cmath>
#include <limits>

#include "tapehead/core/memory.h"
#include "tapehead/core/view.h"
#include "tapehead/tests/golden_cases.h"
#include "tapehead/tests/ops/instruction_sets.h"
#include "tapehead/tests/testing.h"

namespace tapehead {
namespace {

Tensor leaf(const Shape& shape, uint64_t seed) { return random_tensor(shape, seed).set_requires_grad(); }

TEST(LayerNorm, PyTorch) {
  for (const GoldenCase& c : golden_cases("ops.safetensors", "layer_norm")) {
    const double eps = c.number("eps");
    // PyTorch's own rounding: x near 10000; and rstd of 316, where the gradient is 0 exactly.
    const bool coarse = c.name == "layer_norm/offset" || c.name.find("axis_size_1") != std::string::npos;
    expect_golden(c, layer_norm(c.input("input"), c.input("weight"), c.input("bias"), eps), 1e-12,
                  coarse ? 1e-11 : 1e-13);
  }
}

// For inputs whose elements are too many to be differed one by one on an emulated device: the host's
// gradients are.
template <class F>
void expect_gradients_of_the_host(const F& function, const std::vector<Tensor>& inputs) {
  const auto gradients = [&](Device device) {
    const DeviceGuard guard(device);
    std::vector<Tensor> leaves, list;
    for (const Tensor& x : inputs) leaves.push_back(x.to(device).clone().set_requires_grad());
    const Tensor y = function(leaves);
    backward(y, random_tensor(y.shape(), 9));
    for (const Tensor& x : leaves) list.push_back(x.grad());
    return list;
  };
  const std::vector<Tensor> actual = gradients(test_device()), expected = gradients(Device{});
  for (size_t i = 0; i < inputs.size(); ++i)
    expect_close(actual[i], expected[i].to(test_device()), 1e-12, 1e-13, fmt::format("input {}", i));
}

TEST(LayerNorm, GradientsEqualDifferences) {
  const auto function = [](const std::vector<Tensor>& x) { return layer_norm(x[0], x[1], x[2], 1e-3); };
  for (const Shape& shape :
       {Shape{3, 5}, Shape{2, 3, 4}, Shape{7}, Shape{3, 1}, Shape{0, 4}, Shape{3, 0}, Shape{40, 19}}) {
    SCOPED_TRACE(shape.str());
    const Shape vector{shape[-1]};
    if (shape.numel() > 100 && device_is_emulated()) {
      expect_gradients_of_the_host(function, {leaf(shape, 1), leaf(vector, 2), leaf(vector, 3)});
      continue;
    }
    expect_gradcheck(function, {leaf(shape, 1), leaf(vector, 2), leaf(vector, 3)});
    expect_gradcheck(function, {leaf(shape, 1), {}, {}});
    expect_gradcheck(function, {leaf(shape, 1), leaf(vector, 2), {}});
    expect_gradcheck(function, {leaf(shape, 1), {}, leaf(vector, 3)});
    // Each gradient on its own.
    expect_gradcheck(function, {leaf(shape, 1), random_tensor(vector, 2), random_tensor(vector, 3)});
    expect_gradcheck(function, {random_tensor(shape, 1), leaf(vector, 2), random_tensor(vector, 3)});
    expect_gradcheck(function, {random_tensor(shape, 1), random_tensor(vector, 2), leaf(vector, 3)});
  }
  expect_gradcheck(function,
                   {transpose(slice(random_tensor({8, 3}, 4), 0, 0, 8, 2), 0, 1).set_requires_grad(),
                    slice(random_tensor({8}, 5), 0, 1, 8, 2).set_requires_grad(),
                    expand(random_tensor({1}, 6), {4}).clone().set_requires_grad()});
  expect_gradcheck([](const std::vector<Tensor>& x) { return transpose(layer_norm(x[0], x[1], x[2]), 0, 1); },
                   {leaf({3, 4}, 1), leaf({4}, 2), leaf({4}, 3)});
}

TEST(RmsNorm, PyTorch) {
  for (const GoldenCase& c : golden_cases("ops.safetensors", "rms_norm")) {
    const Tensor y = rms_norm(c.input("input"), c.input("weight"), c.number("eps"));
    expect_golden(c, y, 1e-12, 1e-13);
  }
}

TEST(RmsNorm, GradientsEqualDifferences) {
  const auto function = [](const std::vector<Tensor>& x) { return rms_norm(x[0], x[1], 1e-3); };
  for (const Shape& shape :
       {Shape{3, 5}, Shape{2, 3, 4}, Shape{7}, Shape{3, 1}, Shape{0, 4}, Shape{40, 19}}) {
    SCOPED_TRACE(shape.str());
    const Shape vector{shape[-1]};
    if (shape.numel() > 100 && device_is_emulated()) {
      expect_gradients_of_the_host(function, {leaf(shape, 1), leaf(vector, 2)});
      continue;
    }
    expect_gradcheck(function, {leaf(shape, 1), leaf(vector, 2)});
    expect_gradcheck(function, {leaf(shape, 1), {}});
    expect_gradcheck(function, {leaf(shape, 1), random_tensor(vector, 2)});
    expect_gradcheck(function, {random_tensor(shape, 1), leaf(vector, 2)});
  }
  expect_gradcheck(function,
                   {transpose(slice(random_tensor({8, 3}, 4), 0, 0, 8, 2), 0, 1).set_requires_grad(),
                    slice(random_tensor({8}, 5), 0, 1, 8, 2).set_requires_grad()});
}

TEST(RmsNorm, Errors) {
  expect_error<ValueError>([] { rms_norm(Tensor({2, 3}), Tensor({2})); }, "[rms_norm] weight of shape (2,)");
  expect_error<ValueError>([] { rms_norm(Tensor({2, 3}), {}, -1); }, "[rms_norm] epsilon is -1");
}

TEST(LayerNorm, Errors) {
  const Tensor x({2, 3});
  expect_error<ValueError>([&] { layer_norm(x, Tensor({2})); },
                           "[layer_norm] weight of shape (2,) with x of shape (2, 3)");
  expect_error<ValueError>([&] { layer_norm(x, {}, Tensor({1, 3})); }, "[layer_norm] bias of shape (1, 3)");
  expect_error<TypeError>([&] { layer_norm(x, Tensor({3}, DType::f64)); },
                          "[layer_norm] takes tensors of one floating dtype, not f32 and f64");
  expect_error<ValueError>([&] { layer_norm(x, {}, {}, -1); }, "epsilon is -1");
  expect_error<ValueError>([&] { layer_norm(x, {}, {}, std::numeric_limits<double>::quiet_NaN()); },
                           "epsilon is nan");
  expect_error<ValueError>([&] { layer_norm(Tensor::scalar(1)); }, "scalar");
  expect_error<TypeError>([&] { layer_norm(Tensor({2}, DType::i64)); }, "i64");
}

// f32 against f64 on the same numbers, over widths with and without a tail, near 0 and far from it.
TEST(LayerNorm, AccurateInF32) {
  for_each_instruction_set([] {
    for (const int64_t columns : {1, 5, 16, 100, 768}) {
      for (const double offset : {0.0, 30.0}) {
        std::vector<double> values = random_tensor({70, columns}, 7).to_vector<double>();
        for (double& v : values) v += offset;
        const Tensor x = Tensor::from<double>({70, columns}, values);
        const Tensor f32 = x.to(DType::f32), w = random_tensor({columns}, 8, 1, DType::f32),
                     b = random_tensor({columns}, 9, 1, DType::f32);
        const Tensor g = random_tensor({70, columns}, 10, 1, DType::f32);
        const auto run = [&](DType dtype) {
          std::vector<Tensor> in;
          for (const Tensor& t : {f32, w, b}) in.push_back(t.to(dtype).clone().set_requires_grad());
          const Tensor y = layer_norm(in[0], in[1], in[2]);
          backward(y, g.to(dtype));
          std::vector<Tensor> results{y.to(DType::f64), in[0].grad().to(DType::f64),
                                      in[1].grad().to(DType::f64), in[2].grad().to(DType::f64)};
          for (const size_t i : {0, 1}) in[i].set_grad({});
          const Tensor z = rms_norm(in[0], in[1]);
          backward(z, g.to(dtype));
          for (const Tensor& t : {z, in[0].grad(), in[1].grad()}) results.push_back(t.to(DType::f64));
          return results;
        };
        const std::vector<Tensor> got = run(DType::f32), exact = run(DType::f64);
        for (size_t i = 0; i < got.size(); ++i) {
          const bool rms = i >= 4, summed = i == 2 || i == 3 || i == 6;  // over rows
          // Of one column x̂ is 0, exactly.
          const double unit = columns == 1 && !rms ? 0 : 1e-6 * (1 + offset);
          expect_close(got[i], exact[i], 2e-6, (summed ? 40 : 4) * unit,
                       fmt::format("result {} of {} columns at {}", i, columns, offset));
        }
      }
    }
  });
}

TEST(LayerNorm, HugeAndConstantRows) {
  // The squares would overflow f32 if the mean stayed in.
  const Tensor y = layer_norm(Tensor::from<float>({2, 2}, {1e18f, 3e18f, 5, 5}));
  expect_close(y, Tensor::from<float>({2, 2}, {-1, 1, 0, 0}), 2.5e-7, 0, "y");
}

TEST(LayerNorm, ThreadsDoNotChangeABit) {
  const int threads = omp_get_max_threads();
  std::vector<std::vector<float>> results;
  for (const int count : {1, 2, 3}) {
    omp_set_num_threads(count);
    Tensor x = random_tensor({900, 83}, 11, 1, DType::f32).set_requires_grad(),
           w = random_tensor({83}, 12, 1, DType::f32).set_requires_grad();
    const Tensor y = layer_norm(x, w);
    backward(y, random_tensor({900, 83}, 13, 1, DType::f32));
    std::vector<float> all = y.to_vector<float>();
    for (const Tensor& g : {x.grad(), w.grad()}) {
      const std::vector<float> values = g.to_vector<float>();
      all.insert(all.end(), values.begin(), values.end());
    }
    results.push_back(all);
  }
  omp_set_num_threads(threads);
  EXPECT_EQ(results[0], results[1]);
  EXPECT_EQ(results[0], results[2]);
}

// Two numbers a row beside the result, and only where a backward may come.
TEST(LayerNorm, KeepsMeanAndRstdOnly) {
  const MemoryScope scope("layer_norm");
  const Tensor x = Tensor::zeros({64, 16});
  Tensor w = Tensor::full({16}, 1);
  const int64_t before = memory_stats(test_device(), "layer_norm").live_bytes;
  {
    const Tensor y = layer_norm(x, w);
    EXPECT_EQ(memory_stats(test_device(), "layer_norm").live_bytes - before, y.bytes());
  }
  w.set_requires_grad();
  const Tensor y = layer_norm(x, w);
  EXPECT_EQ(memory_stats(test_device(), "layer_norm").live_bytes - before, y.bytes() + 2 * 64 * 4);
}

TEST(LayerNorm, HalfPrecision) {
  for (const DType half : {DType::f16, DType::bf16}) {
    std::vector<Tensor> in, wide;
    for (const Tensor& t : {random_tensor({6, 40}, 14), random_tensor({40}, 15), random_tensor({40}, 16)}) {
      in.push_back(t.to(half).set_requires_grad());
      wide.push_back(in.back().to(DType::f32).set_requires_grad());
    }
    const Tensor y = layer_norm(in[0], in[1], in[2]), wide_y = layer_norm(wide[0], wide[1], wide[2]);
    EXPECT_EQ(y.to_vector<float>(), wide_y.to(half).to_vector<float>());
    const Tensor g = random_tensor({6, 40}, 17).to(half);
    backward(y, g);
    backward(wide_y, g.to(DType::f32));
    for (size_t i = 0; i < 3; ++i)
      EXPECT_EQ(in[i].grad().to_vector<float>(), wide[i].grad().to(half).to_vector<float>()) << i;
    EXPECT_EQ(rms_norm(in[0], in[1]).to_vector<float>(),
              rms_norm(wide[0], wide[1]).to(half).to_vector<float>());
  }
}

}  // namespace
}  // namespace tapehead
