// Byte-level byte-pair encoding, GPT-2's: every text has tokens, and every token sequence has its bytes back.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tapehead/models/bpe_trainer.h"
#include "tapehead/models/pair_ranks.h"

namespace tapehead {

/// A vocabulary and its merges. Immutable, so any number of threads may use one. Its files are those of
/// Hugging Face's GPT-2 tokenizer, and it gives the same ids.
class Tokenizer {
 public:
  static constexpr std::string_view kEndOfText = "<|endoftext|>";

  /// The bytes, and the end of text: the smallest vocabulary there is.
  static constexpr int64_t kMinVocabSize = 257;

  /// Learns a vocabulary: the bytes in GPT-2's order, then merges (learn_merges), and the end of text last.
  /// It is smaller than `vocab_size` if pairs run out: see vocab_size(). ValueError below kMinVocabSize.
  ///   progress   if given, is told after each merge how many are done and how many may come
  static Tokenizer train(std::string_view text, int64_t vocab_size,
                         const std::function<void(int64_t done, int64_t limit)>& progress = {});

  /// Reads vocab.json and merges.txt, or encoder.json and vocab.bpe as OpenAI named them, from a folder.
  /// ValueError, naming file and place, if they are missing or no byte-level vocabulary with an end of text.
  static Tokenizer load(const std::string& folder);

  /// Writes vocab.json and merges.txt, making the folder if need be. SystemError if the machine refuses.
  void save(const std::string& folder) const;

  /// The tokens of `text`, which may be any bytes. "<|endoftext|>" in it is text like any other: only
  /// end_of_text() stands for the end of a document.
  std::vector<int32_t> encode(std::string_view text) const;

  /// The bytes of the tokens; decode(encode(text)) == text. ValueError for an id outside the vocabulary.
  std::string decode(std::span<const int32_t> ids) const;

  int64_t vocab_size() const { return std::ssize(tokens_); }
  int32_t end_of_text() const { return end_of_text_; }

 private:
  // `tokens` are bytes, by id. Each pair of `merges` has its concatenation among them.
  Tokenizer(std::vector<std::string> tokens, std::vector<TokenPair> merges, std::vector<int32_t> merged,
            int32_t end_of_text);

  std::vector<std::string> tokens_;
  std::vector<TokenPair> merges_;  // by rank
  std::vector<int32_t> merged_;    // by rank: what the pair becomes
  int32_t end_of_text_;
  PairRanks ranks_;
  std::array<int32_t, 256> byte_ids_;
};

}  // namespace tapehead
