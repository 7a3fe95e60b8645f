// Which instruction sets vector code is compiled for: AVX-512, AVX2, and what every processor has; each more
// would make every build longer for processors made before 2013. Highway picks the best that the processor
// has when a kernel is first called.
//
// A file with vector code is compiled once for each set. It reads
//
//   #undef HWY_TARGET_INCLUDE
//   #define HWY_TARGET_INCLUDE "backends/cpu/this_file.cc"
//   #include "tapehead/backends/cpu/simd.h"
//   #include <hwy/foreach_target.h>
//   #include "tapehead/backends/cpu/simd_math-inl.h"
//
//   HWY_BEFORE_NAMESPACE();
//   namespace tapehead::HWY_NAMESPACE {
//   void Kernel(...) { ... }  // once for each set
//   }
//   HWY_AFTER_NAMESPACE();
//
//   #if HWY_ONCE
//   namespace tapehead {
//   HWY_EXPORT(Kernel);
//   void kernel(...) { HWY_DYNAMIC_DISPATCH(Kernel)(...); }  // what is compiled once
//   }
//   #endif
//
// with clang-format off around the includes: their order matters. Lambdas in the first part carry HWY_ATTR.
#pragma once

#ifdef HWY_DISABLED_TARGETS
#error "simd.h comes before Highway's headers: else they have chosen the instruction sets already"
#endif
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL)
