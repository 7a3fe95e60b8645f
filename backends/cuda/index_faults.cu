#include "tapehead/backends/cuda/index_faults.h"

namespace tapehead {

IndexFaults::IndexFaults(Stream& stream) {
  void* memory = nullptr;
  stream.check("cudaMallocHost", cudaMallocHost(&memory, sizeof(IndexFaultRecord)));
  record_ = new (memory) IndexFaultRecord{};
}

int64_t IndexFaults::add(IndexFault fault) {
  const std::lock_guard lock(mutex_);
  (recording_ ? recorded_ : pending_).emplace(++issued_, std::move(fault));
  return issued_;
}

int64_t IndexFaults::issued() const {
  const std::lock_guard lock(mutex_);
  return issued_;
}

void IndexFaults::report(int64_t last) {
  IndexFault fault;
  IndexFaultRecord found{};
  {
    const std::lock_guard lock(mutex_);
    if (record_->check != 0) {
      found = *record_;
      *record_ = {};
      const auto recorded = recorded_.find(found.check);
      fault = recorded != recorded_.end() ? recorded->second : pending_.at(found.check);
    }
    pending_.erase(pending_.begin(), pending_.upper_bound(last));
  }
  if (fault) fault(found.position, found.index);
}

void IndexFaults::set_recording(bool recording) {
  const std::lock_guard lock(mutex_);
  recording_ = recording;
}

void IndexFaults::retire(int64_t first, int64_t last) {
  const std::lock_guard lock(mutex_);
  for (auto check = recorded_.lower_bound(first); check != recorded_.end() && check->first <= last;)
    pending_.insert(recorded_.extract(check++));
}

}  // namespace tapehead
