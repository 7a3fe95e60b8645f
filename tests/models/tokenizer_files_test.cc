// A tokenizer's folder: what is written, what is read, and what is refused.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <set>

#include "tapehead/core/error.h"
#include "tapehead/core/file.h"
#include "tapehead/models/added_tokens.h"
#include "tapehead/models/tokenizer.h"

namespace tapehead {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

const std::string kGolden = "tests/golden/tokenizer";

// A folder of the test's own, empty at first.
std::string fresh_folder() {
  const std::string folder =
      testing::TempDir() + testing::UnitTest::GetInstance()->current_test_info()->name();
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  return folder;
}

Tokenizer small_tokenizer() { return Tokenizer::train(read_file(kGolden + "/paragraph.txt"), 400); }

// A folder that a test spoils in one way after another.
class TokenizerFolder : public testing::Test {
 protected:
  void expect_load_error(const std::vector<std::string>& parts) {
    EXPECT_THAT([&] { Tokenizer::load(folder_); }, ThrowsMessage<ValueError>(HasSubstr("[tokenizer]")));
    for (const std::string& part : parts) {
      EXPECT_THAT([&] { Tokenizer::load(folder_); }, ThrowsMessage<ValueError>(HasSubstr(part)));
    }
  }

  const std::string folder_ = fresh_folder() + "/made/by/save";
  const std::string config_ = folder_ + "/tokenizer_config.json";
};

// ---- vocab.json and merges.txt

class TokenizerFiles : public TokenizerFolder {
 protected:
  TokenizerFiles() {
    small_tokenizer().save(folder_);
    std::filesystem::remove(folder_ + "/tokenizer.json");
    std::filesystem::remove(config_);
    saved_ = nlohmann::json::parse(read_file(vocab_));
  }

  // Each call spoils the vocabulary as it was saved.
  void write_vocab(const std::function<void(nlohmann::json&)>& spoil) {
    nlohmann::json vocab = saved_;
    spoil(vocab);
    write_file_atomically(vocab_, vocab.dump());
  }

  const std::string vocab_ = folder_ + "/vocab.json";
  const std::string merges_ = folder_ + "/merges.txt";

