#include "tapehead/models/checkpoint.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <nlohmann/json.hpp>

#include "tapehead/core/file.h"
#include "tapehead/core/safetensors.h"
#include "tapehead/models/gpt.h"
#include "tapehead/models/state_json.h"
#include "tapehead/tests/models/training_fixture.h"

namespace tapehead {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::ThrowsMessage;

class CheckpointTest : public TrainingFixture {
 protected:
  CheckpointTest() : trainer_(tiny_config(), training()) {
    trainer_.step();
    trainer_.save(path_);
  }

  std::vector<std::string> file_names() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder_))
      names.push_back(entry.path().filename().string());
    std::sort(names.begin(), names.end());
    return names;
  }

  /// The same tensors with other metadata.
  void write_with_metadata(const SafetensorsMetadata& metadata) const {
    std::vector<std::pair<std::string, Tensor>> tensors;
    const SafetensorsFile file = SafetensorsFile::open(path_);
    for (const std::string& name : file.names()) tensors.emplace_back(name, file.tensor(name).clone());
    write_safetensors(path_, tensors, metadata);
  }

  /// The tensor that holds byte `offset` of the data: all are f32, so they stand in the header's order.
  static std::string tensor_at(const SafetensorsFile& file, size_t offset) {
    for (const std::string& name : file.names()) {
      const auto size = static_cast<size_t>(file.tensor(name).bytes());
      if (offset < size) return name;
      offset -= size;
    }
    return "none";
  }

  Trainer trainer_;
};

TEST_F(CheckpointTest, StateAndTensorsComeBack) {
  const TrainState state = read_train_state(path_);
  EXPECT_EQ(state.config, trainer_.config());
  EXPECT_EQ(state.progress, trainer_.progress());
  EXPECT_EQ(state.optimizer_steps, 1);
  EXPECT_EQ(state.position, (DataPosition{.epoch = 0, .window = 4}));
  EXPECT_EQ(state.training_tokens, 500);
  EXPECT_GT(state.numbers.dropout.next, 0u);

  const LoadedModel loaded = load_model(path_);
  EXPECT_EQ(loaded.model->config(), trainer_.config().model);
  EXPECT_EQ(numbers(loaded.model->parameters()), numbers(trainer_.model().parameters()));
}

