#include "tapehead/core/run_comparison.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <utility>

#include "tapehead/core/tape_observer.h"

namespace tapehead {

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Record {
  std::string op;
  std::optional<size_t> input;
  Tensor value;  // on the host, dense

  std::string describe() const {
    const std::string part = input ? fmt::format("the gradient of input {}", *input) : "the result";
    return fmt::format("{} of {}, {} of shape {}", part, op, value.dtype(), value.shape());
  }
};

Tensor host_copy(const Tensor& x) {
  const Device host;
  return x.device() == host ? x.clone() : x.to(host);
}

// In pieces, so that copies in f64 stay small.
double relative_difference(const Tensor& tested, const Tensor& reference) {
  constexpr int64_t kPiece = 1 << 20;
  double difference = 0, norm = 0;
  for (int64_t first = 0; first < reference.numel(); first += kPiece) {
    const Shape shape{std::min(kPiece, reference.numel() - first)};
    const auto piece = [&](const Tensor& x) {
      return x.alias(shape, {1}, x.offset() + first).to_vector<double>();
    };
    const std::vector<double> a = piece(tested), b = piece(reference);
    for (size_t i = 0; i < a.size(); ++i) {
      if (a[i] == b[i] || (std::isnan(a[i]) && std::isnan(b[i]))) {
        if (std::isfinite(b[i])) norm += b[i] * b[i];
        continue;
      }
      if (!std::isfinite(a[i]) || !std::isfinite(b[i])) return kInfinity;
      difference += (a[i] - b[i]) * (a[i] - b[i]);
      norm += b[i] * b[i];
    }
  }
  if (difference == 0) return 0;
  return norm == 0 ? kInfinity : std::sqrt(difference / norm);
}

class Recorder final : public TapeObserver {
 public:
  explicit Recorder(std::vector<Record>& records) : records_(records) {}

  void on_result(const char* op, Tensor& result, std::span<const Tensor>) override {
    records_.push_back({op, std::nullopt, host_copy(result)});
  }
  void on_gradient(const char* op, size_t input, Tensor& sum) override {
    records_.push_back({op, input, host_copy(sum)});
  }

 private:
  std::vector<Record>& records_;
};

class Comparer final : public TapeObserver {
 public:
  explicit Comparer(const std::vector<Record>& records) : records_(records) {}

  void on_result(const char* op, Tensor& result, std::span<const Tensor>) override {
    result.copy_from(compare({op, std::nullopt, host_copy(result)}));
  }
  void on_gradient(const char* op, size_t input, Tensor& sum) override {
    const Tensor& reference = compare({op, input, host_copy(sum)});
    sum = sum.device() == reference.device() ? reference.clone() : reference.to(sum.device());
  }

  std::vector<Difference> take() {
    if (differences_.size() < records_.size()) {
      fail<RuntimeError>(
          "[compare_runs] the tested run ends after {} of the reference's {} values; the next would be {}",
          differences_.size(), records_.size(), records_[differences_.size()].describe());
    }
    return std::move(differences_);
  }

 private:
  const Tensor& compare(const Record& tested) {
    const size_t index = differences_.size();
    check<RuntimeError>(index < records_.size(),
                        "[compare_runs] the reference run ends after {} values, and the tested one goes on",
                        records_.size());
    const Record& reference = records_[index];
    if (tested.op != reference.op || tested.input != reference.input ||
        tested.value.shape() != reference.value.shape() || tested.value.dtype() != reference.value.dtype()) {
      fail<RuntimeError>("[compare_runs] the runs part at value {}: the reference has {}, the tested run {}",
                         index + 1, reference.describe(), tested.describe());
    }
    differences_.push_back({.op = tested.op,
                            .input = tested.input,
                            .call = ++calls_[{tested.op, tested.input}],
                            .shape = tested.value.shape(),
                            .dtype = tested.value.dtype(),
                            .error = relative_difference(tested.value, reference.value)});
    return reference.value;
  }

  const std::vector<Record>& records_;
  std::vector<Difference> differences_;
  std::map<std::pair<std::string, std::optional<size_t>>, int64_t> calls_;
};

}  // namespace

std::vector<Difference> compare_runs(const std::function<void()>& reference,
                                     const std::function<void()>& tested) {
  std::vector<Record> records;
  {
    Recorder recorder(records);
    reference();
  }
  Comparer comparer(records);
  tested();
  return comparer.take();
}

}  // namespace tapehead