 private:
  nlohmann::json saved_;
};

TEST_F(TokenizerFiles, LoadGivesWhatSaveWrote) {
  const Tokenizer saved = small_tokenizer();
  const Tokenizer loaded = Tokenizer::load(folder_);
  const std::string text = read_file(kGolden + "/cases.json") + "\xFF\xE2";
  EXPECT_EQ(loaded.encode(text), saved.encode(text));
  EXPECT_EQ(loaded.vocab_size(), saved.vocab_size());
  EXPECT_EQ(loaded.end_of_text(), saved.end_of_text());
}

TEST_F(TokenizerFiles, TheHashIsThatOfAllThatMattersAndStaysThroughFiles) {
  const auto saved_again = [&](const Tokenizer& tokenizer) {
    tokenizer.save(folder_ + "/again");
    return Tokenizer::load(folder_ + "/again").hash();
  };
  std::set<std::string> hashes;
  for (const char* name : {"", "/llama3", "/smollm", "/qwen2"}) {
    const Tokenizer golden = Tokenizer::load(kGolden + name);
    EXPECT_EQ(saved_again(golden), golden.hash()) << name;
    hashes.insert(golden.hash());
  }
  const Tokenizer trained = Tokenizer::train("one two three one two", 262);
  EXPECT_EQ(saved_again(trained), trained.hash());
  hashes.insert(trained.hash());
  hashes.insert(Tokenizer::train("four five six four five", 262).hash());  // of the same size
  EXPECT_EQ(hashes.size(), 6u);

  const auto changed = [&](const std::string& from, const std::string& to) {
    std::string json = read_file(folder_ + "/again/tokenizer.json");
    const size_t at = json.find(from);
    EXPECT_NE(at, json.npos) << from;
    write_file_atomically(folder_ + "/again/tokenizer.json", json.replace(at, from.size(), to));
    return Tokenizer::load(folder_ + "/again").hash();
  };
  EXPECT_NE(changed("\"special\":true", "\"special\":false"), trained.hash());
  EXPECT_EQ(changed("\"special\":false", "\"special\":true"), trained.hash());
  // The same tokens, merged in another order.
  auto json = nlohmann::json::parse(read_file(folder_ + "/again/tokenizer.json"));
  std::swap(json["model"]["merges"][0], json["model"]["merges"][1]);
  write_file_atomically(folder_ + "/again/tokenizer.json", json.dump());
  EXPECT_NE(Tokenizer::load(folder_ + "/again").hash(), trained.hash());
}

TEST_F(TokenizerFiles, OpenAisNamesAreAccepted) {
  std::filesystem::rename(vocab_, folder_ + "/encoder.json");
  std::filesystem::rename(merges_, folder_ + "/vocab.bpe");
  EXPECT_EQ(Tokenizer::load(folder_).vocab_size(), 400);
}

TEST_F(TokenizerFiles, AMergeThatBeginsWithAHashIsNoComment) {
  Tokenizer::train("## ##", 258).save(folder_);
  std::filesystem::remove(folder_ + "/tokenizer.json");
  EXPECT_EQ(Tokenizer::load(folder_).encode("##").size(), 1);
  // Without a version line, and with the line ends of another system.
  write_file_atomically(merges_, "# #\r\n");
  EXPECT_EQ(Tokenizer::load(folder_).encode("##").size(), 1);
}

TEST_F(TokenizerFiles, LoadSaysWhichFileIsMissing) {
  std::filesystem::remove(merges_);
  expect_load_error({folder_, "merges.txt"});
}

TEST_F(TokenizerFiles, LoadSaysWhereTheVocabularyIsNoJson) {
  write_file_atomically(vocab_, "{\"a\": 0,\n\"b\" 1}");
  expect_load_error({vocab_, "line 2"});
  write_file_atomically(vocab_, "[1, 2]");
  expect_load_error({vocab_, "array"});
}

TEST_F(TokenizerFiles, LoadRefusesIdsThatAreNoEnumeration) {
  write_vocab([](auto& vocab) { vocab["the"] = 400; });
  expect_load_error({vocab_, "400"});
  write_vocab([](auto& vocab) { vocab["b"] = vocab["a"]; });
  expect_load_error({vocab_, "same id"});
  write_vocab([](auto& vocab) { vocab["a"] = "one"; });
  expect_load_error({vocab_, "\"a\"", "\"one\""});
}

TEST_F(TokenizerFiles, LoadRefusesAVocabularyThatCannotEncodeEveryByte) {
  write_vocab([](auto& vocab) { vocab["added"] = vocab["a"], vocab.erase("a"); });
  expect_load_error({vocab_, "byte 97"});
}

TEST_F(TokenizerFiles, LoadRefusesTokensThatAreNoBytes) {
  write_vocab([](auto& vocab) { vocab["\u4000a"] = 400; });
  expect_load_error({vocab_, "\u4000a"});
}

TEST_F(TokenizerFiles, LoadRefusesAVocabularyWithoutEndOfText) {
  write_vocab([](auto& vocab) { vocab["halt"] = vocab["<|endoftext|>"], vocab.erase("<|endoftext|>"); });
  expect_load_error({folder_, "<|endoftext|>"});
}

TEST_F(TokenizerFiles, LoadSaysWhichLineOfTheMergesIsWrong) {
  const std::string good = read_file(merges_);
  for (const char* bad : {"abc", "a b c", "a ", " a"}) {
    write_file_atomically(merges_, good + bad + "\n");
    expect_load_error({merges_, "line 145", bad});
  }
  write_file_atomically(merges_, good + "q q\n");
  expect_load_error({"line 145", "\"qq\" is no token"});
  write_file_atomically(merges_, good + "q \u65e5\n");
  expect_load_error({"line 145", "\"\u65e5\" is no token"});
  write_file_atomically(merges_, good + good.substr(good.find('\n') + 1));
  expect_load_error({"line 145", "line 2"});
}

TEST_F(TokenizerFiles, SaveReportsWhatTheMachineRefuses) {
  EXPECT_THAT([&] { small_tokenizer().save(vocab_ + "/below-a-file"); },
              ThrowsMessage<SystemError>(
                  AllOf(HasSubstr("make the folder " + vocab_), HasSubstr("Not a directory"))));
}

TEST_F(TokenizerFiles, OfOtherModelsThanGpt2TheyAreTooLittle) {
  write_file_atomically(config_, R"({"tokenizer_class": "Qwen2Tokenizer"})");
  expect_load_error({vocab_, "Qwen2Tokenizer", "tokenizer.json"});
  write_file_atomically(config_, R"({"tokenizer_class": "GPT2Tokenizer"})");
  EXPECT_EQ(Tokenizer::load(folder_).vocab_size(), 400);
}

// ---- tokenizer.json

class TokenizerJson : public TokenizerFolder {
 protected:
  TokenizerJson() {
    std::filesystem::create_directories(folder_);
    golden_ = nlohmann::json::parse(read_file(kGolden + "/qwen2/tokenizer.json"));
  }

