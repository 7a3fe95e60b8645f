#include "tapehead/ops/attention.h"

#include <gtest/gtest.h>
#include <omp.h>

#include <cmath>
#include <limits>

#include "tapehead/ops/elementwise.h"
#include "tapehead/ops/matmul.h"
#include "tapehead/ops/softmax.h"
#include "tapehead/tests/golden_cases.h"
#include "tapehead/tests/ops/instruction_sets.h"
#include "tapehead/tests/testing.h"

namespace tapehead {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

// As the definition reads, with all T×S scores, and every head of keys and values repeated for its group.
Tensor naive_attention(const Tensor& q, const Tensor& k, const Tensor& v, bool causal, double scale,
                       const Tensor& first_seen = {}) {
  const int64_t B = q.size(0), H = q.size(1), T = q.size(2), G = k.size(1), S = k.size(2), D = k.size(3);
  const auto repeated = [&](const Tensor& x) {
    return reshape(expand(unsqueeze(x, 2), {B, G, H / G, S, D}), {B, H, S, D});
  };
  const std::vector<int64_t> first = first_seen.defined() ? first_seen.to_vector<int64_t>()
                                                          : std::vector<int64_t>(static_cast<size_t>(B * T));
  std::vector<double> mask;
  for (int64_t i = 0; i < B * T; ++i) {
    const int64_t own = S - T + i % T;
    for (int64_t s = 0; s < S; ++s) {
      mask.push_back(s >= first[static_cast<size_t>(i)] && (s <= own || !causal) ? 0 : -kInfinity);
    }
  }
  const Tensor scores =
      matmul(q, transpose(repeated(k), -2, -1)) * scale + Tensor::from<double>({B, 1, T, S}, mask);
  return matmul(softmax(scores, -1), repeated(v));
}

TEST(Attention, PyTorch) {
  for (const GoldenCase& c : golden_cases("ops.safetensors", "attention")) {
    expect_golden(c, scaled_dot_product_attention(c.input("q"), c.input("k"), c.input("v")), 1e-12, 1e-13);
  }
}

TEST(Attention, PyTorchWithGroupsPastAndDocuments) {
  for (const GoldenCase& c : golden_cases("ops.safetensors", "grouped_attention")) {
    const Tensor y = scaled_dot_product_attention(c.input("q"), c.input("k"), c.input("v"), true, {},
                                                  c.input("first_seen"));
    expect_golden(c, y, 1e-12, 1e-13);
  }
}

TEST(Attention, GradientsEqualDifferences) {
  const auto attend = [](bool causal) {
    return [causal](const std::vector<Tensor>& x) {
      return scaled_dot_product_attention(x[0], x[1], x[2], causal, 0.7);
    };
  };
  const auto leaf = [](const Shape& shape, uint64_t seed) {
    return random_tensor(shape, seed).set_requires_grad();
  };
  for (const Shape& shape : {Shape{2, 2, 5, 3}, Shape{1, 1, 1, 1}, Shape{1, 2, 1, 4}, Shape{1, 1, 4, 1},
                             Shape{0, 2, 3, 4}, Shape{2, 0, 3, 4}, Shape{1, 2, 0, 4}}) {
    for (bool causal : {true, false})
      expect_gradcheck(attend(causal), {leaf(shape, 1), leaf(shape, 2), leaf(shape, 3)});
  }
  // Not dense along D, and expanded over heads.
  expect_gradcheck(attend(true), {transpose(random_tensor({1, 2, 3, 4}, 4), 2, 3).set_requires_grad(),
                                  leaf({1, 2, 4, 3}, 5),
                                  slice(random_tensor({1, 2, 4, 6}, 6), 3, 0, 6, 2).set_requires_grad()});
  expect_gradcheck(
      [&](const std::vector<Tensor>& x) {
        return scaled_dot_product_attention(x[0], expand(x[1], {2, 3, 4, 3}), expand(x[2], {2, 3, 4, 3}));
      },
      {leaf({2, 3, 4, 3}, 7), leaf({2, 1, 4, 3}, 8), leaf({1, 1, 1, 3}, 9)});
  // Some inputs want no gradient.
  expect_gradcheck(attend(true), {random_tensor({1, 2, 3, 2}, 10), leaf({1, 2, 3, 2}, 11),
                                  random_tensor({1, 2, 3, 2}, 12)});
}

TEST(Attention, EqualsTheDefinitionAcrossBlocks) {
  for_each_instruction_set([] {
    Generator random{.seed = 5};
    for (const int64_t positions : {1, 2, 31, 63, 64, 65, 127, 128, 130, 200}) {
      for (const bool causal : {true, false}) {
        const Shape shape{1 + static_cast<int64_t>(random.below(2)),
                          1 + static_cast<int64_t>(random.below(3)), positions,
                          1 + static_cast<int64_t>(random.below(40))};
        std::vector<Tensor> inputs, naive_inputs;
        for (uint64_t i = 0; i < 3; ++i) {
          inputs.push_back(random_tensor(shape, random.word(), i == 2 ? 1 : 3).set_requires_grad());
          naive_inputs.push_back(inputs.back().clone().set_requires_grad());
        }
        const std::string what = fmt::format("shape {}, causal {}", shape, causal);
        const Tensor gradient = random_tensor(shape, random.word());
        const Tensor y = scaled_dot_product_attention(inputs[0], inputs[1], inputs[2], causal, 0.5);
        const Tensor expected =
            naive_attention(naive_inputs[0], naive_inputs[1], naive_inputs[2], causal, 0.5);
        expect_close(y, expected, 1e-12, 1e-13, what);
        backward(y, gradient);
        backward(expected, gradient);
        for (size_t i = 0; i < 3; ++i)
          expect_close(inputs[i].grad(), naive_inputs[i].grad(), 1e-10, 1e-12, what);
      }
    }
  });
}

// Where documents of random lengths begin, for each of T queries of B rows, the last of S positions.
Tensor random_documents(int64_t B, int64_t T, int64_t S, Generator& random) {
  std::vector<int64_t> first;
  for (int64_t b = 0; b < B; ++b) {
    int64_t begin = 0;
    for (int64_t s = 0; s < S; ++s) {
      if (random.below(static_cast<uint64_t>(1 + b * 40)) == 0) begin = s;  // row 0: each position by itself
      if (s >= S - T) first.push_back(begin);
    }
  }
  return Tensor::from<int64_t>({B, T}, first);
}

// Every way that the blocks of queries and of keys can be cut, with heads in groups and
// documents, or neither.
TEST(Attention, GroupsPastAndDocumentsEqualTheDefinitionAcrossBlocks) {
  for_each_instruction_set([] {
    Generator random{.seed = 6};
    struct Case {
      int64_t T, S, H, G;
    };
    for (const auto& [T, S, H, G] :
         {Case{1, 1, 2, 1}, Case{1, 64, 4, 2}, Case{1, 65, 2, 2}, Case{1, 200, 3, 1}, Case{3, 66, 4, 2},
          Case{64, 128, 2, 1}, Case{65, 130, 2, 2}, Case{70, 70, 6, 3}, Case{100, 203, 2, 1},
          Case{130, 131, 2, 1}}) {
      for (const bool causal : {true, false}) {
        for (const bool by_document : {true, false}) {
          constexpr int64_t B = 2, D = 5;
          std::vector<Tensor> x, naive;
          for (uint64_t i = 0; i < 3; ++i) {
            x.push_back(
                random_tensor({B, i == 0 ? H : G, i == 0 ? T : S, D}, random.word(), 2).set_requires_grad());
            naive.push_back(x.back().clone().set_requires_grad());
          }
          const Tensor first = by_document ? random_documents(B, T, S, random) : Tensor();
          const std::string what =
              fmt::format("T {}, S {}, H {}, G {}, causal {}, documents {}", T, S, H, G, causal, by_document);
          const Tensor y = scaled_dot_product_attention(x[0], x[1], x[2], causal, 0.5, first);
          const Tensor expected = naive_attention(naive[0], naive[1], naive[2], causal, 0.5, first);
          expect_close(y, expected, 1e-12, 1e-13, what);
          const Tensor gradient = random_tensor(y.shape(), random.word());
          backward(y, gradient);
          backward(expected, gradient);
          for (size_t i = 0; i < 3; ++i) expect_close(x[i].grad(), naive[i].grad(), 1e-10, 1e-12, what);
        }
      }
    }
  });
}

TEST(Attention, GradientsOfGroupsPastAndDocumentsEqualDifferences) {
  const auto leaf = [](const Shape& shape, uint64_t seed) {
    return random_tensor(shape, seed).set_requires_grad();
  };
  const Tensor first = Tensor::from<int64_t>({1, 3}, {0, 3, 2});
  expect_gradcheck(
      [&](const std::vector<Tensor>& x) {
        return scaled_dot_product_attention(x[0], x[1], x[2], true, {}, first);
      },
      {leaf({1, 4, 3, 2}, 1), leaf({1, 2, 5, 2}, 2), leaf({1, 2, 5, 2}, 3)});
  // No queries: nothing is seen, and keys and values get 0.
  expect_gradcheck(
      [&](const std::vector<Tensor>& x) { return scaled_dot_product_attention(x[0], x[1], x[2]); },
      {leaf({1, 2, 0, 2}, 1), leaf({1, 1, 3, 2}, 2), leaf({1, 1, 3, 2}, 3)});
}

// A query whose first_seen is its own position sees its own value alone, also where earlier keys hold NaN;
// and the keys and values of a document get nothing from the next.
TEST(Attention, ADocumentOfOnePosition) {
  constexpr int64_t kPositions = 150, kOwn = 100;
  std::vector<int64_t> begin(kPositions, 0);
  std::fill(begin.begin() + kOwn, begin.end(), kOwn);
  begin[kOwn + 1] = kOwn + 1;
  const Tensor first = Tensor::from<int64_t>({1, kPositions}, begin);
  std::vector<Tensor> x;
  for (uint64_t i = 0; i < 3; ++i) x.push_back(random_tensor({1, 1, kPositions, 4}, i).set_requires_grad());
  Tensor bad = x[1].clone();
  select(bad, 2, kOwn - 1).fill(kNaN);
  const Tensor beside_nan = scaled_dot_product_attention(x[0], bad, x[2], true, {}, first);
  const Tensor y = scaled_dot_product_attention(x[0], x[1], x[2], true, {}, first);
  for (const int64_t t : {kOwn, kOwn + 1}) {
    expect_close(select(y, 2, t), select(x[2], 2, t), 0, 1e-15, fmt::format("position {}", t));
    expect_close(select(beside_nan, 2, t), select(x[2], 2, t), 0, 1e-15, fmt::format("position {}", t));
  }
  Tensor gradient = Tensor::zeros(y.shape(), DType::f64);
  slice(gradient, 2, kOwn, kPositions).copy_from(random_tensor({1, 1, kPositions - kOwn, 4}, 5));
  backward(y, gradient);
  for (size_t i = 1; i < 3; ++i) {
    for (const double g : slice(x[i].grad(), 2, 0, kOwn).to_vector<double>()) EXPECT_EQ(g, 0) << i;
  }
}

// Kept keys and values give the same bits as all at once: a position's blocks are the same.
TEST(Attention, QueriesInTwoCallsEqualAllAtOnce) {
  constexpr int64_t kPositions = 192;
  std::vector<Tensor> x;
  for (uint64_t i = 0; i < 3; ++i) x.push_back(random_tensor({2, 2, kPositions, 8}, i, 1, DType::f32));
  const Tensor all = scaled_dot_product_attention(x[0], x[1], x[2]);
  for (const int64_t cut : {64, 100, 191}) {
    const Tensor rest = scaled_dot_product_attention(slice(x[0], 2, cut, kPositions), x[1], x[2]);
    const double tolerance = cut % 64 == 0 ? 0 : 1e-6;
    expect_close(rest, slice(all, 2, cut, kPositions), tolerance, tolerance, fmt::format("cut at {}", cut));
  }
}

TEST(Attention, RoundsLikeItsDtype) {
  for_each_instruction_set([] {
    for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
      const Shape shape{2, 3, 70, 20};
      std::vector<Tensor> inputs, wide;
      for (uint64_t i = 0; i < 3; ++i) {
        inputs.push_back(random_tensor(shape, i, 1, dtype).set_requires_grad());
        wide.push_back(inputs.back().to(DType::f64).set_requires_grad());
      }
      const Tensor gradient = random_tensor(shape, 9, 1, dtype);
      const Tensor y = scaled_dot_product_attention(inputs[0], inputs[1], inputs[2]);
      const Tensor expected = scaled_dot_product_attention(wide[0], wide[1], wide[2]);
      backward(y, gradient);
      backward(expected, gradient.to(DType::f64));
      const double tolerance = 4 * epsilon(dtype);
      expect_close(y.to(DType::f64), expected, tolerance, tolerance, std::string(name(dtype)));
      for (size_t i = 0; i < 3; ++i) {
        expect_close(inputs[i].grad().to(DType::f64), wide[i].grad(), 4 * tolerance, 4 * tolerance,
                     std::string(name(dtype)));
      }
    }
  });
}

