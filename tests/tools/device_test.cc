// The program with --device cuda: on an emulated device, and where there is none.
#include <gmock/gmock-matchers.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <regex>

#include "tapehead/core/safetensors.h"
#include "tapehead/tests/testing.h"
#include "tapehead/tests/tools/program_fixture.h"

namespace tapehead::testing_program {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;

class OnDevice : public ProgramTest {
 protected:
  OnDevice() { program_ = "tests/tools/tapehead_cuda_emulated"; }

  void SetUp() override {
    ProgramTest::SetUp();
    write_text(100);
  }

  /// Runs the program, which must end well; its standard output.
  std::string output(const Args& args) {
    const Result result = run(args);
    EXPECT_EQ(result.status, 0) << result.err;
    return result.out;
  }
  json output_json(const Args& args) {
    return json::parse(output(args), nullptr, /*allow_exceptions=*/false);
  }

  std::string train(const std::string& out, const std::string& device) {
    return output(train_tiny(out, {"--steps", "3", "--device", device}));
  }

  std::vector<double> losses(const std::string& run) const {
    std::vector<double> list;
    std::ifstream file(path(run + "/metrics.jsonl"));
    for (std::string line; std::getline(file, line);) {
      const json object = json::parse(line);
      if (object.contains("loss")) list.push_back(object["loss"]);
    }
    return list;
  }
};

TEST_F(OnDevice, ARunBegunOnOneDeviceGoesOnOnAnotherAsOnTheFirst) {
  // The emulated device's GiB, without the 32 MiB in which cuBLAS works.
  EXPECT_THAT(train("moving", "cuda"), HasSubstr("of 992.0 MiB"));
  output({"train", "--resume", path("moving"), "--steps", "5", "--device", "cpu"});
  output({"train", "--resume", path("moving"), "--steps", "7", "--device", "cuda"});
  train("staying", "cpu");
  for (const char* steps : {"5", "7"}) output({"train", "--resume", path("staying"), "--steps", steps});
  const std::vector<double> moving = losses("moving"), staying = losses("staying");
  ASSERT_EQ(moving.size(), 7u);
  ASSERT_EQ(staying.size(), 7u);
  for (size_t i = 0; i < 7; ++i) EXPECT_NEAR(moving[i], staying[i], 1e-6 * staying[i]) << i;

  for (const Args& args : {Args{"generate", path("moving"), "--tokens", "5", "--temperature", "0"},
                           Args{"eval", path("moving"), "--batch-size", "30"}})
    EXPECT_EQ(output(args + Args{"--device", "cuda"}), output(args)) << args[0];
  const json comparison = output_json({"compare-backends", path("moving"), "--json"});
  EXPECT_EQ(comparison["agrees"], true);
}

// Hazard: what the option was given for never happens, and nobody is told.
TEST_F(OnDevice, ARunThatRecordsNothingSaysSo) {
  std::string lines;
  for (int i = 0; i < 60; ++i)
    lines += fmt::format("{{\"prompt\": \"{} and {}?\", \"completion\": \" {}\"}}\n", i, i, 2 * i);
  write_file(folder_ / "sums.jsonl", lines);
  const char* const kSaid = "--capture recorded nothing: ";
  Args prompts = train_tiny("prompts", {"--steps", "3", "--device", "cuda", "--capture"});
  *std::ranges::find(prompts, "--text") = "--data";
  *(std::ranges::find(prompts, "--data") + 1) = path("sums.jsonl");
  EXPECT_THAT(output(prompts), HasSubstr(kSaid));
  const std::string full = output(train_tiny("text", {"--steps", "3", "--device", "cuda", "--capture"}));
  EXPECT_THAT(full, Not(HasSubstr(kSaid)));
}

// Hazard: a plan without what the recording keeps promises that the run fits.
TEST_F(OnDevice, ARecordedStepsMemoryIsPrintedAndLimited) {
  const auto args = [&](const std::string& out, const Args& more) {
    return train_tiny(out, Args{"--steps", "3", "--device", "cuda"} + more);
  };
  const auto planned_kib = [&](const std::string& said, const std::string& rest) {
    std::smatch found;
    const std::regex line("([0-9.]+) KiB at once of 992\\.0 MiB" + rest + "\n");
    EXPECT_TRUE(std::regex_search(said, found, line)) << said;
    return found.empty() ? 0 : std::stod(found[1]);
  };
  const double recorded =
      planned_kib(output(args("recorded", {"--capture"})), ", [0-9.]+ KiB of it the recorded step's");
  const double plain = planned_kib(output(args("plain", {})), "");
  EXPECT_EQ(losses("recorded"), losses("plain"));

  const int limit = static_cast<int>((recorded + plain) / 2);
  ASSERT_GT(limit, plain);
  const Args limited = {"--memory-limit", fmt::format("{}KiB", limit)};
  expect_error(
      args("limited", limited + Args{"--capture"}), 2, "ValueError",
      fmt::format("a step takes {:.1f} KiB of memory, and there are {}.0 KiB: a step without --capture "
                  "takes {:.1f} KiB",
                  recorded, limit, plain));
  EXPECT_THAT(output(args("limited", limited)), HasSubstr(fmt::format("at once of {}.0 KiB\n", limit)));
}

TEST_F(OnDevice, AHeadIsTrainedThere) {
  write_safetensors(path("features"), {{"features", random_tensor({60, 8}, 1, 1, DType::f32)},
                                       {"targets", random_indices({60}, 5, 2)}});
  const auto weight = [&](const std::string& device) {
    const std::string out = path("head_" + device);
    EXPECT_THAT(output({"train-head", path("features"), "--out", out, "--steps", "5", "--batch-size", "16",
                        "--lr", "0.1", "--device", device}),
                HasSubstr("held out"));
    return SafetensorsFile::open(out + "/head.safetensors").tensor("weight").to_vector<float>();
  };
  const std::vector<float> there = weight("cuda"), here = weight("cpu");
  for (size_t i = 0; i < here.size(); ++i) EXPECT_NEAR(there[i], here[i], 1e-5);
}

TEST_F(OnDevice, BenchmarksMeasureIt) {
  const json head =
      output_json({"bench", "head", "--shape", "20,8,30", "--repeats", "1", "--json", "--device", "cuda"});
  EXPECT_GT(head["peak_bytes"], 0);
  const json step = output_json({"bench", "train", "--n-layer", "1", "--n-head", "1", "--n-embd", "8",
                                 "--context", "8", "--vocab-size", "30", "--batch-size", "2", "--repeats",
                                 "1", "--json", "--device", "cuda"});
  EXPECT_GT(step["peak_bytes"], 0);
  EXPECT_GT(step["tokens_per_second"], 0);
}

// A comparison of a very small model.
const Args tiny = {"compare-backends",
                   "--n-layer",
                   "1",
                   "--n-head",
                   "2",
                   "--n-embd",
                   "8",
                   "--context",
                   "8",
                   "--vocab-size",
                   "30",
                   "--batch-size",
                   "2"};

TEST_F(OnDevice, ComparesEveryOperationOfAStep) {
  for (const Args& more : {Args{}, Args{"--architecture", "llama", "--optimizer", "muon"}}) {
    const json result = output_json(tiny + more + Args{"--json"});
    EXPECT_EQ(result["device"], "cuda");
    EXPECT_EQ(result["agrees"], true);
    EXPECT_EQ(result["first"], nullptr);
    EXPECT_EQ(result["longest_sum"], 32);
    EXPECT_GT(result["values"], 50);
    double largest = INFINITY;
    for (const json& kind : result["worst"]) {
      const double share = kind["error"].get<double>() / kind["tolerance"].get<double>();
      EXPECT_LE(share, 1) << kind;
      EXPECT_LE(share, largest) << "the worst come first";
      largest = share;
    }
  }
  const std::string table = output(tiny + Args{"--dtype", "bf16"});
  EXPECT_THAT(table, HasSubstr("layer_norm"));
  EXPECT_THAT(table, HasSubstr("gradient of input 1"));
  EXPECT_THAT(table, HasSubstr("cuda agrees with cpu"));
  // A device agrees with itself.
  for (const json& kind : output_json(tiny + Args{"--device", "cpu", "--json"})["worst"])
    EXPECT_EQ(kind["error"], 0) << kind;
}

class OnInexactDevice : public OnDevice {
 protected:
  OnInexactDevice() { program_ = "tests/tools/tapehead_cuda_inexact"; }
  ~OnInexactDevice() override { unsetenv("TAPEHEAD_TEST_PRODUCT_ERROR"); }

