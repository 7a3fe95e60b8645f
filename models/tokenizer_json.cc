#include "tapehead/models/tokenizer_json.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "tapehead/core/error.h"
#include "tapehead/models/byte_characters.h"
#include "tapehead/models/token_list.h"

namespace tapehead {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

#define CONTRACTIONS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define BEFORE_NUMBERS R"(|[^\r\n\p{L}\p{N}]?\p{L}+|)"
#define AFTER_NUMBERS R"(| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"
constexpr std::string_view kLlama3 = CONTRACTIONS BEFORE_NUMBERS R"(\p{N}{1,3})" AFTER_NUMBERS;
constexpr std::string_view kQwen2 = CONTRACTIONS BEFORE_NUMBERS R"(\p{N})" AFTER_NUMBERS;
#undef CONTRACTIONS
#undef BEFORE_NUMBERS
#undef AFTER_NUMBERS

// Whether at most so many arrays and objects stand in each other.
bool nests_at_most(int depth, const json& value) {
  return !value.is_structured() || (depth > 0 && std::ranges::all_of(value, [&](const json& inner) {
                                      return nests_at_most(depth - 1, inner);
                                    }));
}

// A value in the file, and its place there for errors: "model.merges[3]".
class Node {
 public:
  Node(const json& value, std::string place) : value_(value), place_(std::move(place)) {}

  const json& value() const { return value_; }
  const std::string& place() const { return place_; }

  // A member of an object; null if it is not there.
  Node operator[](const char* key) const {
    static const json null;
    require(value_.is_object(), "must be an object");
    const auto member = value_.find(key);
    return {member == value_.end() ? null : *member,
            place_.ends_with(": ") ? place_ + key : fmt::format("{}.{}", place_, key)};
  }

  std::vector<Node> elements() const {
    require(value_.is_array(), "must be an array");
    std::vector<Node> nodes;
    for (size_t i = 0; i < value_.size(); ++i)
      nodes.emplace_back(value_[i], fmt::format("{}[{}]", place_, i));
    return nodes;
  }

  const std::string& string() const {
    require(value_.is_string(), "must be a string");
    return value_.get_ref<const std::string&>();
  }

  // What is absent or null is `otherwise`.
  bool flag(bool otherwise) const {
    require(value_.is_boolean() || value_.is_null(), "must be true or false");
    return value_.is_null() ? otherwise : value_.get<bool>();
  }

  // The member "type".
  std::string type() const { return (*this)["type"].string(); }

  // Looks at the value only where the rule is broken: it may be the whole file.
  void require(bool fits, std::string_view rule) const {
    if (!fits) fail<ValueError>("[tokenizer] {} {}, but is {}", place_, rule, shown());
  }

  // The value, cut where it is long.
  std::string shown() const {
    constexpr int kDeep = 20;  // the library writes by recursion
    if (!nests_at_most(kDeep, value_)) return "too deep to show";
    const std::string text = value_.dump(-1, ' ', false, json::error_handler_t::replace);
    return text.size() > 200 ? text.substr(0, 200) + "…" : text;
  }

  [[noreturn]] void refuse(std::string_view known) const {
    fail<ValueError>("[tokenizer] {} is {}, but only {} can be read", place_, shown(), known);
  }

