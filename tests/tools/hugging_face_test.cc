// `tapehead import` and `tapehead export`, run as people run them.
#include "tapehead/core/safetensors.h"
#include "tapehead/tests/tools/program_fixture.h"

namespace tapehead::testing_program {
namespace {

class HuggingFaceProgram : public ProgramTest {
 protected:
  void SetUp() override {
    ProgramTest::SetUp();
    fs::create_directories(folder_ / "gpt2");
    for (const auto& entry : fs::directory_iterator("tests/golden/hugging_face/gpt2")) {
      write_file(folder_ / "gpt2" / entry.path().filename(), read_file(entry.path()));
    }
    write_file(folder_ / "text.txt", "The keeper wound the clock, and the clock struck twelve.\n");
  }

  Result import(const Args& more = {}) {
    return run(Args{"import", path("gpt2"), "--out", path("run")} + more);
  }
};

TEST_F(HuggingFaceProgram, ImportsAModelToGenerateFromAndToMeasure) {
  const Result imported = import();
  ASSERT_EQ(imported.status, 0) << imported.err;
  EXPECT_EQ(imported.err, "");
  EXPECT_NE(imported.out.find("gpt2, 11,328 parameters in f32, contexts of 24 tokens, a vocabulary of 272"),
            std::string::npos)
      << imported.out;
  const Result text = run({"generate", path("run"), "--prompt", "The", "--tokens", "10", "--seed", "3"});
  EXPECT_EQ(text.status, 0) << text.err;
  EXPECT_TRUE(text.out.starts_with("The")) << text.out;
  const Result eval = run({"eval", path("run"), "--text", path("text.txt")});
  EXPECT_EQ(eval.status, 0) << eval.err;
  EXPECT_NE(eval.out.find("nats per token"), std::string::npos) << eval.out;
}

TEST_F(HuggingFaceProgram, ExportsWhatItImported) {
  ASSERT_EQ(import().status, 0);
  const Result exported = run({"export", path("run"), path("out"), "--dtype", "f16"});
  ASSERT_EQ(exported.status, 0) << exported.err;
  const SafetensorsFile before = SafetensorsFile::open(path("gpt2/model.safetensors")),
                        after = SafetensorsFile::open(path("out/model.safetensors"));
  ASSERT_EQ(after.names().size(), before.names().size());
  for (const std::string& name : before.names()) {
    EXPECT_EQ(after.tensor(name).to_vector<float>(), before.tensor(name).to_vector<float>()) << name;
  }
  for (const char* name : {"vocab.json", "merges.txt"})
    EXPECT_TRUE(fs::exists(folder_ / "out" / name)) << name;
  const std::string config = read_file(folder_ / "out/config.json");
  EXPECT_NE(config.find("\"torch_dtype\": \"float16\""), std::string::npos) << config;
  EXPECT_NE(config.find("\"eos_token_id\": 0"), std::string::npos) << config;
  // The export is a folder to import from.
  EXPECT_EQ(run({"import", path("out"), "--out", path("again")}).status, 0);
}

TEST_F(HuggingFaceProgram, ImportsInBf16AndExportsThat) {
  ASSERT_EQ(import({"--dtype", "bf16"}).status, 0);
  ASSERT_EQ(run({"export", path("run"), path("out")}).status, 0);
  EXPECT_EQ(SafetensorsFile::open(path("out/model.safetensors")).tensor("transformer.wte.weight").dtype(),
            DType::bf16);
  expect_error({"import", path("gpt2"), "--out", path("other"), "--dtype", "f16"}, 2, "ValueError",
               "--dtype f16: a run's model is in f32 or in bf16");
  expect_error({"export", path("run"), path("other"), "--dtype", "i64"}, 2, "ValueError", "--dtype i64");
  EXPECT_FALSE(fs::exists(folder_ / "other"));
}

TEST_F(HuggingFaceProgram, ImportsWithoutATokenizerOnlyWhenTold) {
  fs::remove(folder_ / "gpt2/vocab.json");
  expect_error({"import", path("gpt2"), "--out", path("run")}, 2, "ValueError", "is no tokenizer");
  EXPECT_FALSE(fs::exists(folder_ / "run"));
  ASSERT_EQ(import({"--no-tokenizer"}).status, 0);
  EXPECT_FALSE(fs::exists(folder_ / "run/tokenizer"));
  ASSERT_EQ(run({"export", path("run"), path("out")}).status, 0);
  EXPECT_NE(read_file(folder_ / "out/config.json").find("\"eos_token_id\": null"), std::string::npos);
}

TEST_F(HuggingFaceProgram, RefusesATokenizerLargerThanTheModel) {
  std::string vocab = read_file(folder_ / "gpt2/vocab.json");
  vocab.pop_back();
  for (int id = 264; id < 275; ++id)
    vocab += fmt::format(",\"{}\":{}", std::string(static_cast<size_t>(id), 'q'), id);
  write_file(folder_ / "gpt2/vocab.json", vocab + "}");
  expect_error({"import", path("gpt2"), "--out", path("run")}, 2, "ValueError",
               "has 275 tokens, but the model knows 272");
}

TEST_F(HuggingFaceProgram, WritesOverNothing) {
  ASSERT_EQ(import().status, 0);
  expect_error({"import", path("gpt2"), "--out", path("run")}, 2, "ValueError",
               "not empty; name another folder");
  expect_error({"export", path("run"), path("gpt2")}, 2, "ValueError", "not empty; name another folder");
  expect_error({"export", path("nothing"), path("out")}, 2, "ValueError", "holds no model");
}

TEST_F(HuggingFaceProgram, AnImportedModelIsNoRunToGoOnWith) {
  ASSERT_EQ(import().status, 0);
  expect_error({"train", "--resume", path("run")}, 2, "ValueError", path("run"));
}

}  // namespace
}  // namespace tapehead::testing_program
