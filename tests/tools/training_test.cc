// `tapehead train` over its life: how it is set up, and what becomes of it when it is interrupted.
#include <gmock/gmock-matchers.h>

#include <nlohmann/json.hpp>

#include "tapehead/core/random.h"
#include "tapehead/core/safetensors.h"
#include "tapehead/models/checkpoint.h"
#include "tapehead/models/checkpoint_files.h"
#include "tapehead/models/trainer.h"
#include "tapehead/tests/tools/program_fixture.h"
#include "tapehead/tools/run_data.h"

namespace tapehead::testing_program {
namespace {

using json = nlohmann::ordered_json;
using ::testing::HasSubstr;

class Training : public ProgramTest {
 protected:
  void SetUp() override {
    ProgramTest::SetUp();
    write_text();
  }

  json config(const std::string& run) const { return json::parse(read_file(folder_ / run / "config.json")); }
  std::string write_config(const json& config) const {
    write_file(folder_ / "config.json", config.dump());
    return path("config.json");
  }
};

// ---- Setting it up

TEST_F(Training, ItsConfigFileMakesTheSameRunAgain) {
  ASSERT_EQ(
      run(train_tiny("first", {"--steps", "5", "--schedule", "wsd", "--keep-best", "--lr", "0.003"})).status,
      0);
  const Result again = run({"train", "--config", path("first/config.json"), "--out", path("again")});
  ASSERT_EQ(again.status, 0) << again.err;
  EXPECT_EQ(read_file(checkpoint("again")), read_file(checkpoint("first")));
  json first = config("first"), second = config("again");
  EXPECT_EQ(first["lr"], 0.003);
  EXPECT_EQ(first["keep-best"], true);
  EXPECT_EQ(first["head-recompute"], false);
  EXPECT_EQ(first["nesterov"], true);
  EXPECT_EQ(first["n-embd"], 8);
  EXPECT_EQ(first.erase("out"), 1u);
  second.erase("out");
  EXPECT_EQ(second, first);
}

TEST_F(Training, FlagsGoBeforeTheConfigAndThatBeforeThePreset) {
  const std::string file = write_config({{"preset", "gpt2-124m"},
                                         {"n_layer", 1},
                                         {"n-head", 2},
                                         {"n-embd", 8},
                                         {"steps", 3},
                                         {"batch-size", 5},
                                         {"context", 8},
                                         {"accumulate", 1},
                                         {"vocab-size", 258}});
  const Result result =
      run({"train", "--config", file, "--steps", "2", "--text", path("text.txt"), "--out", path("run")});
  ASSERT_EQ(result.status, 0) << result.err;
  const json resolved = config("run");
  EXPECT_EQ(resolved["steps"], 2);
  EXPECT_EQ(resolved["batch-size"], 5);
  EXPECT_EQ(resolved["warmup"], 2000);  // the preset's
  EXPECT_EQ(resolved["preset"], "gpt2-124m");
  EXPECT_EQ(resolved["beta1"], 0.9);  // nobody's
}

TEST_F(Training, RefusesAConfigThatItDoesNotUnderstand) {
  const auto expect = [&](const json& config, const std::string& part) {
    expect_error({"train", "--config", write_config(config)}, 2, "ValueError", part);
  };
  expect({{"n-layers", 3}}, "no option \"n-layers\"; did you mean \"n-layer\"?");
  expect({{"headzloss", 0.1}}, "did you mean \"head-z-loss\"?");
  expect({{"version", 2}, {"n-layer", 3}}, "is of version 2, and this program reads versions up to 1");
  expect({{"version", "one"}}, "version is \"one\"");
  expect({{"n-layer", "three"}}, "\"n-layer\": Could not convert");
  expect({{"n-layer", json::object()}}, "\"n-layer\" is {}");
  expect({{"optimizer", "adam"}}, "name is adam");
  expect(json::array(), "holds no JSON object");
  write_file(folder_ / "config.json", "{");
  expect_error({"train", "--config", path("config.json")}, 2, "ValueError", "holds no JSON object");
  expect_error({"train", "--config", path("none.json")}, 2, "ValueError", "there is no file");
  expect_error({"train", "--preset", "gpt3"}, 2, "ValueError",
               "no preset gpt3; there are quickstart, gpt2-124m");
}

TEST_F(Training, RefusesOptionsThatContradictEachOther) {
  const auto expect = [&](const Args& more, const std::string& part) {
    expect_error(train_tiny("run", more), 2, "ValueError", part);
  };
  expect({"--decay-steps", "3"}, "--decay-steps needs --schedule wsd");
  expect({"--schedule", "constant", "--min-lr", "0"}, "--min-lr needs a --schedule that falls");
  expect({"--momentum", "0.9"}, "--momentum needs --optimizer sgd or muon");
  expect({"--head-chunking-method", "auto", "--head-batch-chunk-size", "4"},
         "--head-chunking-method needs --head-batch-chunk-size 0");
  expect({"--min-lr", "1"}, "min_lr must not be larger");
  expect({"--tokens", path("t")}, "--text excludes --tokens");
  expect({"--config", write_config({{"tokens", "t"}})}, "--text excludes --tokens");
  EXPECT_FALSE(fs::exists(folder_ / "run"));
}

TEST_F(Training, CountsTheMemoryOfItsFirstStepByOperation) {
  ASSERT_EQ(run(train_tiny("run", {"--steps", "2"})).status, 0);
  const json memory = json::parse(read_file(folder_ / "run/memory.json"));
  const json &counted = memory.at("counted"), &planned = memory.at("moments");
  const auto largest = [](const json& moments, const char* key) {
    int64_t most = 0;
    for (const json& moment : moments) most = std::max(most, moment.at(key).get<int64_t>());
    return most;
  };
  for (const char* key : {"parameters", "optimizer", "gradients", "head"})
    EXPECT_EQ(largest(counted, key), largest(planned, key)) << key;
  // While the last block's backward runs, its own tensors are there as well.
  EXPECT_GE(largest(counted, "activations"), largest(planned, "activations"));
  EXPECT_LE(largest(counted, "activations"), 2 * largest(planned, "activations"));
  Args ops;
  for (const json& moment : counted) ops.push_back(moment.at("at"));
  EXPECT_THAT(ops, testing::IsSupersetOf({"embedding", "linear_cross_entropy", "backward of layer_norm"}));
  EXPECT_LT(counted.back().at("activations"), largest(counted, "activations") / 10);
}

// ---- Models from elsewhere, parts of models, memory

TEST_F(Training, BeginsFromAnotherRunsModelAndTokenizerAndTrainsAPartOfIt) {
  ASSERT_EQ(run(train_tiny("first", {"--steps", "3"})).status, 0);
  write_file(folder_ / "other.txt", read_file(folder_ / "text.txt") + "one line more of pears\n");
  const Args from = {"train", "--from", path("first"), "--text", path("other.txt"), "--threads", "1"};
  const Args some = {"--steps", "2", "--batch-size", "2", "--freeze", "transformer.h.*,*.wpe.*"};
  const Result second = run(from + some + Args{"--out", path("second")});
  ASSERT_EQ(second.status, 0) << second.err;
  EXPECT_EQ(read_file(folder_ / "second/tokenizer/vocab.json"),
            read_file(folder_ / "first/tokenizer/vocab.json"));
  const auto before = SafetensorsFile::open(checkpoint("first")),
             after = SafetensorsFile::open(checkpoint("second"));
  for (const std::string& name : before.names()) {
    if (name.starts_with("optimizer.")) continue;
    const bool frozen = name.starts_with("transformer.h.") || name == "transformer.wpe.weight";
    EXPECT_EQ(after.tensor(name).to_vector<float>() == before.tensor(name).to_vector<float>(), frozen)
        << name;
    EXPECT_NE(after.contains("optimizer.first." + name), frozen) << name;
  }
  // Such a run's config, too, makes it again.
  ASSERT_EQ(run({"train", "--config", path("second/config.json"), "--out", path("again")}).status, 0);
  EXPECT_EQ(read_file(checkpoint("again")), read_file(checkpoint("second")));

  const auto refuse = [&](const Args& more, const std::string& part) {
    expect_error(from + Args{"--out", path("third")} + more, 2, "ValueError", part);
    EXPECT_FALSE(fs::exists(folder_ / "third"));
  };
  refuse({"--n-embd", "16"}, "--from excludes --n-embd");
  refuse({"--context", "4"}, "a gpt2 has learnt its positions, and this one has 8");
  expect_error(from + Args{"--out", path("third"), "--freeze", "nothing.*"}, 2, "ValueError",
               "nothing.* matches none of the");
  expect_error({"train", "--from", path("none"), "--text", path("other.txt")}, 2, "ValueError",
               "/none; check the path");
}

TEST_F(Training, ALlamaGoesOnWithAnotherContext) {
  ASSERT_EQ(run(train_tiny("first", {"--steps", "1", "--architecture", "llama"})).status, 0);
  const Result second = run({"train", "--from", path("first"), "--text", path("text.txt"), "--out",
                             path("second"), "--steps", "1", "--batch-size", "2", "--context", "12"});
  ASSERT_EQ(second.status, 0) << second.err;
  const json model = json::parse(read_file(folder_ / "second/checkpoint.json")).at("model");
  EXPECT_EQ(model.at("n_positions"), 12);
  EXPECT_EQ(model.at("architecture"), "llama");
}

TEST_F(Training, SaysBeforeTheFirstStepWhatWouldFit) {
  expect_error(train_tiny("run", {"--memory-limit", "40KiB"}), 2, "ValueError",
               "choose a smaller model or --context");
  expect_error(train_tiny("run", {"--memory-limit", "much"}), 2, "ValueError", "much");
  Args wide = train_tiny("run", {"--memory-limit", "1MiB", "--steps", "1"});
  *(std::ranges::find(wide, "--batch-size") + 1) = "64";
  *(std::ranges::find(wide, "--context") + 1) = "32";
  const Result refused = run(wide);
  EXPECT_EQ(refused.status, 2);
  EXPECT_THAT(refused.out, HasSubstr(" activations, "));
  EXPECT_FALSE(fs::exists(folder_ / "run/checkpoint.safetensors"));
  const size_t at = refused.err.find("--accumulate ");
  ASSERT_NE(at, std::string::npos) << refused.err;
  const std::string parts = refused.err.substr(at + 13, refused.err.find(' ', at + 13) - at - 13);
  const Result fits = run(wide + Args{"--accumulate", parts});
  EXPECT_EQ(fits.status, 0) << fits.err;
  // Going on with it is held to a limit as well.
  expect_error({"train", "--resume", path("run"), "--steps", "2", "--memory-limit", "10KiB"}, 2, "ValueError",
               "and there are 10.0 KiB");
}

// Hazard: a mistake that showed after the model was made left a run that could neither go on nor begin again.
TEST_F(Training, WhatCannotBeRecordedIsRefusedBeforeThereIsARun) {
  expect_error(train_tiny("run", {"--capture"}), 2, "ValueError", "the cpu records no steps");
  EXPECT_FALSE(std::filesystem::exists(folder_ / "run/config.json"));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "run/memory.json"));
}

