// The CUDA backend's kernels of rows, sparse products and attention against the CPU's, in every dtype, on odd
// sizes and rows that begin anywhere.
#include "tapehead/tests/backends/twin.h"

namespace tapehead {
namespace {

// Rows and columns: none is a multiple of eight but one, which is, and long rows are longer than a block.
constexpr std::pair<int64_t, int64_t> kRowShapes[] = {{3, 1}, {5, 37}, {2, 64}, {3, 2311}};

TEST(CudaRows, Softmax) {
  for (const DType dtype : kDTypes) {
    for (const auto& [R, C] : kRowShapes) {
      for (const bool log : {false, true}) {
        const Twin x = Twin::random({R, C}, 1, 4, dtype), gy = Twin::random({R, C}, 2, 1, dtype);
        const Twin y = Twin::result({R, C}, dtype), gx = Twin::result({R, C}, dtype);
        on_both([&](Backend& b, auto take) {
          Tensor to = take(y), grad = take(gx);
          b.softmax(take(x), log, to);
          b.softmax_backward(take(y), take(gy), log, grad);
        });
        const std::string what = fmt::format("{} ({}, {}) log {}", dtype, R, C, log);
        expect_agreement(y, 2 * tolerance(dtype), 1e-7, what);
        expect_agreement(gx, 4 * tolerance(dtype), 4 * tolerance(dtype) / static_cast<double>(log ? 1 : C),
                         what);
      }
    }
  }
}

// One run that is sorted, one that is full, and six that are merged; ids of which one is everywhere, most are
// rare, some absent.
TEST(CudaRows, ScatterAddRowsInTheOrderOfPositions) {
  constexpr int64_t kTable = 400, kFeatures = 3;
  for (const int64_t rows : {5, 256, 1500}) {
    for (const DType index : {DType::i64, DType::i32}) {
      const Tensor any = random_indices({rows}, kTable, 1);
      for (int64_t r = 0; r < rows; r += 3) set_element(any, r, 7);
      const Twin ids(any.to(index)), scale = Twin::random({rows}, 2, 1, DType::f64);
      for (const auto& [from, to] : {std::pair(DType::f32, DType::f32), std::pair(DType::bf16, DType::f32),
                                     std::pair(DType::f16, DType::f16), std::pair(DType::f64, DType::f64)}) {
        for (const bool scales : {false, true}) {
          const Twin x = Twin::random({rows, kFeatures}, 3, 1, from),
                     table = Twin::random({kTable, kFeatures}, 4, 1, to);
          on_both([&](Backend& b, auto take) {
            Tensor sums = take(table);
            b.scatter_add_rows(take(x), take(ids), scales ? take(scale) : Tensor(), sums);
          });
          expect_agreement(table, 0, 0,
                           fmt::format("{} rows by {}, {} to {}, {}", rows, index, from, to, scales));
        }
      }
    }
  }
}

TEST(CudaRows, Norms) {
  for (const DType dtype : kDTypes) {
    const DType wide = arithmetic_dtype(dtype);
    const double t = tolerance(dtype);
    for (const auto& [R, C] : {std::pair<int64_t, int64_t>{5, 37}, {270, 9}, {2, 2311}}) {
      for (const bool center : {true, false}) {
        const Twin x = Twin::random({R, C}, 1, 2, dtype), gy = Twin::random({R, C}, 2, 1, dtype),
                   weight = Twin::random({C}, 3, 1, dtype), bias = Twin::random({C}, 4, 1, dtype);
        const Twin y = Twin::result({R, C}, dtype), gx = Twin::result({R, C}, dtype),
                   mean = Twin::result({R}, wide), rstd = Twin::result({R}, wide),
                   gweight = Twin::result({C}, dtype), gbias = Twin::result({C}, dtype);
        on_both([&](Backend& b, auto take) {
          Tensor to = take(y), m = take(mean), s = take(rstd), g = take(gx), gw = take(gweight),
                 gb = take(gbias);
          if (center) {
            b.layer_norm(take(x), take(weight), take(bias), 1e-5, to, m, s);
            b.layer_norm_backward(take(x), take(weight), take(mean), take(rstd), take(gy), g, gw, gb);
          } else {
            b.rms_norm(take(x), take(weight), 1e-5, to, s);
            b.rms_norm_backward(take(x), take(weight), take(rstd), take(gy), g, gw);
          }
        });
        const std::string what = fmt::format("{} ({}, {}) center {}", dtype, R, C, center);
        expect_agreement(y, 2 * t, 2 * t, what);
        expect_agreement(rstd, 1e-5, 1e-6, what);
        expect_agreement(gx, 2 * t, 4 * t, what);
        expect_agreement(gweight, 2 * t, 10 * t, what);
        if (center) expect_agreement(gbias, 2 * t, 10 * t, what);
      }
    }
  }
}

TEST(CudaRows, Rotary) {
  for (const DType dtype : kDTypes) {
    const Twin x = Twin::random({2, 3, 5, 6}, 1, 1, dtype, 3), y = Twin::result({2, 3, 5, 6}, dtype, 2),
               cosine = Twin::random({5, 3}, 2, 1, arithmetic_dtype(dtype)),
               sine = Twin::random({5, 3}, 3, 1, arithmetic_dtype(dtype));
    for (const bool backward : {false, true}) {
      on_both([&](Backend& b, auto take) {
        Tensor to = take(y);
        b.rotary(take(x), take(cosine), take(sine), backward, to);
      });
      expect_agreement(y, tolerance(dtype), tolerance(dtype), fmt::format("{} {}", dtype, backward));
    }
  }
}

// ---- Sparse products

TEST(CudaSparse, Products) {
  for (const DType wide : {DType::f64, DType::f32}) {
    for (const DType dtype : kDTypes) {
      if (wide == DType::f64 && dtype != DType::f64) continue;  // f64 goes with f64
      for (const int64_t F : {1, 37, 280}) {
        constexpr int64_t R = 70, S = 9, V = 29;
        Generator random{.seed = 3};
        std::vector<int64_t> count;
        std::vector<int32_t> index;
        for (int64_t r = 0; r < R; ++r) {
          count.push_back(static_cast<int64_t>(random.below(S + 1)));
          const int64_t first = static_cast<int64_t>(random.below(V));
          for (int64_t k = 0; k < S; ++k) index.push_back(static_cast<int32_t>((first + 5 * k) % V));
        }
        const Twin counts(Tensor::from<int64_t>({R}, count)), columns(Tensor::from<int32_t>({R, S}, index)),
            values = Twin::random({R, S}, 4, 1, wide), table = Twin::random({V, F}, 5, 1, dtype, 3),
            x = Twin::random({R + 2, F}, 6, 1, dtype), row(random_indices({R}, R + 2, 7)),
            y = Twin::result({R, F}, dtype);
        std::vector<Twin> tables;
        for (int i = 0; i < 4; ++i) {
          tables.push_back(i % 2 ? Twin::random({V, F}, 8, 1, dtype) : Twin::result({V, F}, dtype));
        }
        const Twin sums = Twin::random({V, 1}, 9, 1, DType::f64);
        on_both([&](Backend& b, auto take) {
          const SparseRows s = {take(counts), take(columns), take(values)};
          Tensor to = take(y), sum = take(sums);
          b.sparse_matmul(s, take(table), to);
          for (int i = 0; i < 4; ++i) {
            Tensor t = take(tables[static_cast<size_t>(i)]);
            b.sparse_transposed_matmul(s, take(x), i < 2 ? Tensor() : take(row), i % 2, t);
          }
          b.sparse_transposed_matmul(s, {}, {}, 1, sum);
        });
        const std::string what = fmt::format("{} {} F {}", wide, dtype, F);
        const double t = std::max(tolerance(wide), tolerance(dtype));
        expect_agreement(y, t, t, "product " + what);
        for (const Twin& twin : tables) expect_agreement(twin, t, 2 * t, "transposed " + what);
        expect_agreement(sums, 1e-14, 1e-14, "column sums " + what);
      }
    }
  }
}

// A column with entries in more rows than one window of the kernel.
TEST(CudaSparse, TallMatrix) {
  constexpr int64_t R = 5000, V = 3, F = 5;
  std::vector<int32_t> index;
  for (int64_t r = 0; r < R; ++r) index.push_back(r % 7 == 0 ? 2 : 1);
  const Twin counts(Tensor::full({R}, 1, DType::i64)), columns(Tensor::from<int32_t>({R, 1}, index)),
      values = Twin::random({R, 1}, 4, 1, DType::f64), x = Twin::random({R, F}, 6, 1, DType::f64),
      table = Twin::result({V, F}, DType::f64);
  on_both([&](Backend& b, auto take) {
    Tensor t = take(table);
    b.sparse_transposed_matmul({take(counts), take(columns), take(values)}, take(x), {}, 0, t);
  });
  expect_agreement(table, 1e-11, 1e-11, "tall");
}

// ---- Attention

struct AttentionCase {
  int64_t B = 1, H = 2, G = 1, T = 5, S = 5, D = 8;
  bool causal = true, packed = false;
  DType dtype = DType::f32;
};

void run_attention(const AttentionCase& c) {
  const std::string what = fmt::format("({}, {}/{}, {}/{}, {}) {}{}{}", c.B, c.H, c.G, c.T, c.S, c.D, c.dtype,
                                       c.causal ? " causal" : "", c.packed ? " packed" : "");
  const auto heads = [&](uint64_t seed, int64_t n, int64_t positions, int64_t room = 3) {
    return Twin::random({c.B, n, positions, c.D}, seed, 1, c.dtype, room);
  };
  const auto result = [&](int64_t n, int64_t positions) {
    return Twin::result({c.B, n, positions, c.D}, c.dtype, 2);
  };
  const Twin q = heads(1, c.H, c.T), k = heads(2, c.G, c.S), v = heads(3, c.G, c.S, 0),
             gy = heads(4, c.H, c.T);
  const Twin y = result(c.H, c.T), gq = result(c.H, c.T), gk = result(c.G, c.S), gv = result(c.G, c.S);
  const Twin lse = Twin::result({c.B, c.H, c.T}, arithmetic_dtype(c.dtype));
  std::vector<int64_t> first;
  for (int64_t i = 0; i < c.B * c.T; ++i) {
    const int64_t own = c.S - c.T + i % c.T;
    first.push_back(own / 7 * 7 % (own + 1));
  }
  const Twin seen(c.packed ? Tensor::from<int64_t>({c.B, c.T}, first) : Tensor());
  on_both([&](Backend& b, auto take) {
    Attention args;
    args.q = take(q);
    args.k = take(k);
    args.v = take(v);
    args.scale = 0.4;
    args.causal = c.causal;
    args.first_seen = take(seen);
    Tensor to = take(y), l = take(lse), to_q = take(gq), to_k = take(gk), to_v = take(gv);
    b.attention(args, to, l);
    b.attention_backward(args, take(y), take(lse), take(gy), to_q, to_k, to_v);
  });
  const double t = 2 * tolerance(c.dtype);
  expect_agreement(y, t, t / 4, "y " + what);
  expect_agreement(lse, 1e-5, 1e-5, "lse " + what);
  expect_agreement(gq, t, t, "gq " + what);
  expect_agreement(gk, t, 2 * t, "gk " + what);
  expect_agreement(gv, t, 2 * t, "gv " + what);
}

TEST(CudaAttention, EveryDTypeAndWidth) {
  for (const DType dtype : kDTypes) {
    for (const int64_t D : {1, 8, 33, 64, 80, 128, 256})
      run_attention({.H = 1, .G = 1, .T = 19, .S = 19, .D = D, .causal = D != 33, .dtype = dtype});
  }
}

TEST(CudaAttention, SeveralTilesGroupedHeadsAndKeptKeys) {
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
    run_attention({.B = 2, .H = 4, .G = 2, .T = 9, .S = 9, .D = 3, .dtype = dtype});
    run_attention({.H = 2, .G = 1, .T = 3, .S = 133, .D = 16, .dtype = dtype});
    run_attention({.H = 1, .G = 1, .T = 67, .S = 70, .D = 12, .causal = false, .dtype = dtype});
    run_attention({.H = 2, .G = 1, .T = 70, .S = 131, .D = 16, .packed = true, .dtype = dtype});
  }
}

TEST(CudaAttention, ANaNStaysWithThoseThatSeeIt) {
  for (const DType dtype : kDTypes) {
    constexpr int64_t T = 70, D = 8;
    Tensor bad = random_tensor({1, 1, T, D}, 1, 1, DType::f64);
    bad.mutable_data<double>()[40 * D + 3] = std::nan("");
    const Twin x(bad.to(dtype)), y = Twin::result({1, 1, T, D}, dtype),
                                 lse = Twin::result({1, 1, T}, arithmetic_dtype(dtype)),
                                 gy = Twin::random({1, 1, T, D}, 2, 1, dtype);
    const Twin gq = Twin::result({1, 1, T, D}, dtype), gk = Twin::result({1, 1, T, D}, dtype),
               gv = Twin::result({1, 1, T, D}, dtype);
    on_both([&](Backend& b, auto take) {
      Attention args;
      args.q = args.k = args.v = take(x);
      Tensor to = take(y), l = take(lse), to_q = take(gq), to_k = take(gk), to_v = take(gv);
      b.attention(args, to, l);
      b.attention_backward(args, take(y), take(lse), take(gy), to_q, to_k, to_v);
    });
    const double t = 4 * tolerance(dtype);
    for (const Twin& twin : {y, lse, gq, gk, gv}) expect_agreement(twin, t, t, fmt::format("{}", dtype));
    EXPECT_FALSE(std::isnan(lse.cuda.to(kCpu).to(DType::f64).to_vector<double>()[39]));
  }
}

TEST(CudaAttention, TellsTheWidthItCannotTake) {
  const Tensor x = Tensor::zeros({1, 1, 2, 257}, DType::f32, kCuda);
  Tensor y(x.shape(), DType::f32, kCuda), lse({1, 1, 2}, DType::f32, kCuda);
  Attention args;
  args.q = args.k = args.v = x;
  expect_error<ValueError>([&] { backend(kCuda).attention(args, y, lse); },
                           "[attention] heads of width 257: on cuda they are at most 256 wide");
}

}  // namespace
}  // namespace tapehead
