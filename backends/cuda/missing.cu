// What has no kernel yet.
#include "tapehead/backends/cuda/cuda_backend.h"

namespace tapehead {

[[noreturn]] static void missing(const char* function) {
  fail<RuntimeError>("[{}] has no kernel for cuda yet: use device cpu", function);
}

void CudaBackend::softmax(const Tensor&, bool, Tensor&) { missing("softmax"); }
void CudaBackend::softmax_backward(const Tensor&, const Tensor&, bool, Tensor&) {
  missing("softmax_backward");
}
void CudaBackend::layer_norm(const Tensor&, const Tensor&, const Tensor&, double, Tensor&, Tensor&, Tensor&) {
  missing("layer_norm");
}
void CudaBackend::layer_norm_backward(const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                                      const Tensor&, Tensor&, Tensor&, Tensor&) {
  missing("layer_norm_backward");
}
void CudaBackend::rms_norm(const Tensor&, const Tensor&, double, Tensor&, Tensor&) { missing("rms_norm"); }
void CudaBackend::rms_norm_backward(const Tensor&, const Tensor&, const Tensor&, const Tensor&, Tensor&,
                                    Tensor&) {
  missing("rms_norm_backward");
}
void CudaBackend::rotary(const Tensor&, const Tensor&, const Tensor&, bool, Tensor&) { missing("rotary"); }
void CudaBackend::cross_entropy_rows(const CrossEntropyRows&) { missing("cross_entropy_rows"); }
void CudaBackend::sparse_matmul(const SparseRows&, const Tensor&, Tensor&) { missing("sparse_matmul"); }
void CudaBackend::sparse_transposed_matmul(const SparseRows&, const Tensor&, const Tensor&, double, Tensor&) {
  missing("sparse_transposed_matmul");
}
void CudaBackend::attention(const Attention&, Tensor&, Tensor&) { missing("attention"); }
void CudaBackend::attention_backward(const Attention&, const Tensor&, const Tensor&, const Tensor&, Tensor&,
                                     Tensor&, Tensor&) {
  missing("attention_backward");
}

}  // namespace tapehead