TEST(Attention, PackedEqualsSplit) {
  for (const int64_t positions : {1, 5, 64, 70}) {
    for (const int64_t n_head : {1, 3}) {
      const int64_t batch = 2, width = 4, features = n_head * width;
      Tensor packed = random_tensor({batch, positions, 3 * features}, 1).set_requires_grad();
      Tensor split = packed.clone().set_requires_grad();
      const Tensor gradient = random_tensor({batch, positions, features}, 2);
      const auto part = [&](int64_t i) {
        return transpose(
            reshape(slice(split, 2, i * features, (i + 1) * features), {batch, positions, n_head, width}), 1,
            2);
      };
      Generator random{.seed = 7};
      const Tensor first = n_head == 3 ? random_documents(batch, positions, positions, random) : Tensor();
      const Tensor y = causal_self_attention(packed, n_head, first);
      const Tensor heads = scaled_dot_product_attention(part(0), part(1), part(2), true, {}, first);
      const Tensor expected = reshape(transpose(heads, 1, 2), {batch, positions, features});
      expect_close(y, expected, 0, 0, "packed");
      backward(y, gradient);
      backward(expected, gradient);
      expect_close(packed.grad(), split.grad(), 0, 0, "packed");
    }
  }
  expect_gradcheck(
      [](const std::vector<Tensor>& x) { return causal_self_attention(transpose(x[0], 1, 2), 2); },
      {random_tensor({2, 12, 3}, 3).set_requires_grad()});
  EXPECT_EQ(causal_self_attention(Tensor({0, 3, 6}), 1).shape(), Shape({0, 3, 2}));
}

