#include <fmt/format.h>

#include <span>
#include <string>
#include <vector>

#include "tapehead/models/optimizer.h"
#include "tapehead/ops/embedding.h"
#include "tapehead/ops/linear_cross_entropy.h"
#include "tapehead/ops/random.h"

using namespace tapehead;

int main() {
  const std::string text = "the tape remembers, the head predicts, and the loss goes down. ";
  const std::vector<int64_t> bytes(text.begin(), text.end());
  const int64_t N = std::ssize(bytes) - 1, F = 16, C = 128;  // tokens, width, vocabulary
  const Tensor ids = Tensor::from({N}, std::span(bytes).first(bytes.size() - 1));
  const Tensor next = Tensor::from({N}, std::span(bytes).subspan(1));

  Generator random{.seed = 1};
  Tensor table = random_normal({C, F}, 0, 0.1, random).set_requires_grad();
  Tensor weight = random_normal({C, F}, 0, 0.1, random).set_requires_grad();
  AdamWOptimizer optimizer({{"table", table}, {"weight", weight}});

  LinearCrossEntropyArgs args;
  args.options = LinearCrossEntropyOptions({.batch_chunk_size = 16});  // rows of logits at once
  for (int step = 1; step <= 40; ++step) {
    const Tensor loss = linear_cross_entropy(embedding(table, ids), weight, next, args);
    backward(loss);
    optimizer.step(0.05);
    optimizer.zero_grad();
    if (step % 10 == 0) fmt::print("step {}: {:.3f} nats per byte\n", step, loss.item());
  }
}
