// CUDA's calls. Like the real ones, a launch returns before its kernel's failure is known: the next call
// tells it, and from then on every call.
#include <cuda_runtime.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <vector>

#include "tapehead/tests/cuda_emulator/device.h"
#include "tapehead/tests/cuda_emulator/sanitizer.h"

using cuda_emulator::Access;
using cuda_emulator::device;
using cuda_emulator::Lock;
using cuda_emulator::refuse_while_recording;

static constexpr unsigned kMostThreads = 1024;      // of a block
static constexpr size_t kSharedBytes = 48 << 10;    // of a block whose kernel asked for no more
static constexpr int kMostSharedBytes = 227 << 10;  // of one that did, on compute capability 9.0
static constexpr int kProcessors = 2;               // few, so that loops over grids go round

namespace tapehead {
// What launch.h declares: a block's dynamic shared memory.
alignas(16) thread_local unsigned char dynamic_shared_bytes[kMostSharedBytes + 64];
}  // namespace tapehead

const char* cudaGetErrorName(cudaError_t status) {
  switch (status) {
    case cudaSuccess: return "cudaSuccess";
    case cudaErrorInvalidValue: return "cudaErrorInvalidValue";
    case cudaErrorMemoryAllocation: return "cudaErrorMemoryAllocation";
    case cudaErrorInvalidConfiguration: return "cudaErrorInvalidConfiguration";
    case cudaErrorInsufficientDriver: return "cudaErrorInsufficientDriver";
    case cudaErrorDevicesUnavailable: return "cudaErrorDevicesUnavailable";
    case cudaErrorNoDevice: return "cudaErrorNoDevice";
    case cudaErrorInvalidDevice: return "cudaErrorInvalidDevice";
    case cudaErrorIllegalAddress: return "cudaErrorIllegalAddress";
    case cudaErrorLaunchFailure: return "cudaErrorLaunchFailure";
    case cudaErrorStreamCaptureUnsupported: return "cudaErrorStreamCaptureUnsupported";
    case cudaErrorStreamCaptureInvalidated: return "cudaErrorStreamCaptureInvalidated";
  }
  return "cudaErrorUnknown";
}

const char* cudaGetErrorString(cudaError_t status) { return cudaGetErrorName(status); }

cudaError_t cudaGetLastError() {
  const Lock lock;
  const cudaError_t status = device().finish(device().last);
  device().last = cudaSuccess;
  return status;
}

// What is wrong with the device before anything can be asked of it.
static cudaError_t presence() {
  const auto& s = device().settings;
  if (s.driver_version < s.runtime_version) return cudaErrorInsufficientDriver;
  return s.devices == 0 ? cudaErrorNoDevice : cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int* count) {
  const Lock lock;
  *count = 0;
  if (const cudaError_t status = presence(); status != cudaSuccess) return device().finish(status);
  *count = device().settings.devices;
  return device().finish(cudaSuccess);
}

cudaError_t cudaDriverGetVersion(int* version) {
  *version = device().settings.driver_version;
  return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = device().settings.runtime_version;
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int index) {
  const Lock lock;
  if (index < 0 || index >= device().settings.devices) return device().finish(cudaErrorInvalidDevice);
  return device().finish(device().settings.busy ? cudaErrorDevicesUnavailable : cudaSuccess);
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  switch (attribute) {
    case cudaDevAttrMultiProcessorCount: *value = kProcessors; break;
    case cudaDevAttrComputeCapabilityMajor: *value = device().settings.capability_major; break;
    case cudaDevAttrComputeCapabilityMinor: *value = device().settings.capability_minor; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = kMostSharedBytes; break;
  }
  return device().finish(cudaSuccess);
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  static int streams;
  *stream = reinterpret_cast<cudaStream_t>(&streams);
  return device().finish(cudaSuccess);
}

cudaError_t cudaStreamSynchronize(cudaStream_t) {
  const Lock lock;
  if (const cudaError_t status = refuse_while_recording(false); status != cudaSuccess) return status;
  device().wait();
  return device().finish(cudaSuccess);
}

cudaError_t cudaMalloc(void** memory, size_t bytes) {
  const Lock lock;
  if (const cudaError_t status = refuse_while_recording(true); status != cudaSuccess) return status;
  if (device().sticky != cudaSuccess) return device().sticky;
  *memory = device().memory.allocate(bytes, device().settings.memory_bytes);
  return device().finish(*memory ? cudaSuccess : cudaErrorMemoryAllocation);
}

cudaError_t cudaFree(void* memory) {
  const Lock lock;
  if (const cudaError_t status = refuse_while_recording(true); status != cudaSuccess) return status;
  device().wait();  // as the real one does
  return device().finish(device().memory.free(memory) ? cudaSuccess : cudaErrorInvalidValue);
}