// Joining the heads is a view: the result stands as (B, T, H, D).
TEST(Attention, JoiningHeadsCopiesNothing) {
  const Tensor x = random_tensor({2, 3, 4, 5}, 1);
  const Tensor y = scaled_dot_product_attention(x, x, x);
  EXPECT_TRUE(transpose(y, 1, 2).is_contiguous());
}

// A causal result depends on nothing later, not even on a NaN times zero; and the same backwards.
TEST(Attention, NaNStaysBehindTheDiagonal) {
  constexpr int64_t kPositions = 70, kBad = 20;
  for_each_instruction_set([] {
    for (const double bad : {kNaN, kInfinity, -kInfinity}) {
      for (size_t which = 0; which < 3; ++which) {
        std::vector<Tensor> x;
        for (uint64_t i = 0; i < 3; ++i) x.push_back(random_tensor({1, 1, kPositions, 4}, i));
        const Tensor clean = scaled_dot_product_attention(x[0], x[1], x[2]);
        select(select(x[which], 2, kBad), 2, 1).fill(bad);
        const Tensor y = scaled_dot_product_attention(x[0], x[1], x[2]);
        expect_close(slice(y, 2, 0, kBad), slice(clean, 2, 0, kBad), 0, 0,
                     fmt::format("{} in input {}", bad, which));
      }
    }
  });
  // An upstream NaN at a position reaches the keys and values that it saw, and no later ones.
  std::vector<Tensor> x;
  for (uint64_t i = 0; i < 3; ++i) x.push_back(random_tensor({1, 1, kPositions, 4}, i).set_requires_grad());
  Tensor gradient = random_tensor({1, 1, kPositions, 4}, 5);
  select(gradient, 2, kBad).fill(kNaN);
  backward(scaled_dot_product_attention(x[0], x[1], x[2]), gradient);
  for (size_t i = 0; i < 3; ++i) {
    for (const double g : slice(x[i].grad(), 2, kBad + 1, kPositions).to_vector<double>())
      EXPECT_TRUE(std::isfinite(g)) << i;
    EXPECT_TRUE(std::isnan(x[i].grad().to_vector<double>()[kBad * 4])) << i;
  }
}