TEST_F(Training, DivergenceNamesTheOperationAndKeepsTheLastCheckpoint) {
  // Without a limit to the gradient, weights grow until a product of theirs overflows.
  const Args wild = {"--optimizer", "sgd", "--lr",    "1e12", "--schedule",   "constant",
                     "--clip",      "0",   "--steps", "50",   "--save-every", "1"};
  const Result result = run(train_tiny("run", wild));
  EXPECT_EQ(result.status, 2);
  EXPECT_TRUE(result.err.starts_with("error: RuntimeError: [train] step ")) << result.err;
  EXPECT_THAT(result.err, HasSubstr(" diverged: its loss is "));
  EXPECT_THAT(result.err, HasSubstr("The first operation: ["));
  EXPECT_THAT(result.err, HasSubstr("made a NaN or an infinity"));
  EXPECT_THAT(result.err, HasSubstr("lower learning rate"));
  EXPECT_EQ(count_lines(result.err), 1) << result.err;
  const int64_t step = read_train_state(checkpoint("run")).progress.step;
  EXPECT_EQ(count_lines(read_file(folder_ / "run/metrics.jsonl")), step);
  EXPECT_THAT(result.err, HasSubstr(fmt::format("step {} diverged", step + 1)));
  EXPECT_EQ(run({"eval", path("run")}).status, 0);
}