TEST_F(CheckpointTest, EveryFieldOfTheConfigIsKept) {
  TrainState state;
  state.config = {{.steps = 91,
                   .batch_size = 92,
                   .schedule = "wsd",
                   .peak_lr = 0.125,
                   .min_lr = 0.0625,
                   .warmup_steps = 94,
                   .decay_steps = 103,
                   .optimizer = {.beta1 = 0.1,
                                 .beta2 = 0.2,
                                 .epsilon = 0.3,
                                 .momentum = 0.5,
                                 .nesterov = false,
                                 .weight_decay = 0.4},
                   .clip_norm = 0.6,
                   .skip_z_score = 0.7,
                   .eval_interval = 95,
                   .save_interval = 96,
                   .keep = 104,
                   .keep_best = true,
                   .head = {.chunking_method = "auto",
                            .batch_chunk_size = 97,
                            .acc_policy = "compact",
                            .recompute = true,
                            .label_smoothing = 0.125,
                            .z_loss = 0.25},
                   .seed = ~uint64_t{0}},
                  {.vocab_size = 12,
                   .n_layer = 1,
                   .n_head = 3,
                   .n_embd = 9,
                   .n_positions = 5,
                   .dropout = 0.25,
                   .norm_epsilon = 1e-3}};
  state.config.dtype = DType::bf16;
  state.config.micro_batch_size = 93;
  state.config.freeze = "h.*";
  state.config.recompute_activations = state.config.document_mask = true;
  state.config.tokenizer = "a \"folder\"/größe";
  state.progress = {.step = 98,
                    .loss = {.mean_sum = 1.5, .square_sum = 2.5, .count = 3},
                    .guard = {.loss = {.mean_sum = 3.5, .square_sum = 4.5, .count = 5},
                              .norm = {.mean_sum = 5.5, .square_sum = 6.5, .count = 7},
                              .in_a_row = 2},
                    .evaluated_step = 97,
                    .best_step = 96,
                    .best_loss = 0.1};
  state.optimizer_steps = 95;
  state.position = {.epoch = 99, .window = 100};
  state.training_tokens = 101;
  state.tokenizer_hash = "0123456789abcdef";
  state.numbers = {.dropout = {.seed = ~uint64_t{1}, .next = 102}, .filter = {.seed = 103, .next = 104}};
  save_checkpoint(path_, state, trainer_.model(), nullptr);
  const TrainState back = read_train_state(path_);
  EXPECT_EQ(back.config, state.config);
  EXPECT_EQ(back.progress, state.progress);
  EXPECT_EQ(back.optimizer_steps, state.optimizer_steps);
  EXPECT_EQ(back.position, state.position);
  EXPECT_EQ(back.training_tokens, state.training_tokens);
  EXPECT_EQ(back.tokenizer_hash, state.tokenizer_hash);
  EXPECT_EQ(back.numbers.dropout.seed, state.numbers.dropout.seed);
  EXPECT_EQ(back.numbers.dropout.next, state.numbers.dropout.next);
  EXPECT_EQ(back.numbers.filter.seed, state.numbers.filter.seed);
  EXPECT_EQ(back.numbers.filter.next, state.numbers.filter.next);

  // The keys by which older folders are read.
  const auto json = nlohmann::json::parse(to_json(state));
  EXPECT_EQ(json["training"], nlohmann::json::parse(R"({
      "dtype": "bf16", "steps": 91, "batch_size": 92, "schedule": "wsd", "peak_lr": 0.125, "min_lr": 0.0625,
      "warmup_steps": 94, "decay_steps": 103, "optimizer": "adamw", "beta1": 0.1, "beta2": 0.2,
      "epsilon": 0.3, "momentum": 0.5, "nesterov": false, "weight_decay": 0.4, "clip_norm": 0.6,
      "skip_z_score": 0.7, "eval_interval": 95, "save_interval": 96, "keep": 104, "keep_best": true,
      "seed": 18446744073709551615, "micro_batch_size": 93, "freeze": "h.*", "recompute_activations": true,
      "document_mask": true})"));
  EXPECT_EQ(json["head"], nlohmann::json::parse(R"({
      "chunking_method": "auto", "batch_chunk_size": 97, "acc_policy": "compact", "recompute": true,
      "label_smoothing": 0.125, "z_loss": 0.25, "gradient_filter": "none"})"));
}

TEST_F(CheckpointTest, ALlamaComesBackWithEveryFieldOfItsConfig) {
  TrainState state;
  state.config.model = {.architecture = "llama",
                        .vocab_size = 11,
                        .n_layer = 1,
                        .n_head = 4,
                        .n_embd = 10,
                        .n_positions = 6,
                        .n_inner = 7,
                        .n_kv_head = 2,
                        .head_dim = 6,
                        .rope_theta = 500,
                        .rope_scaling = {.type = "llama3",
                                         .factor = 8,
                                         .low_freq_factor = 0.5,
                                         .high_freq_factor = 2,
                                         .original_max_position_embeddings = 3},
                        .tied_head = false,
                        .attention_bias = true,
                        .attention_out_bias = true,
                        .mlp_bias = true};
  const auto model = make_model(state.config.model, 3);
  save_checkpoint(path_, state, *model, nullptr);
  EXPECT_EQ(read_train_state(path_).config, state.config);
  EXPECT_EQ(numbers(load_model(path_).model->parameters()), numbers(model->parameters()));
}

TEST_F(CheckpointTest, TheJsonBesideItSaysTheSameAndNothingElseIsLeft) {
  const auto json = nlohmann::json::parse(read_file(folder_ + "/run.json"));
  EXPECT_EQ(json["step"], 1);
  EXPECT_EQ(json["model"]["n_embd"], 8);
  EXPECT_EQ(json, nlohmann::json::parse(SafetensorsFile::open(path_).metadata().at("tapehead")));
  EXPECT_THAT(file_names(), ElementsAre("held_out.tokens", "run.json", "run.safetensors", "train.tokens"));
}