// A first block of nothing but -inf scores leaves later ones unharmed.
TEST(Attention, MinusInfinityScores) {
  constexpr int64_t kPositions = 100;
  Tensor q = Tensor::full({1, 1, kPositions, 1}, 1, DType::f64), k = q.clone(),
         v = random_tensor({1, 1, kPositions, 1}, 1);
  slice(k, 2, 0, 64).fill(-kInfinity);
  for (const bool causal : {true, false}) {
    const Tensor y = scaled_dot_product_attention(q, k, v, causal);
    EXPECT_EQ(y.to_vector<double>()[64], causal ? v.to_vector<double>()[64] : y.to_vector<double>()[99]);
    EXPECT_TRUE(std::isfinite(y.to_vector<double>()[99]));
    expect_close(y, naive_attention(q, k, v, causal, 1), 1e-12, 1e-14, "-inf");
  }
}

TEST(Attention, ScoresTooLargeForExp) {
  Tensor q = random_tensor({1, 2, 70, 8}, 1, 1e4).set_requires_grad(),
         v = random_tensor({1, 2, 70, 8}, 2).set_requires_grad();
  const Tensor y = scaled_dot_product_attention(q, q, v);
  backward(y, random_tensor(y.shape(), 3));
  for (const Tensor& t : {y, q.grad(), v.grad()}) {
    for (const double x : t.to_vector<double>()) ASSERT_TRUE(std::isfinite(x));
  }
}

