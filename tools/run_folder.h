// A run's folder: what stands in it under which name, and the tokens that the run is made from.
//
//   tokenizer/               tokenizer.json, vocab.json and merges.txt
//   train.tokens             the text as tokens (models/token_file.h) ...
//   held_out.tokens          ... and what is kept from training, to measure on
//   data.json                what these were made from; written last, so they are whole where it stands
//   checkpoint.safetensors   the model and all that training goes on from (models/checkpoint.h)
//   metrics.jsonl            a line of numbers for every step and every evaluation
//   samples.jsonl            what the model wrote at evaluations, a line for each text
//   memory.json              the memory of one step, by what it is for
//   loss.svg                 the loss curve
//   summary.json             how a finished run ended
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "tapehead/models/dataset.h"
#include "tapehead/models/tokenizer.h"

namespace tapehead {

struct RunFolder {
  std::string path;

  std::string tokenizer() const { return path + "/tokenizer"; }
  std::string training_tokens() const { return path + "/train.tokens"; }
  std::string held_out_tokens() const { return path + "/held_out.tokens"; }
  std::string data() const { return path + "/data.json"; }
  std::string checkpoint() const { return path + "/checkpoint.safetensors"; }
  std::string checkpoint_state() const { return path + "/checkpoint.json"; }
  std::string metrics() const { return path + "/metrics.jsonl"; }
  std::string samples() const { return path + "/samples.jsonl"; }
  std::string memory() const { return path + "/memory.json"; }
  std::string loss_chart() const { return path + "/loss.svg"; }
  std::string summary() const { return path + "/summary.json"; }
};

/// Where a run's tokens come from: a text, or token files.
struct DataOptions {
  std::string text;             ///< a text file; or
  std::string tokens;           ///< a token file to train on, and
  std::string held_out_tokens;  ///< one to measure on, or empty
  std::string tokenizer;        ///< folder of the one to use; empty: one is trained on the text
  int64_t vocab_size = 8192;    ///< of a tokenizer that is trained
  double held_out = 0.05;       ///< fraction of the text
  int64_t split_seed = 0;       ///< chooses which blocks of lines are held out
};

struct RunData {
  std::string name;  ///< of the text, for people
  Dataset training;
  std::optional<Dataset> held_out;
  std::optional<Tokenizer> tokenizer;  ///< absent: the tokens came without one
};

/// Trains the tokenizer and encodes the text, unless the folder holds the result already, and says on
/// standard output which. Throws ValueError if the folder holds tokens that were made otherwise, and what
/// reading and splitting a text, training a tokenizer and writing files throw.
RunData prepare_data(const RunFolder& run, const DataOptions& options);

/// Throws ValueError unless the run's tokens were made from the text in this file.
void check_text(const RunFolder& run, const std::string& text);

/// The tokens of a run that was prepared before. Throws ValueError if there are none.
RunData open_data(const RunFolder& run);

/// Tokenizer::train, with a progress line.
Tokenizer train_tokenizer(std::string_view text, int64_t vocab_size);

/// Throws ValueError unless there is nothing at `path`, or an empty folder.
void check_new_folder(const std::string& path);

/// Makes a folder and those above it. Throws SystemError if the machine refuses.
void make_folder(const std::string& path);

/// Bytes of text that the targets in `data` stand for: all tokens but each stream's first, prompts and ends of text.
int64_t target_bytes(const Dataset& data, const Tokenizer& tokenizer);

}  // namespace tapehead