 private:
  const json& value_;
  std::string place_;
};

// ---- What is around the model

bool read_normalizer(const Node& node) {
  if (node.value().is_null()) return false;
  if (node.type() != "NFC") node.refuse("null and NFC");
  return true;
}

// A ByteLevel step. Whether it cuts by GPT-2's rule is its use_regex.
bool is_byte_level(const Node& node, bool cuts) {
  return node.type() == "ByteLevel" && !node["add_prefix_space"].flag(true) &&
         node["use_regex"].flag(true) == cuts;
}

SplittingRule read_rule(const Node& node) {
  constexpr std::string_view kKnown =
      "ByteLevel without add_prefix_space, alone (GPT-2), after Digits with individual_digits (SmolLM), or "
      "without "
      "use_regex after the Split of Llama 3 or Qwen 2";
  if (node.value().is_null()) node.refuse(kKnown);
  const std::vector<Node> steps =
      node.type() == "Sequence" ? node["pretokenizers"].elements() : std::vector<Node>{node};
  if (steps.size() == 1 && is_byte_level(steps[0], true)) return SplittingRule::gpt2;
  if (steps.size() != 2) node.refuse(kKnown);
  const Node& first = steps[0];
  if (first.type() == "Digits" && first["individual_digits"].flag(false) && is_byte_level(steps[1], true)) {
    return SplittingRule::smollm;
  }
  if (first.type() == "Split" && first["behavior"].string() == "Isolated" && !first["invert"].flag(false) &&
      !first["pattern"]["Regex"].value().is_null() && is_byte_level(steps[1], false)) {
    const std::string& rule = first["pattern"]["Regex"].string();
    if (rule == kLlama3) return SplittingRule::llama3;
    if (rule == kQwen2) return SplittingRule::qwen2;
  }
  node.refuse(kKnown);
}

// What a template puts before a text: one special token or none. ByteLevel changes only offsets.
std::optional<int32_t> read_post_processor(const Node& node, int64_t vocab_size) {
  constexpr std::string_view kKnown =
      "null, ByteLevel, and a TemplateProcessing with at most one special token, which comes first";
  if (node.value().is_null() || node.type() == "ByteLevel") return std::nullopt;
  if (node.type() == "Sequence") {
    std::optional<int32_t> first;
    for (const Node& step : node["processors"].elements()) {
      const std::optional<int32_t> id = read_post_processor(step, vocab_size);
      if (first && id) node.refuse(kKnown);
      if (id) first = id;
    }
    return first;
  }
  if (node.type() != "TemplateProcessing") node.refuse(kKnown);
  const std::vector<Node> parts = node["single"].elements();
  const auto is = [&](size_t part, const char* kind) { return !parts[part][kind].value().is_null(); };
  if (parts.size() == 1 && is(0, "Sequence")) return std::nullopt;
  if (parts.size() != 2 || !is(0, "SpecialToken") || !is(1, "Sequence")) node.refuse(kKnown);
  const std::string& name = parts[0]["SpecialToken"]["id"].string();
  const std::vector<Node> ids = node["special_tokens"][name.c_str()]["ids"].elements();
  if (ids.size() != 1) node.refuse(kKnown);
  const json& id = ids[0].value();
  ids[0].require(id.is_number_integer() && 0 <= id.get<int64_t>() && id.get<int64_t>() < vocab_size,
                 fmt::format("must be one of {} tokens' ids, 0 to {}", vocab_size, vocab_size - 1));
  return id.get<int32_t>();
}

// ---- The model

void check_model(const Node& model) {
  check<ValueError>(model.value().is_object(), "[tokenizer] {} is missing: there is no BPE model to read",
                    model.place());
  // The first files had no type.
  if (!model["type"].value().is_null() && model.type() != "BPE") model["type"].refuse("BPE");
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    const Node node = model[key];
    if (!node.value().is_null() && !node.string().empty()) node.refuse("null");
  }
  if (model["byte_fallback"].flag(false)) model["byte_fallback"].refuse("false");
  const json& dropout = model["dropout"].value();
  if (!dropout.is_null() && dropout != 0) model["dropout"].refuse("null");
}

std::vector<AddedToken> read_added(const Node& node) {
  std::vector<AddedToken> added;
  std::set<std::string_view> contents;
  if (node.value().is_null()) return added;
  for (const Node& element : node.elements()) {
    // With these a token swallows white space around it or is skipped inside a word, and decoding could not
    // give the text back.
    for (const char* key : {"lstrip", "rstrip", "single_word"}) {
      if (element[key].flag(false)) element[key].refuse("false");
    }
    const std::string& content = element["content"].string();
    check<ValueError>(!content.empty(), "[tokenizer] {}.content is empty", element.place());
    check<ValueError>(contents.insert(content).second, "[tokenizer] {}: \"{}\" is listed twice",
                      element.place(), content);
    const bool special = element["special"].flag(false);
    // The id is checked where it meets the others.
    added.push_back({-1, content, special, element["normalized"].flag(!special)});
  }
  return added;
}

// The ids of the model's tokens and of the added ones, which the model may have, too.
TokenIds read_tokens(const Node& root, Vocabulary* vocabulary) {
  const Node vocab = root["model"]["vocab"];
  vocab.require(vocab.value().is_object(), "must be an object from token to id");
  std::vector<ListedToken> listed;
  for (const auto& [token, id] : vocab.value().items()) listed.push_back({token, &id});
  vocabulary->model_size = std::ssize(listed);
  enumerate_tokens(listed, vocab.place());

  const Node added = root["added_tokens"];
  vocabulary->added = read_added(added);
  for (size_t i = 0; i < vocabulary->added.size(); ++i) {
    const Node element(added.value()[i], fmt::format("{}[{}]", added.place(), i));
    const std::string& content = vocabulary->added[i].content;
    const json& id = element["id"].value();
    const auto same = vocab.value().find(content);
    if (same == vocab.value().end()) {
      listed.push_back({content, &id});
    } else {
      if (*same != id) {
        fail<ValueError>("[tokenizer] {}.id is {}, but {} has \"{}\" with id {}", element.place(),
                         element["id"].shown(), vocab.place(), content, Node(*same, "").shown());
      }
    }
  }
  TokenIds ids = enumerate_tokens(listed, fmt::format("{} and model.vocab", added.place()));
  for (AddedToken& token : vocabulary->added) token.id = ids.at(token.content);
  return ids;
}