  // Each call writes the golden file, spoilt.
  void write(const std::function<void(nlohmann::json&)>& spoil) {
    nlohmann::json document = golden_;
    spoil(document);
    write_file_atomically(path_, document.dump());
  }

  void expect_refused(const std::function<void(nlohmann::json&)>& spoil, std::vector<std::string> parts) {
    write(spoil);
    parts.push_back(path_);
    expect_load_error(parts);
  }

  const std::string path_ = folder_ + "/tokenizer.json";
  nlohmann::json golden_;
};

TEST_F(TokenizerJson, SavedAndLoadedItGivesTheSameIdsEverywhere) {
  for (const char* kind : {"smollm", "llama3", "qwen2"}) {
    SCOPED_TRACE(kind);
    const Tokenizer golden = Tokenizer::load(kGolden + "/" + kind);
    golden.save(folder_);
    const Tokenizer loaded = Tokenizer::load(folder_);
    for (const auto& example : nlohmann::json::parse(read_file(kGolden + "/" + kind + "/cases.json"))) {
      EXPECT_EQ(loaded.encode(std::string(example["text"])), example["ids"].get<std::vector<int32_t>>());
    }
    EXPECT_EQ(loaded.end_of_text(), golden.end_of_text());
    EXPECT_EQ(loaded.beginning_of_text(), golden.beginning_of_text());
    // Nobody is to take two files for the whole.
    EXPECT_FALSE(std::filesystem::exists(folder_ + "/vocab.json"));
    nlohmann::json saved = nlohmann::json::parse(read_file(path_));
    nlohmann::json given = nlohmann::json::parse(read_file(kGolden + "/" + kind + "/tokenizer.json"));
    for (const char* key : {"added_tokens", "normalizer", "pre_tokenizer", "post_processor"}) {
      EXPECT_EQ(saved[key], given[key]) << key;
    }
    EXPECT_EQ(saved["model"]["vocab"], given["model"]["vocab"]);
  }
}

TEST_F(TokenizerJson, MergesMayBeStringsOrPairs) {
  const std::vector<int32_t> ids = Tokenizer::load(kGolden + "/qwen2").encode("The keeper wound the clock.");
  for (const bool pairs : {false, true}) {
    write([&](auto& document) {
      for (auto& merge : document["model"]["merges"]) {
        if (pairs == merge.is_array()) continue;
        const std::string text =
            pairs ? std::string(merge) : std::string(merge[0]) + " " + std::string(merge[1]);
        merge = pairs ? nlohmann::json{text.substr(0, text.find(' ')), text.substr(text.find(' ') + 1)}
                      : nlohmann::json(text);
      }
    });
    EXPECT_EQ(Tokenizer::load(folder_).encode("The keeper wound the clock."), ids);
  }
}

// Hazard: two tokenizers of the same tokens that cut a text otherwise pass for one.
TEST_F(TokenizerJson, TheHashTellsSettingsApartThatChangeTheTokensOfAText) {
  const nlohmann::json gpt2_rule = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}};
  const auto begins_with = [&](size_t added) {
    const nlohmann::json& token = golden_["added_tokens"][added];
    return nlohmann::json::parse(fmt::format(
        R"({{"type": "TemplateProcessing",
             "single": [{{"SpecialToken": {{"id": "{0}"}}}}, {{"Sequence": {{"id": "A"}}}}],
             "special_tokens": {{"{0}": {{"ids": [{1}]}}}}}})",
        token["content"].get<std::string>(), token["id"].get<int>()));
  };
  const std::vector<std::function<void(nlohmann::json&)>> changes = {
      [](auto&) {},
      [&](auto& document) { document["post_processor"] = begins_with(1); },
      [&](auto& document) { document["post_processor"] = begins_with(2); },
      [&](auto& document) { document["pre_tokenizer"] = gpt2_rule; },
      [](auto& document) { document["normalizer"] = nullptr; },
      [](auto& document) { document["model"]["ignore_merges"] = true; },
      [](auto& document) { document["added_tokens"][3]["content"] = "<other>"; },
      [](auto& document) { document["added_tokens"][3]["normalized"] = true; }};
  std::set<std::string> hashes;
  for (const auto& change : changes) {
    write(change);
    hashes.insert(Tokenizer::load(folder_).hash());
  }
  write_file_atomically(config_, R"({"eos_token": "a"})");
  hashes.insert(Tokenizer::load(folder_).hash());
  EXPECT_EQ(hashes.size(), changes.size() + 1);
}

