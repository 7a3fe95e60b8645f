// `tapehead train-head`: what it makes, how it is interrupted, and what it says of bad input.
#include <gmock/gmock-matchers.h>

#include <nlohmann/json.hpp>

#include "tapehead/core/random.h"
#include "tapehead/core/safetensors.h"
#include "tapehead/models/checkpoint_files.h"
#include "tapehead/models/head_trainer.h"
#include "tapehead/tests/testing.h"
#include "tapehead/tests/tools/program_fixture.h"

namespace tapehead::testing_program {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

class TrainHead : public ProgramTest {
 protected:
  void SetUp() override {
    ProgramTest::SetUp();
    write(random_tensor({100, 8}, 1, 1, DType::f32), random_indices({100}, 5, 2));
  }

  void write(const Tensor& features, const Tensor& targets) const {
    write_safetensors(path("features"), {{"features", features}, {"targets", targets}});
  }

  Args begin(const std::string& out, const Args& more = {}) const {
    return Args{"train-head", path("features"), "--out",     path(out), "--batch-size", "16", "--lr",
                "0.1",        "--bias",         "--threads", "1"} +
           more;
  }
  Tensor weight(const std::string& file) const { return SafetensorsFile::open(path(file)).tensor("weight"); }
};

TEST_F(TrainHead, LeavesAHeadAndAHistoryForTheReport) {
  const Result result = run(begin("run", {"--steps", "7", "--eval-every", "3"}));
  ASSERT_EQ(result.status, 0) << result.err;
  EXPECT_EQ(result.err, "");
  EXPECT_THAT(result.out, HasSubstr("head: 5 classes of 8 features, and a bias; 7 steps of 16 rows\n"));
  EXPECT_THAT(result.out, HasSubstr(" nats a row, "));
  EXPECT_EQ(names("run"),
            (Args{"checkpoint.json", "checkpoint.safetensors", "config.json", "data.json", "head.safetensors",
                  "loss.svg", "memory.json", "metrics.jsonl", "summary.json"}));
  EXPECT_EQ(count_lines(history("run")), 7 + 3);
  const SafetensorsFile head = SafetensorsFile::open(path("run/head.safetensors"));
  EXPECT_EQ(head.names(), (Args{"weight", "bias"}));
  EXPECT_EQ(head.tensor("weight").shape(), Shape({5, 8}));
  EXPECT_EQ(weight("run/head.safetensors").to_vector<float>(),
            weight("run/checkpoint.safetensors").to_vector<float>());
  const Result report = run({"report", path("run"), "--out", path("page.html")});
  EXPECT_EQ(report.status, 0) << report.err;
  for (const char* part :
       {"\"held_out_entropy\":{", "\"training.batch_size\":16", "\"data.name\":\"features\""})
    EXPECT_THAT(read_file(folder_ / "page.html"), HasSubstr(part));

  const Result again =
      run({"train-head", path("features"), "--config", path("run/config.json"), "--out", path("again")});
  ASSERT_EQ(again.status, 0) << again.err;
  EXPECT_EQ(read_file(checkpoint("again")), read_file(checkpoint("run")));
}

TEST_F(TrainHead, CountsTheMemoryOfItsFirstStepBesideItsPlan) {
  const Result result = run(begin("run", {"--steps", "3"}));
  ASSERT_EQ(result.status, 0) << result.err;
  // (5 classes · 8 features + biases) · 4 bytes; twice as much for AdamW; 16 rows of 8 features and a target.
  EXPECT_THAT(result.out, HasSubstr("memory: 180 B for parameters, 180 B gradients, 360 B optimizer, "
                                    "640 B activations, "));
  const json memory = json::parse(read_file(folder_ / "run/memory.json"));
  for (const char* key : {"parameters", "optimizer", "gradients", "activations", "head"}) {
    const auto largest = [&](const char* moments) {
      int64_t most = 0;
      for (const json& moment : memory.at(moments)) most = std::max(most, moment.at(key).get<int64_t>());
      return most;
    };
    EXPECT_EQ(largest("counted"), largest("moments")) << key;
  }
  // A head has no forward of its own, and one backward.
  Args at;
  for (const json& moment : memory.at("moments")) at.push_back(moment.at("at"));
  EXPECT_EQ(at, (Args{"the beginning", "the batch", "the head", "backward", "the end"}));
}

TEST_F(TrainHead, SaysBeforeTheFirstStepWhatWouldFit) {
  write(random_tensor({2000, 64}, 1, 1, DType::f32), random_indices({2000}, 500, 2));
  Args wide = begin("run", {"--steps", "1", "--memory-limit"});
  *(std::ranges::find(wide, "--batch-size") + 1) = "1024";
  const auto advice = [&](const char* limit, const std::string& part) {
    const Result refused = run(wide + Args{limit});
    EXPECT_EQ(refused.status, 2);
    EXPECT_FALSE(fs::exists(folder_ / "run"));
    const size_t at = refused.err.find("and there are"), begin = refused.err.find(": ", at) + 2;
    EXPECT_THAT(refused.err.substr(begin), HasSubstr(part));
    return refused.err.substr(begin, refused.err.find(" takes ", begin) - begin);
  };
  EXPECT_EQ(advice("1MiB", "takes "), "--head-batch-chunk-size 64");
  const std::string smaller = advice("750KiB", "--head-batch-chunk-size 64 --batch-size ");
  advice("300KiB", "even one row at a time takes ");
  expect_error(wide + Args{"much"}, 2, "ValueError", "much");
  // What is said is true.
  const std::string size = smaller.substr(smaller.rfind(' ') + 1);
  *(std::ranges::find(wide, "--batch-size") + 1) = size;
  const Result fits = run(wide + Args{"750KiB", "--head-batch-chunk-size", "64"});
  EXPECT_EQ(fits.status, 0) << fits.err;
  // Going on with it is held to a limit as well.
  expect_error({"train-head", "--resume", path("run"), "--steps", "2", "--memory-limit", "10KiB"}, 2,
               "ValueError", "and there are 10.0 KiB");
}

TEST_F(TrainHead, AFilterTellsWhatItLeft) {
  ASSERT_EQ(run(begin("run", {"--steps", "3", "--head-gradient-filter", "stochastic:0.05"})).status, 0);
  EXPECT_THAT(history("run"), HasSubstr("\"head_filtered_mass\":"));
  expect_error(begin("other", {"--head-gradient-filter", "some"}), 2, "ValueError", "gradient_filter");
  EXPECT_FALSE(fs::exists(folder_ / "other"));
}

TEST_F(TrainHead, StopsForASignalAndGoesOn) {
  const pid_t child = start(begin("run", {"--steps", "100000000"}));
  wait_for(child, "run/metrics.jsonl", "\"step\":3");
  kill(child, SIGINT);
  const Result stopped = finish(child);
  EXPECT_EQ(stopped.status, 128 + SIGINT);
  EXPECT_THAT(stopped.out, HasSubstr(fmt::format("{} train-head --resume {}\n", kProgram, path("run"))));
  EXPECT_FALSE(fs::exists(folder_ / "run/lock"));
  EXPECT_FALSE(fs::exists(folder_ / "run/head.safetensors"));
  const int64_t made = count_lines(history("run"));
  // The features' file may be elsewhere by then.
  fs::rename(folder_ / "features", folder_ / "moved");
  const Args resume = {"train-head", "--resume", path("run"), "--steps", fmt::format("{}", made + 2)};
  expect_error(resume, 2, "ValueError", path("features"));
  const Result resumed = run(resume + Args{path("moved")});
  ASSERT_EQ(resumed.status, 0) << resumed.err;
  EXPECT_THAT(resumed.out, HasSubstr("; 2 steps of 16 rows"));
  EXPECT_TRUE(fs::exists(folder_ / "run/head.safetensors"));
  EXPECT_THAT(run(resume).out, HasSubstr("steps are made already (skipped)"));
}

TEST_F(TrainHead, ThirtyKillsLoseNothing) {
  const Args options = {"--schedule",     "constant",
                        "--save-every",   "1",
                        "--eval-every",   "3",
                        "--keep",         "2",
                        "--keep-best",    "--head-gradient-filter",
                        "stochastic:0.05"};
  Generator random{.seed = 12};
  int64_t step = 0;
  for (int i = 0; i < 30; ++i) {
    const bool begun = fs::exists(checkpoint("run"));
    const int64_t lines = count_lines(read_file(folder_ / "run/metrics.jsonl"));
    const pid_t child = start(begun ? Args{"train-head", "--resume", path("run"), "--threads", "1"}
                                    : begin("run", options + Args{"--steps", "100000000"}));
    if (i % 2) {
      wait_for_step(child, lines);
      std::this_thread::sleep_for(std::chrono::microseconds(random.below(6000)));
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(random.below(60000)));
    }
    kill(child, SIGKILL);
    ASSERT_EQ(finish(child).status, 128 + SIGKILL) << read_file(path("stderr"));
    if (!fs::exists(checkpoint("run"))) {
      ASSERT_FALSE(begun) << "the checkpoint is gone after kill " << i;
      continue;
    }
    const HeadTrainer whole =
        HeadTrainer::resume(checkpoint("run"), LabelledFeatures::open(path("features")));
    EXPECT_GE(whole.steps_made(), step) << i;
    step = whole.steps_made();
  }
  EXPECT_GT(step, 0);
  const Args steps = {"--steps", fmt::format("{}", step + 2)};
  const Result last = run(Args{"train-head", "--resume", path("run"), "--threads", "1"} + steps);
  ASSERT_EQ(last.status, 0) << last.err;
  const Result uninterrupted = run(begin("whole", options + steps));
  ASSERT_EQ(uninterrupted.status, 0) << uninterrupted.err;
  EXPECT_EQ(read_file(checkpoint("run")), read_file(checkpoint("whole")));
  EXPECT_EQ(read_file(path("run/head.safetensors")), read_file(path("whole/head.safetensors")));
  // Which also holds how far the run was to go.
  EXPECT_EQ(read_head_state(best_checkpoint(checkpoint("run"))).progress,
            read_head_state(best_checkpoint(checkpoint("whole"))).progress);
  EXPECT_EQ(history("run"), history("whole"));
  EXPECT_EQ(names("run"), names("whole"));
}