  /// Makes the device's products larger by this share of them.
  static void spoil_products(const char* share) { setenv("TAPEHEAD_TEST_PRODUCT_ERROR", share, 1); }
};

TEST_F(OnInexactDevice, AComparisonThatDisagreesNamesTheFirstOperationAndFails) {
  spoil_products("1e-3");
  const Result result = run(tiny + Args{"--json"});
  EXPECT_EQ(result.status, 1);
  EXPECT_THAT(result.err,
              HasSubstr("error: SystemError: [compare-backends] cuda does not agree with cpu, first in "));
  const json told = json::parse(result.out, nullptr, /*allow_exceptions=*/false);
  EXPECT_EQ(told["agrees"], false);
  EXPECT_EQ(told["first"]["op"], "linear");
  EXPECT_EQ(told["first"]["call"], 1) << "all operations before it have no product";
  EXPECT_NEAR(told["first"]["error"].get<double>(), 1e-3, 1e-5);
  expect_error(tiny, 1, "SystemError", "first in linear, result, call 1");
}

// Hazard: a tolerance with room for the roundings of 16 bits hides a fault that is smaller than they are.
TEST_F(OnInexactDevice, SmallFaultsAreNamed) {
  output(tiny);
  output(tiny + Args{"--dtype", "bf16"});
  spoil_products("1e-5");
  expect_error(tiny, 1, "SystemError", "first in linear, result, call 1, f32");
  spoil_products("1e-3");  // an epsilon is 7.8e-3
  expect_error(tiny + Args{"--dtype", "bf16"}, 1, "SystemError", "first in linear, result, call 1, bf16");
}

TEST_F(OnDevice, ComparisonsMistakesAreSaid) {
  expect_error({"compare-backends", path("nothing")}, 2, "ValueError", "nothing");
  expect_error({"compare-backends", "runs/x", "--n-layer", "2"}, 2, "ValueError", "excludes");
  expect_error({"compare-backends", "--preset", "large"}, 2, "ValueError",
               "no preset large; there are quickstart, gpt2-124m");
  expect_error({"compare-backends", "--optimizer", "adam"}, 2, "ValueError", "adamw, sgd or muon");
}

// ---- Without the backend

using WithoutDevice = ProgramTest;

// Before anything else is looked at: there is no run, no text.
TEST_F(WithoutDevice, EveryCommandThatComputesSaysHowToBuildIt) {
  for (const Args& args :
       {Args{"train", "--text", "none", "--out", path("run")}, Args{"train", "--resume", "none"},
        Args{"train-head", "none"}, Args{"generate", "none"}, Args{"eval", "none"}, Args{"head", "none"},
        Args{"bench", "head"}, Args{"bench", "train"}, Args{"compare-backends"}}) {
    expect_error(args + Args{"--device", "cuda"}, 2, "ValueError", "build with --config=cuda");
    expect_error(args + Args{"--device", "tpu"}, 2, "ValueError",
                 "unknown device \"tpu\": it is cpu or cuda");
  }
  expect_error({"compare-backends"}, 2, "ValueError", "build with --config=cuda");
  EXPECT_FALSE(fs::exists(path("run"))) << "nothing is begun";
}

}  // namespace
}  // namespace tapehead::testing_program
