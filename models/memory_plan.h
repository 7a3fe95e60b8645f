// How much memory a training step will take, before anything of the run is there.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tapehead {

/// Bytes of tensors, by what they are for. Exact, but for a language model's recording and peak, and for a
/// head where rows are ignored: train-head's takes less then (head_memory_planner.h); a language model's, on a
/// device that picks the rows that count, takes their copy more, and as much less for each row left out.
struct MemoryPlan {
  int64_t parameters = 0;
  int64_t gradients = 0;    ///< of the parameters that are trained
  int64_t optimizer = 0;    ///< moments, momenta, master weights
  int64_t activations = 0;  ///< what forward keeps for backward; of train-head, a batch
  /// Chunks of logits, and gradients of hidden state and weight: plan_linear_cross_entropy's.
  int64_t head = 0;

  /// Before the first step: of a model of 16 bits random weights of f32, of which its own are the rounding; of
  /// one whose weights come from a file, on a device of its own memory, the largest of them.
  int64_t start = 0;

  /// Of a recorded step (captured_step.h), else 0: what it keeps from all others to the run's end. Tensors of
  /// different sizes do not follow each other in its memory, so here activations, head and gradients add up.
  int64_t recording = 0;

  /// At once: gradients pile up while activations are freed, so whichever are more count; with a recording,
  /// that; or the start, if it takes more than a step. What the backward of one block takes while it runs is
  /// not in it: up to 15 % of the peak in a model of three layers, less in deeper ones. Nor is, beside a
  /// recording, an evaluation, or a batch that it does not fit.
  int64_t peak = 0;

  /// What a step holds beside parameters and optimizer.
  struct Moment {
    std::string at;
    int64_t gradients = 0, activations = 0, head = 0;
  };
  /// In the order of time; `peak` knows more of what comes between them.
  std::vector<Moment> moments = {};
};

}  // namespace tapehead
