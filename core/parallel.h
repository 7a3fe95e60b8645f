// All CPU work runs on OpenMP's one pool; OpenBLAS and oneDNN use the same.
#pragma once

#include <omp.h>

#include <algorithm>
#include <cstdint>
#include <exception>

namespace tapehead {

/// Elements of simple work that are worth a thread's waking.
constexpr int64_t kGrain = 1 << 14;

/// Calls f(begin, end) on disjoint ranges that cover [0, n), each at least `grain` long but for one.
/// The ranges depend on n, grain and the number of threads alone. What f throws is thrown here once all
/// ranges are done with; of several exceptions the one of the first range.
template <class F>
void parallel_for(int64_t n, int64_t grain, F&& f) {
  const int64_t threads = std::min<int64_t>(omp_get_max_threads(), n / std::max<int64_t>(grain, 1));
  if (threads <= 1 || omp_in_parallel()) {
    if (n > 0) f(int64_t{0}, n);
    return;
  }
  std::exception_ptr failure;
  int64_t failed = threads;  // the first thread that did
#pragma omp parallel num_threads(static_cast <int>(threads))
  {
    const int64_t t = omp_get_thread_num(), count = omp_get_num_threads();
    try {
      f(n / count * t + std::min(t, n % count), n / count * (t + 1) + std::min(t + 1, n % count));
    } catch (...) {  // none may leave a thread of OpenMP's
#pragma omp critical(tapehead_parallel_for)
      if (t < failed) {
        failed = t;
        failure = std::current_exception();
      }
    }
  }
  if (failure) std::rethrow_exception(failure);
}

}  // namespace tapehead
