#include "tapehead/core/memory.h"

#include <algorithm>
#include <array>
#include <map>
#include <mutex>
#include <string>

namespace tapehead {

// One scope: its counts on each device, and the scopes inside it. They are made once and live as long as the
// process, so that a block can hold a plain pointer to the one it was charged to.
class MemoryCounter {
 public:
  struct PerDevice {
    std::atomic<int64_t> live = 0, peak = 0, allocations = 0;
  };
  MemoryCounter* parent = nullptr;
  std::array<PerDevice, Device::kKinds> devices;
  std::map<std::string, std::unique_ptr<MemoryCounter>, std::less<>> children;  // guarded by tree_mutex()
};

static std::mutex& tree_mutex() {
  static std::mutex mutex;
  return mutex;
}

static MemoryCounter& root() {
  // Never destroyed: tensors in static storage may be freed after it would be.
  static MemoryCounter* counter = new MemoryCounter;
  return *counter;
}

static thread_local MemoryCounter* current = nullptr;

static MemoryCounter* current_counter() { return current ? current : &root(); }

static MemoryCounter* find(std::string_view path) {
  MemoryCounter* counter = &root();
  while (counter && !path.empty()) {
    const size_t slash = path.find('/');
    const auto it = counter->children.find(path.substr(0, slash));
    counter = it == counter->children.end() ? nullptr : it->second.get();
    path = slash == std::string_view::npos ? std::string_view() : path.substr(slash + 1);
  }
  return counter;
}

MemoryScope::MemoryScope(std::string_view name) : outer_(current) {
  check<ValueError>(!name.empty() && name.find('/') == std::string_view::npos,
                    "a memory scope's name is not empty and holds no '/', unlike \"{}\"", name);
  MemoryCounter* parent = current_counter();
  const std::lock_guard lock(tree_mutex());
  std::unique_ptr<MemoryCounter>& child = parent->children[std::string(name)];
  if (!child) {
    child = std::make_unique<MemoryCounter>();
    child->parent = parent;
  }
  current = child.get();
}

MemoryScope::MemoryScope(MemoryCounter* place) : outer_(current) { current = place; }

MemoryCounter* MemoryScope::here() { return current_counter(); }

MemoryScope::~MemoryScope() { current = outer_; }

MemoryStats memory_stats(Device device, std::string_view path) {
  const std::lock_guard lock(tree_mutex());
  const MemoryCounter* counter = find(path);
  if (!counter) return {};
  const auto& d = counter->devices[device.kind];
  return {.live_bytes = d.live, .peak_bytes = d.peak, .allocations = d.allocations};
}

void reset_peak(Device device, std::string_view path) {
  const std::lock_guard lock(tree_mutex());
  if (MemoryCounter* counter = find(path)) {
    counter->devices[device.kind].peak = counter->devices[device.kind].live.load();
  }
}

static void charge(MemoryCounter* counter, Device device, int64_t bytes) {
  for (; counter; counter = counter->parent) {
    auto& d = counter->devices[device.kind];
    const int64_t live = d.live += bytes;
    if (bytes > 0) {
      ++d.allocations;
      for (int64_t peak = d.peak; peak < live && !d.peak.compare_exchange_weak(peak, live);) {
      }
    }
  }
}

MemoryBlock::MemoryBlock(Device device, int64_t bytes)
    : device_(device), bytes_(bytes), counter_(current_counter()) {
  if (bytes_ == 0) return;
  data_ = device_runtime(device_).allocate(bytes_);
  charge(counter_, device_, bytes_);
}

MemoryBlock::~MemoryBlock() {
  if (bytes_ == 0) return;
  charge(counter_, device_, -bytes_);
  device_runtime(device_).deallocate(data_, bytes_);
}

}  // namespace tapehead
