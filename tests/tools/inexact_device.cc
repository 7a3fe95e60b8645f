// Linked into a program, makes the products of its emulated device wrong by a thousandth.
#include "tapehead/tests/cuda_emulator/emulator.h"

[[maybe_unused]] static const bool is_inexact = [] {
  cuda_emulator::reset({.product_error = 1e-3});
  return true;
}();
