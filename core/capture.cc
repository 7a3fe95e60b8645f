#include "tapehead/core/capture.h"

namespace tapehead {

Capture::Capture(Device device, const std::function<void()>& work, std::vector<Generator*> generators) {
  std::vector<uint64_t> seeds;
  for (Generator* generator : generators) {
    for (const uint64_t seed : seeds)
      check<ValueError>(seed != generator->seed, "[capture] two generators of seed {}: take one for both",
                        seed);
    seeds.push_back(generator->seed);
    drawn_.push_back({.generator = generator, .begun = *generator, .blocks = 0});
  }
  const auto rewind = [&] {
    for (Drawn& d : drawn_) {
      d.blocks = d.generator->next - d.begun.next;
      *d.generator = d.begun;
    }
  };
  try {
    work_ = device_runtime(device).capture(work, seeds);
  } catch (...) {
    rewind();
    throw;
  }
  rewind();
}

void Capture::replay() {
  std::vector<uint64_t> further;
  for (const Drawn& d : drawn_) {
    check<RuntimeError>(d.generator->seed == d.begun.seed,
                        "[capture] a generator of seed {} has seed {} now: record again", d.begun.seed,
                        d.generator->seed);
    further.push_back(d.generator->next - d.begun.next);
  }
  work_->replay(further);
  for (const Drawn& d : drawn_) d.generator->next += d.blocks;
}

void check_may_wait(const char* op, Device device, const char* what) {
  check<RuntimeError>(!device_runtime(device).is_capturing(),
                      "[{}] {}, for which the host waits, and recorded work cannot wait: run it without "
                      "capture",
                      op, what);
}

}  // namespace tapehead
