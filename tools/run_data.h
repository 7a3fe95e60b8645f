// The tokens that a run is made from: prepared for a new one, found again for one that is there.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tapehead/models/dataset.h"
#include "tapehead/models/tokenizer.h"
#include "tapehead/tools/run_folder.h"

namespace tapehead {

/// Where a run's tokens come from: sources, or token files.
struct DataOptions {
  std::vector<std::string> sources;  ///< PATH or PATH=WEIGHT, a file or a folder (models/documents.h); or
  std::string text;                  ///< a single file; or
  std::string tokens;                ///< a token file to train on, and
  std::string held_out_tokens;       ///< one to measure on, or empty
  std::string tokenizer;             ///< folder of the one to use; empty: one is trained on the sources
  int64_t vocab_size = 8192;         ///< of a tokenizer that is trained
  double held_out = 0.05;            ///< fraction of the documents, or of a single text
  int64_t split_seed = 0;            ///< chooses what is held out
  bool skip_bad_lines = false;       ///< of JSON
  std::string shards;                ///< folder for the tokens of sources; empty: the run's own
  std::string shard_size = "256MiB";

  /// Whether anything is named to train on.
  bool any() const { return !sources.empty() || !text.empty() || !tokens.empty(); }
};

struct RunData {
  std::string name;  ///< of the sources, for people
  Dataset training;
  std::optional<Dataset> held_out;
  std::optional<Tokenizer> tokenizer;  ///< absent: the tokens came without one
};

/// Trains the tokenizer and encodes the sources, unless that is done already, and says on standard output
/// which, and what was left out, passed over, or longer than `context`, so that it will be split. Throws what
/// prepare_dataset throws; ValueError for a weight that is no positive number.
RunData prepare_data(const RunFolder& run, const DataOptions& options, int64_t context);

/// Throws ValueError if sources are named that the run's tokens were not made from.
void check_data(const RunFolder& run, const DataOptions& options);

/// The tokens of a run that was prepared before. Throws ValueError if there are none, or others by now.
RunData open_data(const RunFolder& run);

}  // namespace tapehead
