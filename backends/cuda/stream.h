// The one CUDA stream that all work of this process goes
// through, and what is done with the statuses that CUDA returns.
//
// A status is never dropped. Refusals (no memory, a launch that is too large) throw
// and leave the device usable. A failure inside a kernel is sticky: CUDA reports it at
// some later call, and every call after it fails too. It is thrown once, with the
// launches that may have caused it; what is called afterwards throws a short reminder.
#pragma once

#include <cublas_v2.h>
#include <cuda_runtime.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <utility>

namespace tapehead {

/// How many blocks of how many threads, with how many bytes of dynamic shared memory each.
struct Grid {
  dim3 blocks;
  unsigned threads = 256;
  size_t shared_bytes = 0;
};

/// Thread-safe.
class Stream {
 public:
  /// Chooses device 0 and makes a stream on it. Throws SystemError that says what to
  /// do where there is no driver, one that is older than this build's runtime, no
  /// device, one too old (below compute capability 8.0), or one that others hold.
  Stream();

  /// Runs kernel(arguments...), behind all that was launched before; returns at
  /// once. A grid without blocks does nothing. `name` is a literal that errors
  /// show: the function of the contract, and the pass if there are several.
  template <class... Parameters, class... Arguments>
  void launch(const char* name, const Grid& grid, void (*kernel)(Parameters...), Arguments&&... arguments) {
    if (grid.blocks.x == 0 || grid.blocks.y == 0 || grid.blocks.z == 0) return;
    if (grid.shared_bytes > kPlainSharedBytes)
      allow_shared(name, reinterpret_cast<const void*>(kernel), grid.shared_bytes);
    cudaLaunchConfig_t config{};
    config.gridDim = grid.blocks;
    config.blockDim = dim3(grid.threads);
    config.dynamicSmemBytes = grid.shared_bytes;
    config.stream = stream_;
    launched(name, cudaLaunchKernelEx(&config, kernel,
                                      static_cast<Parameters>(std::forward<Arguments>(arguments))...));
  }

  /// Waits until all that was launched is done. Throws what went wrong in it.
  void synchronize();

  /// From now until end_capture(), what is asked of the stream is recorded and not done. CUDA then refuses
  /// what would wait, and, outside a CaptureRelaxation, to allocate and to free.
  void begin_capture();
  /// What was recorded; the caller destroys it.
  cudaGraph_t end_capture();
  /// Ends a capture that came to nothing.
  void abandon_capture() noexcept;
  bool is_capturing() const { return capturing_; }

  /// Remembers the launch of `name` for errors, and throws what its status says.
  void launched(const char* name, cudaError_t status);

  /// Throws SystemError that names `call`, a literal such as "cudaMemcpyAsync", unless it succeeded.
  void check(const char* call, cudaError_t status);
  void check(const char* call, cublasStatus_t status);

  cudaStream_t get() const { return stream_; }
  /// Multiprocessors of the device.
  int processors() const { return processors_; }
  /// The most dynamic shared memory that a block may ask for.
  size_t most_shared_bytes() const { return most_shared_bytes_; }

 private:
  static constexpr size_t kPlainSharedBytes = 48 << 10;  // beyond it, a kernel must be told

  void allow_shared(const char* name, const void* kernel, size_t bytes);
  [[noreturn]] void report_failure(const char* call, cudaError_t status);

  cudaStream_t stream_ = nullptr;
  int processors_ = 0;
  size_t most_shared_bytes_ = 0;
  std::atomic<bool> capturing_ = false;

  std::mutex mutex_;                          // of what follows
  std::array<const char*, 8> launches_ = {};  // the last ones, in a ring
  size_t launch_count_ = 0, known_good_ = 0;  // launches made; those that a synchronisation has seen succeed
  std::string failure_;                       // what the sticky error was, once there is one
};

/// While it lives, this thread may allocate device memory though a stream is recording.
class CaptureRelaxation {
 public:
  CaptureRelaxation() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  ~CaptureRelaxation() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  CaptureRelaxation(const CaptureRelaxation&) = delete;
  CaptureRelaxation& operator=(const CaptureRelaxation&) = delete;

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

}  // namespace tapehead
