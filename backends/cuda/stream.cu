#include <fmt/format.h>

#include "tapehead/backends/cuda/stream.h"
#include "tapehead/core/error.h"

namespace tapehead {

// Compute capability 8.0: bf16 in cuBLAS, and what this build has code for.
static constexpr int kOldestMajor = 8;

// "13.0" of 13000.
static std::string version_text(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

// Whether the device can go on after `status`: the call was refused, and nothing ran.
static bool is_refusal(cudaError_t status) {
  return status == cudaErrorInvalidValue || status == cudaErrorInvalidConfiguration ||
         status == cudaErrorMemoryAllocation || status == cudaErrorStreamCaptureUnsupported ||
         status == cudaErrorStreamCaptureInvalidated;
}

static int attribute(cudaDeviceAttr which) {
  int value = 0;
  const cudaError_t status = cudaDeviceGetAttribute(&value, which, 0);
  check<SystemError>(status == cudaSuccess, "cudaDeviceGetAttribute: {}", cudaGetErrorString(status));
  return value;
}

// Throws unless device 0 can be used.
static void find_device() {
  int driver = 0, runtime = 0, devices = 0;
  cudaDriverGetVersion(&driver);    // 0 if there is none, which the next call makes an error
  cudaRuntimeGetVersion(&runtime);  // this program's own
  cudaError_t status = cudaGetDeviceCount(&devices);
  cudaGetLastError();  // told here, not at the next launch
  check<SystemError>(driver != 0, "there is no CUDA driver: install NVIDIA's, or use --device cpu");
  check<SystemError>(
      driver >= runtime && status != cudaErrorInsufficientDriver,
      "the CUDA driver supports CUDA {}, and this program was built with {}: install a newer driver, or "
      "build with CUDA_HOME at an older toolkit",
      version_text(driver), version_text(runtime));
  check<SystemError>(
      status != cudaErrorNoDevice && (status != cudaSuccess || devices > 0),
      "there is no CUDA device: nvidia-smi lists those that the driver sees, and CUDA_VISIBLE_DEVICES may "
      "hide some; or use --device cpu");
  check<SystemError>(status == cudaSuccess, "cudaGetDeviceCount: {} ({})", cudaGetErrorString(status),
                     cudaGetErrorName(status));
  const int major = attribute(cudaDevAttrComputeCapabilityMajor),
            minor = attribute(cudaDevAttrComputeCapabilityMinor);
  check<SystemError>(
      major >= kOldestMajor,
      "the CUDA device has compute capability {}.{}, and {}.0 (Ampere) is the oldest that can be used: "
      "choose another with CUDA_VISIBLE_DEVICES, or use --device cpu",
      major, minor, kOldestMajor);
  status = cudaSetDevice(0);
  if (status != cudaSuccess) {
    cudaGetLastError();
    check<SystemError>(
        status != cudaErrorDevicesUnavailable,
        "the CUDA device is held by another process (nvidia-smi shows which, and its compute mode): wait, "
        "choose another with CUDA_VISIBLE_DEVICES, or use --device cpu");
    fail<SystemError>("cudaSetDevice: {} ({})", cudaGetErrorString(status), cudaGetErrorName(status));
  }
}

Stream::Stream() {
  find_device();
  processors_ = attribute(cudaDevAttrMultiProcessorCount);
  most_shared_bytes_ = static_cast<size_t>(attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin));
  check("cudaStreamCreateWithFlags", cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
}

void Stream::launched(const char* name, cudaError_t status) {
  {
    const std::lock_guard lock(mutex_);
    launches_[launch_count_++ % launches_.size()] = name;
  }
  if (status != cudaSuccess) check(name, status);
}

void Stream::allow_shared(const char* name, const void* kernel, size_t bytes) {
  tapehead::check<SystemError>(
      bytes <= most_shared_bytes_,
      "[{}] the kernel takes {} bytes of shared memory, and the CUDA device has {} for a block", name, bytes,
      most_shared_bytes_);
  check("cudaFuncSetAttribute",
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)));
}

void Stream::synchronize() {
  size_t launched;
  {
    const std::lock_guard lock(mutex_);
    launched = launch_count_;
  }
  check("cudaStreamSynchronize", cudaStreamSynchronize(stream_));
  const std::lock_guard lock(mutex_);
  known_good_ = std::max(known_good_, launched);
}

void Stream::begin_capture() {
  check("cudaStreamBeginCapture", cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
  capturing_ = true;
}

cudaGraph_t Stream::end_capture() {
  capturing_ = false;
  cudaGraph_t graph = nullptr;
  check("cudaStreamEndCapture", cudaStreamEndCapture(stream_, &graph));
  return graph;
}

void Stream::abandon_capture() noexcept {
  capturing_ = false;
  cudaGraph_t graph = nullptr;
  cudaStreamEndCapture(stream_, &graph);
  if (graph) cudaGraphDestroy(graph);
  cudaGetLastError();  // that it was invalid is known
}

void Stream::check(const char* call, cudaError_t status) {
  if (status == cudaSuccess) return;
  if (is_refusal(status)) {
    cudaGetLastError();  // or the next call that asks would be told again
    fail<SystemError>("{}: {} ({})", call, cudaGetErrorString(status), cudaGetErrorName(status));
  }
  report_failure(call, status);
}

void Stream::check(const char* call, cublasStatus_t status) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  check(call, cudaGetLastError());  // cuBLAS often only passes on that a kernel failed
  fail<SystemError>("{}: {} ({})", call, cublasGetStatusString(status), cublasGetStatusName(status));
}

void Stream::report_failure(const char* call, cudaError_t status) {
  const std::lock_guard lock(mutex_);
  if (!failure_.empty())
    fail<SystemError>("the CUDA device failed before ({}): start the program again", failure_);
  // A synchronisation saw all up to known_good_ succeed; of those since, the ring has the last.
  std::string suspects;
  size_t first = known_good_;
  if (launch_count_ - first > launches_.size()) {
    first = launch_count_ - launches_.size();
    suspects = "..., ";
  }
  for (size_t i = first; i < launch_count_; ++i)
    suspects += fmt::format("{}{}", i > first ? ", " : "", launches_[i % launches_.size()]);
  failure_ = fmt::format("{}: {}", cudaGetErrorName(status), suspects);
  fail<SystemError>(
      "a CUDA kernel failed: {} ({}), told by {}. Launched since it was last known to work: {}. Set "
      "CUDA_LAUNCH_BLOCKING=1 to be told at the launch itself, and start the program again",
      cudaGetErrorString(status), cudaGetErrorName(status), call, suspects);
}

}  // namespace tapehead
