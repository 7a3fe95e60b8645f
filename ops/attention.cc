#include "tapehead/ops/attention.h"

#include <cmath>

#include "tapehead/backends/backend.h"
#include "tapehead/core/view.h"
#include "tapehead/ops/operands.h"

namespace tapehead {

// (B, H, T, D), laid out as (B, T, H, D).
static Tensor joined_heads(const Shape& shape, DType dtype, Device device) {
  return transpose(Tensor({shape[0], shape[2], shape[1], shape[3]}, dtype, device), 1, 2);
}

static Tensor log_sum_exp(const Tensor& q) {
  return Tensor(q.shape().without(3), arithmetic_dtype(q.dtype()), q.device());
}

// x as the kernels read it.
static Tensor dense_heads(const Tensor& x) {
  return x.size(3) == 1 || x.strides()[3] == 1 ? x.detach() : x.contiguous();
}

static double default_scale(int64_t width) { return 1 / std::sqrt(static_cast<double>(width)); }

Tensor scaled_dot_product_attention(const Tensor& q, const Tensor& k, const Tensor& v, bool causal,
                                    std::optional<double> scale) {
  constexpr const char* op = "scaled_dot_product_attention";
  check_operands(op, {q, k, v});
  check<ValueError>(q.dim() == 4 && q.shape() == k.shape() && q.shape() == v.shape(),
                    "[{}] q, k and v of shapes {}, {} and {}: all must be (B, H, T, D)", op, q.shape(),
                    k.shape(), v.shape());
  const Attention args{dense_heads(q), dense_heads(k), dense_heads(v),
                       scale.value_or(default_scale(q.size(3))), causal};
  Tensor y = joined_heads(q.shape(), q.dtype(), q.device()), lse = log_sum_exp(q);
  backend(y).attention(args, y, lse);
  return record(op, y, {q, k, v}, {args.q, args.k, args.v, y, lse},
                [scale = args.scale, causal](const Upstream& up) -> Gradients {
                  const Attention saved{up.saved(0), up.saved(1), up.saved(2), scale, causal};
                  Gradients g(3);
                  for (size_t i = 0; i < 3; ++i) {
                    if (up.needs(i)) g[i] = joined_heads(up.grad.shape(), up.grad.dtype(), up.grad.device());
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

Tensor causal_self_attention(const Tensor& qkv, int64_t n_head) {
  constexpr const char* op = "causal_self_attention";
  check_operands(op, {qkv});
  check<ValueError>(
      qkv.dim() == 3 && n_head >= 1 && qkv.size(2) % (3 * n_head) == 0,
      "[{}] qkv of shape {} with {} heads: it must be (B, T, 3·F), with F a multiple of the heads", op,
      qkv.shape(), n_head);
  const Tensor packed = qkv.strides()[2] == 1 ? qkv.detach() : qkv.contiguous();
  const int64_t width = qkv.size(2) / (3 * n_head);
  const auto arguments = [n_head, width](const Tensor& x) {
    return Attention{heads(x, 0, n_head, width), heads(x, 1, n_head, width), heads(x, 2, n_head, width),
                     default_scale(width)};
  };
  Tensor y({qkv.size(0), qkv.size(1), qkv.size(2) / 3}, qkv.dtype(), qkv.device());
  const Attention args = arguments(packed);
  Tensor y_heads = heads(y, 0, n_head, width), lse = log_sum_exp(args.q);
  backend(y).attention(args, y_heads, lse);
  return record(op, y, {qkv}, {packed, y, lse}, [=](const Upstream& up) -> Gradients {
    const Tensor saved = up.saved(0), gy = up.grad.strides()[2] == 1 ? up.grad : up.grad.contiguous();
    Tensor gqkv = Tensor::empty_like(saved);
    Attention g = arguments(gqkv);
    backend(gqkv).attention_backward(arguments(saved), heads(up.saved(1), 0, n_head, width), up.saved(2),
                                     heads(gy, 0, n_head, width), g.q, g.k, g.v);
    return {gqkv};
  });
}

}  // namespace tapehead
