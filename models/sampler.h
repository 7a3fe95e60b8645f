// Which token follows: rules that turn logits into the few that are drawn from, and the drawing.
//
// Names, meanings and order are those of Hugging Face's transformers (GenerationConfig
// and its logits processors).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tapehead/core/random.h"

namespace tapehead {

struct SamplerOptions {
  /// > 0. The logit of every token that the text holds is divided by it if positive, multiplied if negative
  /// (Keskar et al., "CTRL", 2019). 1: nothing changes.
  double repetition_penalty = 1;
  /// >= 0; divides the logits. 0: always the likeliest token, and nothing below counts.
  double temperature = 0.8;
  int64_t top_k = 40;  ///< >= 0: the k likeliest tokens stay, and those as likely as the last. 0: all
  /// In (0, 1]: of what is left, the fewest likeliest tokens stay that together have this
  /// probability (Holtzman et al., "The curious case of neural text degeneration", 2020).
  double top_p = 1;
  /// In [0, 1]: of what is left, tokens stay that have this part of the likeliest one's
  /// probability (Nguyen et al., "Turning up the heat: min-p sampling", 2024).
  double min_p = 0;

  /// Throws ValueError that names the field, its value and the rule.
  void validate() const;
};

/// A token that may be drawn, and its logit after the penalty and divided by the temperature.
struct Candidate {
  int64_t token;
  double logit;
};

/// The tokens that `options`, which are valid, leave of `logits` (C), the likeliest
/// first, and of equal ones the smaller token; at least one. `text` is all that came
/// before; a token beyond C, which a model may read but is not to write, counts for nothing.
/// Throws RuntimeError if a logit is no number.
std::vector<Candidate> candidates(std::span<const double> logits, std::span<const int64_t> text,
                                  const SamplerOptions& options);

/// A token drawn from the softmax of the candidates' logits, with one number of
/// `generator`; a single candidate takes none.
int64_t draw(std::span<const Candidate> candidates, Generator& generator);

}  // namespace tapehead