TEST(Attention, SameForAnyNumberOfThreads) {
  const auto run = [](int threads) {
    omp_set_num_threads(threads);
    Tensor qkv = random_tensor({2, 150, 72}, 1, 1, DType::f32).set_requires_grad();
    const Tensor y = causal_self_attention(qkv, 3);
    backward(y, random_tensor(y.shape(), 2, 1, DType::f32));
    Tensor q = random_tensor({2, 6, 90, 8}, 3, 1, DType::f32),
           k = random_tensor({2, 2, 150, 8}, 4, 1, DType::f32);
    backward(scaled_dot_product_attention(q, k.set_requires_grad(), k),
             random_tensor(q.shape(), 5, 1, DType::f32));
    return std::tuple(y.to_vector<float>(), qkv.grad().to_vector<float>(), k.grad().to_vector<float>());
  };
  const int before = omp_get_max_threads();
  const auto one = run(1);
  EXPECT_EQ(one, run(2));
  EXPECT_EQ(one, run(5));
  omp_set_num_threads(before);
}

// No T×T matrix in forward, between, or in backward: twice the positions take at most twice the memory.
TEST(Attention, MemoryGrowsLinearly) {
  const auto peak = [](int64_t positions) {
    const MemoryScope scope("linear");
    Tensor qkv = Tensor::full({1, positions, 24}, 1).set_requires_grad();
    const Tensor gradient = Tensor::full({1, positions, 8}, 1);
    reset_peak(test_device(), "linear");
    const int64_t before = memory_stats(test_device(), "linear").live_bytes;
    backward(causal_self_attention(qkv, 2), gradient);
    return memory_stats(test_device(), "linear").peak_bytes - before;
  };
  const int64_t once = peak(1024), twice = peak(2048);
  EXPECT_LE(twice, 2 * once);
  EXPECT_LT(twice, 2048 * 2048 * 4);
}

