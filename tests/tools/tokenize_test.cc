// `tapehead tokenize`: from bytes to tokens and back.
#include <nlohmann/json.hpp>

#include "tapehead/tests/tools/program_fixture.h"

namespace tapehead::testing_program {
namespace {

class Tokenize : public ProgramTest {
 protected:
  void SetUp() override {
    ProgramTest::SetUp();
    write_text(400);
  }

  /// The tokens that Llama 3's tokenizer makes of `text`, with a space before and behind.
  std::string llama3(const std::string& text, const Args& more = {}) {
    const Result result =
        run(Args{"tokenize", "encode", "tests/golden/tokenizer/llama3"} + more, {.stdin_text = text});
    EXPECT_EQ(result.status, 0) << result.err;
    EXPECT_EQ(result.err, "");
    return " " + result.out.substr(0, result.out.size() - 1) + " ";
  }
};

TEST_F(Tokenize, TokenizesAnyBytesAndBack) {
  ASSERT_EQ(
      run({"tokenize", "train", "--text", path("text.txt"), "--vocab-size", "270", "--out", path("tok")})
          .status,
      0);
  const std::string bytes("apples \xff\xfe\x00 \xc3\xa4 end", 17);
  const Result ids = run({"tokenize", "encode", path("tok")}, {.stdin_text = bytes});
  ASSERT_EQ(ids.status, 0) << ids.err;
  EXPECT_EQ(run({"tokenize", "decode", path("tok")}, {.stdin_text = ids.out}).out, bytes);
  ASSERT_EQ(run({"tokenize", "encode", path("tok"), path("text.txt"), "--out", path("text.tokens")}).status,
            0);
  EXPECT_EQ(run({"tokenize", "decode", path("tok"), path("text.tokens")}).out,
            read_file(folder_ / "text.txt"));
  expect_error({"tokenize", "decode", path("tok")}, 2, "ValueError", "12x", {.stdin_text = "1 12x 3"});
  expect_error({"tokenize", "decode", path("tok")}, 2, "ValueError", "999", {.stdin_text = "999"});
}

TEST_F(Tokenize, OfNothingThereAreNoTokens) {
  ASSERT_EQ(
      run({"tokenize", "train", "--text", path("text.txt"), "--vocab-size", "270", "--out", path("tok")})
          .status,
      0);
  write_file(folder_ / "empty.txt", "");
  const Result ids = run({"tokenize", "encode", path("tok"), path("empty.txt")});
  EXPECT_EQ(ids.status, 0) << ids.err;
  EXPECT_EQ(run({"tokenize", "decode", path("tok")}, {.stdin_text = ids.out}).out, "");
  ASSERT_EQ(run({"tokenize", "encode", path("tok"), path("empty.txt"), "--out", path("none.tokens")}).status,
            0);
  EXPECT_EQ(run({"tokenize", "decode", path("tok"), path("none.tokens")}).out, "");
  expect_error({"tokenize", "train", "--text", path("empty.txt"), "--out", path("no")}, 2, "ValueError",
               "empty.txt is empty");
  EXPECT_FALSE(fs::exists(folder_ / "no"));
}

// Two tokenizers of one size, whose tokens mean different things.
TEST_F(Tokenize, TokensOfAnotherTokenizerAreRefusedByWhoeverMeetsThem) {
  write_file(folder_ / "other.txt", "four five six four five\n");
  for (const std::string name : {"text", "other"}) {
    ASSERT_EQ(
        run({"tokenize", "train", "--text", path(name + ".txt"), "--vocab-size", "262", "--out", path(name)})
            .status,
        0);
  }
  ASSERT_EQ(run({"tokenize", "encode", path("text"), path("text.txt"), "--out", path("text.tokens")}).status,
            0);
  expect_error({"tokenize", "decode", path("other"), path("text.tokens")}, 2, "ValueError",
               "text.tokens and the tokenizer to read it with do not match");
  const Args train = {"train",     "--tokens",  path("text.tokens"),
                      "--n-layer", "1",         "--n-head",
                      "1",         "--n-embd",  "8",
                      "--context", "16",        "--batch-size",
                      "2",         "--steps",   "2",
                      "--out",     path("run"), "--tokenizer"};
  expect_error(train + Args{path("other")}, 2, "ValueError", "encode the text again with this tokenizer");
  fs::remove_all(folder_ / "run");
  ASSERT_EQ(run(train + Args{path("text")}).status, 0);
  fs::remove_all(folder_ / "run/tokenizer");
  fs::copy(folder_ / "other", folder_ / "run/tokenizer");
  for (const Args& command :
       {Args{"generate", path("run")}, Args{"eval", path("run"), "--text", path("text.txt")},
        Args{"export", path("run"), path("model")}}) {
    expect_error(command, 2, "ValueError",
                 path("run/checkpoint.safetensors") + " and " + path("run/tokenizer") + " do not match");
  }
  EXPECT_FALSE(fs::exists(folder_ / "model"));
  expect_error({"train", "--resume", path("run"), "--steps", "3"}, 2, "ValueError", "do not match");
}

// Hazard: what was made while the hash did not tell by what texts begin passes for the tokenizer's own. Then a
// tokenizer had the hash that it has now without such a token.
TEST_F(Tokenize, WhatWasMadeWhenNoHashToldOfBeginningsIsRefusedByName) {
  nlohmann::json file = nlohmann::json::parse(read_file("tests/golden/tokenizer/llama3/tokenizer.json"));
  file.at("post_processor") = nullptr;
  fs::create_directories(folder_ / "without");
  write_file(folder_ / "without/tokenizer.json", file.dump());
  ASSERT_EQ(run({"train", "--text", path("text.txt"), "--tokenizer", path("without"), "--out", path("run"),
                 "--n-layer", "1", "--n-head", "1", "--n-embd", "8", "--batch-size", "2", "--steps", "2"})
                .status,
            0);
  for (const std::string place : {"run/tokenizer", "run/tokens/tokenizer"}) {
    fs::remove_all(path(place));
    fs::copy("tests/golden/tokenizer/llama3", path(place));
  }
  const std::string made = path("run/checkpoint.safetensors");
  for (const Args& command :
       {Args{"generate", path("run")}, Args{"eval", path("run"), "--text", path("text.txt")},
        Args{"export", path("run"), path("model")}})
    expect_error(command, 2, "ValueError", made + " and " + path("run/tokenizer") + " do not match");
  expect_error({"train", "--resume", path("run"), "--steps", "3"}, 2, "ValueError",
               "tokens in " + path("run/tokens") + " and " + path("run/tokens/tokenizer") + " do not match");
}

// <|begin_of_text|> is 401 and <|eot_id|> 403.
TEST_F(Tokenize, TakesSpecialTokensForWhatTheyNameOnlyWhenAsked) {
  const std::string text = "a word<|eot_id|>another", plain = llama3(text),
                    special = llama3(text, {"--special-tokens"});
  EXPECT_TRUE(special.starts_with(" 401 ")) << special;
  EXPECT_EQ(special, " 401" + llama3("a word") + "403" + llama3("another"));
  for (const char* id : {" 401 ", " 403 "}) EXPECT_EQ(plain.find(id), std::string::npos) << plain;
  const Result back = run({"tokenize", "decode", "tests/golden/tokenizer/llama3"}, {.stdin_text = special});
  EXPECT_EQ(back.out, "<|begin_of_text|>" + text);
}

TEST_F(Tokenize, ShowsHowFarItIs) {
  std::string text;
  while (text.size() < 300'000) text += read_file(folder_ / "text.txt");
  write_file(folder_ / "long.txt", text);
  const std::optional<std::string> seen =
      seen_on_a_terminal({"tokenize", "encode", "tests/golden/tokenizer/llama3", path("long.txt"), "--out",
                          path("long.tokens")});
  if (!seen) GTEST_SKIP() << "no pseudo-terminal can be had here";
  EXPECT_NE(seen->find("encoding  64.0 KiB of "), std::string::npos) << *seen;
  EXPECT_NE(seen->find(" tokens, written to "), std::string::npos) << *seen;
}

}  // namespace
}  // namespace tapehead::testing_program
