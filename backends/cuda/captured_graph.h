// Recorded work as CUDA keeps it: a graph of launches, the memory that they use, and where their random
// numbers begin.
#pragma once

#include <memory>
#include <vector>

#include "tapehead/backends/cuda/scratch.h"

namespace tapehead {

class CapturedGraph final : public CapturedWork {
 public:
  /// Draws from streams of `seeds` alone.
  CapturedGraph(CudaBackend& backend, std::span<const uint64_t> seeds);
  ~CapturedGraph() override;
  CapturedGraph(const CapturedGraph&) = delete;
  CapturedGraph& operator=(const CapturedGraph&) = delete;

  /// Records what work() asks for. Whatever it throws, the backend does again what it is asked for.
  void record(const std::function<void()>& work);
  void replay(std::span<const uint64_t> further) override;

  /// Where a kernel finds how many blocks further the numbers of `seed` begin. Throws RuntimeError for one
  /// that was not named.
  const uint64_t* further(uint64_t seed) const;

 private:
  CudaBackend& backend_;
  const std::vector<uint64_t> seeds_;
  const Scratch further_;  // a word a seed
  std::shared_ptr<CapturedMemory> memory_;
  int64_t first_check_ = 0, last_check_ = -1;  // of the indices that it looks at
  cudaGraphExec_t graph_ = nullptr;
};

}  // namespace tapehead
