// A model small enough to train in a test, and files for it.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "tapehead/core/random.h"
#include "tapehead/models/trainer.h"
#include "tapehead/tests/testing.h"

namespace tapehead {

class TrainingFixture : public testing::Test {
 protected:
  TrainingFixture() {
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
    write_tokens("train.tokens", 500, 1);
    write_tokens("held_out.tokens", 60, 2);
  }

  /// A noisy cycle of the tokens 0 .. 10: something to learn.
  void write_tokens(const std::string& name, int64_t count, uint64_t seed) const {
    Generator generator{.seed = seed};
    std::vector<int32_t> tokens;
    for (int64_t i = 0; i < count; ++i) {
      tokens.push_back(static_cast<int32_t>(generator.below(5) == 0 ? generator.below(11)
                                                                    : static_cast<uint64_t>(i) % 11));
    }
    TokenFile::write(folder_ + "/" + name, tokens, 11);
  }

  TokenFile training() const { return TokenFile::open(folder_ + "/train.tokens"); }
  TokenFile held_out() const { return TokenFile::open(folder_ + "/held_out.tokens"); }

  static TrainConfig tiny_config() {
    return {{.steps = 30,
             .batch_size = 4,
             .peak_lr = 1e-2,
             .min_lr = 1e-3,
             .warmup_steps = 3,
             .eval_interval = 7,
             .seed = 5},
            {.vocab_size = 11, .n_layer = 2, .n_head = 2, .n_embd = 8, .n_positions = 6, .dropout = 0.1}};
  }

  const std::string folder_ =
      testing::TempDir() + testing::UnitTest::GetInstance()->current_test_info()->name();
  const std::string path_ = folder_ + "/run.safetensors";
};

/// Every number of the list, for comparison bit by bit.
inline std::vector<std::pair<std::string, std::vector<float>>> numbers(const ParameterList& list) {
  std::vector<std::pair<std::string, std::vector<float>>> all;
  for (const auto& [name, tensor] : list) all.emplace_back(name, tensor.to_vector<float>());
  return all;
}

}  // namespace tapehead
