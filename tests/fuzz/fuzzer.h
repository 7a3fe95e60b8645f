// What a fuzzer defines: libFuzzer calls it with inputs that it makes up, and seeds_test.cc
// with those that are kept. Anything thrown or reported by a sanitizer is a finding.
#pragma once

#include <cstddef>
#include <cstdint>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);
