// What `tapehead train-head` does with a features file of arbitrary bytes: it is opened, a head is trained
// for a step on it, and measured.
#include <algorithm>

#include "tapehead/core/error.h"
#include "tapehead/models/head_trainer.h"
#include "tapehead/tests/fuzz/fuzzer.h"
#include "tapehead/tests/fuzz/memory_file.h"

// Targets may name more classes than a step should take time for.
constexpr int64_t kMostProducts = 1 << 20;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tapehead;
  const MemoryFile file(reinterpret_cast<const char*>(data), size);
  try {
    const LabelledFeatures features = LabelledFeatures::open(file.path());
    const int64_t rows = features.features.size(0);
    HeadTrainConfig config;
    config.bias = rows % 2 == 0;
    config.batch_size = std::max<int64_t>(rows / 2, 1);
    config.held_out = 0.25;
    config = with_classes(config, features);
    if (config.classes * features.features.numel() > kMostProducts) return 0;
    HeadTrainer trainer(config, features);
    trainer.step();
    if (rows >= 4) trainer.evaluate();
  } catch (const ValueError&) {  // NOLINT: refusing is what it should do
  } catch (const TypeError&) {
  } catch (const RuntimeError&) {  // features that are not finite
  }
  return 0;
}
