// Indices that are in no range, found by kernels and told when the host next waits for them.
#pragma once

#include <map>
#include <mutex>

#include "tapehead/backends/backend.h"
#include "tapehead/backends/cuda/stream.h"

namespace tapehead {

/// What a kernel tells of the first fault, in memory that host and device share.
struct IndexFaultRecord {
  int64_t check;            ///< its number; 0: there was no fault
  int64_t position, index;  ///< IndexFault's
};

/// Thread-safe.
class IndexFaults {
 public:
  explicit IndexFaults(Stream& stream);

  /// Where kernels write.
  IndexFaultRecord* record() const { return record_; }
  /// Numbers a check whose kernel is launched next: from 1, in the order of the launches.
  int64_t add(IndexFault fault);
  /// Number of the last check.
  int64_t issued() const;
  /// Throws what the checks up to number `last` found, once their kernels are done; forgets them.
  void report(int64_t last);

  /// Whether add() numbers checks of recorded work, which may find a fault in every replay: they are not
  /// forgotten.
  void set_recording(bool recording);
  /// No recorded check from `first` to `last` is asked for again: the next report forgets them.
  void retire(int64_t first, int64_t last);

 private:
  IndexFaultRecord* record_ = nullptr;
  mutable std::mutex mutex_;
  int64_t issued_ = 0;
  bool recording_ = false;
  std::map<int64_t, IndexFault> pending_, recorded_;
};

}  // namespace tapehead
