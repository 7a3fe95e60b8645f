#include "tapehead/ops/linear_cross_entropy_options.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

namespace tapehead {
namespace {

using Options = LinearCrossEntropyOptions;

int64_t rows(int64_t N, int64_t F, int64_t C, Options::Fields fields, bool probabilities = false,
             DType T = DType::f32) {
  return Options(fields).resolve(N, F, C, T, {}, probabilities).batch_chunk_size;
}

TEST(LinearCrossEntropyOptions, GoldenSizes) {
  struct Golden {
    int64_t N, F, C, plain, by2, by4, by1000, compact, compact_probabilities, accurate;
  };
  for (const Golden& g : std::vector<Golden>{{4096, 2048, 32000, 256, 128, 64, 1, 256, 256, 256},
                                             {4096, 8192, 32000, 1024, 512, 256, 1, 1024, 1024, 1024},
                                             {32768, 8192, 8192, 32768, 16384, 8192, 32, 8192, 16384, 32768},
                                             {1024, 4096, 1024, 1024, 512, 256, 1, 64, 512, 1024},
                                             {13, 7, 11, 8, 4, 2, 1, 4, 4, 8},
                                             {13, 5, 4, 13, 8, 4, 1, 2, 4, 13},
                                             {8, 5, 4, 8, 4, 2, 1, 1, 4, 8},
                                             {4096, 768, 50257, 64, 32, 16, 1, 64, 64, 64},
                                             {0, 5, 4, 1, 1, 1, 1, 1, 1, 1}}) {
    SCOPED_TRACE(fmt::format("N = {}, F = {}, C = {}", g.N, g.F, g.C));
    EXPECT_EQ(rows(g.N, g.F, g.C, {.chunking_method = "aspect_ratio"}), g.plain);
    EXPECT_EQ(rows(g.N, g.F, g.C, {.chunking_method = "aspect_ratio:2"}), g.by2);
    EXPECT_EQ(rows(g.N, g.F, g.C, {.chunking_method = "aspect_ratio:4"}), g.by4);
    EXPECT_EQ(rows(g.N, g.F, g.C, {.chunking_method = "aspect_ratio:1000"}), g.by1000);
    EXPECT_EQ(rows(g.N, g.F, g.C, {}), g.compact);
    EXPECT_EQ(rows(g.N, g.F, g.C, {}, true), g.compact_probabilities);
    EXPECT_EQ(rows(g.N, g.F, g.C, {.acc_policy = "accurate"}), g.accurate);
    EXPECT_EQ(rows(g.N, g.F, g.C, {}, false, DType::bf16), g.accurate);  // auto is accurate there
  }
}

// Every resolution that PyTorch was asked for, other dtypes, options and refusals included.
TEST(LinearCrossEntropyOptions, ResolvesAsPyTorch) {
  const nlohmann::json table = nlohmann::json::parse(std::ifstream("tests/golden/lce_resolve.json"));
  ASSERT_GT(table.size(), 200u);
  for (const nlohmann::json& row : table) {
    SCOPED_TRACE(row.dump());
    Options::Fields fields;
    for (const auto& [key, value] : row.at("options").items()) {
      if (key == "batch_chunk_size") fields.batch_chunk_size = value.get<int64_t>();
      if (key == "chunking_method")
        fields.chunking_method = value.is_null() ? std::nullopt : std::optional(value.get<std::string>());
      if (key == "acc_policy") fields.acc_policy = value.get<std::string>();
      if (key == "acc_dtype" && !value.is_null()) fields.acc_dtype = parse_dtype(value.get<std::string>());
    }
    const auto resolve = [&] {
      return Options(fields).resolve(
          row.at("N").get<int64_t>(), row.at("F").get<int64_t>(), row.at("C").get<int64_t>(),
          parse_dtype(row.at("dtype").get<std::string>()), {}, row.at("probabilities").get<bool>());
    };
    if (row.contains("error")) {
      EXPECT_THROW(resolve(), ValueError);
      continue;
    }
    const ResolvedLinearCrossEntropyOptions r = resolve();
    EXPECT_EQ(r.batch_chunk_size, row.at("batch_chunk_size").get<int64_t>());
    EXPECT_EQ(r.chunking_method ? nlohmann::json(name(*r.chunking_method)) : nlohmann::json(),
              row.at("chunking_method"));
    EXPECT_EQ(name(r.acc_policy), row.at("acc_policy").get<std::string>());
    EXPECT_EQ(name(r.acc_dtype), row.at("acc_dtype").get<std::string>());
  }
}

TEST(LinearCrossEntropyOptions, RefusesBadFieldsWhenMade) {
  const auto expect_refused = [](Options::Fields fields, const std::string& part) {
    try {
      const Options options(fields);
      FAIL() << part;
    } catch (const ValueError& e) {
      EXPECT_NE(std::string(e.what()).find(part), std::string::npos) << e.what();
    }
  };
  expect_refused({.batch_chunk_size = 0}, "batch_chunk_size 0");
  expect_refused({.batch_chunk_size = -3}, "batch_chunk_size -3");
  for (const char* method : {"", "Auto", "aspect", "aspect_ratio:", "aspect_ratio:0", "aspect_ratio:-1",
                             "aspect_ratio:2x", "aspect_ratio:+2"}) {
    expect_refused({.chunking_method = method}, fmt::format("chunking_method \"{}\"", method));
  }
  expect_refused({.acc_policy = "exact"}, "acc_policy \"exact\"");
  expect_refused({.acc_dtype = DType::i64}, "acc_dtype i64");
}

TEST(LinearCrossEntropyOptions, HugeFactorIsLegal) {
  EXPECT_EQ(rows(4096, 768, 50257, {.chunking_method = "aspect_ratio:99999999999999999999999"}), 1);
}

// Of a device that this build need not have.
TEST(LinearCrossEntropyOptions, ThroughputDependsOnDeviceAndDtype) {
  const auto resolve = [](int64_t N, DType T, Device device) {
    return Options({.chunking_method = "throughput"}).resolve(N, 768, 50257, T, device).batch_chunk_size;
  };
  for (const DType T : {DType::f64, DType::f32, DType::f16, DType::bf16}) {
    EXPECT_EQ(resolve(8192, T, {Device::cpu}), T == DType::f32 ? 256 : 512);
    EXPECT_EQ(resolve(8192, T, {Device::cuda}), is_half(T) ? 2048 : 512);
    EXPECT_EQ(resolve(100, T, {Device::cuda}), 100);
  }
}

TEST(LinearCrossEntropyOptions, AccDtype) {
  const auto resolve = [](DType T, Options::Fields fields) {
    return Options(fields).resolve(8, 4, 9, T, {}).acc_dtype;
  };
  EXPECT_EQ(resolve(DType::bf16, {}), DType::f32);
  EXPECT_EQ(resolve(DType::bf16, {.acc_policy = "accurate"}), DType::bf16);
  EXPECT_EQ(resolve(DType::f16, {.acc_policy = "compact", .acc_dtype = DType::f32}), DType::f32);
  EXPECT_THROW(resolve(DType::f32, {.acc_dtype = DType::f64}), RuntimeError);
  EXPECT_THROW(resolve(DType::f32, {.acc_dtype = DType::bf16}), RuntimeError);
  EXPECT_THROW(resolve(DType::f16, {.acc_dtype = DType::bf16}), RuntimeError);
}

}  // namespace
}  // namespace tapehead
