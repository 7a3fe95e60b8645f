#include "tapehead/ops/optimizer.h"

#include <cmath>

namespace tapehead {

static void check_list(std::span<const Tensor> list, const char* what, std::span<const Tensor> p,
                       DType dtype) {
  check<ValueError>(list.size() == p.size(), "[adamw_step] {} {} for {} parameters", list.size(), what,
                    p.size());
  for (size_t i = 0; i < p.size(); ++i) {
    check<ValueError>(
        list[i].shape() == p[i].shape() && list[i].is_contiguous(),
        "[adamw_step] entry {} of {} has shape {}{}, the parameter {}: both must be contiguous and agree", i,
        what, list[i].shape(), list[i].is_contiguous() ? "" : " (strided)", p[i].shape());
    check<TypeError>(list[i].dtype() == dtype,
                     "[adamw_step] entry {} of {} is {}, but must be {} where the first parameter is {}", i,
                     what, list[i].dtype(), dtype, p[0].dtype());
  }
}

void adamw_step(const AdamW& numbers, std::span<Tensor> p, std::span<const Tensor> g, std::span<Tensor> m,
                std::span<Tensor> v, std::span<Tensor> master) {
  const DType dtype = p.empty() ? DType::f32 : p[0].dtype(), wide = arithmetic_dtype(dtype);
  check<TypeError>(is_floating(dtype), "[adamw_step] parameters are {}, but must be floating", dtype);
  check_list(p, "parameters", p, dtype);
  check_list(g, "gradients", p, dtype);
  check_list(m, "first moments", p, wide);
  check_list(v, "second moments", p, wide);
  if (is_half(dtype)) {
    check_list(master, "master weights", p, wide);
  } else {
    check<ValueError>(master.empty(), "[adamw_step] {} master weights for parameters of {}, which take none",
                      master.size(), dtype);
  }
  check<ValueError>(numbers.step >= 1, "[adamw_step] step is {}, but counts from 1", numbers.step);
  if (p.empty()) return;
  backend(p[0]).adamw(numbers, p, g, m, v, master);
}

double global_norm(std::span<const Tensor> tensors) {
  if (tensors.empty()) return 0;
  for (const Tensor& t : tensors) {
    check<ValueError>(t.is_contiguous(),
                      "[global_norm] a tensor of shape {} is strided: all must be contiguous", t.shape());
  }
  return std::sqrt(backend(tensors[0]).squared_norm(tensors));
}

}  // namespace tapehead
