#include "tapehead/models/tokenizer.h"

#include <limits>
#include <utility>

#include "tapehead/core/checksum.h"
#include "tapehead/core/error.h"
#include "tapehead/models/byte_characters.h"
#include "tapehead/models/normalizer.h"

namespace tapehead {
namespace {

// Hands what is between the tokens found in `text` to `between`, and the tokens to `ids`.
template <class Between>
void cut_at_tokens(std::string_view text, const AddedTokenFinder& finder, std::vector<int32_t>* ids,
                   Between&& between) {
  while (const auto match = finder.find(text)) {
    between(text.substr(0, match->begin));
    ids->push_back(match->id);
    text.remove_prefix(match->begin + match->size);
  }
  between(text);
}

}  // namespace

Tokenizer::Tokenizer(Vocabulary vocabulary)
    : vocabulary_(std::move(vocabulary)), ranks_(vocabulary_.merges, vocabulary_.merged) {
  // What merges start from and make is written in characters. An added token is as good only if it reads the
  // same either way: " " is not how the byte of a space is written.
  std::vector<bool> merges_make(vocabulary_.model_size, true);
  for (const AddedToken& token : vocabulary_.added) {
    if (token.id < vocabulary_.model_size) {
      merges_make[token.id] = to_characters(token.content) == token.content;
    }
  }
  for (int64_t id = 0; id < vocabulary_.model_size; ++id) {
    if (!merges_make[id]) continue;
    const std::string& token = vocabulary_.tokens[id];
    if (token.size() == 1) {
      byte_ids_[static_cast<unsigned char>(token[0])] = static_cast<int32_t>(id);
    }
    if (vocabulary_.ignore_merges) {
      whole_pieces_.emplace(token, static_cast<int32_t>(id));
    }
  }
  for (const SpecialTokens special : {SpecialTokens::as_text, SpecialTokens::recognized}) {
    std::vector<AddedToken> raw, normalized;
    for (const AddedToken& token : vocabulary_.added) {
      if (token.special && special == SpecialTokens::as_text) continue;
      if (token.normalized && vocabulary_.nfc) {
        normalized.push_back(token);
        normalized.back().content = normalize_nfc(token.content);
      } else {
        (token.normalized ? normalized : raw).push_back(token);
      }
    }
    finders_[static_cast<size_t>(special)] = {AddedTokenFinder(raw), AddedTokenFinder(normalized)};
  }
}

Tokenizer Tokenizer::train(std::string_view text, int64_t vocab_size,
                           const std::function<void(int64_t, int64_t)>& progress) {
  check<ValueError>(
      vocab_size >= kMinVocabSize,
      "[tokenizer] vocab_size is {}, but the 256 bytes and {} need {}; ask for at least that many",
      vocab_size, kEndOfText, kMinVocabSize);
  check<ValueError>(vocab_size <= std::numeric_limits<int32_t>::max(),
                    "[tokenizer] vocab_size is {}, but ids have 32 bits; ask for at most {}", vocab_size,
                    std::numeric_limits<int32_t>::max());
  Vocabulary vocabulary;
  vocabulary.merges = learn_merges(text, kByteIds, vocab_size - kMinVocabSize, progress);
  std::vector<std::string>& tokens = vocabulary.tokens;
  tokens.resize(256);
  for (int byte = 0; byte < 256; ++byte) {
    tokens[kByteIds[byte]] = static_cast<char>(byte);
  }
  for (const auto& [left, right] : vocabulary.merges) {
    vocabulary.merged.push_back(static_cast<int32_t>(tokens.size()));
    tokens.push_back(tokens[left] + tokens[right]);
  }
  vocabulary.end_of_text = static_cast<int32_t>(tokens.size());
  tokens.emplace_back(kEndOfText);
  vocabulary.model_size = std::ssize(tokens);
  vocabulary.added = {{vocabulary.end_of_text, std::string(kEndOfText), true}};
  return Tokenizer(std::move(vocabulary));
}

std::string Tokenizer::hash() const {
  const Vocabulary& v = vocabulary_;
  std::string all = fmt::format("{} {} {} {} {}\n", static_cast<int>(v.rule), v.nfc, v.ignore_merges,
                                v.end_of_text, v.tokens.size());
  for (const std::string& token : v.tokens) all += fmt::format("{} ", token.size()) + token;
  for (const auto& [left, right] : v.merges) all += fmt::format("{} {} ", left, right);
  for (const AddedToken& token : v.added) {
    all += fmt::format("{} {} {} {} ", token.id, token.special, token.normalized, token.content.size()) +
           token.content;
  }
  if (v.beginning_of_text) all += fmt::format("begins {}", *v.beginning_of_text);
  return checksum(all);
}

std::vector<int32_t> Tokenizer::encode(std::string_view text, SpecialTokens special) const {
  std::vector<int32_t> ids;
  Encoder(*this, special).encode(text, &ids);
  return ids;
}

std::string Tokenizer::decode(std::span<const int32_t> ids) const {
  std::string text;
  for (const int32_t id : ids) {
    check<ValueError>(0 <= id && id < vocab_size(), "[tokenizer] token id {} is outside the vocabulary of {}",
                      id, vocab_size());
    text += vocabulary_.tokens[id];
  }
  return text;
}

Tokenizer::Encoder::Encoder(const Tokenizer& tokenizer, SpecialTokens special,
                            std::function<void(int64_t)> on_read)
    : tokenizer_(tokenizer),
      finders_(tokenizer.finders_[static_cast<size_t>(special)]),
      merger_(tokenizer.ranks_),
      on_read_(std::move(on_read)) {}

void Tokenizer::Encoder::encode(std::string_view text, std::vector<int32_t>* ids) {
  cut_at_tokens(text, finders_.raw, ids, [&](std::string_view part) { encode_unnormalized(part, ids); });
}

void Tokenizer::Encoder::encode_unnormalized(std::string_view text, std::vector<int32_t>* ids) {
  if (tokenizer_.vocabulary_.nfc) {
    encode_normalized(normalize_nfc(text), ids);
  } else {
    encode_normalized(text, ids);
  }
}

void Tokenizer::Encoder::encode_normalized(std::string_view text, std::vector<int32_t>* ids) {
  cut_at_tokens(text, finders_.normalized, ids, [&](std::string_view part) { encode_plain(part, ids); });
}

void Tokenizer::Encoder::encode_plain(std::string_view text, std::vector<int32_t>* ids) {
  constexpr int64_t kTold = 1 << 16;
  for_each_piece(text, tokenizer_.vocabulary_.rule, [&](std::string_view piece) {
    read_ += std::ssize(piece);
    if (on_read_ && read_ - told_ >= kTold) on_read_(told_ = read_);
    if (const auto known = cache_.find(piece)) {
      ids->insert(ids->end(), known->begin(), known->end());
      return;
    }
    const size_t begin = ids->size();
    encode_piece(piece, ids);
    cache_.keep(piece, std::span(*ids).subspan(begin));
  });
}

void Tokenizer::Encoder::encode_piece(std::string_view piece, std::vector<int32_t>* ids) {
  if (tokenizer_.vocabulary_.ignore_merges) {
    const auto whole = tokenizer_.whole_pieces_.find(piece);
    if (whole != tokenizer_.whole_pieces_.end()) {
      ids->push_back(whole->second);
      return;
    }
  }
  const auto begin = std::ssize(*ids);
  for (const char byte : piece) {
    ids->push_back(tokenizer_.byte_ids_[static_cast<unsigned char>(byte)]);
  }
  merger_.merge(ids, begin);
}

}  // namespace tapehead
