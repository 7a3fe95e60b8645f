// Linked into a program, makes the products of its emulated device larger by the share of them that
// TAPEHEAD_TEST_PRODUCT_ERROR is.
#include <cstdlib>

#include "tapehead/tests/cuda_emulator/emulator.h"

[[maybe_unused]] static const bool is_inexact = [] {
  const char* error = std::getenv("TAPEHEAD_TEST_PRODUCT_ERROR");
  cuda_emulator::reset({.product_error = error ? std::atof(error) : 0});
  return true;
}();
