// What the backend says when a device is missing, cannot be used, is full, or fails.
#include <cuda_runtime.h>
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include "tapehead/backends/cuda/cuda_backend.h"
#include "tapehead/backends/cuda/launch.h"
#include "tapehead/tests/cuda_emulator/emulator.h"
#include "tapehead/tests/testing.h"

namespace tapehead {
namespace {

constexpr Device kCuda{Device::cuda};

class DeviceErrors : public testing::Test {
 protected:
  void SetUp() override { cuda_emulator::reset(); }
  void TearDown() override { cuda_emulator::reset(); }
};

TEST_F(DeviceErrors, SayWhatIsMissingAndWhatToDo) {
  const auto expect_refusal = [](const cuda_emulator::Settings& settings, const std::string& part) {
    cuda_emulator::reset(settings);
    expect_error<SystemError>([] { Stream(); }, part);
    cuda_emulator::reset();
    EXPECT_NO_THROW(Stream()) << "nothing of the refusal is left";
  };
  expect_refusal({.driver_version = 0}, "there is no CUDA driver: install NVIDIA's, or use --device cpu");
  expect_refusal({.driver_version = 12040},
                 "the CUDA driver supports CUDA 12.4, and this program was built with 13.0");
  expect_refusal({.devices = 0}, "there is no CUDA device: nvidia-smi lists");
  expect_refusal({.capability_major = 7, .capability_minor = 5},
                 "has compute capability 7.5, and 8.0 (Ampere) is the oldest");
  expect_refusal({.busy = true}, "is held by another process");
}

TEST_F(DeviceErrors, OutOfMemoryTellsWhoHasItAndLeavesTheRestUsable) {
  cuda_backend();
  cuda_emulator::reset({.memory_bytes = cuda_emulator::memory_in_use() + 10'000});
  const Tensor a = Tensor::full({1000}, 1, DType::f32, kCuda), b = Tensor::full({500}, 2, DType::f32, kCuda),
               c = Tensor::full({500}, 3, DType::f32, kCuda);
  expect_error<OutOfMemoryError>(
      [] { Tensor({1500}, DType::f32, kCuda); },
      "out of memory: 6000 bytes were wanted on cuda, 8000 are live there, the largest buffers "
      "4000, 2000 (2 times); the device has");
  EXPECT_EQ(c.to_vector<float>(), std::vector<float>(500, 3)) << "what was live still is";
  EXPECT_EQ(Tensor::full({100}, 4, DType::f32, kCuda).to_vector<float>(), std::vector<float>(100, 4));
}

// Hazard: memory that is kept for later is not there for a tensor of another size, though nobody uses it.
TEST_F(DeviceErrors, KeptMemoryIsGivenBackBeforeItRunsOut) {
  cuda_backend();
  cuda_emulator::reset({.memory_bytes = cuda_emulator::memory_in_use() + 10'000});
  for (const int64_t size : {2000, 900, 1700, 300, 2100}) {
    EXPECT_EQ(Tensor::full({size}, 1, DType::f32, kCuda).to_vector<float>().size(),
              static_cast<size_t>(size));
  }
}

__global__ void trap_kernel() { __trap(); }
__global__ void idle_kernel() {}

TEST_F(DeviceErrors, FailedKernelIsToldOnceWithTheLaunchesSince) {
  Stream stream;
  stream.launch("good", grid_of_rows(1), idle_kernel);
  stream.synchronize();
  stream.launch("suspect", grid_of_rows(1), idle_kernel);
  stream.launch("culprit", grid_of_rows(1), trap_kernel);
  expect_error<SystemError>([&] { stream.synchronize(); },
                            "Launched since it was last known to work: suspect, culprit. Set");
  expect_error<SystemError>([&] { stream.launch("next", grid_of_rows(1), idle_kernel); },
                            "the CUDA device failed before (cudaErrorLaunchFailure: suspect, culprit)");
}

TEST_F(DeviceErrors, BlockingLaunchesTellTheCulpritItself) {
  cuda_emulator::reset({.blocking = true});
  Stream stream;
  expect_error<SystemError>([&] { stream.launch("culprit", grid_of_rows(1), trap_kernel); },
                            "told by culprit");
}

TEST_F(DeviceErrors, RefusedLaunchLeavesTheDeviceUsable) {
  Stream stream;
  expect_error<SystemError>([&] { stream.launch("wide", grid_of_rows(1, 2048), idle_kernel); },
                            "wide: cudaErrorInvalidConfiguration");
  expect_error<SystemError>([&] { stream.launch("large", grid_of_rows(1, 32, 1 << 20), idle_kernel); },
                            "[large] the kernel takes 1048576 bytes of shared memory");
  stream.launch("good", grid_of_rows(1), idle_kernel);
  EXPECT_NO_THROW(stream.synchronize());
  stream.launch("nothing", grid_of_rows(0), trap_kernel);
  EXPECT_NO_THROW(stream.synchronize()) << "no blocks, no launch";
}

}  // namespace
}  // namespace tapehead
