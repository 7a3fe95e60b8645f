// What people train on: files, folders, weights, lines of JSON, and how tokens are kept.
#include "tapehead/tests/tools/program_fixture.h"

namespace tapehead::testing_program {
namespace {

class Data : public ProgramTest {
 protected:
  void SetUp() override {
    ProgramTest::SetUp();
    fs::create_directories(folder_ / "notes");
    std::string text, questions;
    for (int i = 0; i < 300; ++i) {
      text += fmt::format("line {} tells of {} apples\n", i, i * i % 37);
      questions +=
          fmt::format("{{\"prompt\": \"{} and {} are \", \"completion\": \"{}\"}}\n", i, i % 7, i + i % 7);
    }
    write_file(folder_ / "book.txt", text);
    write_file(folder_ / "questions.jsonl", questions);
    for (int i = 0; i < 30; ++i) {
      write_file(folder_ / fmt::format("notes/{}.txt", i),
                 fmt::format("note {} of {} pears\n", i, i * i % 11));
    }
  }

  Args train(const Args& data, const std::string& run = "run") const {
    return Args{"train", "--out",        path(run), "--vocab-size", "300", "--n-layer",
                "1",     "--n-head",     "2",       "--n-embd",     "16",  "--context",
                "16",    "--batch-size", "4",       "--steps",      "4"} +
           data;
  }

  void expect_out(const Args& args, const std::string& part) {
    const Result result = run(args);
    EXPECT_EQ(result.status, 0) << result.err;
    EXPECT_NE(result.out.find(part), std::string::npos) << result.out;
  }
};

TEST_F(Data, SourcesOfAllKindsTrainByTheirWeightsWithinDocuments) {
  const Args sources = {"--data", path("book.txt=2"), path("notes=1"), path("questions.jsonl"),
                        "--document-mask"};
  const Result result = run(train(sources));
  ASSERT_EQ(result.status, 0) << result.err;
  EXPECT_NE(result.out.find(" bits per byte"), std::string::npos) << result.out;
  const std::string data = read_file(folder_ / "run/data.json");
  EXPECT_NE(data.find("2.0,\n    1.0,\n    1.0"), std::string::npos) << data;
  EXPECT_NE(data.find("book.txt and 2 more"), std::string::npos) << data;
  EXPECT_NE(read_file(folder_ / "run/checkpoint.json").find("\"document_mask\": true"), std::string::npos);
  expect_out({"eval", path("run")}, "bits per byte");
  expect_out({"train", "--resume", path("run"), "--steps", "6"}, "held-out loss: ");
}

TEST_F(Data, DocumentsLongerThanAContextAreToldOfOnce) {
  std::string numbers;
  for (int i = 0; i < 300; ++i) numbers += fmt::format("{} ", i * i % 997);
  write_file(folder_ / "long.jsonl", "{\"text\": \"" + numbers + "\"}\n{\"text\": \"short\"}\n");
  const Result result = run(train({"--data", path("long.jsonl"), "--held-out", "0"}));
  ASSERT_EQ(result.status, 0) << result.err;
  const std::string line = "data: documents longer than a context of 16 tokens, which are split: 1, the longest of ";
  const size_t at = result.out.find(line);
  EXPECT_NE(at, std::string::npos) << result.out;
  EXPECT_EQ(result.out.find(line, at + 1), std::string::npos) << result.out;
}

TEST_F(Data, BrokenLinesAreNamedOrCounted) {
  write_file(folder_ / "bad.jsonl", read_file(folder_ / "questions.jsonl") + "{\"prompt\": \"cut\n");
  expect_error(train({"--data", path("bad.jsonl")}), 2, "ValueError",
               "bad.jsonl:301 cannot be read: parse error at column 16");
  EXPECT_FALSE(fs::exists(folder_ / "run"));
  expect_out(train({"--data", path("bad.jsonl"), "--skip-bad-lines"}), "1 bad lines passed over, the first ");
}

TEST_F(Data, DocumentsThatAreAllEmptyAreNothingToTrainOn) {
  write_file(folder_ / "empty.jsonl", "{\"text\": \"\"}\n{\"prompt\": \"a\", \"completion\": \"\"}\n\n");
  expect_error(train({"--data", path("empty.jsonl")}), 2, "ValueError",
               "empty.jsonl has no document to learn from: 2 are empty");
  fs::create_directories(folder_ / "nothing");
  write_file(folder_ / "nothing/a.txt", "");
  write_file(folder_ / "nothing/b.txt", "");
  expect_error(train({"--data", path("nothing")}), 2, "ValueError", "holds no text: files in it that are empty or binary: 2");
  EXPECT_FALSE(fs::exists(folder_ / "run"));
}

TEST_F(Data, ShardsServeSeveralRunsUntilTheirSourceChanges) {
  const Args shared = {"--data", path("book.txt"), "--shards", path("shards")};
  ASSERT_EQ(run(train(shared)).status, 0);
  EXPECT_FALSE(fs::exists(folder_ / "run/tokens"));
  expect_out(train(shared, "second"), "there already");
  expect_out({"generate", path("second"), "--tokens", "5"}, "");
  write_file(folder_ / "book.txt", read_file(folder_ / "book.txt") + "one line more\n");
  expect_out(train(shared, "third"), "data: tokens are made again: book.txt has changed\n");
  expect_error({"train", "--resume", path("run"), "--steps", "5"}, 2, "ValueError",
               "was made from other tokens");
}

// Hazard: to fine-tune a run on the tokens that it shares with others makes them again, and nobody can go on.
TEST_F(Data, ARunFromAnotherUsesItsShards) {
  const Args shared = {"--data", path("book.txt"), "--shards", path("shards")};
  ASSERT_EQ(run(train(shared)).status, 0);
  expect_out(Args{"train", "--from", path("run"), "--out", path("second"), "--steps", "1"} + shared,
             "there already");
  expect_out({"train", "--resume", path("run"), "--steps", "5"}, "held-out loss: ");
}

TEST_F(Data, RefusesWhatContradictsItselfOrCannotBe) {
  const auto refuse = [&](const Args& data, const std::string& part) {
    expect_error(train(data), 2, "ValueError", part);
    EXPECT_FALSE(fs::exists(folder_ / "run"));
  };
  refuse({}, "--data");
  refuse({"--data", path("book.txt=much")}, "\"much\" is no weight");
  refuse({"--data", path("book.txt=0")}, "\"0\" is no weight");
  refuse({"--data", path("book.txt=-1"), path("notes=1")}, "\"-1\" is no weight");
  refuse({"--data", path("missing")}, "missing");
  refuse({"--data", path("book.txt"), "--text", path("book.txt")}, "excludes");
  refuse({"--data", path("book.txt"), "--tokens", path("book.txt")}, "excludes");
  refuse({"--data", path("book.txt"), "--shard-size", "much"}, "much");
  // A file whose name has the sign in it is that file.
  fs::rename(folder_ / "book.txt", folder_ / "a=b");
  EXPECT_EQ(run(train({"--data", path("a=b")})).status, 0);
}

}  // namespace
}  // namespace tapehead::testing_program