TEST_F(TokenizerJson, OfAddedTokensThatBeginAlikeTheLongestIsFound) {
  write([](auto& document) { document["added_tokens"][4]["content"] = "<tool"; });
  const int32_t longer = golden_["added_tokens"][3]["id"];
  const int32_t shorter = golden_["added_tokens"][4]["id"];
  const Tokenizer tokenizer = Tokenizer::load(folder_);
  EXPECT_THAT(tokenizer.encode("<tool_call><tool<tool_call>"), ElementsAre(longer, shorter, longer));
  EXPECT_EQ(tokenizer.encode("<tool_call").front(), shorter);
}

// What stands before a text in the alphabet may be longer than its prefix in two ways.
TEST(AddedTokenFinderTest, FindsAPrefixOfAPrefix) {
  const AddedTokenFinder finder({{1, "<a", true}, {2, "<ab", true}, {3, "<abc", true}});
  EXPECT_EQ(finder.find("x<ac").value().id, 1);
  EXPECT_EQ(finder.find("x<abd").value().id, 2);
  EXPECT_EQ(finder.find("x<abcd").value().id, 3);
  EXPECT_FALSE(finder.find("x<b<"));
}

TEST_F(TokenizerJson, TheEndOfTextIsWhatTheConfigurationSays) {
  write([](auto&) {});
  const auto end = [&] {
    return Tokenizer::load(folder_).decode(std::vector{Tokenizer::load(folder_).end_of_text()});
  };
  EXPECT_EQ(end(), "<|endoftext|>");
  const int32_t im_start = golden_["model"]["vocab"].size() + 1;
  write_file_atomically(folder_ + "/config.json", fmt::format("{{\"eos_token_id\": [{}, 3]}}", im_start));
  EXPECT_EQ(end(), "<|im_start|>");
  write_file_atomically(config_,
                        R"({"eos_token": {"content": "<|im_end|>", "lstrip": false}, "chat_template": "x"})");
  EXPECT_EQ(end(), "<|im_end|>");
  write_file_atomically(config_, R"({"eos_token": "a", "chat_template": "x"})");
  EXPECT_EQ(end(), "a");
  // What is saved says it, too, and keeps the rest.
  Tokenizer::load(folder_).save(folder_ + "/saved");
  EXPECT_EQ(read_file(folder_ + "/saved/tokenizer_config.json"), read_file(config_));
  write_file_atomically(config_, R"({"eos_token": null, "chat_template": "x"})");
  Tokenizer::load(folder_).save(folder_ + "/saved");
  const auto saved = nlohmann::json::parse(read_file(folder_ + "/saved/tokenizer_config.json"));
  EXPECT_EQ(saved["eos_token"], "<|im_start|>");
  EXPECT_EQ(saved["chat_template"], "x");

  write_file_atomically(config_, R"({"eos_token": "</s>"})");
  expect_load_error({config_, "\"</s>\""});
  write_file_atomically(config_, "[]");
  expect_load_error({config_, "array"});
  std::filesystem::remove(config_);
  write_file_atomically(folder_ + "/config.json", R"({"eos_token_id": 100000})");
  expect_load_error({folder_ + "/config.json", "100000"});
  std::filesystem::remove(folder_ + "/config.json");
  write([](auto& document) {
    for (auto& token : document["added_tokens"]) {
      if (token["special"]) token["content"] = "<unheard-of " + token["id"].dump() + ">";
    }
  });
  expect_load_error({folder_, "eos_token"});
}

