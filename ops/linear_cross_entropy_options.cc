#include "tapehead/ops/linear_cross_entropy_options.h"

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <limits>

#include "tapehead/backends/tuning.h"
#include "tapehead/core/byte_size.h"
#include "tapehead/ops/linear_cross_entropy_plan.h"

namespace tapehead {

static constexpr std::array<std::string_view, 4> kPolicies = {"auto", "accurate", "balanced", "compact"};

std::string_view name(AccPolicy policy) { return kPolicies.at(static_cast<size_t>(policy)); }

static AccPolicy parse_policy(std::string_view text) {
  const auto found = std::find(kPolicies.begin(), kPolicies.end(), text);
  check<ValueError>(
      found != kPolicies.end(),
      "[LinearCrossEntropyOptions] acc_policy \"{}\" is not one of auto, accurate, balanced, compact", text);
  return static_cast<AccPolicy>(found - kPolicies.begin());
}

std::string name(const ChunkingMethod& method) {
  switch (method.kind) {
    case ChunkingMethod::automatic: return "auto";
    case ChunkingMethod::auto_table: return "auto_table";
    case ChunkingMethod::throughput: return "throughput";
    case ChunkingMethod::budget: return fmt::format("budget:{}", method.number);
    case ChunkingMethod::aspect_ratio: break;
  }
  return method.number == 1 ? "aspect_ratio" : fmt::format("aspect_ratio:{}", method.number);
}

// Digits alone, at least 1; a number beyond int64 counts as its largest.
static std::optional<int64_t> parse_count(std::string_view digits) {
  if (digits.empty() ||
      !std::all_of(digits.begin(), digits.end(), [](char c) { return '0' <= c && c <= '9'; }))
    return {};
  int64_t n = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), n);
  if (error == std::errc::result_out_of_range) n = std::numeric_limits<int64_t>::max();
  if (n < 1) return {};
  return n;
}

static ChunkingMethod parse_method(std::string_view text) {
  if (text == "auto") return {};
  if (text == "auto_table") return {.kind = ChunkingMethod::auto_table};
  if (text == "throughput") return {.kind = ChunkingMethod::throughput};
  if (text == "aspect_ratio") return {.kind = ChunkingMethod::aspect_ratio};
  if (text.starts_with("aspect_ratio:")) {
    if (const auto factor = parse_count(text.substr(13)))
      return {.kind = ChunkingMethod::aspect_ratio, .number = *factor};
  } else if (text.starts_with("budget:")) {
    return {.kind = ChunkingMethod::budget, .number = parse_size(text.substr(7))};
  }
  fail<ValueError>(
      "[LinearCrossEntropyOptions] chunking_method \"{}\" is not one of auto, auto_table, aspect_ratio, "
      "aspect_ratio:N with N >= 1, "
      "throughput, budget:SIZE as in budget:64MiB",
      text);
}

GradientFilter parse_gradient_filter(std::string_view text) {
  if (text == "none") return {};
  const size_t colon = std::min(text.find(':'), text.size());
  GradientFilter filter;
  if (text.substr(0, colon) == "stochastic") {
    filter = {.kind = GradientFilter::stochastic, .level = 0x1p-7};
  } else if (text.substr(0, colon) == "threshold") {
    filter = {.kind = GradientFilter::threshold, .level = 0x1p-12};
  }
  bool legal = filter.kind != GradientFilter::none;
  if (legal && colon < text.size()) {
    const auto [end, error] =
        std::from_chars(text.data() + colon + 1, text.data() + text.size(), filter.level);
    legal = error == std::errc() && end == text.data() + text.size() && 0 < filter.level && filter.level < 1;
  }
  check<ValueError>(legal,
                    "[LinearCrossEntropyOptions] gradient_filter \"{}\" is not one of none, stochastic, "
                    "stochastic:TAU, threshold, threshold:EPS with a number between 0 and 1, as in "
                    "stochastic:0.0078125",
                    text);
  return filter;
}

std::string name(const GradientFilter& filter) {
  if (filter.kind == GradientFilter::none) return "none";
  return fmt::format("{}:{}", filter.kind == GradientFilter::stochastic ? "stochastic" : "threshold",
                     filter.level);
}

LinearCrossEntropyOptions::LinearCrossEntropyOptions(Fields fields) : fields_(std::move(fields)) {
  policy_ = parse_policy(fields_.acc_policy);
  filter_ = parse_gradient_filter(fields_.gradient_filter);
  if (fields_.chunking_method) method_ = parse_method(*fields_.chunking_method);
  check<ValueError>(fields_.batch_chunk_size.value_or(1) >= 1,
                    "[LinearCrossEntropyOptions] batch_chunk_size {} is not positive",
                    fields_.batch_chunk_size.value_or(1));
  check<ValueError>(is_floating(fields_.acc_dtype.value_or(DType::f32)),
                    "[LinearCrossEntropyOptions] acc_dtype {} is not floating",
                    fields_.acc_dtype.value_or(DType::f32));
}

