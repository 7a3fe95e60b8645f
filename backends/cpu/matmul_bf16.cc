#include "tapehead/backends/cpu/matmul_bf16.h"

#include <dnnl.hpp>

#include "tapehead/backends/matrix_layout.h"

namespace tapehead {
namespace {

using Memory = dnnl::memory;

// Intel's processors without AMX do half as many bf16 instructions a cycle as f32 ones, so they gain nothing:
// measured on a Sapphire Rapids whose AMX was hidden, 156 GFLOP/s in bf16 and 209 in f32.
bool bf16_is_faster() {
  static const bool faster =
      __builtin_cpu_supports("avx512bf16") &&
      (!__builtin_cpu_is("intel") || dnnl::get_effective_cpu_isa() >= dnnl::cpu_isa::avx512_core_amx);
  return faster;
}

Memory::data_type type_of(DType dtype) {
  return dtype == DType::f32 ? Memory::data_type::f32 : Memory::data_type::bf16;
}

Memory::desc describe(const Tensor& x, const MatrixLayout& layout) {
  return {{x.size(0), x.size(1)}, type_of(x.dtype()), {layout.down(), layout.along()}};
}

dnnl::engine& engine() {
  static dnnl::engine cpu(dnnl::engine::kind::cpu, 0);
  return cpu;
}

}  // namespace

bool matmul_bf16(double alpha, const Tensor& a, const Tensor& b, double beta, Tensor& y) {
  const bool ours = a.dtype() == DType::bf16 && b.dtype() == DType::bf16 &&
                    (y.dtype() == DType::f32 || y.dtype() == DType::bf16) && y.dim() == 2;
  if (!ours || !bf16_is_faster() || a.numel() == 0 || b.numel() == 0) return false;
  const auto a_layout = matrix_layout(a), b_layout = matrix_layout(b), y_layout = matrix_layout(y);
  if (!a_layout || !b_layout || !y_layout || y_layout->transposed) return false;
  const Memory::desc a_desc = describe(a, *a_layout), b_desc = describe(b, *b_layout),
                     y_desc = describe(y, *y_layout);

  dnnl::primitive_attr attributes;
  if (alpha != 1) attributes.set_output_scales(0, {static_cast<float>(alpha)});
  if (beta != 0) {
    dnnl::post_ops post;
    post.append_sum(static_cast<float>(beta));
    attributes.set_post_ops(post);
  }
  try {
    // Made anew for each call; oneDNN keeps the code that it generated.
    const dnnl::matmul product({{a_desc, b_desc, y_desc}, attributes, engine()});
    const auto memory = [](const Memory::desc& desc, const void* data) {
      return Memory(desc, engine(), const_cast<void*>(data));
    };
    dnnl::stream stream(engine());
    product.execute(stream, {{DNNL_ARG_SRC, memory(a_desc, a.raw_data())},
                             {DNNL_ARG_WEIGHTS, memory(b_desc, b.raw_data())},
                             {DNNL_ARG_DST, memory(y_desc, y.mutable_raw_data())}});
    stream.wait();
  } catch (const dnnl::error& e) {
    check<OutOfMemoryError>(e.status != dnnl_out_of_memory, "out of memory: oneDNN's panels of {} by {}",
                            a.shape(), b.shape());
    fail<SystemError>("[matmul] oneDNN's product of {} by {} failed: {}", a.shape(), b.shape(), e.what());
  }
  return true;
}

}  // namespace tapehead
