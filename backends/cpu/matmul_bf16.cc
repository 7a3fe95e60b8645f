#include "tapehead/backends/cpu/matmul_bf16.h"

#include <dnnl.hpp>
#include <optional>

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

// oneDNN's view of x, if x is dense along one dimension. A dimension of size 1 may have any stride, which
// oneDNN does not like to see.
std::optional<Memory::desc> describe(const Tensor& x) {
  const int64_t rows = x.size(0), columns = x.size(1);
  const int64_t down = x.strides()[0], along = x.strides()[1];
  if ((along == 1 || columns == 1) && (down >= columns || rows == 1)) {
    return Memory::desc({rows, columns}, type_of(x.dtype()), {rows == 1 ? columns : down, 1});
  }
  if ((down == 1 || rows == 1) && (along >= rows || columns == 1)) {
    return Memory::desc({rows, columns}, type_of(x.dtype()), {1, columns == 1 ? rows : along});
  }
  return std::nullopt;
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
  const auto a_desc = describe(a), b_desc = describe(b), y_desc = describe(y);
  if (!a_desc || !b_desc || !y_desc || (y.strides()[1] != 1 && y.size(1) != 1)) return false;

  dnnl::primitive_attr attributes;
  if (alpha != 1) attributes.set_output_scales(0, {static_cast<float>(alpha)});
  if (beta != 0) {
    dnnl::post_ops post;
    post.append_sum(static_cast<float>(beta));
    attributes.set_post_ops(post);
  }
  try {
    // Made anew for each call; oneDNN keeps the code that it generated.
    const dnnl::matmul product({{*a_desc, *b_desc, *y_desc}, attributes, engine()});
    const auto memory = [](const Memory::desc& desc, const void* data) {
      return Memory(desc, engine(), const_cast<void*>(data));
    };
    dnnl::stream stream(engine());
    product.execute(stream, {{DNNL_ARG_SRC, memory(*a_desc, a.raw_data())},
                             {DNNL_ARG_WEIGHTS, memory(*b_desc, b.raw_data())},
                             {DNNL_ARG_DST, memory(*y_desc, y.mutable_raw_data())}});
    stream.wait();
  } catch (const dnnl::error& e) {
    check<OutOfMemoryError>(e.status != dnnl_out_of_memory, "out of memory: oneDNN's panels of {} by {}",
                            a.shape(), b.shape());
    fail<SystemError>("[matmul] oneDNN's product of {} by {} failed: {}", a.shape(), b.shape(), e.what());
  }
  return true;
}

}  // namespace tapehead
