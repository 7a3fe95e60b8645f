#include "tapehead/ops/attention.h"

#include <cmath>

#include "tapehead/backends/backend.h"
#include "tapehead/ops/heads.h"
#include "tapehead/ops/operands.h"

namespace tapehead {

static Tensor log_sum_exp(const Tensor& q) {
  return Tensor(q.shape().without(3), arithmetic_dtype(q.dtype()), q.device());
}

static double default_scale(int64_t width) { return 1 / std::sqrt(static_cast<double>(width)); }

// first_seen dense, or undefined.
static Tensor checked_first_seen(const char* op, const Tensor& first_seen, int64_t batch, int64_t queries,
                                 int64_t keys) {
  if (!first_seen.defined()) return {};
  check<ValueError>(first_seen.shape() == Shape({batch, queries}),
                    "[{}] first_seen of shape {}: it must be {}", op, first_seen.shape(),
                    Shape({batch, queries}));
  check<TypeError>(first_seen.dtype() == DType::i64, "[{}] first_seen is {}, but must be i64", op,
                   first_seen.dtype());
  const int64_t offset = keys - queries;
  return backend(first_seen)
      .checked_indices(first_seen.contiguous(), {.n = offset + 1, .period = queries},
                       [=](int64_t position, int64_t value) {
                         const int64_t own = offset + position % queries;
                         fail<ValueError>(
                             "[{}] first_seen is {} for query {} of row {}, at position {}: it must be in "
                             "[0, {}]",
                             op, value, position % queries, position / queries, own, own);
                       });
}

Tensor scaled_dot_product_attention(const Tensor& q, const Tensor& k, const Tensor& v, bool causal,
                                    std::optional<double> scale, const Tensor& first_seen) {
  constexpr const char* op = "scaled_dot_product_attention";
  check_operands(op, {{"q", q}, {"k", k}, {"v", v}});
  check_devices(op, {{"q", q}, {"first_seen", first_seen}});
  check<ValueError>(
      q.dim() == 4 && k.dim() == 4 && k.shape() == v.shape() && q.size(0) == k.size(0) &&
          q.size(3) == k.size(3) && q.size(2) <= k.size(2),
      "[{}] q, k and v of shapes {}, {} and {}: they must be (B, H, T, D), and k and v (B, G, S, D) with "
      "S >= T",
      op, q.shape(), k.shape(), v.shape());
  const int64_t H = q.size(1), G = k.size(1);
  check<ValueError>(H == G || (G >= 1 && H >= 1 && H % G == 0),
                    "[{}] {} heads of keys and values for {} of queries: they must divide them", op, G, H);
  const Attention args{.q = dense_heads(q),
                       .k = dense_heads(k),
                       .v = dense_heads(v),
                       .scale = scale.value_or(default_scale(q.size(3))),
                       .causal = causal,
                       .first_seen = checked_first_seen(op, first_seen, q.size(0), q.size(2), k.size(2))};
  Tensor y = joined_heads(q.shape(), q.dtype(), q.device()), lse = log_sum_exp(q);
  backend(y).attention(args, y, lse);
  return record(op, y, {q, k, v}, {args.q, args.k, args.v, y, lse, args.first_seen},
                [scale = args.scale, causal](const Upstream& up) -> Gradients {
                  const Attention saved{up.saved(0), up.saved(1), up.saved(2), scale, causal, up.saved(5)};
                  Gradients g(3);
                  for (size_t i = 0; i < 3; ++i) {
                    const Tensor in = up.saved(i);
                    if (up.needs(i)) g[i] = joined_heads(in.shape(), in.dtype(), in.device());
                  }
                  backend(up.grad).attention_backward(saved, up.saved(3), up.saved(4), dense_heads(up.grad),
                                                      g[0], g[1], g[2]);
                  return g;
                });
}

// Heads of the `part`-th third of qkv (B, T, 3·F), aliased as (B, H, T, D); likewise of y (B, T, F), part 0.
static Tensor heads(const Tensor& x, int64_t part, int64_t n_head, int64_t width) {
  const Strides& s = x.strides();
  return x.alias({x.size(0), n_head, x.size(1), width}, {s[0], width * s[2], s[1], s[2]},
                 x.offset() + part * n_head * width * s[2]);
}

Tensor causal_self_attention(const Tensor& qkv, int64_t n_head, const Tensor& first_seen) {
  constexpr const char* op = "causal_self_attention";
  check_operands(op, {{"qkv", qkv}});
  check_devices(op, {{"qkv", qkv}, {"first_seen", first_seen}});
  check<ValueError>(
      qkv.dim() == 3 && n_head >= 1 && qkv.size(2) % (3 * n_head) == 0,
      "[{}] qkv of shape {} with {} heads: it must be (B, T, 3·F), with F a multiple of the heads", op,
      qkv.shape(), n_head);
  const Tensor packed = qkv.strides()[2] == 1 ? qkv.detach() : qkv.contiguous();
  const int64_t width = qkv.size(2) / (3 * n_head);
  const Tensor first = checked_first_seen(op, first_seen, qkv.size(0), qkv.size(1), qkv.size(1));
  const auto arguments = [n_head, width](const Tensor& x, const Tensor& from) {
    return Attention{.q = heads(x, 0, n_head, width),
                     .k = heads(x, 1, n_head, width),
                     .v = heads(x, 2, n_head, width),
                     .scale = default_scale(width),
                     .first_seen = from};
  };
  Tensor y({qkv.size(0), qkv.size(1), qkv.size(2) / 3}, qkv.dtype(), qkv.device());
  const Attention args = arguments(packed, first);
  Tensor y_heads = heads(y, 0, n_head, width), lse = log_sum_exp(args.q);
  backend(y).attention(args, y_heads, lse);
  return record(
      op, y, {qkv}, {packed, y, lse, first}, [n_head, width, arguments](const Upstream& up) -> Gradients {
        const Tensor saved = up.saved(0), gy = up.grad.strides()[2] == 1 ? up.grad : up.grad.contiguous();
        Tensor gqkv = Tensor::empty_like(saved);
        Attention g = arguments(gqkv, {});
        backend(gqkv).attention_backward(arguments(saved, up.saved(3)), heads(up.saved(1), 0, n_head, width),
                                         up.saved(2), heads(gy, 0, n_head, width), g.q, g.k, g.v);
        return {gqkv};
      });
}

}  // namespace tapehead