TEST_F(TrainHead, OneFolderTakesOneProcess) {
  const Args endless = begin("run", {"--steps", "100000000", "--save-every", "1"});
  const pid_t child = start(endless);
  wait_for(child, "run/metrics.jsonl", "\"step\":2");
  const std::string reason = fmt::format("[train-head] process {} is at work in {}", child, path("run"));
  expect_error(endless, 2, "ValueError", reason);
  expect_error({"train-head", "--resume", path("run")}, 2, "ValueError", reason);
  kill(child, SIGKILL);
  finish(child);
  expect_error(endless, 2, "ValueError", "holds a run already; go on with --resume ");
}

// ---- Bad input

TEST_F(TrainHead, FeaturesThatDoNotFitAreNamed) {
  const auto expect = [&](const std::string& part) {
    expect_error(begin("run"), 2, "ValueError", part);
    EXPECT_FALSE(fs::exists(folder_ / "run"));
  };
  const Tensor ids = Tensor::zeros({4}, DType::i64);
  write(Tensor::zeros({5, 2}), ids);
  expect(path("features") + " has 5 rows of features but 4 targets");
  write(Tensor::zeros({4}), ids);
  expect("features of " + path("features") + " are f32 of shape (4,)");
  write(Tensor::zeros({4, 2}, DType::i32), ids);
  expect("are i32 of shape (4, 2): they must be floating");
  write(Tensor::zeros({4, 2}), Tensor::zeros({4}));
  expect("targets of " + path("features") + " are f32 of shape (4,): they must be integers");
  write_safetensors(path("features"), {{"features", Tensor::zeros({4, 2})}});
  expect("has no tensor \"targets\"");
  write_file(path("features"), "no tensors");
  expect(path("features"));
  fs::remove(path("features"));
  expect("there is no file");
  expect_error({"train-head"}, 2, "ValueError", "there is nothing to train on; name a safetensors file");
}

