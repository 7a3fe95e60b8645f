// The CUDA backend's row pass of cross entropy against the CPU's: every argument, every dtype, rows that
// begin anywhere.
#include <map>

#include "tapehead/tests/backends/twin.h"

namespace tapehead {
namespace {

struct CrossEntropyCase {
  std::string name = {};
  int64_t R = 4, C = 37;
  DType dtype = DType::f32, gradient = DType::f32;
  bool bias = false, probability = false, weight = false, own = false, in_place = true, statistics = true;
  double smoothing = 0, logit_scale = 1, softcap = 0, z_loss = 0, unit = 1;
  GradientFilter filter = {};
  int64_t sparse = 0;  // entries a row
  double spread = 4;
};

Tensor some_probabilities(int64_t R, int64_t C, DType dtype) {
  std::vector<double> values = random_tensor({R, C}, 4).to_vector<double>();
  for (double& v : values) v = (v + 1) / static_cast<double>(C);
  return Tensor::from<double>({R, C}, values).to(dtype);
}

// Entries of a row may come in any order.
void expect_same_entries(const Twin& count, const Twin& index, const Twin& value, double t) {
  const int64_t S = index.cpu.size(1);
  const auto rows = [&](const Tensor& n, const Tensor& at, const Tensor& x) {
    const auto counts = n.to_vector<int64_t>();
    const auto columns = at.to_vector<int32_t>();
    const auto values = x.to(kCpu).to(DType::f64).to_vector<double>();
    std::vector<std::map<int32_t, double>> all;
    for (size_t r = 0; r < counts.size(); ++r) {
      auto& row = all.emplace_back();
      for (int64_t k = 0; k < counts[r] && counts[r] <= S; ++k) {
        const size_t i = r * static_cast<size_t>(S) + static_cast<size_t>(k);
        EXPECT_TRUE(row.emplace(columns[i], values[i]).second)
            << "row " << r << " has column " << columns[i] << " twice";
      }
    }
    return all;
  };
  const auto expected = rows(count.cpu, index.cpu, value.cpu),
             actual = rows(count.cuda, index.cuda, value.cuda);
  for (size_t r = 0; r < expected.size(); ++r) {
    ASSERT_EQ(actual[r].size(), expected[r].size()) << "row " << r;
    for (const auto& [column, v] : expected[r]) {
      ASSERT_TRUE(actual[r].count(column)) << "row " << r << " lacks column " << column;
      EXPECT_NEAR(actual[r].at(column), v, t * (1 + std::abs(v))) << "row " << r << " column " << column;
    }
  }
}

void run_cross_entropy(const CrossEntropyCase& c) {
  SCOPED_TRACE(fmt::format("{} ({}, {}) {} to {}", c.name, c.R, c.C, c.dtype, c.gradient));
  const DType wide = arithmetic_dtype(c.dtype);
  // Rows have a stride of their own; in a narrower dtype, as many times it.
  const Twin logits = Twin::random({c.R, c.C}, 1, c.spread, c.dtype, 4);
  const auto vector = [&](bool wanted, uint64_t seed, Shape shape, DType dtype) {
    return wanted ? Twin(random_tensor(std::move(shape), seed, 0.5, dtype)) : Twin();
  };
  const Twin bias = vector(c.bias, 2, {c.C}, DType::bf16), weight = vector(c.weight, 3, {c.C}, DType::f32),
             probability(c.probability ? some_probabilities(c.R, c.C, c.dtype) : Tensor());
  const Twin target(c.probability ? Tensor() : random_indices({c.R}, static_cast<uint64_t>(c.C), 5));
  std::vector<double> scales;
  for (int64_t r = 0; r < c.R; ++r) scales.push_back(r == 1 ? 0 : 0.3 + static_cast<double>(r));
  const Twin row_scale(Tensor::from<double>({c.R}, scales)),
      z_row_scale(c.z_loss > 0 ? Tensor::from<double>({c.R}, scales) : Tensor());
  const auto f64 = [&](bool wanted) { return wanted ? Twin(Tensor::zeros({c.R}, DType::f64)) : Twin(); };
  const Twin loss = f64(true), lse = f64(c.statistics), entropy = f64(c.statistics),
             logprob = f64(c.statistics && !c.probability), own = f64(c.own),
             mass = f64(c.filter.kind != GradientFilter::none),
             correct(c.statistics && !c.probability ? Tensor::zeros({c.R}, DType::i64) : Tensor());
  const Twin separate = c.in_place ? Twin() : Twin::result({c.R, c.C}, c.gradient);
  const Twin gq = c.probability ? Twin::result({c.R, c.C}, c.dtype) : Twin();
  Twin gradient;
  const bool sparse = c.sparse > 0;
  const Twin count = sparse ? Twin::counts({c.R}) : Twin(),
             index(sparse ? Tensor::zeros({c.R, c.sparse}, DType::i32) : Tensor()),
             value(sparse ? Tensor::zeros({c.R, c.sparse}, wide) : Tensor());
  on_both([&](Backend& b, auto take) {
    CrossEntropyRows rows;
    rows.logits = take(logits);
    rows.bias = take(bias);
    rows.target_index = take(target);
    rows.target_probability = take(probability);
    rows.class_weight = take(weight);
    rows.row_scale = take(row_scale);
    rows.z_row_scale = take(z_row_scale);
    rows.label_smoothing = c.smoothing;
    rows.logit_scale = c.logit_scale;
    rows.softcap = c.softcap;
    rows.z_loss = c.z_loss;
    rows.gradient_unit = c.unit;
    rows.filter = c.filter;
    rows.filter_seed = 11;
    rows.filter_first = 7;
    rows.loss = take(loss);
    rows.lse = take(lse);
    rows.target_logprob = take(logprob);
    rows.entropy = take(entropy);
    rows.correct = take(correct);
    rows.own_gradient = take(own);
    rows.filtered_mass = take(mass);
    rows.target_gradient = take(gq);
    if (sparse) {
      rows.sparse_gradient = {take(count), take(index), take(value)};
    } else if (c.in_place) {
      const Tensor x = rows.logits;
      const int64_t ratio = size_of(x.dtype()) / size_of(c.gradient);
      rows.gradient = Tensor::over(x.storage(), {}, c.gradient)
                          .alias(x.shape(), {x.strides()[0] * ratio, 1}, x.offset() * ratio);
    } else {
      rows.gradient = take(separate);
    }
    b.cross_entropy_rows(rows);
    (rows.loss.device() == kCuda ? gradient.cuda : gradient.cpu) = rows.gradient;
  });
  const double t = c.dtype == DType::f64 ? 1e-12 : 1e-6;
  expect_agreement(loss, t, t, "loss");
  if (c.statistics) {
    expect_agreement(lse, t, t, "lse");
    expect_agreement(entropy, 10 * t, 10 * t, "entropy");
    if (!c.probability) {
      expect_agreement(logprob, t, t, "target_logprob");
      expect_agreement(correct, 0, 0, "correct");
    }
  }
  if (c.own) expect_agreement(own, 10 * t, t, "own_gradient");
  if (mass.cpu.defined()) expect_agreement(mass, 10 * t, t, "filtered_mass");
  if (c.probability) expect_agreement(gq, tolerance(c.dtype), t, "target_gradient");
  if (sparse) {
    expect_agreement(count, 0, 0, "count");
    expect_same_entries(count, index, value, 10 * t);
  } else {
    expect_agreement(gradient, tolerance(c.gradient), t / c.unit, "gradient");
  }
}

TEST(CudaCrossEntropy, EveryDTypeInPlaceAndApart) {
  for (const DType dtype : kDTypes) {
    for (const int64_t C : {1, 8, 37, 4500}) {
      run_cross_entropy({.name = "apart", .C = C, .dtype = dtype, .gradient = dtype, .in_place = false});
      run_cross_entropy({.name = "plain", .C = C, .dtype = dtype, .gradient = dtype, .statistics = false});
      run_cross_entropy(
          {.name = "own", .C = C, .dtype = dtype, .gradient = dtype, .own = true, .unit = 0.25});
    }
  }
}

TEST(CudaCrossEntropy, NarrowerGradientWhereTheLogitsWere) {
  for (const int64_t C : {1, 8, 37, 4500, 9001}) {
    for (const bool statistics : {false, true}) {
      for (const DType to : {DType::f16, DType::bf16})
        run_cross_entropy({.name = "narrower", .C = C, .gradient = to, .statistics = statistics});
      run_cross_entropy({.name = "narrower",
                         .C = C,
                         .dtype = DType::f64,
                         .gradient = DType::f32,
                         .statistics = statistics});
    }
  }
}

TEST(CudaCrossEntropy, RowsThatSharedMemoryDoesNotHold) {
  run_cross_entropy({.name = "long", .R = 2, .C = 30011, .dtype = DType::f64, .gradient = DType::f64});
  run_cross_entropy({.name = "long", .R = 2, .C = 60011, .gradient = DType::bf16, .statistics = false});
}

TEST(CudaCrossEntropy, EveryArgument) {
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
    for (const int64_t C : {37, 700}) {
      CrossEntropyCase c = {.C = C, .dtype = dtype, .gradient = dtype, .in_place = false};
      const auto with = [&](const char* name, auto change) {
        CrossEntropyCase other = c;
        other.name = name;
        change(other);
        run_cross_entropy(other);
      };
      with("bias", [](auto& o) { o.bias = true; });
      with("weight", [](auto& o) { o.weight = true; });
      with("smoothing", [](auto& o) { o.smoothing = 0.1; });
      with("smoothing and weight", [](auto& o) { o.smoothing = 0.1, o.weight = true, o.own = true; });
      with("probability", [](auto& o) { o.probability = true; });
      with("probability, smoothing, weight",
           [](auto& o) { o.probability = true, o.smoothing = 0.2, o.weight = true, o.bias = true; });
      with("scale", [](auto& o) { o.logit_scale = 0.7; });
      with("softcap", [](auto& o) { o.softcap = 3, o.logit_scale = 1.5; });
      with("z loss", [](auto& o) { o.z_loss = 1e-2; });
      with("all", [](auto& o) {
        o.bias = o.weight = o.own = true, o.smoothing = 0.1, o.logit_scale = 2, o.softcap = 5,
        o.z_loss = 1e-3;
      });
      with("confident", [](auto& o) { o.spread = 60; });
    }
  }
}

TEST(CudaCrossEntropy, Filters) {
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
    for (const auto kind : {GradientFilter::threshold, GradientFilter::stochastic}) {
      CrossEntropyCase c = {.name = "filter", .C = 701, .dtype = dtype, .gradient = arithmetic_dtype(dtype)};
      c.in_place = false;
      c.filter = {kind, 4e-3};
      run_cross_entropy(c);
      c.gradient = dtype;
      c.softcap = 4;
      c.sparse = 600;
      run_cross_entropy(c);
      c.sparse = 20;  // too few for some rows
      run_cross_entropy(c);
      c.softcap = 0;
      c.smoothing = 0.1;
      c.weight = true;
      c.sparse = 600;
      run_cross_entropy(c);
    }
  }
}

