// Element types, and how to get from a run-time DType to a C++ type.
#pragma once

#include <cstdint>
#include <string_view>
#include <type_traits>

#include "tapehead/core/error.h"
#include "tapehead/core/half.h"

namespace tapehead {

enum class DType : uint8_t { f64, f32, f16, bf16, i64, i32 };

/// Bytes of one element.
constexpr int64_t size_of(DType t) {
  switch (t) {
    case DType::f64:
    case DType::i64: return 8;
    case DType::f32:
    case DType::i32: return 4;
    case DType::f16:
    case DType::bf16: return 2;
  }
  return 0;
}

constexpr bool is_floating(DType t) { return t != DType::i64 && t != DType::i32; }

constexpr bool is_half(DType t) { return t == DType::f16 || t == DType::bf16; }

/// "f64", "f32", "f16", "bf16", "i64", "i32".
std::string_view name(DType t);

/// The inverse of name(). Throws ValueError that lists the names.
DType parse_dtype(std::string_view text);

/// The distance from 1 to the next larger number: 2^-52, 2^-23, 2^-10, 2^-7. Throws TypeError for integers.
double epsilon(DType t);

template <class T>
constexpr DType dtype_of() {
  if constexpr (std::is_same_v<T, double>) {
    return DType::f64;
  } else if constexpr (std::is_same_v<T, float>) {
    return DType::f32;
  } else if constexpr (std::is_same_v<T, f16>) {
    return DType::f16;
  } else if constexpr (std::is_same_v<T, bf16>) {
    return DType::bf16;
  } else if constexpr (std::is_same_v<T, int64_t>) {
    return DType::i64;
  } else {
    static_assert(std::is_same_v<T, int32_t>, "not an element type");
    return DType::i32;
  }
}

/// The type that arithmetic on T happens in: float for the 16-bit formats, else T itself.
template <class T>
using wide_t = std::conditional_t<std::is_same_v<T, f16> || std::is_same_v<T, bf16>, float, T>;

/// The same for a floating dtype, as kernels keep what they compute on the way: f64 for f64, else f32.
constexpr DType arithmetic_dtype(DType t) { return t == DType::f64 ? DType::f64 : DType::f32; }

/// Calls f(std::type_identity<T>{}) with the C++ type of `t`.
template <class F>
decltype(auto) visit_dtype(DType t, F&& f) {
  switch (t) {
    case DType::f64: return f(std::type_identity<double>{});
    case DType::f32: return f(std::type_identity<float>{});
    case DType::f16: return f(std::type_identity<f16>{});
    case DType::bf16: return f(std::type_identity<bf16>{});
    case DType::i64: return f(std::type_identity<int64_t>{});
    case DType::i32: return f(std::type_identity<int32_t>{});
  }
  fail<TypeError>("unknown dtype {}", static_cast<int>(t));
}

/// The same for floating types. Throws TypeError that begins with [op] for integers.
template <class F>
decltype(auto) visit_floating(DType t, std::string_view op, F&& f) {
  switch (t) {
    case DType::f64: return f(std::type_identity<double>{});
    case DType::f32: return f(std::type_identity<float>{});
    case DType::f16: return f(std::type_identity<f16>{});
    case DType::bf16: return f(std::type_identity<bf16>{});
    default: fail<TypeError>("[{}] takes a floating dtype, not {}", op, name(t));
  }
}

/// The same for index types, i64 and i32. Throws TypeError that begins with [op] for others.
template <class F>
decltype(auto) visit_index(DType t, std::string_view op, F&& f) {
  switch (t) {
    case DType::i64: return f(std::type_identity<int64_t>{});
    case DType::i32: return f(std::type_identity<int32_t>{});
    default: fail<TypeError>("[{}] takes indices of dtype i64 or i32, not {}", op, name(t));
  }
}

}  // namespace tapehead

template <>
struct fmt::formatter<tapehead::DType> : tapehead::PlainFormatter {
  auto format(tapehead::DType t, format_context& ctx) const { return write(tapehead::name(t), ctx); }
};
