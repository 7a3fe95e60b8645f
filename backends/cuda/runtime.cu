// Memory, and copies between dtypes and layouts.
#include <bit>

#include "tapehead/backends/cuda/convert.h"
#include "tapehead/backends/cuda/cuda_backend.h"
#include "tapehead/backends/cuda/scratch.h"
#include "tapehead/backends/cuda/strided.h"

namespace tapehead {

static constexpr size_t kWorkspaceBytes = 32 << 20;  // what cuBLAS takes by itself on compute capability 9.0

CudaBackend& cuda_backend() {
  // Never destroyed: tensors in static storage may be freed after it would be.
  static CudaBackend* backend = new CudaBackend;
  return *backend;
}

Backend& linked_cuda_backend() { return cuda_backend(); }

CudaBackend::CudaBackend() : memory_(stream_), faults_(stream_) {
  stream_.check("cublasCreate", cublasCreate(&cublas_));
  stream_.check("cublasSetStream", cublasSetStream(cublas_, stream_.get()));
  // Its own would not do for products that are recorded, and another size might choose another algorithm
  // there.
  void* workspace = nullptr;
  stream_.check("cudaMalloc", cudaMalloc(&workspace, kWorkspaceBytes));
  stream_.check("cublasSetWorkspace", cublasSetWorkspace(cublas_, workspace, kWorkspaceBytes));
  // Sums of 16-bit products are kept in f32 throughout.
  stream_.check("cublasSetMathMode",
                cublasSetMathMode(cublas_, CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION));
}

void* CudaBackend::allocate(int64_t bytes) { return memory_.allocate(bytes); }

void CudaBackend::deallocate(void* memory, int64_t bytes) noexcept { memory_.deallocate(memory, bytes); }

int64_t CudaBackend::system_allocations() const { return memory_.system_allocations(); }

std::optional<int64_t> CudaBackend::available_memory() const { return memory_.available(); }

static void check_may_wait(const Stream& stream) {
  check<RuntimeError>(
      !stream.is_capturing(),
      "[capture] recorded work waits for the device, to read from it: it can do so only after a replay");
}

void CudaBackend::copy_to_host(void* to, const void* from, int64_t bytes) {
  check_may_wait(stream_);
  stream_.check("cudaMemcpyAsync",
                cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDeviceToHost, stream_.get()));
  synchronize();
}

void CudaBackend::synchronize() {
  check_may_wait(stream_);
  const int64_t checks = faults_.issued();
  stream_.synchronize();
  faults_.report(checks);
}

// Bits are bits, whatever the dtype.
template <class Bits>
static __global__ void fill_kernel(StridedIndex<1> index, Bits* y, Bits value) {
  for_each_index(index.count, [&](int64_t i) { y[index(i)[0]] = value; });
}

template <class T>
using bits_t =
    std::conditional_t<sizeof(T) == 8, uint64_t, std::conditional_t<sizeof(T) == 4, uint32_t, uint16_t>>;

void CudaBackend::fill(Tensor& y, double value) {
  visit_dtype(y.dtype(), [&]<class T>(std::type_identity<T>) {
    using Bits = bits_t<T>;
    const StridedIndex<1> index(y.shape(), {y.strides()});
    stream_.launch("fill", grid_for(stream_, index.count), fill_kernel<Bits>, index,
                   reinterpret_cast<Bits*>(y.mutable_data<T>()), std::bit_cast<Bits>(static_cast<T>(value)));
  });
}

template <class From, class To>
static __global__ void copy_kernel(StridedIndex<2> index, const From* x, To* y) {
  for_each_index(index.count, [&](int64_t i) {
    const auto at = index(i);
    y[at[0]] = convert<To>(x[at[1]]);
  });
}

void CudaBackend::copy(const Tensor& x, Tensor& y) {
  const StridedIndex<2> index(y.shape(), {y.strides(), broadcast_strides(x.shape(), x.strides(), y.shape())});
  if (index.count == 0) return;
  if (x.dtype() == y.dtype() && index.is_dense(0) && index.is_dense(1)) {
    stream_.check("cudaMemcpyAsync",
                  cudaMemcpyAsync(y.mutable_raw_data(), x.raw_data(), static_cast<size_t>(y.bytes()),
                                  cudaMemcpyDeviceToDevice, stream_.get()));
    return;
  }
  const Grid grid = grid_for(stream_, index.count);
  visit_dtype(x.dtype(), [&]<class From>(std::type_identity<From>) {
    if (x.dtype() == y.dtype()) {
      using Bits = bits_t<From>;
      return stream_.launch("copy", grid, copy_kernel<Bits, Bits>, index,
                            reinterpret_cast<const Bits*>(x.data<From>()),
                            reinterpret_cast<Bits*>(y.mutable_data<From>()));
    }
    visit_dtype(y.dtype(), [&]<class To>(std::type_identity<To>) {
      if constexpr (!std::is_same_v<From, To>)
        stream_.launch("copy", grid, copy_kernel<From, To>, index, x.data<From>(), y.mutable_data<To>());
    });
  });
}

template <class T>
static __global__ void all_finite_kernel(StridedIndex<1> index, const T* x, int* found) {
  bool finite = true;
  for_each_index(index.count, [&](int64_t i) { finite &= isfinite(widen(x[index(i)[0]])) != 0; });
  if (!finite) *found = 1;  // whoever writes it, writes the same
}

bool CudaBackend::all_finite(const Tensor& x) {
  if (!is_floating(x.dtype()) || x.numel() == 0) return true;
  const StridedIndex<1> index(x.shape(), {x.strides()});
  const Scratch found(*this, sizeof(int));
  stream_.check("cudaMemsetAsync", cudaMemsetAsync(found.as<int>(), 0, sizeof(int), stream_.get()));
  visit_floating(x.dtype(), "all_finite", [&]<class T>(std::type_identity<T>) {
    stream_.launch("all_finite", grid_for(stream_, index.count), all_finite_kernel<T>, index, x.data<T>(),
                   found.as<int>());
  });
  int result = 0;
  copy_to_host(&result, found.as<int>(), sizeof result);
  return result == 0;
}

}  // namespace tapehead
