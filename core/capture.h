// A device's work recorded once, a training step for instance, and asked for again in one call: what the host
// does for each operation, which for a small model takes longer than the device, is done once.
//
//   Tensor ids = batch.ids.to(cuda);  // what changes between replays stands in tensors that stay
//   Capture step(cuda, [&] { backward(model.loss(ids, targets, head, {.dropout = &rng})); }, {&rng});
//   for (...) {
//     ids.copy_from(next.ids);
//     step.replay();
//   }
//
// What holds of recorded work:
//  1. Recording computes nothing. The host runs `work` once; tensors that it made or changed have their
//     numbers after a replay.
//  2. A replay does the same to the same memory. Tensors from before that `work` reads or writes must stay.
//     What it took for its own tensors is nobody else's until the Capture and those tensors are gone.
//  3. The host's numbers (shapes, factors, Tensor::from) are those of the recording. Random numbers go on: a
//     replay draws from each generator what another call of `work` would have drawn.
//  4. It does not wait for the device: nothing is read from there.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "tapehead/core/device.h"
#include "tapehead/core/random.h"

namespace tapehead {

/// Not thread-safe: no other thread uses the device while one is made.
class Capture {
 public:
  /// Records what `work` asks of `device`. `generators`, of different seeds, are all that it draws from; they
  /// stand where they stood afterwards. Throws ValueError where the device cannot record; RuntimeError
  /// if `work` waits for the device, draws from other generators, or is itself a Capture; and what `work`
  /// throws.
  Capture(Device device, const std::function<void()>& work, std::vector<Generator*> generators = {});

  /// Asks for all of it, behind what was asked for before; returns at once. The generators move on.
  void replay();

 private:
  struct Drawn {
    Generator* generator;
    Generator begun;  // where it stood
    uint64_t blocks;  // that a replay takes
  };

  std::vector<Drawn> drawn_;
  std::unique_ptr<CapturedWork> work_;
};

/// Throws RuntimeError "[op] what: ..." while `device` records: for what reads from a device on its way.
void check_may_wait(const char* op, Device device, const char* what);

}  // namespace tapehead