TEST_F(TokenizerJson, LoadSaysWhereItIsNoTokenizer) {
  std::filesystem::create_directories(folder_);
  write_file_atomically(path_, "{\"model\":\n{\"vocab\" 1}}");
  expect_load_error({path_, "line 2"});
  write_file_atomically(path_, "[1]");
  expect_load_error({path_, "array"});
  expect_refused([](auto& d) { d.erase("model"); }, {"model is missing"});
  expect_refused([](auto& d) { d["model"] = 3; }, {"model"});
  expect_refused([](auto& d) { d["model"]["vocab"] = "none"; }, {"model.vocab", "none"});
  expect_refused([](auto& d) { d["model"].erase("merges"); }, {"model.merges", "null"});
  expect_refused([](auto& d) { d["added_tokens"] = 1; }, {"added_tokens", "array"});
}

// Hazard: JSON is written by recursion, and errors that nobody saw were written, too.
TEST_F(TokenizerJson, WhatIsNestedAMillionDeepTakesNoStack) {
  const std::string deep = std::string(1'000'000, '[') + std::string(1'000'000, ']');
  const std::string whole = golden_.dump();
  write_file_atomically(path_, "{\"ignored\":" + deep + "," + whole.substr(1));
  EXPECT_EQ(Tokenizer::load(folder_).hash(), Tokenizer::load(kGolden + "/qwen2").hash());
  write_file_atomically(path_, whole.substr(0, whole.size() - 1) + ",\"pre_tokenizer\":" + deep + "}");
  expect_load_error({path_, "pre_tokenizer", "too deep to show"});
}

TEST_F(TokenizerJson, LoadRefusesIdsThatAreNoEnumeration) {
  expect_refused([](auto& d) { d["model"]["vocab"]["a"] = d["model"]["vocab"]["b"]; },
                 {"same id", "\"a\"", "\"b\""});
  expect_refused([](auto& d) { d["model"]["vocab"]["\u0120the"] = 500; }, {"model.vocab", "500", "0 to"});
  expect_refused([](auto& d) { d["model"]["vocab"]["a"] = -1; }, {"\"a\"", "-1"});
  expect_refused([](auto& d) { d["model"]["vocab"]["a"] = 1e300; }, {"\"a\"", "e+300"});
  expect_refused([](auto& d) { d["added_tokens"][0]["id"] = 1000; }, {"added_tokens", "1000"});
  expect_refused([](auto& d) { d["added_tokens"][0]["id"] = d["added_tokens"][1]["id"]; }, {"same id"});
  expect_refused([](auto& d) { d["added_tokens"][1]["content"] = d["added_tokens"][0]["content"]; },
                 {"added_tokens[1]", "twice"});
  expect_refused([](auto& d) { d["added_tokens"][0]["content"] = "a"; }, {"added_tokens[0].id", "\"a\""});
}

