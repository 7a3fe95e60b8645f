// `tapehead head`, `plan` and `bench`, run as people run them.
#include <map>
#include <nlohmann/json.hpp>

#include "tapehead/core/safetensors.h"
#include "tapehead/ops/linear_cross_entropy.h"
#include "tapehead/tests/testing.h"
#include "tapehead/tests/tools/program_fixture.h"

namespace tapehead::testing_program {
namespace {

using nlohmann::json;

class Head : public ProgramTest {
 protected:
  using Tensors = std::vector<std::pair<std::string, Tensor>>;

  const Tensor input_ = random_tensor({20, 6}, 1, 1, DType::f32),
               weight_ = random_tensor({30, 6}, 2, 1, DType::f32);
  const Tensor target_ = random_indices({20}, 30, 3), bias_ = random_tensor({30}, 4, 1, DType::f32);

  Args head(const Tensors& tensors, const Args& more = {}) const {
    write_safetensors(path("case.safetensors"), tensors);
    return Args{"head", path("case.safetensors")} + more;
  }
  Tensors good() const {
    return {{"input", input_}, {"weight", weight_}, {"target", target_}, {"bias", bias_}};
  }

  json run_json(const Args& args) {
    const Result result = run(args);
    EXPECT_EQ(result.status, 0) << result.err;
    return result.status == 0 ? json::parse(result.out) : json();
  }
};

TEST_F(Head, GivesWhatTheOpGives) {
  Tensor input = input_, weight = weight_, bias = bias_;
  for (Tensor* x : {&input, &weight, &bias}) x->set_requires_grad();
  LinearCrossEntropyArgs args;
  args.bias = bias;
  args.options = LinearCrossEntropyOptions({.batch_chunk_size = 8});
  args.label_smoothing = 0.1;
  const Tensor loss = linear_cross_entropy(input, weight, target_, args);
  backward(loss);
  const json result = run_json(head(good(), {"--batch-chunk-size", "8", "--label-smoothing", "0.1", "--json",
                                             "--stats", "--out", path("out")}));
  EXPECT_EQ(result["path"], "chunked");
  EXPECT_EQ(result["chunks"], 3);
  EXPECT_EQ(result["options"]["batch_chunk_size"], 8);
  EXPECT_EQ(result["options"]["chunking_method"], nullptr);
  EXPECT_EQ(result["options"]["acc_policy"], "compact");
  EXPECT_FLOAT_EQ(result["loss"].get<float>(), static_cast<float>(loss.item()));
  EXPECT_EQ(result["plan_bytes"], result["peak_bytes"]);
  EXPECT_TRUE(result["warnings"].empty());
  EXPECT_EQ(result["stats"]["rows"], 20);
  const SafetensorsFile out = SafetensorsFile::open(path("out"));
  EXPECT_EQ(out.tensor("grad_input").to_vector<float>(), input.grad().to_vector<float>());
  EXPECT_EQ(out.tensor("grad_weight").to_vector<float>(), weight.grad().to_vector<float>());
  EXPECT_EQ(out.tensor("grad_bias").to_vector<float>(), bias.grad().to_vector<float>());
  for (const char* name : {"loss", "lse", "target_logprob", "entropy", "correct"})
    EXPECT_TRUE(out.contains(name)) << name;
}

// The program's default is throughput; rows that are given need no word about the method.
TEST_F(Head, ChoosesThroughputUnlessMethodOrRowsAreGiven) {
  const Args plan = {"plan", "--rows", "4000", "--features", "64", "--classes", "500", "--json"};
  const auto options = [&](const Args& more) { return run_json(plan + more)["options"]; };
  EXPECT_EQ(options({})["chunking_method"], "throughput");
  EXPECT_EQ(options({})["batch_chunk_size"], 256);
  EXPECT_EQ(options({"--batch-chunk-size", "8"})["chunking_method"], nullptr);
  EXPECT_EQ(options({"--batch-chunk-size", "8"})["batch_chunk_size"], 8);
  EXPECT_EQ(options({"--chunking-method", "auto"})["chunking_method"], "aspect_ratio");
  EXPECT_EQ(options({"--chunking-method", "auto", "--batch-chunk-size", "8"})["batch_chunk_size"], 8);
  EXPECT_EQ(options({"--chunking-method", "none"})["batch_chunk_size"], 4000);
  EXPECT_EQ(run_json(head(good(), {"--json"}))["options"]["chunking_method"], "throughput");
  EXPECT_EQ(run_json(head(good(), {"--reference", "--json"}))["path"], "reference");
  const Args bench = {"bench", "head", "--shape", "700,16,300", "--repeats", "1", "--json"};
  EXPECT_EQ(run_json(bench)["rows_per_chunk"], 256);
  EXPECT_EQ(run_json(bench + Args{"--reference"})["rows_per_chunk"], 700);
}

TEST_F(Head, TakesWhatTheUserFreezesAndHowOftenToGoBack) {
  run_json(head(good(), {"--freeze", "input,bias", "--json", "--out", path("out")}));
  SafetensorsFile out = SafetensorsFile::open(path("out"));
  EXPECT_TRUE(out.contains("grad_weight") && !out.contains("grad_input") && !out.contains("grad_bias"));
  run_json(head(good(), {"--no-grad", "--json", "--out", path("out")}));
  out = SafetensorsFile::open(path("out"));
  EXPECT_FALSE(out.contains("grad_weight"));
  run_json(head(good(), {"--allow-retain-graph", "--backward", "3", "--json"}));
  expect_error(head(good(), {"--backward", "2"}), 2, "RuntimeError", "allow_retain_graph");
}

TEST_F(Head, FiltersTheGradientAndPlansForIt) {
  const Tensors wide = {{"input", random_tensor({40, 6}, 1, 1, DType::f32)},
                        {"weight", random_tensor({900, 6}, 2, 1, DType::f32)},
                        {"target", random_indices({40}, 900, 3)}};
  const auto filtered = [&](const char* filter, const char* seed) {
    const json result = run_json(head(wide, {"--gradient-filter", filter, "--filter-seed", seed, "--json",
                                             "--batch-chunk-size", "16", "--out", path("out")}));
    EXPECT_EQ(result["plan_bytes"], result["peak_bytes"]);
    return std::pair(result, SafetensorsFile::open(path("out")).tensor("grad_weight").to_vector<float>());
  };
  const auto [once, gradient] = filtered("stochastic:0.05", "1");
  EXPECT_EQ(once["options"]["gradient_filter"], "stochastic:0.05");
  EXPECT_EQ(once["gradient_filter"]["rows"], 40);
  EXPECT_EQ(once["gradient_filter"]["sparse_chunks"], 3);
  EXPECT_GT(once["gradient_filter"]["filtered_mass"], 30);
  EXPECT_EQ(filtered("stochastic:0.05", "1").second, gradient);
  EXPECT_NE(filtered("stochastic:0.05", "2").second, gradient);
  EXPECT_FALSE(run_json(head(wide, {"--json"})).contains("gradient_filter"));
  expect_error(head(wide, {"--gradient-filter", "some"}), 2, "ValueError",
               "gradient_filter \"some\" is not one of");
  expect_error(head(wide, {"--reference", "--gradient-filter", "threshold"}), 2, "ValueError", "--reference");
}

TEST_F(Head, BenchSaysWhatItMeasured) {
  const json result = run_json(
      {"bench", "head", "--shape", "64,16,300", "--batch-chunk-size", "8", "--repeats", "2", "--json"});
  EXPECT_EQ(result["rows_per_chunk"], 8);
  for (const char* key :
       {"forward_seconds", "backward_seconds", "total_seconds", "peak_bytes", "roofline_share"})
    EXPECT_GT(result[key].get<double>(), 0) << key;
  const json plan = run_json(
      {"plan", "--rows", "64", "--features", "16", "--classes", "300", "--batch-chunk-size", "8", "--json"});
  EXPECT_EQ(result["peak_bytes"], plan["forward_peak_bytes"]);
  expect_error({"bench", "head", "--shape", "64,16"}, 2, "ValueError", "N,F,C");
  expect_error({"bench", "head", "--ignored", "1"}, 2, "ValueError", "--ignored 1");
}

TEST_F(Head, BenchTrainSaysWhereTheTimeGoes) {
  const json result =
      run_json({"bench", "train", "--n-layer", "1", "--n-head", "2", "--n-embd", "8", "--context", "6",
                "--vocab-size", "20", "--batch-size", "3", "--repeats", "2", "--json"});
  for (const char* key : {"step_seconds", "tokens_per_second", "floor_share", "product_flops_per_second",
                          "peak_bytes", "allocations_per_step"}) {
    ASSERT_TRUE(result[key].is_number()) << key;  // no number of JSON is infinite or NaN
    EXPECT_GT(result[key].get<double>(), 0) << key;
  }
  // 18 rows of 8 features, 12 square matrices' worth of weights, 6 positions, 20 words; thrice in a step.
  const double flops = 3 * 2 * (18 * 8 * 12 * 8 + 18 * 6 * 8 + 18 * 8 * 20);
  EXPECT_NEAR(result["floor_share"].get<double>() * result["step_seconds"].get<double>() *
                  result["product_flops_per_second"].get<double>() / flops,
              1, 1e-6);
  const int64_t parameters = (20 + 6) * 8 + 12 * 8 * 8 + 13 * 8 + 2 * 8;
  EXPECT_EQ(result["parameters"], parameters);
  EXPECT_GE(result["peak_bytes"].get<int64_t>(),
            4 * 4 * parameters);  // with gradients and two moments, in f32
  std::map<std::string, json> ops;
  double shares = 0;
  for (const json& op : result["ops"]) {
    ops[op["name"]] = op;
    shares += op["share"].get<double>();
    EXPECT_GE(op["forward_seconds"].get<double>(), 0) << op;
    EXPECT_GE(op["backward_seconds"].get<double>(), 0) << op;
  }
  EXPECT_NEAR(shares, 1, 1e-6);
  EXPECT_EQ(ops["linear"]["calls"],
            4);  // the products of one block alone: not the one that they are held against
  EXPECT_EQ(ops["linear"]["backward_calls"], 4);
  for (const char* name : {"batches", "linear_cross_entropy", "optimizer", "other"})
    EXPECT_EQ(ops[name]["calls"], 1);

  const Result table = run({"bench", "train", "--n-layer", "1", "--n-embd", "8", "--context", "6",
                            "--vocab-size", "20", "--batch-size", "3", "--repeats", "1"});
  EXPECT_EQ(table.status, 0) << table.err;
  EXPECT_NE(table.out.find("\n  linear_cross_entropy "), std::string::npos) << table.out;
  expect_error({"bench", "train", "--preset", "gpt3"}, 2, "ValueError",
               "no preset gpt3; there are quickstart");
  expect_error({"bench", "train", "--repeats", "0"}, 2, "ValueError", "--repeats 0");
  expect_error({"bench", "train", "--n-head", "3"}, 2, "ValueError", "multiple of n_head");
}

TEST_F(Head, BenchGenerateMeasuresBothWays) {
  const Args bench = {"bench", "generate",     "--n-layer", "1",         "--n-head", "2",         "--n-embd",
                      "8",     "--vocab-size", "20",        "--context", "40",       "--repeats", "1"};
  const json result = run_json(
      bench + Args{"--tokens", "30", "--prompt-tokens", "10", "--samples", "2", "--both-ways", "--json"});
  for (const char* key : {"seconds", "seconds_without_cache", "times_as_fast", "peak_bytes"}) {
    ASSERT_TRUE(result[key].is_number()) << key;
    EXPECT_GT(result[key].get<double>(), 0) << key;
  }
  EXPECT_EQ(result["same_tokens"], true);
  const double seconds = result["seconds"];
  EXPECT_NEAR(result["tokens_per_second"].get<double>() * seconds, 2 * 30, 1e-6);
  // 12 square matrices' worth of weights and the head's, in f32, for each of 30 positions.
  EXPECT_NEAR(result["weight_bytes_per_second"].get<double>() * seconds, 30 * 4 * (12 * 8 * 8 + 20 * 8),
              1e-3);

  const json one_way = run_json(bench + Args{"--tokens", "2", "--json"});
  EXPECT_FALSE(one_way.contains("times_as_fast"));
  expect_error(bench + Args{"--tokens", "33"}, 2, "ValueError", "41, and the model sees 40 at once");
  expect_error(bench + Args{"--samples", "0"}, 2, "ValueError", "--samples 0");
}

TEST_F(Head, SaysWhenOptionsWereIgnored) {
  Tensors tensors = {{"input", input_},
                     {"weight", random_tensor({5, 3, 6}, 2, 1, DType::f32)},
                     {"target", random_indices({20, 3}, 5, 3)}};
  const json result = run_json(head(tensors, {"--batch-chunk-size", "8", "--json"}));
  EXPECT_EQ(result["path"], "reference");
  ASSERT_EQ(result["warnings"].size(), 1u);
  EXPECT_NE(result["warnings"][0].get<std::string>().find("options ignored"), std::string::npos);
}

TEST_F(Head, RefusesBadCases) {
  const auto with = [&](const std::string& name, const Tensor& tensor) {
    Tensors tensors = good();
    const auto found = std::ranges::find(tensors, name, &Tensors::value_type::first);
    if (found == tensors.end()) {
      tensors.emplace_back(name, tensor);
    } else {
      found->second = tensor;
    }
    return head(tensors);
  };
  expect_error({"head", path("missing")}, 2, "ValueError", "missing");
  write_file(path("garbage"), "not a safetensors file");
  expect_error({"head", path("garbage")}, 2, "ValueError", "garbage");
  expect_error(head({{"input", input_}, {"target", target_}}), 2, "ValueError", "no tensor \"weight\"");
  expect_error(with("weigth", weight_), 2, "ValueError", "a tensor \"weigth\"");
  expect_error(with("target", random_tensor({20}, 1, 1, DType::f32)), 2, "TypeError",
               "class indices are i64 or i32");
  expect_error(with("input", target_), 2, "TypeError", "floating input");
  expect_error(with("weight", weight_.to(DType::f64)), 2, "TypeError", "weight of f64");
  expect_error(with("weight", random_tensor({30, 5}, 1, 1, DType::f32)), 2, "ValueError", "6 features");
  expect_error(with("target", Tensor::full({20}, 30, DType::i64)), 2, "ValueError", "target 30 in row 0");
  expect_error(with("class_weight", Tensor::full({30}, NAN)), 2, "ValueError",
               "\"class_weight\" holds a NaN");
  expect_error(with("token_weight", Tensor::full({20}, INFINITY)), 2, "ValueError",
               "\"token_weight\" holds a NaN");
  expect_error(with("grad_output", Tensor::zeros({3})), 2, "ValueError", "gradient has shape (3,)");
  Tensors poisoned = good();
  poisoned[0].second = Tensor::full({20, 6}, NAN);
  const json result = run_json(head(poisoned, {"--json"}));
  EXPECT_EQ(result["warnings"].size(), 1u);
}

TEST_F(Head, RefusesBadAndContradictoryFlags) {
  const auto refuse = [&](const Args& flags, const std::string& type, const std::string& part) {
    expect_error(head(good(), flags), 2, type, part);
  };
  refuse({"--reduction", "median"}, "ValueError", "reduction \"median\"");
  refuse({"--label-smoothing", "1.5"}, "ValueError", "label_smoothing 1.5");
  refuse({"--softcap", "0"}, "ValueError", "softcap 0");
  refuse({"--logit-scale", "inf"}, "ValueError", "logit_scale inf");
  refuse({"--z-loss", "-1"}, "ValueError", "z_loss -1");
  refuse({"--normalizer", "0"}, "ValueError", "normalizer 0");
  refuse({"--loss-dtype", "f8"}, "ValueError", "unknown dtype \"f8\"");
  refuse({"--loss-dtype", "i64"}, "TypeError", "loss_dtype i64");
  refuse({"--acc-policy", "exact"}, "ValueError", "acc_policy \"exact\"");
  refuse({"--acc-dtype", "bf16"}, "RuntimeError", "acc_dtype bf16 is not allowed");
  refuse({"--chunking-method", "budget:lots"}, "ValueError", "\"lots\" is not a size");
  refuse({"--chunking-method", "aspect_ratio:0"}, "ValueError", "chunking_method \"aspect_ratio:0\"");
  refuse({"--batch-chunk-size", "0"}, "ValueError", "batch_chunk_size 0");
  refuse({"--batch-chunk-size", "7", "--chunking-method", "aspect_ratio"}, "ValueError",
         "batch_chunk_size 7 disagrees with");
  refuse({"--reference", "--acc-policy", "compact"}, "ValueError", "--reference holds the whole logits");
  refuse({"--reference", "--chunking-method", "throughput"}, "ValueError",
         "--reference holds the whole logits");
  refuse({"--reference", "--batch-chunk-size", "4"}, "ValueError", "--reference holds the whole logits");
  refuse({"--reference", "--recompute"}, "ValueError", "--reference holds the whole logits");
  refuse({"--no-grad", "--backward", "1"}, "ValueError", "contradict");
  refuse({"--no-grad", "--freeze", "input"}, "ValueError", "contradict");
  refuse({"--freeze", "inputs"}, "ValueError", "--freeze names \"inputs\"");
  refuse({"--backward", "-1"}, "ValueError", "--backward -1");
  refuse({"--device", "tpu"}, "ValueError", "unknown device \"tpu\"");
  refuse({"--device", "cuda"}, "ValueError", "no backend for device cuda");
  refuse({"--no-such-flag"}, "ValueError", "--no-such-flag");
}

TEST_F(Head, PlansGemmasHead) {
  const Args gemma = {"plan",      "--rows", "8192",    "--features", "2304",
                      "--classes", "256000", "--dtype", "bf16"};
  const json plan = run_json(gemma + Args{"--json"});
  EXPECT_EQ(plan["rows_per_chunk"], 512);
  EXPECT_EQ(plan["chunks"], 16);
  EXPECT_EQ(run_json(gemma + Args{"--chunking-method", "auto", "--json"})["rows_per_chunk"], 128);
  EXPECT_EQ(plan["options"]["acc_policy"], "accurate");
  int64_t forward = 0;
  for (const json& b : plan["buffers"]) forward += b["pass"] == "forward" ? b["bytes"].get<int64_t>() : 0;
  EXPECT_EQ(forward - 2 - 8, plan["forward_peak_bytes"]);  // the loss and its sum are made after the loop
  EXPECT_LT(plan["forward_peak_bytes"], plan["reference_peak_bytes"]);

  const json fit = run_json(gemma + Args{"--fit", "4GiB", "--json"})["fit"];
  ASSERT_EQ(fit.size(), 6u);
  for (const json& f : fit) {
    if (f["rows_per_chunk"] > 0) {
      EXPECT_LE(f["peak_bytes"], int64_t{4} << 30);
    }
  }
  const Result table = run(gemma + Args{"--svg", path("plan.svg"), "--fit", "4GiB"});
  EXPECT_EQ(table.status, 0) << table.err;
  EXPECT_NE(table.out.find("weight gradient sums"), std::string::npos);
  EXPECT_NE(table.out.find("what fits 4.0 GiB"), std::string::npos);
  EXPECT_NE(read_file(path("plan.svg")).find("weight gradient"), std::string::npos);
  expect_error({"plan", "--rows", "-1", "--features", "1", "--classes", "1"}, 2, "ValueError", "--rows -1");
  expect_error({"plan", "--rows", "2", "--features", "1", "--classes", "1", "--ignored-rows", "3"}, 2,
               "ValueError", "--ignored-rows 3");
  expect_error({"plan", "--rows", "3000000000", "--features", "1", "--classes", "3000000000"}, 2,
               "ValueError", "too many bytes");
  expect_error({"plan", "--rows", "2", "--features", "1", "--classes", "1", "--dtype", "i64"}, 2,
               "ValueError", "--dtype i64");
  expect_error({"plan", "--rows", "2", "--features", "1", "--classes", "1", "--fit", "big"}, 2, "ValueError",
               "\"big\" is not a size");
}

}  // namespace
}  // namespace tapehead::testing_program
