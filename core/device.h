// Where a tensor lives, and the few things that core itself asks of a device.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "tapehead/core/error.h"

namespace tapehead {

class Tensor;

struct Device {
  enum Kind : uint8_t { cpu, cuda };
  static constexpr size_t kKinds = 2;
  Kind kind = cpu;

  bool operator==(const Device&) const = default;
};

/// "cpu" or "cuda".
std::string_view name(Device device);
/// The inverse of name(). Throws ValueError.
Device parse_device(std::string_view text);

/// Where this thread's tensors are made if the call names no device: the cpu, unless a DeviceGuard is alive.
Device default_device();

/// Changes default_device() until destroyed. Destroy guards on the thread that made them, innermost first.
class DeviceGuard {
 public:
  explicit DeviceGuard(Device device);
  ~DeviceGuard();
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  Device outer_;
};

/// What DeviceRuntime::capture() recorded (core/capture.h).
class CapturedWork {
 public:
  virtual ~CapturedWork() = default;
  /// Asks for it. Random numbers of seeds[i] begin further[i] blocks behind those of the recording.
  virtual void replay(std::span<const uint64_t> further) = 0;
};

/// What core needs of a device: memory, and the tensor arithmetic that autograd itself does.
///
/// Implementations, in `//backends`, are thread-safe; tensors handed to one call live on this device.
class DeviceRuntime {
 public:
  virtual ~DeviceRuntime() = default;

  /// At least `bytes` (> 0) of memory, aligned to 64. Throws OutOfMemoryError that states the bytes.
  virtual void* allocate(int64_t bytes) = 0;
  virtual void deallocate(void* memory, int64_t bytes) noexcept = 0;
  /// How often allocate() had to ask the system, because nothing that was freed before fitted.
  virtual int64_t system_allocations() const = 0;
  /// Bytes that allocate() could give now, as far as the system says: none where it does not.
  virtual std::optional<int64_t> available_memory() const = 0;
  virtual void copy_from_host(void* to, const void* from, int64_t bytes) = 0;
  /// Synchronises first.
  virtual void copy_to_host(void* to, const void* from, int64_t bytes) = 0;
  /// Waits until all that was asked of the device is done. Throws what went wrong in it and could
  /// not be told earlier.
  virtual void synchronize() = 0;

  /// Whether this device records work.
  virtual bool can_capture() const = 0;
  /// Runs work(), recording what it asks of this device in the place of doing it. `seeds` are those of all
  /// random numbers that it draws. Throws ValueError unless can_capture(); else as Capture does
  /// (core/capture.h), with nothing left of it.
  virtual std::unique_ptr<CapturedWork> capture(const std::function<void()>& work,
                                                std::span<const uint64_t> seeds) = 0;
  /// Whether a capture() is under way.
  virtual bool is_capturing() const = 0;

  /// y[...] = value, converted to y's dtype. Any strides.
  virtual void fill(Tensor& y, double value) = 0;
  /// y[...] = x[...], converted to y's dtype; x broadcasts to y's shape. Any strides.
  virtual void copy(const Tensor& x, Tensor& y) = 0;
  /// y += scale · x, summed over the dimensions along which y broadcasts to x's shape. Any strides, floating
  /// dtypes; sums run in f32 or wider and are rounded once, to y's dtype.
  virtual void accumulate(const Tensor& x, double scale, Tensor& y) = 0;
  /// Whether every element is finite. Any strides; integers always are.
  virtual bool all_finite(const Tensor& x) = 0;
};

/// The runtime of `device`. Defined by //backends, so that core stands below the backends and still reaches
/// them. Throws ValueError if this build has no such device, saying what is missing.
DeviceRuntime& device_runtime(Device device);

/// Threads for the loops and products that the calling thread starts on the CPU, from now on; the
/// processor's, unless said. Defined by //backends. Throws ValueError outside [1, 1024].
void set_cpu_threads(int64_t threads);

}  // namespace tapehead

template <>
struct fmt::formatter<tapehead::Device> : tapehead::PlainFormatter {
  auto format(tapehead::Device d, format_context& ctx) const { return write(tapehead::name(d), ctx); }
};