// Nothing but the safetensors file is read, so the two cannot disagree.
TEST_F(CheckpointTest, TheJsonIsNotNeeded) {
  std::filesystem::remove(folder_ + "/run.json");
  EXPECT_EQ(read_train_state(path_).progress.step, 1);
}

TEST_F(CheckpointTest, ParametersCarryTheirHuggingFaceNames) {
  const SafetensorsFile file = SafetensorsFile::open(path_);
  EXPECT_THAT(file.names(), Contains("transformer.h.1.mlp.c_fc.weight"));
  EXPECT_THAT(file.names(), Contains("optimizer.first.transformer.wte.weight"));
  EXPECT_THAT(file.names(), Contains("optimizer.second.transformer.ln_f.bias"));
}

TEST_F(CheckpointTest, ABf16RunKeepsItsDtypeAndMasterWeights) {
  TrainConfig config = tiny_config();
  config.dtype = DType::bf16;
  Trainer trainer(config, training());
  trainer.step();
  trainer.save(path_);
  EXPECT_EQ(nlohmann::json::parse(read_file(folder_ + "/run.json"))["training"]["dtype"], "bf16");
  const LoadedModel loaded = load_model(path_);
  EXPECT_EQ(loaded.model->dtype(), DType::bf16);
  EXPECT_EQ(numbers(loaded.model->parameters()), numbers(trainer.model().parameters()));
  const SafetensorsFile file = SafetensorsFile::open(path_);
  for (const auto& [name, parameter] : trainer.model().parameters()) {
    const Tensor master = file.tensor("optimizer.master." + name);
    EXPECT_EQ(master.dtype(), DType::f32) << name;
    EXPECT_EQ(master.to(DType::bf16).to_vector<float>(), parameter.to_vector<float>()) << name;
    EXPECT_EQ(file.tensor("optimizer.first." + name).dtype(), DType::f32) << name;
  }
}

TEST_F(CheckpointTest, AnF32RunHasNoMasterWeights) {
  const SafetensorsFile file = SafetensorsFile::open(path_);
  for (const std::string& name : file.names())
    EXPECT_EQ(name.find("optimizer.master."), std::string::npos) << name;
}

// Those of before had no version, no checksums, and none of the fields that came later.
TEST_F(CheckpointTest, OneOfVersion1IsReadAndGoesOn) {
  auto json = nlohmann::json::parse(read_file(folder_ + "/run.json"));
  for (const char* key : {"version", "progress", "tokenizer_hash"}) ASSERT_EQ(json.erase(key), 1u) << key;
  for (const char* key : {"dtype", "schedule", "decay_steps", "optimizer", "momentum", "nesterov",
                          "skip_z_score", "keep", "keep_best", "freeze", "recompute_activations"})
    ASSERT_EQ(json["training"].erase(key), 1u) << key;
  for (const char* key :
       {"architecture", "n_inner", "n_kv_head", "head_dim", "rope_theta", "rope_type", "rope_factor",
        "rope_low_freq_factor", "rope_high_freq_factor", "rope_original_max_position_embeddings", "tied_head",
        "attention_bias", "attention_out_bias", "mlp_bias"})
    ASSERT_EQ(json["model"].erase(key), 1u) << key;
  write_with_metadata({{"tapehead", json.dump()}});
  EXPECT_EQ(load_model(path_).model->dtype(), DType::f32);
  Trainer resumed = Trainer::resume(path_, training());
  resumed.step();
  trainer_.step();
  EXPECT_EQ(numbers(resumed.model().parameters()), numbers(trainer_.model().parameters()));
}

// As `tapehead import` makes it.
TEST_F(CheckpointTest, AModelAloneIsThereToBeginFromAndNotToGoOnWith) {
  save_checkpoint(path_, read_train_state(path_), trainer_.model(), nullptr);
  EXPECT_EQ(SafetensorsFile::open(path_).names().size(), trainer_.model().parameters().size());
  EXPECT_EQ(numbers(load_model(path_).model->parameters()), numbers(trainer_.model().parameters()));
  EXPECT_THAT([&] { Trainer::resume(path_, training()); },
              ThrowsMessage<ValueError>(
                  AllOf(HasSubstr(path_), HasSubstr("holds a model without an optimiser's state"))));
}

