// Fibres: stacks of their own that one thread switches between.
#pragma once

#include <cstddef>

namespace cuda_emulator {

/// Where a stack of execution stands. One that was left is gone on with by switch_to.
struct Fibre {
  void* stack_pointer = nullptr;  // while it does not run
  const void* bottom = nullptr;   // its lowest address, and its size: for AddressSanitizer
  size_t size = 0;
  void* fake_stack = nullptr;  // AddressSanitizer's
  void (*entry)() = nullptr;
};

/// A fibre with memory for its stack, a page that faults below
/// it. Runs start() once switched to, which never returns.
class OwnFibre : public Fibre {
 public:
  explicit OwnFibre(void (*start)());
  ~OwnFibre();
  OwnFibre(const OwnFibre&) = delete;
  OwnFibre& operator=(const OwnFibre&) = delete;

  /// Forgets what it was doing: the next switch runs start() anew.
  void reset();

 private:
  const size_t colour_;
  void* memory_;
};

/// Leaves `from`, the fibre that runs, for `to`; returns when something switches back.
void switch_to(Fibre& from, Fibre& to);

}  // namespace cuda_emulator
