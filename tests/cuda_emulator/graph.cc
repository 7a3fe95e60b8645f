// Streams that record, and the graphs that come of it.
#include <cuda_runtime.h>

#include "tapehead/tests/cuda_emulator/device.h"

using cuda_emulator::device;
using cuda_emulator::Lock;
using Work = std::vector<std::function<cudaError_t()>>;

static thread_local cudaStreamCaptureMode thread_mode = cudaStreamCaptureModeGlobal;

namespace cuda_emulator {

cudaError_t submit(std::function<cudaError_t()> work) {
  const Lock lock;
  Device& d = device();
  if (d.sticky != cudaSuccess) return d.sticky;
  if (!d.recording) {
    const Access access;
    d.busy = true;
    return work();
  }
  if (!d.recording->valid) return d.finish(cudaErrorStreamCaptureInvalidated);
  d.recording->work.push_back(std::move(work));
  return d.finish(cudaSuccess);
}

cudaError_t refuse_while_recording(bool unsafe_alone) {
  Recording* recording = device().recording.get();
  if (!recording) return cudaSuccess;
  const auto relaxed = [](cudaStreamCaptureMode mode) { return mode == cudaStreamCaptureModeRelaxed; };
  if (unsafe_alone && (relaxed(recording->mode) || relaxed(thread_mode))) return cudaSuccess;
  recording->valid = false;
  return device().finish(cudaErrorStreamCaptureUnsupported);
}

}  // namespace cuda_emulator

cudaError_t cudaStreamBeginCapture(cudaStream_t, cudaStreamCaptureMode mode) {
  const Lock lock;
  if (device().recording) return device().finish(cudaErrorInvalidValue);
  device().recording = std::make_unique<cuda_emulator::Recording>(cuda_emulator::Recording{.mode = mode});
  return device().finish(cudaSuccess);
}

cudaError_t cudaStreamEndCapture(cudaStream_t, cudaGraph_t* graph) {
  const Lock lock;
  *graph = nullptr;
  const auto recording = std::move(device().recording);
  if (!recording) return device().finish(cudaErrorInvalidValue);
  if (!recording->valid) return device().finish(cudaErrorStreamCaptureInvalidated);
  *graph = reinterpret_cast<cudaGraph_t>(new Work(std::move(recording->work)));
  return device().finish(cudaSuccess);
}

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  std::swap(thread_mode, *mode);
  return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long) {
  const Lock lock;
  *exec = reinterpret_cast<cudaGraphExec_t>(new Work(*reinterpret_cast<Work*>(graph)));
  return device().finish(cudaSuccess);
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t) {
  const Lock lock;
  auto& d = device();
  if (d.sticky != cudaSuccess) return d.sticky;
  ++d.launches;
  for (const auto& work : *reinterpret_cast<Work*>(exec)) {
    if (cuda_emulator::submit(work) != cudaSuccess) break;
  }
  return d.settings.blocking ? d.sticky : cudaSuccess;  // told later, as of a launch
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete reinterpret_cast<Work*>(graph);
  return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  delete reinterpret_cast<Work*>(exec);
  return cudaSuccess;
}
