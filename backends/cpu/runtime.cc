// Memory, and copies between dtypes and layouts.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <string>

#include "tapehead/backends/cpu/convert.h"
#include "tapehead/backends/cpu/cpu_backend.h"
#include "tapehead/backends/cpu/nd_loop.h"

namespace tapehead {

void set_cpu_threads(int64_t threads) {
  check<ValueError>(threads >= 1 && threads <= 1024, "{} threads: they are between 1 and 1024", threads);
  omp_set_num_threads(static_cast<int>(threads));
}

CpuBackend& cpu_backend() {
  // Never destroyed: tensors in static storage may be freed after it would be.
  static CpuBackend* backend = new CpuBackend;
  return *backend;
}

void* CpuBackend::allocate(int64_t bytes) {
  void* memory = memory_.allocate(bytes);
  if (!memory) {
    fail<OutOfMemoryError>("out of memory: {} bytes were wanted on the cpu, {} are live there", bytes,
                           memory_stats({}).live_bytes);
  }
  return memory;
}

void CpuBackend::deallocate(void* memory, int64_t bytes) noexcept { memory_.deallocate(memory, bytes); }

int64_t CpuBackend::system_allocations() const { return memory_.system_allocations(); }

// The number that a file holds, as control groups write it; none for "max" and where there is no such file.
static std::optional<int64_t> read_number(const char* path) {
  std::ifstream file(path);
  int64_t number = 0;
  return file >> number ? std::optional(number) : std::nullopt;
}

// /proc/meminfo's MemAvailable, or what a control group leaves of its limit, whichever is less.
std::optional<int64_t> CpuBackend::available_memory() const {
  std::optional<int64_t> available;
  std::ifstream file("/proc/meminfo");
  for (std::string line; std::getline(file, line);) {
    int64_t kibibytes = 0;
    if (std::sscanf(line.c_str(), "MemAvailable: %ld kB", &kibibytes) == 1) available = kibibytes * 1024;
  }
  const auto limit = read_number("/sys/fs/cgroup/memory.max"),
             used = read_number("/sys/fs/cgroup/memory.current");
  if (limit && used) available = std::min(available.value_or(*limit), std::max<int64_t>(*limit - *used, 0));
  if (available) *available += memory_.kept_bytes();
  return available;
}

std::unique_ptr<CapturedWork> CpuBackend::capture(const std::function<void()>&, std::span<const uint64_t>) {
  fail<ValueError>("[capture] the cpu records nothing: call the work itself");
}

void CpuBackend::copy_from_host(void* to, const void* from, int64_t bytes) {
  std::memcpy(to, from, static_cast<size_t>(bytes));
}

void CpuBackend::copy_to_host(void* to, const void* from, int64_t bytes) {
  std::memcpy(to, from, static_cast<size_t>(bytes));
}

void CpuBackend::fill(Tensor& y, double value) {
  visit_dtype(y.dtype(), [&]<class T>(std::type_identity<T>) {
    T* out = y.mutable_data<T>();
    const T v = static_cast<T>(value);
    const NdLoop<1> loop(y.shape(), {y.strides()});
    const int64_t step = loop.steps()[0];
    loop.run([&](const auto& at, int64_t n) {
      if (step == 1) {
        std::fill_n(out + at[0], n, v);
      } else {
        for (int64_t i = 0; i < n; ++i) out[at[0] + i * step] = v;
      }
    });
  });
}

void CpuBackend::copy(const Tensor& x, Tensor& y) {
  const NdLoop<2> loop(y.shape(), {y.strides(), broadcast_strides(x.shape(), x.strides(), y.shape())});
  const int64_t sy = loop.steps()[0], sx = loop.steps()[1];
  visit_dtype(x.dtype(), [&]<class From>(std::type_identity<From>) {
    visit_dtype(y.dtype(), [&]<class To>(std::type_identity<To>) {
      const From* from = x.data<From>();
      To* to = y.mutable_data<To>();
      loop.run([&](const auto& at, int64_t n) {
        To* out = to + at[0];
        const From* in = from + at[1];
        if (sy == 1 && sx == 1) {
          convert_run(x.dtype(), in, y.dtype(), out, n);
        } else {
          for (int64_t i = 0; i < n; ++i) out[i * sy] = convert<To>(in[i * sx]);
        }
      });
    });
  });
}

bool CpuBackend::all_finite(const Tensor& x) {
  if (!is_floating(x.dtype())) return true;
  return visit_floating(x.dtype(), "all_finite", [&]<class T>(std::type_identity<T>) {
    const T* in = x.data<T>();
    const NdLoop<1> loop(x.shape(), {x.strides()});
    const int64_t step = loop.steps()[0];
    bool finite = true;
    loop.run(
        [&](const auto& at, int64_t n) {
          for (int64_t i = 0; i < n; ++i)
            finite &= std::isfinite(static_cast<wide_t<T>>(in[at[0] + i * step]));
        },
        /*serial=*/true);
    return finite;
  });
}

}  // namespace tapehead
