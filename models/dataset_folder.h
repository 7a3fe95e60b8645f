// Sources tokenised once, in a folder of their own, from which any number of runs may train.
//
//   tokenizer/                 the tokenizer that made the tokens
//   training-0-00000.tokens    the tokens of source 0 (models/token_file.h), shard after shard ...
//   training-0.documents       ... and where its documents stand (models/document_table.h), unless it is
//                              one text
//   held_out-0-00000.tokens    the same of what is kept from training
//   lock                       while a process makes all this (core/folder_lock.h)
//   manifest.json              what all this was made from, and which files there are; removed first and
//                              written last, so that everything is whole where it stands
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tapehead/models/dataset.h"
#include "tapehead/models/documents.h"
#include "tapehead/models/tokenizer.h"

namespace tapehead {

/// All that tokens depend on.
struct DatasetRecipe {
  std::vector<std::string> sources = {};  ///< files and folders (documents.h)
  std::string tokenizer = {};  ///< folder of the one to use; empty: one is trained on what is not held out
  int64_t vocab_size = 8192;   ///< of a tokenizer that is trained
  ReadDocumentsOptions documents = {};
  int64_t shard_bytes = 256 << 20;  ///< the largest file of tokens
};

/// Told how far long work is, and what came of it; each may be empty.
struct DatasetProgress {
  std::function<void(int64_t done, int64_t bytes)> on_hash = {};    ///< sources are looked at
  std::function<void(int64_t done, int64_t merges)> on_merge = {};  ///< a tokenizer is trained
  std::function<void(int64_t done, int64_t bytes)> on_encode = {};  ///< sources are encoded
  /// A line for people: why tokens are made again, what was left out, what a tokenizer was trained on.
  std::function<void(const std::string& line)> on_note = {};
};

/// A folder whose tokens are there.
struct DatasetFolder {
  std::string hash;  ///< of the recipe, with the sources' and the tokenizer's bytes
  bool reused;       ///< the tokens were there before
  Tokenizer tokenizer;
  Dataset training;
  std::optional<Dataset> held_out;  ///< without weights
};

/// A tokenizer that is trained sees this much text: of more, parts from everywhere.
constexpr int64_t kTokenizerSample = 64 << 20;

/// Tokenises the sources into `folder`, unless it holds the tokens of this recipe already: sources of the
/// same names, sizes and bytes (XXH3, 128 bits), the same tokenizer and the same options. A tokenizer that
/// was trained here and is given now, a run's copy of it say, is the same. Memory does not grow with the sources, but for 24 bytes a block of lines and 16 a document. What an interrupted call left
/// is made again. One process at a time makes tokens in a folder; others wait, and use
/// them if they are theirs.
///   weights   as Dataset takes them; no part of the tokens
/// ValueError if a source or the tokenizer cannot be used, or nothing could be held out; SystemError if the
/// machine refuses. Then the folder holds no manifest.
DatasetFolder prepare_dataset(const std::string& folder, const DatasetRecipe& recipe,
                              std::vector<double> weights = {}, const DatasetProgress& progress = {});

/// The tokens that a folder holds. ValueError if it holds none, or damaged ones.
DatasetFolder open_dataset(const std::string& folder, std::vector<double> weights = {});

/// ValueError unless the tokens in `folder` were made from these sources.
void check_sources(const std::string& folder, const std::vector<std::string>& sources);

}  // namespace tapehead