TEST_F(TrainHead, TargetsOutOfRangeAreNamedByTheirRow) {
  Tensor targets = random_indices({100}, 5, 2);
  targets.mutable_data<int64_t>()[41] = 7;
  write(random_tensor({100, 8}, 1, 1, DType::f32), targets);
  expect_error(begin("run", {"--classes", "6"}), 2, "ValueError",
               "the target of row 41 is 7: it must be in [0, 6), or -100");
  targets.mutable_data<int64_t>()[41] = -1;
  write(random_tensor({100, 8}, 1, 1, DType::f32), targets);
  expect_error(begin("run"), 2, "ValueError", "the target of row 41 is -1");
  write(random_tensor({100, 8}, 1, 1, DType::f32), Tensor::full({100}, -100, DType::i64));
  expect_error(begin("run"), 2, "ValueError", "none of the 100 targets counts");
  EXPECT_FALSE(fs::exists(folder_ / "run"));
}

TEST_F(TrainHead, OptionsThatWouldDoNothingAreRefused) {
  const auto expect = [&](const Args& more, const std::string& part) {
    expect_error(begin("run", more), 2, "ValueError", part);
    EXPECT_FALSE(fs::exists(folder_ / "run"));
  };
  expect({"--momentum", "0.9"}, "--momentum needs --optimizer sgd or muon: it would do nothing");
  expect({"--optimizer", "sgd", "--beta1", "0.9"}, "--beta1 needs --optimizer adamw or muon");
  expect({"--optimizer", "sgd", "--momentum", "0", "--nesterov", "true"},
         "--nesterov needs --momentum above 0");
  expect({"--decay-steps", "3"}, "--decay-steps needs --schedule wsd");
  expect({"--schedule", "constant", "--min-lr", "0.01"}, "--min-lr needs a --schedule that falls");
  expect({"--held-out", "0", "--keep-best"}, "--keep-best needs something held out");
  expect({"--optimizer", "muon"}, "a head is none: take adamw or sgd");
  expect({"--rope-theta", "3"}, "--rope-theta");
  Args file = begin("run");
  *std::ranges::find(file, path("run")) = path("head.safetensors");
  expect_error(file, 2, "ValueError", "it is the folder of a run");
  expect_error({"train-head", "--resume", path("run"), "--lr", "1"}, 2, "ValueError",
               "--lr excludes --resume");
}

TEST_F(TrainHead, AHeadIsNoModelAndAModelNoHead) {
  ASSERT_EQ(run(begin("head", {"--steps", "1"})).status, 0);
  write_text();
  ASSERT_EQ(run(train_tiny("model", {"--steps", "1"})).status, 0);
  expect_error({"train-head", "--resume", path("model"), "--steps", "3"}, 2, "ValueError",
               "it is a checkpoint of a model, and one of a head alone is needed here");
  expect_error({"train", "--resume", path("head"), "--steps", "3"}, 2, "ValueError",
               "it is a checkpoint of a head alone, and one of a model is needed here");
  for (const Args& command : {Args{"eval", path("head")}, Args{"generate", path("head")}})
    expect_error(command, 2, "ValueError", "a head");
}

}  // namespace
}  // namespace tapehead::testing_program