TEST(CudaCrossEntropy, InfiniteLogits) {
  constexpr double inf = std::numeric_limits<double>::infinity(),
                   nan = std::numeric_limits<double>::quiet_NaN();
  const std::vector<double> values = {0, -inf, 1, 2,   -inf, -inf, -inf, -inf, -inf, -inf,
                                      3, -inf, 0, nan, 0,    0,    inf,  0,    1,    2};
  for (const DType dtype : kDTypes) {
    for (const bool probability : {false, true}) {
      const Twin logits(Tensor::from<double>({5, 4}, values).to(dtype)),
          target(probability ? Tensor() : Tensor::from<int64_t>({5}, {0, 1, 3, 2, 0})),
          q(probability ? Tensor::from<double>({5, 4}, std::vector<double>{1, 0, 0, 0, 0, 0, 0.5, 0.5, 0, 0,
                                                                           1, 0, 0, 0, 1, 0, 0,   0,   0, 1})
                              .to(dtype)
                        : Tensor()),
          scale(Tensor::full({5}, 1, DType::f64)), loss(Tensor::zeros({5}, DType::f64)),
          lse(Tensor::zeros({5}, DType::f64)), entropy(Tensor::zeros({5}, DType::f64)),
          gradient = Twin::result({5, 4}, dtype);
      on_both([&](Backend& b, auto take) {
        CrossEntropyRows rows;
        rows.logits = take(logits);
        rows.target_index = take(target);
        rows.target_probability = take(q);
        rows.row_scale = take(scale);
        rows.loss = take(loss);
        rows.lse = take(lse);
        rows.entropy = take(entropy);
        rows.gradient = take(gradient);
        b.cross_entropy_rows(rows);
      });
      const std::string what = fmt::format("{} probability {}", dtype, probability);
      expect_agreement(loss, 1e-6, 1e-6, "loss " + what);
      expect_agreement(lse, 1e-6, 1e-6, "lse " + what);
      expect_agreement(entropy, 1e-6, 1e-6, "entropy " + what);
      expect_agreement(gradient, tolerance(dtype), 1e-6, "gradient " + what);
    }
  }
}

}  // namespace
}  // namespace tapehead