TEST_F(CheckpointTest, OneOfANewerVersionIsRefusedInOneLine) {
  auto json = nlohmann::json::parse(read_file(folder_ + "/run.json"));
  json["version"] = kStateVersion + 1;
  json["training"] = "in words of its own";
  write_with_metadata({{"tapehead", json.dump()}});
  EXPECT_THAT([&] { load_model(path_); },
              ThrowsMessage<ValueError>(AllOf(HasSubstr(path_), HasSubstr("version 3"),
                                              HasSubstr("versions up to 2"), Not(HasSubstr("\n")))));
}

// ---- Damage

TEST_F(CheckpointTest, AMissingFileIsNamed) {
  EXPECT_THAT([&] { load_model(folder_ + "/none.safetensors"); },
              ThrowsMessage<ValueError>(HasSubstr("none.safetensors")));
}

// Every length from nothing to all but one byte would take long; these cut through each
// part of the file, and anywhere.
TEST_F(CheckpointTest, AFileCutShortAnywhereIsNamed) {
  const std::string bytes = read_file(path_);
  std::vector<size_t> lengths = {0, 5, 8, 100, bytes.size() / 2, bytes.size() - 1};
  Generator random{.seed = 3};
  for (int i = 0; i < 30; ++i) lengths.push_back(random.below(bytes.size()));
  for (const size_t length : lengths) {
    write_file_atomically(path_, bytes.substr(0, length));
    EXPECT_THAT([&] { load_model(path_); }, ThrowsMessage<ValueError>(HasSubstr(path_))) << length;
    EXPECT_THAT([&] { Trainer::resume(path_, training()); }, ThrowsMessage<ValueError>(HasSubstr(path_)))
        << length;
  }
}

// One bit of each of the file's bytes in turn would take long: of a random choice of them.
TEST_F(CheckpointTest, AFlippedBitIsSeenAndItsTensorNamed) {
  const SafetensorsFile file = SafetensorsFile::open(path_);
  const std::string bytes = read_file(path_);
  uint64_t header = 0;
  std::memcpy(&header, bytes.data(), sizeof header);
  const size_t data = 8 + header;
  Generator random{.seed = 7};
  const LoadedModel whole = load_model(path_);
  const auto expected = numbers(whole.model->parameters());
  for (int i = 0; i < 300; ++i) {
    // Half of them in the header, which is small beside the data.
    const size_t at = i % 2 ? random.below(data) : data + random.below(bytes.size() - data);
    std::string flipped = bytes;
    flipped[at] = static_cast<char>(flipped[at] ^ 1 << random.below(8));
    write_file_atomically(path_, flipped);
    try {
      const Trainer resumed = Trainer::resume(path_, training());
      // Unseen only where nothing depends on it.
      EXPECT_EQ(numbers(resumed.model().parameters()), expected) << at;
      EXPECT_LT(at, data) << "bit of a tensor";
    } catch (const std::invalid_argument& error) {  // ValueError or TypeError
      EXPECT_THAT(error.what(), HasSubstr(path_)) << at;
      if (at >= data) {
        EXPECT_THAT(error.what(), HasSubstr(tensor_at(file, at - data))) << at;
      }
    }
  }
}

TEST_F(CheckpointTest, AChangedStateIsSeen) {
  std::string bytes = read_file(path_);
  const size_t at = bytes.find("peak_lr");
  ASSERT_NE(at, bytes.npos);
  bytes[bytes.find("0.01", at) + 3] = '2';  // another number, as valid as the first
  write_file_atomically(path_, bytes);
  EXPECT_THAT([&] { load_model(path_); },
              ThrowsMessage<ValueError>(AllOf(HasSubstr(path_), HasSubstr("its state does not match"))));
}