static int64_t ceil_div(int64_t a, int64_t b) { return a / b + (a % b != 0); }
static int64_t next_pow2(int64_t n) {
  return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(std::max<int64_t>(n, 1))));
}
static int64_t floor_pow2(int64_t n) {
  return n < 1 ? 0 : static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(n)));
}

// Logits of a chunk, (B, C), are then about as large as the whole input, (N, F).
static int64_t aspect_ratio_rows(int64_t N, int64_t F, int64_t C, int64_t factor) {
  const int64_t chunks = std::max<int64_t>(ceil_div(C, std::max<int64_t>(F, 1)), 1);
  return std::max<int64_t>(std::min(next_pow2(ceil_div(N, chunks)) / factor, N), 1);
}

// N·C / (4·F) without overflow.
static int64_t reference_rows(int64_t N, int64_t F, int64_t C) {
  const auto wide = static_cast<unsigned __int128>(N) * static_cast<unsigned __int128>(C) /
                    (4 * static_cast<unsigned __int128>(std::max<int64_t>(F, 1)));
  return static_cast<int64_t>(std::min<unsigned __int128>(wide, std::numeric_limits<int64_t>::max()));
}

ResolvedLinearCrossEntropyOptions LinearCrossEntropyOptions::resolve(int64_t N, int64_t F, int64_t C, DType T,
                                                                     Device device,
                                                                     bool probabilities) const {
  check<ValueError>(N >= 0 && F >= 0 && C >= 0,
                    "[LinearCrossEntropyOptions] sizes are not negative, unlike N = {}, F = {}, C = {}", N, F,
                    C);
  ResolvedLinearCrossEntropyOptions r;
  r.allow_retain_graph = fields_.allow_retain_graph;
  r.recompute = fields_.recompute;
  r.gradient_filter = filter_;

  const Tuning speed = tuning(device, T);
  r.acc_policy = policy_;
  if (policy_ == AccPolicy::automatic) {
    r.acc_policy = speed.wide_buffers ? AccPolicy::accurate : AccPolicy::compact;
  }

  if (fields_.acc_dtype) {
    check<RuntimeError>(*fields_.acc_dtype == T || (is_half(T) && *fields_.acc_dtype == DType::f32),
                        "[linear_cross_entropy] acc_dtype {} is not allowed for an input of {}: only {} "
                        "itself, or f32 for f16 and bf16",
                        *fields_.acc_dtype, T, T);
    r.acc_dtype = *fields_.acc_dtype;
  } else {
    r.acc_dtype = policy_ == AccPolicy::automatic && is_half(T) ? DType::f32 : T;
  }

  const std::optional<int64_t> given = fields_.batch_chunk_size;
  r.chunking_method = method_;
  if (given && method_ == ChunkingMethod{}) r.chunking_method.reset();
  if (!r.chunking_method) {
    r.batch_chunk_size = std::max<int64_t>(std::min(given.value_or(N), N), 1);
    return r;
  }
  ChunkingMethod& method = *r.chunking_method;
  if (method.kind == ChunkingMethod::auto_table) {
    method = {.kind = ChunkingMethod::aspect_ratio, .number = speed.wide_buffers ? 1 : 2};
  }
  switch (method.kind) {
    case ChunkingMethod::throughput:
      r.batch_chunk_size = std::clamp<int64_t>(N, 1, speed.throughput_rows);
      break;
    case ChunkingMethod::budget: {
      const auto fits = [&](int64_t rows) {
        r.batch_chunk_size = rows;
        return transient_bytes(r, N, F, C, T, device, probabilities) <= method.number;
      };
      int64_t rows = 1;
      while (rows < N && fits(2 * rows)) rows *= 2;
      r.batch_chunk_size = std::clamp<int64_t>(N, 1, rows);
      break;
    }
    default: r.batch_chunk_size = aspect_ratio_rows(N, F, C, method.number);
  }
  if (method.kind == ChunkingMethod::automatic) {
    if (r.acc_policy == AccPolicy::compact) {
      const int64_t cap = floor_pow2(probabilities ? N / 2 : reference_rows(N, F, C));
      r.batch_chunk_size = std::max<int64_t>(std::min(r.batch_chunk_size, cap), 1);
    }
    method.kind = ChunkingMethod::aspect_ratio;
  }
  check<ValueError>(!given || *given == r.batch_chunk_size,
                    "[linear_cross_entropy] batch_chunk_size {} disagrees with {} rows by chunking_method "
                    "\"{}\" for N = {}, F = {}, C = {}",
                    given.value_or(0), r.batch_chunk_size, name(method), N, F, C);
  return r;
}

}  // namespace tapehead