TEST_F(TokenizerJson, LoadSaysWhichMergeIsWrong) {
  const size_t count = golden_["model"]["merges"].size();
  const std::string last = fmt::format("model.merges[{}]", count);
  const auto with = [](nlohmann::json merge) {
    return [=](nlohmann::json& d) { d["model"]["merges"].push_back(merge); };
  };
  expect_refused(with("q q"), {last, "\"qq\" is no token", "model.vocab"});
  expect_refused(with({"q", "\u65e5"}), {last, "\"\u65e5\" is no token"});
  expect_refused(with("abc"), {last, "abc"});
  expect_refused(with({"a"}), {last, "[\"a\"]"});
  expect_refused(with(7), {last, "7"});
  expect_refused(with(golden_["model"]["merges"][3]), {last, "model.merges[3]"});
}

TEST_F(TokenizerJson, LoadNamesEverySettingThatItCannotFollow) {
  expect_refused([](auto& d) { d["model"]["type"] = "Unigram"; }, {"model.type", "Unigram"});
  expect_refused([](auto& d) { d["model"]["byte_fallback"] = true; }, {"model.byte_fallback"});
  expect_refused([](auto& d) { d["model"]["dropout"] = 0.1; }, {"model.dropout", "0.1"});
  expect_refused([](auto& d) { d["model"]["end_of_word_suffix"] = "</w>"; },
                 {"model.end_of_word_suffix", "</w>"});
  expect_refused([](auto& d) { d["normalizer"]["type"] = "Lowercase"; }, {"normalizer", "Lowercase"});
  expect_refused([](auto& d) { d["pre_tokenizer"] = nullptr; }, {"pre_tokenizer", "null"});
  expect_refused(
      [](auto& d) {
        d["pre_tokenizer"] = {{"type", "Metaspace"}};
      },
      {"pre_tokenizer", "Metaspace"});
  expect_refused([](auto& d) { d["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "\\w+"; },
                 {"w+"});
  expect_refused([](auto& d) { d["pre_tokenizer"]["pretokenizers"][0]["invert"] = true; }, {"invert"});
  expect_refused([](auto& d) { d["pre_tokenizer"]["pretokenizers"][1]["use_regex"] = true; }, {"use_regex"});
  expect_refused([](auto& d) { d["pre_tokenizer"]["pretokenizers"][1]["add_prefix_space"] = true; },
                 {"add_prefix_space"});
  expect_refused([](auto& d) { d["post_processor"] = {{"type", "BertProcessing"}}; }, {"BertProcessing"});
  expect_refused([](auto& d) { d["decoder"] = {{"type", "WordPiece"}}; }, {"decoder", "WordPiece"});
  expect_refused([](auto& d) { d["added_tokens"][1]["lstrip"] = true; }, {"added_tokens[1].lstrip"});
  expect_refused([](auto& d) { d["added_tokens"][2]["single_word"] = true; },
                 {"added_tokens[2].single_word"});
  expect_refused([](auto& d) { d["added_tokens"][2]["rstrip"] = 1; }, {"added_tokens[2].rstrip", "1"});
  expect_refused([](auto& d) { d["added_tokens"][2]["content"] = ""; }, {"added_tokens[2].content"});
}

TEST_F(TokenizerJson, LoadRefusesABeginningThatItCannotFollow) {
  const auto llama3 = nlohmann::json::parse(read_file(kGolden + "/llama3/tokenizer.json"));
  auto post = llama3["post_processor"];
  auto& single = post["processors"][1]["single"];
  single.push_back(single[0]);
  expect_refused([&](auto& d) { d["post_processor"] = post; }, {"post_processor", "at most one"});
  single.erase(2);
  post["processors"][1]["special_tokens"]["<|begin_of_text|>"]["ids"] = {100000};
  expect_refused([&](auto& d) { d["post_processor"] = post; }, {"post_processor.processors[1]", "100000"});
}

}  // namespace
}  // namespace tapehead
