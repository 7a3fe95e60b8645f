// Byte-level byte-pair encoding: every text has tokens, and every token sequence has its bytes back.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "tapehead/models/added_tokens.h"
#include "tapehead/models/pair_ranks.h"
#include "tapehead/models/piece_cache.h"
#include "tapehead/models/piece_merger.h"
#include "tapehead/models/vocabulary.h"

namespace tapehead {

/// What a special token's name is when it occurs in a text, "<|endoftext|>" say.
enum class SpecialTokens {
  as_text,     ///< text like any other: only an id stands for the end of a document
  recognized,  ///< the token, as in the `tokenizers` package; for texts that may speak to the model
};

/// A vocabulary and what goes with it (vocabulary.h). Immutable, so any number of threads may use one. Its
/// files are those of Hugging Face's tokenizers, and it gives the same ids.
class Tokenizer {
 public:
  class Encoder;

  static constexpr std::string_view kEndOfText = "<|endoftext|>";

  /// The bytes, and the end of text: the smallest vocabulary there is.
  static constexpr int64_t kMinVocabSize = 257;

  explicit Tokenizer(Vocabulary vocabulary);

  /// Learns a vocabulary: the bytes in GPT-2's order, then merges (learn_merges), and the end of text last.
  /// It is smaller than `vocab_size` if pairs run out: see vocab_size(). ValueError below kMinVocabSize.
  ///   progress   if given, is told after each merge how many are done and how many may come
  static Tokenizer train(std::string_view text, int64_t vocab_size,
                         const std::function<void(int64_t done, int64_t limit)>& progress = {});

  /// Reads tokenizer.json from a folder (tokenizer_json.h says which can be read), or, where there is none,
  /// vocab.json and merges.txt, or encoder.json and vocab.bpe as OpenAI named them, for GPT-2's rules. The
  /// end of text is the eos_token of tokenizer_config.json; without one, the eos_token_id of config.json, or
  /// the first of the names that models give it. ValueError, naming file and place, if something is missing
  /// or not as it must be.
  static Tokenizer load(const std::string& folder);

  /// Writes tokenizer.json and tokenizer_config.json, which AutoTokenizer of `transformers` loads, and, if
  /// GPT-2's rules are all there is to it, vocab.json and merges.txt. Makes the folder if need be.
  /// SystemError if the machine refuses.
  void save(const std::string& folder) const;

  /// The tokens of `text`, which may be any bytes. Nothing is put before or after them. Tokens that were
  /// added to a vocabulary and are not special are always recognised.
  std::vector<int32_t> encode(std::string_view text, SpecialTokens special = SpecialTokens::as_text) const;

  /// The bytes of the tokens: decode(encode(text)) == text, or its normal form C if the tokenizer asks for
  /// that. ValueError for an id outside the vocabulary.
  std::string decode(std::span<const int32_t> ids) const;

  int64_t vocab_size() const { return std::ssize(vocabulary_.tokens); }
  int32_t end_of_text() const { return vocabulary_.end_of_text; }

  /// A checksum (core/checksum.h) of all that decides which tokens a text has, and which ones begin and end
  /// it. What save() writes has the same when it is loaded.
  std::string hash() const;

  /// What the model saw before each text, Llama 3's <|begin_of_text|> say; nothing where it saw none.
  std::optional<int32_t> beginning_of_text() const { return vocabulary_.beginning_of_text; }

 private:
  struct Finders {
    AddedTokenFinder raw, normalized;  // before normalisation, and after
  };
  struct StringHash {
    using is_transparent = void;  // finds a string_view without copying it
    size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
  };

  Vocabulary vocabulary_;
  PairRanks ranks_;
  std::array<int32_t, 256> byte_ids_{};
  std::unordered_map<std::string, int32_t, StringHash, std::equal_to<>> whole_pieces_;  // for ignore_merges
  std::array<Finders, 2> finders_;                                                      // by SpecialTokens
};

/// Encodes one text after another; what was found out about one serves the next, which makes short texts
/// twice as fast. The tokenizer must outlive it. Not thread-safe: each thread takes its own.
class Tokenizer::Encoder {
 public:
  ///   on_read   if given, is told every 64 KiB or so how many bytes of all texts were encoded
  explicit Encoder(const Tokenizer& tokenizer, SpecialTokens special = SpecialTokens::as_text,
                   std::function<void(int64_t bytes)> on_read = {});

  /// Appends the tokens of `text` to `ids`.
  void encode(std::string_view text, std::vector<int32_t>* ids);

 private:
  void encode_unnormalized(std::string_view text, std::vector<int32_t>* ids);
  void encode_normalized(std::string_view text, std::vector<int32_t>* ids);
  void encode_plain(std::string_view text, std::vector<int32_t>* ids);
  void encode_piece(std::string_view piece, std::vector<int32_t>* ids);

  const Tokenizer& tokenizer_;
  const Finders& finders_;
  PieceMerger merger_;
  PieceCache cache_;
  std::function<void(int64_t bytes)> on_read_;
  int64_t read_ = 0, told_ = 0;
};

}  // namespace tapehead