cudaError_t cudaMallocHost(void** memory, size_t bytes) {
  const Lock lock;
  if (const cudaError_t status = refuse_while_recording(true); status != cudaSuccess) return status;
  *memory = std::malloc(bytes);
  return device().finish(*memory ? cudaSuccess : cudaErrorMemoryAllocation);
}

cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  const Lock lock;
  *total = device().settings.memory_bytes;
  *free = *total - std::min(*total, device().memory.in_use());
  return device().finish(cudaSuccess);
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t) {
  const Lock lock;
  if (device().sticky != cudaSuccess) return device().sticky;
  const bool to_device = kind != cudaMemcpyDeviceToHost, from_device = kind != cudaMemcpyHostToDevice;
  if (device().memory.contains(to, bytes) != to_device ||
      device().memory.contains(from, bytes) != from_device)
    return device().finish(cudaErrorInvalidValue);
  // Host memory is pageable: a copy from it would be made when the graph is launched, one to it would wait.
  if (!to_device || !from_device) {
    if (const cudaError_t status = refuse_while_recording(false); status != cudaSuccess) return status;
  }
  const cudaError_t status = cuda_emulator::submit([=]() -> cudaError_t {
    std::memcpy(to, from, bytes);
    return cudaSuccess;
  });
  if (!to_device) device().wait();
  return status;
}

cudaError_t cudaMemsetAsync(void* memory, int byte, size_t bytes, cudaStream_t) {
  const Lock lock;
  if (device().sticky != cudaSuccess) return device().sticky;
  if (!device().memory.contains(memory, bytes)) return device().finish(cudaErrorInvalidValue);
  return cuda_emulator::submit([=]() -> cudaError_t {
    std::memset(memory, byte, bytes);
    return cudaSuccess;
  });
}

cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute, int value) {
  const Lock lock;
  if (value < 0 || value > kMostSharedBytes) return device().finish(cudaErrorInvalidValue);
  device().shared_limits[kernel] = value;
  return device().finish(cudaSuccess);
}

namespace cuda_emulator {

// All blocks, in a shuffled order. Returns the problem of the first that had one.
static std::optional<std::string> run_grid(const cudaLaunchConfig_t& config, void (*call)(const void*),
                                           const void* body) {
  auto* shared = tapehead::dynamic_shared_bytes;
  const size_t room = sizeof(tapehead::dynamic_shared_bytes), used = config.dynamicSmemBytes;
  blockDim = config.blockDim;
  gridDim = config.gridDim;
  std::vector<unsigned> order(size_t{gridDim.x} * gridDim.y * gridDim.z);
  std::iota(order.begin(), order.end(), 0u);
  device().random.shuffle(order);
  std::optional<std::string> problem;
  for (size_t i = 0; i < order.size() && !problem; ++i) {
    blockIdx = {order[i] % gridDim.x, order[i] / gridDim.x % gridDim.y, order[i] / gridDim.x / gridDim.y};
    std::memset(shared, 0xff, std::min(room, used + 64));  // 64: seen below to stay as it is
    poison(shared + used, room - used);
    problem = device().blocks.run(blockDim, call, body, device().random);
    unpoison(shared + used, room - used);
    if (!problem && std::any_of(shared + used, shared + std::min(room, used + 64),
                                [](auto byte) { return byte != 0xff; }))
      problem = fmt::format("wrote beyond its {} bytes of dynamic shared memory", used);
  }
  return problem;
}

// A failure is told later, by finish().
static cudaError_t run(const cudaLaunchConfig_t& config, void (*call)(const void*), const void* body) {
  Device& d = device();
  if (auto problem = run_grid(config, call, body)) {
    d.problem = *problem;
    fmt::print(stderr, "cuda emulator: {}\n", *problem);
    d.sticky = cudaErrorLaunchFailure;
    if (d.settings.blocking) return d.sticky;
  }
  return cudaSuccess;
}

cudaError_t launch(const cudaLaunchConfig_t& config, const Launch& launch) {
  const Lock lock;
  Device& d = device();
  if (d.sticky != cudaSuccess) return d.sticky;
  const dim3 b = config.blockDim, g = config.gridDim;
  const uint64_t threads = uint64_t{b.x} * b.y * b.z;
  if (threads == 0 || threads > kMostThreads || g.x == 0 || g.x > 0x7fffffff || g.y == 0 || g.y > 0xffff ||
      g.z == 0 || g.z > 0xffff)
    return d.finish(cudaErrorInvalidConfiguration);
  const auto allowed = d.shared_limits.find(launch.kernel);
  const size_t limit =
      std::max(kSharedBytes, allowed == d.shared_limits.end() ? 0 : static_cast<size_t>(allowed->second));
  if (config.dynamicSmemBytes > limit) return d.finish(cudaErrorInvalidValue);
  if (d.recording) {
    return submit([config, call = launch.call, body = launch.copy(launch.body)] {
      return run(config, call, body.get());
    });
  }
  ++d.launches;
  return submit([&] { return run(config, launch.call, launch.body); });
}

}  // namespace cuda_emulator