void read_merges(const Node& node, const std::string& tokens_place, const TokenIds& ids,
                 Vocabulary* vocabulary) {
  node.require(node.value().is_array(), "must be an array");
  const auto place = [&](size_t rank) { return fmt::format("{}[{}]", node.place(), rank); };
  std::vector<ListedMerge> listed;
  for (const json& merge : node.value()) {
    std::optional<ListedMerge> pair;
    if (merge.is_string()) {
      pair = split_merge(merge.get_ref<const std::string&>());
    } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
      pair = {merge[0].get_ref<const std::string&>(), merge[1].get_ref<const std::string&>()};
    }
    if (!pair) {
      fail<ValueError>(
          "[tokenizer] {} is {}, but must be two tokens: \"left right\" or [\"left\", \"right\"]",
          place(listed.size()), Node(merge, "").shown());
    }
    listed.push_back(*pair);
  }
  resolve_merges(listed, ids, place, tokens_place, vocabulary);
}

// ---- Writing

ordered_json byte_level(bool use_regex) {
  return {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", use_regex}};
}

ordered_json pre_tokenizer_of(SplittingRule rule) {
  const auto sequence = [](ordered_json first, bool use_regex) {
    return ordered_json{{"type", "Sequence"},
                        {"pretokenizers", ordered_json::array({std::move(first), byte_level(use_regex)})}};
  };
  const auto split = [](std::string_view regex) {
    return ordered_json{
        {"type", "Split"}, {"pattern", {{"Regex", regex}}}, {"behavior", "Isolated"}, {"invert", false}};
  };
  switch (rule) {
    case SplittingRule::gpt2: return byte_level(true);
    case SplittingRule::smollm: return sequence({{"type", "Digits"}, {"individual_digits", true}}, true);
    case SplittingRule::llama3: return sequence(split(kLlama3), false);
    case SplittingRule::qwen2: return sequence(split(kQwen2), false);
  }
  fail<ValueError>("[tokenizer] splitting rule {} is none", static_cast<int>(rule));
}

}  // namespace

Vocabulary parse_tokenizer_json(const std::string& text, const std::string& path) {
  json document;
  try {
    document = json::parse(text);
  } catch (const json::exception& error) {
    fail<ValueError>("[tokenizer] {} is not JSON: {}", path, error.what());
  }
  check<ValueError>(document.is_object(), "[tokenizer] {} must be one JSON object, but is {}", path,
                    document.type_name());
  const Node root(document, path + ": ");
  const Node model = root["model"];
  check_model(model);
  Vocabulary vocabulary;
  const TokenIds ids = read_tokens(root, &vocabulary);
  vocabulary.tokens = token_bytes(ids, vocabulary.added, model["vocab"].place());
  read_merges(model["merges"], model["vocab"].place(), ids, &vocabulary);
  vocabulary.ignore_merges = model["ignore_merges"].flag(false);
  vocabulary.nfc = read_normalizer(root["normalizer"]);
  vocabulary.rule = read_rule(root["pre_tokenizer"]);
  const Node post_processor = root["post_processor"];
  vocabulary.beginning_of_text = read_post_processor(post_processor, std::ssize(vocabulary.tokens));
  if (!post_processor.value().is_null()) vocabulary.post_processor = post_processor.value().dump();
  const Node decoder = root["decoder"];
  if (!decoder.value().is_null() && decoder.type() != "ByteLevel") decoder.refuse("null and ByteLevel");
  return vocabulary;
}

std::string to_tokenizer_json(const Vocabulary& vocabulary) {
  std::vector<std::string> characters;
  for (const std::string& bytes : vocabulary.tokens) characters.push_back(to_characters(bytes));
  ordered_json added = ordered_json::array();
  for (const AddedToken& token : vocabulary.added) {
    characters[token.id] = token.content;
    added.push_back({{"id", token.id},
                     {"content", token.content},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", token.normalized},
                     {"special", token.special}});
  }
  // As text, because each insertion into an ordered object looks through all before it.
  std::string vocab;
  for (int64_t id = 0; id < vocabulary.model_size; ++id) {
    vocab += fmt::format("{}{}:{}", id == 0 ? "" : ",", json(characters[id]).dump(), id);
  }
  ordered_json merges = ordered_json::array();
  for (const auto& [left, right] : vocabulary.merges) {
    merges.push_back(fmt::format("{} {}", characters[left], characters[right]));
  }
  const ordered_json normalizer = vocabulary.nfc ? ordered_json{{"type", "NFC"}} : ordered_json();
  const std::string& post_processor = vocabulary.post_processor;
  return fmt::format(
      "{{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,\"added_tokens\":{},\n\"normalizer\":{},\n"
      "\"pre_tokenizer\":{},\n\"post_processor\":{},\n\"decoder\":{},\n"
      "\"model\":{{\"type\":\"BPE\",\"dropout\":null,\"unk_token\":null,\"continuing_subword_prefix\":null,"
      "\"end_of_word_suffix\":null,\"fuse_unk\":false,\"byte_fallback\":false,\"ignore_merges\":{},\n"
      "\"vocab\":{{{}}},\n\"merges\":{}}}}}\n",
      added.dump(), normalizer.dump(), pre_tokenizer_of(vocabulary.rule).dump(),
      post_processor.empty() ? "null" : post_processor, byte_level(true).dump(), vocabulary.ignore_merges,
      vocab, merges.dump());
}

}  // namespace tapehead
