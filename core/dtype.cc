#include "tapehead/core/dtype.h"

#include <array>

namespace tapehead {

static constexpr std::array<std::string_view, 6> kNames = {"f64", "f32", "f16", "bf16", "i64", "i32"};

std::string_view name(DType t) { return kNames.at(static_cast<size_t>(t)); }

DType parse_dtype(std::string_view text) {
  for (size_t i = 0; i < kNames.size(); ++i) {
    if (kNames[i] == text) return static_cast<DType>(i);
  }
  fail<ValueError>("unknown dtype \"{}\": it is one of f64, f32, f16, bf16, i64, i32", text);
}

double epsilon(DType t) {
  switch (t) {
    case DType::f64: return 0x1p-52;
    case DType::f32: return 0x1p-23;
    case DType::f16: return 0x1p-10;
    case DType::bf16: return 0x1p-7;
    default: fail<TypeError>("epsilon of the integer dtype {}", t);
  }
}

}  // namespace tapehead
