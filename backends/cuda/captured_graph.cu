#include <algorithm>

#include "tapehead/backends/cuda/captured_graph.h"
#include "tapehead/backends/cuda/launch.h"

namespace tapehead {

// ---- Bytes that a launch brings along

namespace {

constexpr int64_t kLaunchBytes = 2048;  // of the 4096 that a launch's parameters may have
constexpr int64_t kMostLaunches = 64;   // for more bytes, they are no longer small change

struct HostBytes {
  unsigned char bytes[kLaunchBytes];
};

}  // namespace

static __global__ void write_kernel(HostBytes from, int count, unsigned char* to) {
  for (int i = static_cast<int>(threadIdx.x); i < count; i += static_cast<int>(blockDim.x))
    to[i] = from.bytes[i];
}

void CudaBackend::write(void* to, const void* from, int64_t bytes) {
  const auto* source = static_cast<const unsigned char*>(from);
  auto* target = static_cast<unsigned char*>(to);
  for (int64_t begin = 0; begin < bytes; begin += kLaunchBytes) {
    HostBytes part;
    const int64_t count = std::min(kLaunchBytes, bytes - begin);
    std::copy_n(source + begin, count, part.bytes);
    stream_.launch("write", grid_of_rows(1, 128), write_kernel, part, static_cast<int>(count),
                   target + begin);
  }
}

void CudaBackend::copy_from_host(void* to, const void* from, int64_t bytes) {
  if (stream_.is_capturing()) {
    check<RuntimeError>(
        bytes <= kLaunchBytes * kMostLaunches,
        "[capture] recorded work brings {} bytes from the host, and may bring {}: put them into a "
        "tensor of the device before",
        bytes, kLaunchBytes * kMostLaunches);
    return write(to, from, bytes);
  }
  // Returns when `from` was read: it is pageable memory, which CUDA copies aside first.
  stream_.check("cudaMemcpyAsync",
                cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyHostToDevice, stream_.get()));
}

// ---- The backend's part

std::unique_ptr<CapturedWork> CudaBackend::capture(const std::function<void()>& work,
                                                   std::span<const uint64_t> seeds) {
  check<RuntimeError>(!is_capturing(), "[capture] recorded work does not record");
  auto graph = std::make_unique<CapturedGraph>(*this, seeds);
  graph->record(work);
  return graph;
}

RandomStart CudaBackend::random_start(uint64_t seed, uint64_t first) const {
  return {.seed = seed, .first = first, .further = recording_ ? recording_->further(seed) : nullptr};
}

// ---- The graph

CapturedGraph::CapturedGraph(CudaBackend& backend, std::span<const uint64_t> seeds)
    : backend_(backend),
      seeds_(seeds.begin(), seeds.end()),
      further_(backend, static_cast<int64_t>(seeds.size_bytes())) {}

CapturedGraph::~CapturedGraph() {
  if (graph_) cudaGraphExecDestroy(graph_);
  backend_.faults_.retire(first_check_, last_check_);
}

void CapturedGraph::record(const std::function<void()>& work) {
  Stream& stream = backend_.stream_;
  first_check_ = backend_.faults_.issued() + 1;
  stream.begin_capture();
  backend_.memory_.begin_capture();
  backend_.faults_.set_recording(true);
  backend_.recording_ = this;
  const auto ended = [&] {
    backend_.recording_ = nullptr;
    backend_.faults_.set_recording(false);
    last_check_ = backend_.faults_.issued();
    memory_ = backend_.memory_.end_capture();
  };
  try {
    work();
  } catch (...) {
    stream.abandon_capture();
    ended();
    throw;
  }
  cudaGraph_t graph = nullptr;
  try {
    graph = stream.end_capture();
  } catch (...) {
    ended();
    throw;
  }
  ended();
  const cudaError_t status = cudaGraphInstantiate(&graph_, graph, 0);
  cudaGraphDestroy(graph);
  stream.check("cudaGraphInstantiate", status);
}

void CapturedGraph::replay(std::span<const uint64_t> further) {
  if (!further.empty())
    backend_.write(further_.as<void>(), further.data(), static_cast<int64_t>(further.size_bytes()));
  backend_.stream_.launched("captured work", cudaGraphLaunch(graph_, backend_.stream_.get()));
}

const uint64_t* CapturedGraph::further(uint64_t seed) const {
  const auto found = std::find(seeds_.begin(), seeds_.end(), seed);
  check<RuntimeError>(
      found != seeds_.end(),
      "[capture] recorded work draws from a generator of seed {} that was not named: a replay would draw "
      "the same numbers again",
      seed);
  return further_.as<uint64_t>() + (found - seeds_.begin());
}

}  // namespace tapehead
