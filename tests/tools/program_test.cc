// The program as a whole, run as people run it: what it makes, how it stops, and what it says of bad input.
#include "tapehead/tests/tools/program_fixture.h"

namespace tapehead::testing_program {
namespace {

class Program : public ProgramTest {
 protected:
  void SetUp() override {
    ProgramTest::SetUp();
    std::string text;
    for (int i = 0; i < 400; ++i)
      text += fmt::format("line {} tells of {} apples and of {} pears\n", i, i * i % 37, i % 11);
    write_file(folder_ / "text.txt", text);
  }

  /// Begins a new run of a model so small that its steps take no time.
  Args train(const Args& more = {}) const { return train_on(path("text.txt"), more); }
  Args train_on(const std::string& text, const Args& more = {}) const {
    return Args{"train", "--text",   text, "--out",    path("run"), "--n-layer",
                "1",     "--n-head", "2",  "--n-embd", "16"} +
           more;
  }
  const Args kTiny = {"--vocab-size", "300", "--context", "16", "--batch-size", "4", "--steps", "4"};

  /// Names in the run's folder that are none of a run's.
  Args strangers() const {
    const Args known = {
        "tokenizer",       "tokens",        "data.json", "config.json",  "checkpoint.safetensors",
        "checkpoint.json", "metrics.jsonl", "loss.svg",  "summary.json", "memory.json"};
    Args found;
    for (const auto& entry : fs::directory_iterator(folder_ / "run")) {
      const std::string name = entry.path().filename();
      if (std::ranges::find(known, name) == known.end()) found.push_back(name);
    }
    return found;
  }
};

// ---- What it makes

TEST_F(Program, TrainsAndSaysNothingOnStandardError) {
  const Result result = run(train(kTiny));
  ASSERT_EQ(result.status, 0) << result.err;
  EXPECT_EQ(result.err, "");
  EXPECT_NE(result.out.find("held-out loss: "), std::string::npos) << result.out;
  EXPECT_NE(result.out.find(" bits per byte"), std::string::npos) << result.out;
  EXPECT_NE(result.out.find("chunked, measured"), std::string::npos) << result.out;
  for (const char* name : {"tokenizer/vocab.json", "tokenizer/merges.txt", "tokens/training-0-00000.tokens",
                           "tokens/held_out-0-00000.tokens", "checkpoint.safetensors", "metrics.jsonl",
                           "loss.svg", "summary.json"}) {
    EXPECT_TRUE(fs::exists(folder_ / "run" / name)) << name;
  }
  EXPECT_EQ(count_lines(read_file(folder_ / "run/metrics.jsonl")), 4 + 1);  // steps, and the last evaluation
  EXPECT_EQ(strangers(), Args());
}

TEST_F(Program, TrainsInBf16AndGoesOnWithIt) {
  ASSERT_EQ(run(train(kTiny)).status, 0);
  const auto f32_bytes = fs::file_size(folder_ / "run/checkpoint.safetensors");
  fs::remove(folder_ / "run/checkpoint.safetensors");
  const Result result = run(train(kTiny + Args{"--dtype", "bf16"}));
  ASSERT_EQ(result.status, 0) << result.err;
  EXPECT_NE(result.out.find("held-out loss: "), std::string::npos) << result.out;
  EXPECT_NE(read_file(folder_ / "run/checkpoint.json").find("\"dtype\": \"bf16\""), std::string::npos);
  // For each parameter 2 + 3 · 4 bytes: its own, two moments and the master weight; in f32 3 · 4.
  EXPECT_GT(fs::file_size(folder_ / "run/checkpoint.safetensors"), f32_bytes);
  const Result more = run({"train", "--resume", path("run"), "--steps", "6"});
  EXPECT_EQ(more.status, 0) << more.err;
  const Result eval = run({"eval", path("run")});
  EXPECT_EQ(eval.status, 0) << eval.err;
  EXPECT_NE(eval.out.find("nats per token"), std::string::npos) << eval.out;
  const Result text = run({"generate", path("run"), "--prompt", "line", "--tokens", "10"});
  EXPECT_EQ(text.status, 0) << text.err;
  EXPECT_TRUE(text.out.starts_with("line")) << text.out;
  const Result ids = run({"tokenize", "encode", path("run")}, {.stdin_text = "apples"});
  EXPECT_EQ(run({"tokenize", "decode", path("run")}, {.stdin_text = ids.out}).out, "apples");
}

TEST_F(Program, RefusesDtypesThatItDoesNotTrainIn) {
  for (const char* dtype : {"f16", "f64", "i32", "bfloat16", ""}) {
    expect_error(train(kTiny + Args{"--dtype", dtype}), 2, "ValueError",
                 fmt::format("--dtype {}: a model is trained in f32 or in bf16", dtype));
  }
  EXPECT_FALSE(fs::exists(folder_ / "run"));
  expect_error({"train", "--resume", path("run"), "--dtype", "bf16"}, 2, "ValueError",
               "--dtype excludes --resume");
}

TEST_F(Program, AsksBeforeItTrainsOverARun) {
  ASSERT_EQ(run(train(kTiny)).status, 0);
  const std::string before = read_file(folder_ / "run/checkpoint.safetensors");
  expect_error(train(kTiny), 2, "ValueError", "--resume");
  EXPECT_EQ(read_file(folder_ / "run/checkpoint.safetensors"), before);
}

TEST_F(Program, PreparesATextOnce) {
  ASSERT_EQ(run(train(kTiny)).status, 0);
  fs::remove(folder_ / "run/checkpoint.safetensors");
  const Result again = run(train(kTiny));
  EXPECT_EQ(again.status, 0) << again.err;
  EXPECT_NE(again.out.find("skipped"), std::string::npos) << again.out;
  fs::remove(folder_ / "run/checkpoint.safetensors");
  write_file(folder_ / "text.txt", read_file(folder_ / "text.txt") + "one line more\n");
  const Result changed = run(train(kTiny));
  EXPECT_EQ(changed.status, 0) << changed.err;
  EXPECT_NE(changed.out.find("text.txt has changed"), std::string::npos) << changed.out;
  EXPECT_EQ(strangers(), Args());
}

TEST_F(Program, ResumesAFinishedRunForMoreSteps) {
  ASSERT_EQ(run(train(kTiny)).status, 0);
  const Result same = run({"train", "--resume", path("run")});
  EXPECT_EQ(same.status, 0) << same.err;
  EXPECT_NE(same.out.find("skipped"), std::string::npos) << same.out;
  EXPECT_NE(same.out.find("held-out loss: "), std::string::npos) << same.out;
  // A summary that is gone or of another step is made anew.
  write_file(folder_ / "run/summary.json", "{\"steps\":3}");
  const Result anew = run({"train", "--resume", path("run")});
  EXPECT_EQ(anew.status, 0) << anew.err;
  EXPECT_NE(anew.out.find("held-out loss: "), std::string::npos) << anew.out;
  const Result more = run({"train", "--resume", path("run"), "--steps", "6", "--text", path("text.txt")});
  EXPECT_EQ(more.status, 0) << more.err;
  EXPECT_EQ(count_lines(read_file(folder_ / "run/metrics.jsonl")), 6 + 3);
  write_file(folder_ / "other.txt", "another text");
  expect_error({"train", "--resume", path("run"), "--text", path("other.txt")}, 2, "ValueError",
               "other sources");
  expect_error({"train", "--resume", path("run"), "--lr", "1"}, 2, "ValueError", "--lr excludes --resume");
}

TEST_F(Program, EvaluatesARunAndAnotherText) {
  ASSERT_EQ(run(train(kTiny)).status, 0);
  const Result own = run({"eval", path("run")});
  EXPECT_EQ(own.status, 0) << own.err;
  EXPECT_NE(own.out.find("nats per token"), std::string::npos) << own.out;
  const Result other = run({"eval", path("run"), "--text", path("text.txt")});
  EXPECT_EQ(other.status, 0) << other.err;
  EXPECT_NE(other.out, own.out);
}

TEST_F(Program, GeneratesTheSameTextFromTheSameSeed) {
  ASSERT_EQ(run(train(kTiny)).status, 0);
  const Args generate = {"generate", path("run"), "--prompt", "line",  "--tokens",
                         "30",       "--top-k",   "0",        "--seed"};
  const Result first = run(generate + Args{"1"}), again = run(generate + Args{"1"}),
               other = run(generate + Args{"2"});
  EXPECT_EQ(first.status, 0) << first.err;
  EXPECT_TRUE(first.out.starts_with("line")) << first.out;
  EXPECT_EQ(first.out, again.out);
  EXPECT_NE(first.out, other.out);
}

TEST_F(Program, GeneratesSeveralTextsThatEndBeforeAStopString) {
  ASSERT_EQ(run(train(kTiny)).status, 0);
  write_file(folder_ / "prompts.txt", "line 1\n\nline 2");
  const Args generate = {"generate", path("run"), "--prompts", path("prompts.txt"), "--tokens", "40"};
  const Result texts = run(generate + Args{"--samples", "2"});
  EXPECT_EQ(texts.status, 0) << texts.err;
  for (const char* heading : {"--- prompt 1 ---\n--- sample 1 ---\nline 1",
                              "--- prompt 2 ---\n--- sample 1 ---\nline 2", "--- sample 2 ---\nline 2"}) {
    EXPECT_NE(texts.out.find(heading), std::string::npos) << texts.out;
  }
  const Result cut = run(generate + Args{"--stop", "e"});
  EXPECT_EQ(cut.status, 0) << cut.err;
  for (const std::string& head : Args{"--- prompt 1 ---\nline 1", "--- prompt 2 ---\nline 2"}) {
    const size_t begin = cut.out.find(head);
    ASSERT_NE(begin, std::string::npos) << cut.out;
    const size_t end = std::min(cut.out.find("--- prompt 2", begin + head.size()), cut.out.size());
    EXPECT_EQ(cut.out.substr(begin + head.size(), end - begin - head.size()).find('e'), std::string::npos)
        << cut.out;
  }
  write_file(folder_ / "whole.txt", "line 1\nline 2");
  EXPECT_TRUE(run({"generate", path("run"), "--prompt-file", path("whole.txt"), "--tokens", "5"})
                  .out.starts_with("line 1\nline 2"));
  expect_error(generate + Args{"--stop", ""}, 2, "ValueError", "--stop is empty");
  expect_error(generate + Args{"--top-p", "2"}, 2, "ValueError", "top_p is 2");
  write_file(folder_ / "prompts.txt", "\n");
  expect_error(generate, 2, "ValueError", "holds no prompt");
}

TEST_F(Program, KeepsSamplesOfEveryEvaluation) {
  const Args prompts = {"--eval-every", "2", "--sample-prompt", "line 1", "--sample-prompt", "an apple"};
  ASSERT_EQ(run(train(kTiny + prompts)).status, 0);
  const std::string samples = read_file(folder_ / "run/samples.jsonl");
  EXPECT_EQ(count_lines(samples), 2 * 2) << samples;
  EXPECT_TRUE(samples.starts_with(R"({"step":2,"prompt":"line 1","text":")")) << samples;
  ASSERT_EQ(run({"train", "--resume", path("run"), "--steps", "6", "--sample-prompt", "line 1"}).status, 0);
  EXPECT_TRUE(read_file(folder_ / "run/samples.jsonl").starts_with(samples));
  EXPECT_EQ(count_lines(read_file(folder_ / "run/samples.jsonl")), 2 * 2 + 1);
  const Result report = run({"report", path("run"), "--out", path("page.html")});
  EXPECT_EQ(report.status, 0) << report.err;
  const std::string page = read_file(folder_ / "page.html");
  for (const char* part : {"\"an apple\"", "\"held_out_entropy\":{", "\"moments\":[{", "\"data.name\":"})
    EXPECT_NE(page.find(part), std::string::npos) << part;
}

TEST_F(Program, TrainsOnTokenFiles) {
  ASSERT_EQ(
      run({"tokenize", "train", "--text", path("text.txt"), "--vocab-size", "270", "--out", path("tok")})
          .status,
      0);
  ASSERT_EQ(run({"tokenize", "encode", path("tok"), path("text.txt"), "--out", path("text.tokens")}).status,
            0);
  const Args model = {"--n-layer", "1",  "--n-head",     "1", "--n-embd", "8",
                      "--context", "16", "--batch-size", "2", "--steps",  "2"};
  const Args tokens = {"train", "--tokens", path("text.tokens"), "--held-out-tokens", path("text.tokens")};
  const Result bare = run(tokens + Args{"--out", path("bare")} + model);
  EXPECT_EQ(bare.status, 0) << bare.err;
  EXPECT_NE(bare.out.find("nats per token"), std::string::npos) << bare.out;
  EXPECT_EQ(bare.out.find("bits per byte"), std::string::npos) << bare.out;
  const Result full = run(tokens + Args{"--tokenizer", path("tok"), "--out", path("full")} + model);
  EXPECT_EQ(full.status, 0) << full.err;
  EXPECT_NE(full.out.find("bits per byte"), std::string::npos) << full.out;
  EXPECT_EQ(run({"generate", path("full"), "--tokens", "5"}).status, 0);
}

TEST_F(Program, ExplainsItself) {
  const std::vector<Args> commands = {{"train"},
                                      {"train-head"},
                                      {"eval"},
                                      {"generate"},
                                      {"report"},
                                      {"import"},
                                      {"export"},
                                      {"compare-backends"},
                                      {"tokenize"},
                                      {"tokenize", "train"},
                                      {"tokenize", "encode"},
                                      {"tokenize", "decode"},
                                      {"head"},
                                      {"plan"},
                                      {"bench"},
                                      {"bench", "head"},
                                      {"bench", "train"},
                                      {"bench", "generate"}};
  for (const Args& command : commands) {
    const Result help = run(command + Args{"--help"});
    EXPECT_EQ(help.status, 0);
    EXPECT_NE(help.out.find("Example:"), std::string::npos) << help.out;
    for (const char* internal : {"{false}", "[[]]", "BOOLEAN [1]", "BOOLEAN [0]"})
      EXPECT_EQ(help.out.find(internal), std::string::npos) << help.out;
  }
  const Result help = run({"--help"});
  EXPECT_EQ(help.status, 0) << help.err;  // no subcommand is missing where help was asked for
  EXPECT_NE(help.out.find("compare-backends"), std::string::npos) << help.out;
}

TEST_F(Program, TellsItsVersion) {
  const Result version = run({"--version"});
  EXPECT_EQ(version.status, 0) << version.err;
  EXPECT_TRUE(version.out.starts_with("tapehead ")) << version.out;
  EXPECT_EQ(count_lines(version.out), 1);
}

// ---- How it is watched and stopped

TEST_F(Program, ShowsProgressOnATerminal) {
  const std::optional<std::string> seen = seen_on_a_terminal(train(kTiny));
  if (!seen) GTEST_SKIP() << "no pseudo-terminal can be had here";
  for (const char* part : {"step 1/4  loss ", " tokens/s", " left"})
    EXPECT_NE(seen->find(part), std::string::npos) << *seen;
}

TEST_F(Program, PrintsProgressLinesWhenAsked) {
  const Result result = run(train(kTiny + Args{"--log-every", "2"}));
  EXPECT_EQ(result.status, 0);
  EXPECT_EQ(count_lines(result.err), 2) << result.err;
  EXPECT_TRUE(result.err.starts_with("step 2/4  loss ")) << result.err;
  for (const char* part :
       {"  smoothed ", "  lr ", "  gradient ", " tokens/s  ", " left  ", "  products ", "iB\n"})
    EXPECT_NE(result.err.find(part), std::string::npos) << result.err;
}

TEST_F(Program, FinishesTheStepAndSavesOnInterrupt) {
  const Args endless = {"--vocab-size", "300", "--context", "16", "--batch-size", "4", "--steps", "1000000"};
  const pid_t child = start(train(endless));
  wait_for(child, "run/metrics.jsonl", "\"step\":3");
  kill(child, SIGINT);
  const Result result = finish(child);
  EXPECT_EQ(result.status, 128 + SIGINT);
  EXPECT_NE(result.out.find(fmt::format("{} train --resume {}\n", kProgram, path("run"))), std::string::npos)
      << result.out;
  EXPECT_TRUE(fs::exists(folder_ / "run/loss.svg"));
  EXPECT_EQ(strangers(), Args());
  // All steps that were made are in the checkpoint.
  const int64_t made = count_lines(read_file(folder_ / "run/metrics.jsonl"));
  const Result resumed = run({"train", "--resume", path("run"), "--steps", fmt::format("{}", made + 2)});
  EXPECT_EQ(resumed.status, 0) << resumed.err;
  EXPECT_NE(resumed.out.find("; 2 steps of "), std::string::npos) << resumed.out;
}

TEST_F(Program, QuitsOnASecondInterrupt) {
  // A step that takes seconds, in little memory.
  const pid_t child =
      start({"train", "--text", path("text.txt"), "--out", path("run"), "--vocab-size", "300", "--n-layer",
             "8", "--n-embd", "512", "--batch-size", "30", "--accumulate", "30"});
  wait_for(child, "stdout", "model: ");
  kill(child, SIGINT);
  wait_for(child, "stderr", "again to quit at once");
  kill(child, SIGINT);
  EXPECT_EQ(finish(child).status, 128 + SIGINT);
  EXPECT_FALSE(fs::exists(folder_ / "run/checkpoint.safetensors"));
}

// ---- Bad input

TEST_F(Program, RefusesTextsThatAreNone) {
  write_file(folder_ / "empty.txt", "");
  expect_error({"train"}, 2, "ValueError", "--data");
  expect_error(train_on(path("missing.txt"), kTiny), 2, "ValueError", "missing.txt");
  expect_error(train_on(path("empty.txt"), kTiny), 2, "ValueError", "is empty");
  expect_error(train_on(path(""), kTiny), 2, "ValueError", "folder");
  EXPECT_FALSE(fs::exists(folder_ / "run"));
}

TEST_F(Program, RefusesATextShorterThanAContext) {
  write_file(folder_ / "short.txt", "one\ntwo\nthree\nfour\nfive\nsix\n");
  expect_error(train_on(path("short.txt"), kTiny + Args{"--held-out", "0"}), 2, "ValueError", "context");
  EXPECT_FALSE(fs::exists(folder_ / "run/checkpoint.safetensors"));
}

TEST_F(Program, TrainsOnBytesThatAreNoText) {
  std::string bytes;
  for (int i = 0; i < 20000; ++i) bytes += static_cast<char>(i * i % 251 + i % 5);
  write_file(folder_ / "binary", bytes);
  const Result result = run(train_on(path("binary"), kTiny));
  EXPECT_EQ(result.status, 0) << result.err;
  const Result ids = run({"tokenize", "encode", path("run"), path("binary")});
  EXPECT_EQ(run({"tokenize", "decode", path("run")}, {.stdin_text = ids.out}).out, bytes);
}

TEST_F(Program, RefusesSizesThatCannotBe) {
  const Args shape = {"--context", "16", "--steps", "2"};
  expect_error(train(shape + Args{"--vocab-size", "256"}), 2, "ValueError", "257");
  expect_error(train(shape + Args{"--vocab-size", "300", "--dropout", "1"}), 2, "ValueError", "dropout");
  expect_error(train(shape + Args{"--vocab-size", "300", "--accumulate", "0"}), 2, "ValueError",
               "--accumulate");
  expect_error(train(shape + Args{"--vocab-size", "300", "--held-out", "1"}), 2, "ValueError", "less than 1");
  expect_error(train(shape + Args{"--vocab-size", "three"}), 2, "ValueError", "--vocab-size");
  EXPECT_FALSE(fs::exists(folder_ / "run"));
  expect_error(train(shape + Args{"--vocab-size", "300", "--batch-size", "100000"}), 2, "ValueError",
               "batch");
  EXPECT_FALSE(fs::exists(folder_ / "run/checkpoint.safetensors"));
}

TEST_F(Program, RefusesWordsItDoesNotKnow) {
  expect_error({}, 2, "ValueError", "subcommand");
  expect_error({"trian"}, 2, "ValueError", "there is no command trian; did you mean train?\n");
  expect_error({"tokenize", "encod"}, 2, "ValueError", "there is no command encod; did you mean encode?");
  expect_error({"train", "--stpes", "3"}, 2, "ValueError",
               "train has no option --stpes; did you mean --steps?\n");
  expect_error({"train", "--n-layr=3"}, 2, "ValueError", "no option --n-layr; did you mean --n-layer?");
  expect_error({"train", "book.txt"}, 2, "ValueError", "\"book.txt\" is one word more than train takes");
  expect_error({"train", "--lr", "1", "--lr", "2"}, 2, "ValueError",
               "--lr is given 2 times, and may be once");
  expect_error({"train", "--lr"}, 2, "ValueError", "--lr: 1 required");
}

TEST_F(Program, RefusesFoldersThatAreNoRun) {
  for (const char* command : {"eval", "generate"})
    expect_error({command, path("nowhere")}, 2, "ValueError", "nowhere");
  expect_error({"train", "--resume", path("nowhere")}, 2, "ValueError", "nowhere");
}

TEST_F(Program, ReportsAFolderThatCannotBeMade) {
  Args args = train(kTiny);
  *std::ranges::find(args, path("run")) = path("text.txt/run");  // below a file: refused to root, too
  expect_error(args, 1, "SystemError", "text.txt/run");
}

TEST_F(Program, ReportsAFullDiskAndKeepsTheOldCheckpoint) {
  ASSERT_EQ(run(train(kTiny)).status, 0);
  const std::string checkpoint = read_file(folder_ / "run/checkpoint.safetensors");
  const std::string metrics = read_file(folder_ / "run/metrics.jsonl");
  const Args more = {"train", "--resume", path("run"), "--steps", "6"};
  expect_error(more, 1, "SystemError", "checkpoint", {.file_bytes = checkpoint.size() / 2});
  EXPECT_EQ(read_file(folder_ / "run/checkpoint.safetensors"), checkpoint);
  EXPECT_EQ(strangers(), Args());
  // A history that fills up ends with its last whole line.
  expect_error(more, 1, "SystemError", "metrics.jsonl", {.file_bytes = metrics.size() + 10});
  EXPECT_EQ(read_file(folder_ / "run/metrics.jsonl"), metrics);
  EXPECT_EQ(read_file(folder_ / "run/checkpoint.safetensors"), checkpoint);
  EXPECT_EQ(run(more).status, 0);
}

TEST_F(Program, ReportsAFullDiskBeforeTraining) {
  expect_error(train(kTiny), 1, "SystemError", "cannot write", {.file_bytes = 1000});
  EXPECT_FALSE(fs::exists(folder_ / "run/data.json"));
  EXPECT_EQ(strangers(), Args());
  EXPECT_EQ(run(train(kTiny)).status, 0);
}

TEST_F(Program, ReportsOutputThatCannotBeWritten) {
  ASSERT_EQ(run(train(kTiny)).status, 0);
  expect_error({"eval", path("run")}, 1, "SystemError", "standard output", {.stdout_path = "/dev/full"});
  expect_error({"generate", path("run")}, 1, "SystemError", "standard output", {.stdout_path = "/dev/full"});
}

TEST_F(Program, RefusesACheckpointCutShort) {
  ASSERT_EQ(run(train(kTiny)).status, 0);
  const std::string checkpoint = read_file(folder_ / "run/checkpoint.safetensors");
  for (const size_t size :
       {checkpoint.size() - 1, checkpoint.size() / 2, size_t{100}, size_t{3}, size_t{0}}) {
    write_file(folder_ / "run/checkpoint.safetensors", checkpoint.substr(0, size));
    for (const Args& args :
         {Args{"eval", path("run")}, Args{"generate", path("run")}, Args{"train", "--resume", path("run")}}) {
      expect_error(args, 2, "ValueError", "checkpoint.safetensors");
    }
  }
}

TEST_F(Program, RefusesACheckpointWhoseStateWasChanged) {
  ASSERT_EQ(run(train(kTiny)).status, 0);
  std::string checkpoint = read_file(folder_ / "run/checkpoint.safetensors");
  const size_t width = checkpoint.find("n_embd");
  const size_t at = checkpoint.find("16", width);
  ASSERT_LT(at, width + 20);
  checkpoint.replace(at, 2, "32");
  write_file(folder_ / "run/checkpoint.safetensors", checkpoint);
  expect_error({"eval", path("run")}, 2, "ValueError", "its state does not match its checksum");
}

}  // namespace
}  // namespace tapehead::testing_program