// The packed gradient is written where it stands: nothing of qkv's size beside it but the accumulated sums.
TEST(Attention, SavesResultAndLseOnly) {
  const MemoryScope scope("saved");
  Tensor qkv = Tensor::full({2, 256, 96}, 1).set_requires_grad();
  const int64_t before = memory_stats(test_device(), "saved").live_bytes;
  const Tensor y = causal_self_attention(qkv, 4);
  EXPECT_EQ(memory_stats(test_device(), "saved").live_bytes - before, y.bytes() + 2 * 4 * 256 * 4);
}

TEST(Attention, Errors) {
  const Tensor x({1, 2, 3, 4}), other({1, 2, 3, 5}), ids({1, 2, 3, 4}, DType::i64);
  expect_error<ValueError>([&] { scaled_dot_product_attention(x, other, x); }, "(1, 2, 3, 5)");
  expect_error<ValueError>([&] { scaled_dot_product_attention(Tensor({2}), Tensor({2}), Tensor({2})); },
                           "(B, H, T, D)");
  expect_error<ValueError>(
      [&] {
        scaled_dot_product_attention(x, Tensor({1, 2, 2, 4}), Tensor({1, 2, 2, 4}));
      },
      "S >= T");
  expect_error<ValueError>(
      [&] {
        scaled_dot_product_attention(Tensor({1, 3, 3, 4}), x, x);
      },
      "2 heads of keys and values for 3 of queries");
  const auto see_from = [&](const Tensor& first) {
    scaled_dot_product_attention(x, x, x, true, {}, first).to_vector<float>();  // or when it is read
  };
  expect_error<ValueError>([&] { see_from(Tensor::from<int64_t>({3}, {0, 0, 0})); }, "it must be (1, 3)");
  expect_error<ValueError>(
      [&] {
        see_from(Tensor::from<int64_t>({1, 3}, {0, 2, 0}));
      },
      "first_seen is 2 for query 1 of row 0, at position 1: it must be in [0, 1]");
  expect_error<ValueError>([&] { see_from(Tensor::from<int64_t>({1, 3}, {0, -1, 0})); }, "first_seen is -1");
  expect_error<TypeError>([&] { see_from(Tensor({1, 3})); }, "first_seen is f32");
  expect_error<TypeError>([&] { scaled_dot_product_attention(ids, ids, ids); }, "i64");
  expect_error<TypeError>([&] { scaled_dot_product_attention(x, x.to(DType::f64), x); }, "f64");
  expect_error<ValueError>([&] { causal_self_attention(Tensor({2, 3, 12}), 3); }, "3 heads");
  expect_error<ValueError>([&] { causal_self_attention(Tensor({2, 3, 12}), 0); }, "0 heads");
  expect_error<ValueError>([&] { causal_self_attention(Tensor({3, 12}), 2); }, "(3, 12)");
  expect_error<TypeError>([&] { causal_self_attention(Tensor({2, 3, 12}, DType::i64), 2); }, "i64");
}

}  // namespace
}  // namespace tapehead
