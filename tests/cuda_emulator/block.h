// Runs the threads of a block, one at a time and in a shuffled
// order, as fibres that change places where a thread waits.
//
// A thread that never waits is a plain call: fibres are taken only where one
// waits. What no device would survive, or what depends on the order of threads
// in a way that a device does not promise, is a Problem: the launch fails.
#pragma once

#include <cuda_runtime.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tapehead/tests/cuda_emulator/fibre.h"

namespace cuda_emulator {

/// Numbers for the order of threads and blocks (xorshift64*, Vigna, 2016): drawn at every wait, so they must
/// cost little.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed * 0x9E3779B97F4A7C15 | 1) {}

  /// In [0, n), n < 2³².
  size_t below(size_t n) {
    state_ ^= state_ >> 12;
    state_ ^= state_ << 25;
    state_ ^= state_ >> 27;
    return (state_ * 0x2545F4914F6CDD1D >> 32) * n >> 32;
  }
  template <class T>
  void shuffle(std::vector<T>& list) {
    for (size_t i = list.size(); i > 1; --i) std::swap(list[i - 1], list[below(i)]);
  }

 private:
  uint64_t state_;
};

class BlockRunner {
 public:
  /// Runs call(body) for each thread of a block of `size` threads; threadIdx is set. Returns the
  /// problem, if there was one: the block is then left as it stood.
  std::optional<std::string> run(dim3 size, void (*call)(const void*), const void* body, Random& random);

  // For the running thread.
  void barrier(std::source_location where);
  uint64_t meet_warp(WarpOp op, unsigned mask, uint64_t value, int argument, int width,
                     std::source_location where);
  [[noreturn]] void trap(const char* reason);

 private:
  enum class State : uint8_t { unstarted, ready, at_barrier, in_warp, done };

  // What a thread brought to where it waits.
  struct Request {
    WarpOp op = WarpOp::sync;
    unsigned mask = 0;
    uint64_t value = 0;
    int argument = 0, width = 0;
    std::source_location where;
  };

  struct Worker {
    uint3 index = {};
    State state = State::unstarted;
    OwnFibre* fibre = nullptr;  // where it runs or waits
    Request request;
    uint64_t result = 0;
  };

  static void fibre_main();
  void work();  // of a fibre: threads that have not started, until there are none
  Worker& self() { return *running_; }
  void set_running(Worker* worker);
  void wait();
  void enter(Fibre& from, Fibre& to, Worker* worker);
  Fibre* next(Worker*& worker);
  bool release_barrier();
  void make_ready(Worker& worker);
  std::string describe() const;
  [[noreturn]] void abandon();
  bool same_request(const Request& request, size_t first) const;
  uint64_t result_of(const Request& request, unsigned lane, size_t first) const;

  std::vector<Worker> workers_;
  std::vector<unsigned> in_warp_;  // of each warp: the lanes in that state
  std::vector<size_t> order_;      // of starting
  size_t started_ = 0, done_ = 0;
  std::vector<Worker*> ready_;
  std::vector<std::unique_ptr<OwnFibre>> fibres_;
  std::vector<OwnFibre*> free_;
  Worker* running_ = nullptr;
  OwnFibre* current_ = nullptr;  // null: the host's stack
  Fibre host_;
  void (*call_)(const void*) = nullptr;
  const void* body_ = nullptr;
  Random* random_ = nullptr;
  std::optional<std::string> problem_;
};

}  // namespace cuda_emulator
