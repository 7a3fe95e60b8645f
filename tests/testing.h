// Small things that tests share.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tapehead/core/gradcheck.h"
#include "tapehead/core/random.h"
#include "tapehead/core/tensor.h"

namespace tapehead {

/// Where tests run: TAPEHEAD_TEST_DEVICE, or the cpu. It is the default device of their tensors.
inline Device test_device() {
  const char* name = std::getenv("TAPEHEAD_TEST_DEVICE");
  return name ? parse_device(name) : Device{};
}

/// Whether that is an emulated one (tests/cuda_emulator), which is slow.
inline bool device_is_emulated() { return std::getenv("TAPEHEAD_TEST_EMULATED") != nullptr; }

/// Makes test_device() the default while a program's tests run.
class TestDevice : public testing::Environment {
  void SetUp() override { guard_ = std::make_unique<DeviceGuard>(test_device()); }
  void TearDown() override { guard_.reset(); }

  std::unique_ptr<DeviceGuard> guard_;
};

inline testing::Environment* const kTestDevice = testing::AddGlobalTestEnvironment(new TestDevice);

/// Expects `call` to throw E with a message that contains `part`.
template <class E>
void expect_error(const std::function<void()>& call, const std::string& part) {
  try {
    call();
    ADD_FAILURE() << "nothing was thrown; expected: " << part;
  } catch (const E& e) {
    EXPECT_NE(std::string(e.what()).find(part), std::string::npos) << e.what();
  }
}

/// gradcheck(), whose error becomes a failure here, with the traces of the scopes around it.
inline void expect_gradcheck(const std::function<Tensor(const std::vector<Tensor>&)>& function,
                             std::vector<Tensor> inputs, const GradcheckOptions& options = {}) {
  try {
    gradcheck(function, std::move(inputs), options);
  } catch (const std::exception& e) {
    ADD_FAILURE() << e.what();
  }
}

/// Uniform in [-scale, scale), drawn in f64 and rounded to `dtype`.
inline Tensor random_tensor(Shape shape, uint64_t seed, double scale = 1, DType dtype = DType::f64) {
  Generator random{.seed = seed};
  std::vector<double> values(static_cast<size_t>(shape.numel()));
  for (double& v : values) v = scale * (2 * random.uniform() - 1);
  return Tensor::from<double>(shape, values).to(dtype);
}

/// Element i of dense x = value.
inline void set_element(const Tensor& x, int64_t i, double value) {
  x.alias({}, {}, x.offset() + i).fill(value);
}

/// Indices in [0, n).
inline Tensor random_indices(Shape shape, uint64_t n, uint64_t seed) {
  Generator random{.seed = seed};
  std::vector<int64_t> values(static_cast<size_t>(shape.numel()));
  for (int64_t& v : values) v = static_cast<int64_t>(random.below(n));
  return Tensor::from<int64_t>(shape, values);
}

}  // namespace tapehead