// ---- Interruptions

TEST_F(Training, OneFolderTakesOneProcess) {
  const Args endless = train_tiny("run", {"--steps", "1000000", "--save-every", "1"});
  const pid_t child = start(endless);
  wait_for(child, "run/metrics.jsonl", "\"step\":2");
  const std::string reason = fmt::format("process {} is at work in {}", child, path("run"));
  expect_error(endless, 2, "ValueError", reason);
  expect_error({"train", "--resume", path("run")}, 2, "ValueError", reason);
  kill(child, SIGKILL);
  finish(child);
  EXPECT_TRUE(fs::exists(folder_ / "run/lock"));  // left behind, and no obstacle
  const json state = json::parse(read_file(folder_ / "run/checkpoint.json"));
  const int64_t step = state.at("step");
  const Result resumed = run({"train", "--resume", path("run"), "--steps", fmt::format("{}", step + 3)});
  EXPECT_EQ(resumed.status, 0) << resumed.err;
  EXPECT_FALSE(fs::exists(folder_ / "run/lock"));
}

// Half of the kills come at any moment, from before the first line of output on; the other half soon after a
// step, when a checkpoint is being written.
TEST_F(Training, TwoHundredKillsLoseNothing) {
  const Args options = {"--schedule", "constant", "--save-every", "1",         "--eval-every", "3",
                        "--keep",     "2",        "--keep-best",  "--dropout", "0.1"};
  const Args endless = train_tiny("run", options + Args{"--steps", "1000000"});
  Generator random{.seed = 11};
  int64_t step = 0, unfinished = 0;
  for (int i = 0; i < 200; ++i) {
    const bool begun = fs::exists(checkpoint("run"));
    const int64_t steps_before = count_lines(read_file(folder_ / "run/metrics.jsonl"));
    const pid_t child = start(begun ? Args{"train", "--resume", path("run"), "--threads", "1"} : endless);
    if (i % 2) {
      wait_for_step(child, steps_before);
      std::this_thread::sleep_for(std::chrono::microseconds(random.below(6000)));
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(random.below(60000)));
    }
    kill(child, SIGKILL);
    ASSERT_EQ(finish(child).status, 128 + SIGKILL) << read_file(path("stderr"));
    for (const std::string& name : names("run")) unfinished += name.find(".tmp.") != name.npos;
    if (!fs::exists(checkpoint("run"))) {
      ASSERT_FALSE(begun) << "the checkpoint is gone after kill " << i;
      continue;
    }
    // Whole, every tensor of it, and none older than before.
    const Trainer whole = Trainer::resume(checkpoint("run"), open_data(RunFolder{path("run")}).training);
    EXPECT_GE(whole.steps_made(), step) << i;
    step = whole.steps_made();
  }
  EXPECT_GT(unfinished, 0) << "no kill came while a file was written";
  const Args steps = {"--steps", fmt::format("{}", step + 2)};
  const Result last = run(Args{"train", "--resume", path("run"), "--threads", "1"} + steps);
  ASSERT_EQ(last.status, 0) << last.err;
  const Result uninterrupted = run(train_tiny("whole", options + steps));
  ASSERT_EQ(uninterrupted.status, 0) << uninterrupted.err;

  EXPECT_EQ(read_file(checkpoint("run")), read_file(checkpoint("whole")));
  EXPECT_EQ(history("run"), history("whole"));
  EXPECT_EQ(read_file(best_checkpoint(checkpoint("run"))), read_file(best_checkpoint(checkpoint("whole"))));
  EXPECT_EQ(names("run"), names("whole"));
}

}  // namespace
}  // namespace tapehead::testing_program