TEST_F(CheckpointTest, AnotherModelsShapeNamesTheTensorAndBothShapes) {
  const GPT wider({.vocab_size = 11, .n_layer = 2, .n_head = 2, .n_embd = 12, .n_positions = 6});
  const auto before = numbers(wider.parameters());
  EXPECT_THAT([&] { load_tensors(path_, wider); },
              ThrowsMessage<ValueError>(AllOf(HasSubstr(path_), HasSubstr("transformer.wte.weight"),
                                              HasSubstr("(11, 8)"), HasSubstr("(11, 12)"))));
  // The first tensors fit, the last do not: none may have been copied.
  const GPT deeper({.vocab_size = 11, .n_layer = 3, .n_head = 2, .n_embd = 8, .n_positions = 6}, 9);
  const auto deeper_before = numbers(deeper.parameters());
  EXPECT_THAT([&] { load_tensors(path_, deeper); },
              ThrowsMessage<ValueError>(AllOf(HasSubstr(path_), HasSubstr("transformer.h.2."))));
  EXPECT_EQ(numbers(wider.parameters()), before);
  EXPECT_EQ(numbers(deeper.parameters()), deeper_before);
}

TEST_F(CheckpointTest, ATensorThatIsNotFiniteIsNamed) {
  Tensor wpe = trainer_.model().parameters()[1].second;
  {
    const NoGradGuard no_grad;
    wpe.fill(NAN);
  }
  trainer_.save(path_);
  const GPT model(trainer_.config().model, 5);
  const auto before = numbers(model.parameters());
  EXPECT_THAT([&] { load_tensors(path_, model); },
              ThrowsMessage<ValueError>(
                  AllOf(HasSubstr("transformer.wpe.weight"), HasSubstr(path_), HasSubstr("NaN"))));
  EXPECT_EQ(numbers(model.parameters()), before);
}

TEST_F(CheckpointTest, AFileOfTensorsAloneIsNoCheckpoint) {
  write_safetensors(path_, trainer_.model().parameters());
  EXPECT_THAT([&] { load_model(path_); },
              ThrowsMessage<ValueError>(AllOf(HasSubstr(path_), HasSubstr("no checkpoint"))));
}

TEST_F(CheckpointTest, ADamagedStateIsNamed) {
  for (const char* state : {"", "{", "[]", "{\"step\": \"one\"}"}) {
    write_safetensors(path_, trainer_.model().parameters(), {{"tapehead", state}});
    EXPECT_THAT([&] { load_model(path_); },
                ThrowsMessage<ValueError>(AllOf(HasSubstr(path_), HasSubstr("damaged"))))
        << state;
  }
  auto json = nlohmann::json::parse(read_file(folder_ + "/run.json"));
  json["model"]["n_head"] = 3;
  write_safetensors(path_, trainer_.model().parameters(), {{"tapehead", json.dump()}});
  EXPECT_THAT([&] { load_model(path_); },
              ThrowsMessage<ValueError>(AllOf(HasSubstr(path_), HasSubstr("n_head"))));
  for (const char* dtype : {"f16", "f8", ""}) {
    json = nlohmann::json::parse(read_file(folder_ + "/run.json"));
    json["training"]["dtype"] = dtype;
    write_safetensors(path_, trainer_.model().parameters(), {{"tapehead", json.dump()}});
    EXPECT_THAT([&] { load_model(path_); },
                ThrowsMessage<ValueError>(AllOf(HasSubstr(path_), HasSubstr("dtype"))))
        << dtype;
  }
}

TEST_F(CheckpointTest, APathOfAnotherKindIsRefused) {
  EXPECT_THAT([&] { trainer_.save(folder_ + "/run.bin"); }, ThrowsMessage<ValueError>(HasSubstr("run.bin")));
}

// A disk that is full half-way: the old checkpoint stays, and no half of the new one.
TEST_F(CheckpointTest, AFullDiskLeavesTheOldCheckpoint) {
  const std::string before = read_file(path_);
  trainer_.step();
  rlimit limit{};
  ::getrlimit(RLIMIT_FSIZE, &limit);
  const rlimit small{before.size() / 2, limit.rlim_max};
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  ::setrlimit(RLIMIT_FSIZE, &small);
  EXPECT_THAT([&] { trainer_.save(path_); }, ThrowsMessage<SystemError>(HasSubstr(path_)));
  ::setrlimit(RLIMIT_FSIZE, &limit);
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(read_file(path_), before);
  EXPECT_THAT(file_names(), ElementsAre("held_out.tokens", "run.json", "run.safetensors", "train.tokens"));
}

}  // namespace
}  // namespace tapehead
