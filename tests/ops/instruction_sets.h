// Kernels are compiled for several instruction sets; tests try all that this processor has.
#pragma once

#include <gtest/gtest.h>
#include <hwy/targets.h>

#include "tapehead/tests/testing.h"

namespace tapehead {

/// Calls f with the kernels switched to each set in turn, then switches back to the best. On an emulated
/// device, which has kernels of its own, calls it once.
template <class F>
void for_each_instruction_set(F&& f) {
  if (device_is_emulated()) return f();
  const auto choose = [](int64_t sets) {
    hwy::SetSupportedTargetsForTest(sets);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  };
  const int64_t supported = hwy::SupportedTargets();
  for (const int64_t set : {HWY_AVX3, HWY_AVX2, HWY_STATIC_TARGET}) {
    if (!(supported & set)) continue;
    SCOPED_TRACE(hwy::TargetName(set));
    choose(set);
    f();
  }
  choose(0);
}

}  // namespace tapehead
