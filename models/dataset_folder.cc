#include "tapehead/models/dataset_folder.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "tapehead/core/error.h"
#include "tapehead/core/file.h"
#include "tapehead/core/folder_lock.h"
#include "tapehead/core/json.h"
#include "tapehead/models/content_hash.h"
#include "tapehead/models/document_encoder.h"
#include "tapehead/models/stream_writer.h"
#include "tapehead/models/tokenizer_match.h"

namespace tapehead {
namespace {

namespace fs = std::filesystem;
using json = Json;

constexpr int64_t kVersion = 1;

std::string manifest_path(const std::string& folder) { return folder + "/manifest.json"; }
std::string tokenizer_path(const std::string& folder) { return folder + "/tokenizer"; }

void note(const DatasetProgress& progress, const std::string& line) {
  if (progress.on_note) progress.on_note(line);
}

// ---- What tokens are made from

json describe(const SourceFiles& source, const std::function<void(int64_t)>& on_read) {
  ContentHash hash;
  for (const std::string& file : source.files) {
    hash.add(file == source.path ? base_name(file) : fs::path(file).lexically_relative(source.path).string());
    hash.add_file(file, on_read);
  }
  return {{"name", base_name(source.path)},
          {"files", source.files.size()},
          {"bytes", source.bytes},
          {"hash", hash.digest()}};
}

json describe(const std::vector<SourceFiles>& sources, const DatasetProgress& progress) {
  int64_t done = 0, bytes = 0;
  for (const SourceFiles& source : sources) bytes += source.bytes;
  json list = json::array();
  for (const SourceFiles& source : sources) {
    list.push_back(describe(source, [&](int64_t read) {
      done += read;
      if (progress.on_hash) progress.on_hash(done, bytes);
    }));
  }
  return list;
}

// One and the same tokenizer, whatever files it was read from.
std::string describe_given(const Tokenizer& tokenizer) { return "given, with the hash " + tokenizer.hash(); }

std::string describe_tokenizer(const DatasetRecipe& recipe) {
  if (!recipe.tokenizer.empty()) return describe_given(Tokenizer::load(recipe.tokenizer));
  return fmt::format("trained, for {} tokens", recipe.vocab_size);
}

std::vector<SourceFiles> find_sources(const std::vector<std::string>& paths) {
  std::vector<SourceFiles> sources;
  for (const std::string& path : paths) sources.push_back(find_files(path));
  return sources;
}

json describe(const DatasetRecipe& recipe, const std::vector<SourceFiles>& sources,
              const DatasetProgress& progress) {
  return {{"sources", describe(sources, progress)},
          {"tokenizer", describe_tokenizer(recipe)},
          {"held_out", recipe.documents.held_out},
          {"split_seed", recipe.documents.split_seed},
          {"skip_bad_lines", recipe.documents.skip_bad_lines},
          {"shard_bytes", recipe.shard_bytes}};
}

// Why what was made from `before` is not what would be made from `now`; empty if it is.
std::string difference(const json& before, const json& now) {
  const json &old_sources = before.at("sources"), &new_sources = now.at("sources");
  for (size_t k = 0; k < std::min(old_sources.size(), new_sources.size()); ++k) {
    const std::string old_name = old_sources[k].at("name"), new_name = new_sources[k].at("name");
    if (old_name != new_name) return fmt::format("{} stands in the place of {}", new_name, old_name);
    if (old_sources[k] != new_sources[k]) return fmt::format("{} has changed", new_name);
  }
  if (old_sources.size() != new_sources.size())
    return fmt::format("there are {} sources, and were {}", new_sources.size(), old_sources.size());
  for (const auto& [key, value] : now.items()) {
    if (!before.contains(key) || before.at(key) != value)
      return fmt::format("{} is {}, and was {}", key, value.dump(), before.value(key, json()).dump());
  }
  return "";
}

// ---- The manifest

struct Manifest {
  json made_from;
  std::string hash;
  std::vector<StreamFiles> training, held_out;  // by source; of held_out only those that have any
};

json to_json(const std::vector<StreamFiles>& streams) {
  json list = json::array();
  for (const StreamFiles& stream : streams)
    list.push_back({{"tokens", stream.tokens}, {"shards", stream.shards}, {"documents", stream.documents}});
  return list;
}

std::vector<StreamFiles> parse_streams(const json& list) {
  std::vector<StreamFiles> streams;
  for (const json& stream : list) {
    streams.push_back(
        {.tokens = stream.at("tokens"), .shards = stream.at("shards"), .documents = stream.at("documents")});
  }
  return streams;
}

std::string read_manifest_file(const std::string& folder) {
  const std::string path = manifest_path(folder);
  check<ValueError>(fs::exists(path), "[data] {} holds no tokens: it has no manifest.json", folder);
  return read_file(path);
}

Manifest parse_manifest(const std::string& folder, const std::string& text) {
  const std::string path = manifest_path(folder);
  try {
    const json file = parse_json_or_throw(text);
    check<ValueError>(file.at("version") == kVersion,
                      "[data] {} has version {}, and this program reads version {}", path,
                      file.at("version").dump(), kVersion);
    return {.made_from = file.at("made_from"),
            .hash = file.at("hash"),
            .training = parse_streams(file.at("training")),
            .held_out = parse_streams(file.at("held_out"))};
  } catch (const json::exception& error) {
    fail<ValueError>("[data] {} is damaged: {}", path, error.what());
  }
}

Manifest read_manifest(const std::string& folder) {
  return parse_manifest(folder, read_manifest_file(folder));
}

std::string hash_of(const json& made_from) {
  ContentHash hash;
  hash.add(made_from.dump());
  return hash.digest();
}

// ---- Making tokens

bool is_ours(const std::string& name) {
  return name.starts_with("training-") || name.starts_with("held_out-") || name.starts_with("manifest.json");
}

// The manifest first, temporary files of an interrupted call, too. Whether there was anything.
bool remove_tokens(const std::string& folder) {
  bool any = fs::remove(manifest_path(folder));
  std::vector<fs::path> ours;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (is_ours(entry.path().filename().string())) ours.push_back(entry.path());
  }
  for (const fs::path& path : ours) any = fs::remove(path) || any;
  return any;
}

// Text to train a tokenizer on.
std::string sample_text(const DatasetRecipe& recipe, const std::vector<SourceFiles>& sources,
                        const DatasetProgress& progress) {
  int64_t bytes = 0;
  for (const SourceFiles& source : sources) bytes += source.bytes;
  const double share = std::min(static_cast<double>(kTokenizerSample) / static_cast<double>(bytes), 1.0);
  std::string text;
  int64_t seen = 0;
  for (const SourceFiles& source : sources) {
    read_documents(source, recipe.documents, [&](const DocumentPart& part) {
      if (part.held_out) return;
      seen += std::ssize(part.text);
      // As much as its share of all that was seen, so that the sample is of everywhere.
      if (static_cast<double>(text.size() + part.text.size()) > share * static_cast<double>(seen) &&
          share < 1)
        return;
      text += part.text;
      if (part.ends) text += '\n';
    });
  }
  if (share < 1) {
    note(progress, fmt::format("tokenizer: trained on {} MiB, taken from all of {} MiB", text.size() >> 20,
                               bytes >> 20));
  }
  return text;
}

void tell_counts(const DocumentCounts& counts, const DatasetProgress& progress) {
  if (counts.empty > 0) note(progress, fmt::format("data: {} empty documents passed over", counts.empty));
  if (counts.bad_lines > 0) {
    note(progress, fmt::format("data: {} bad lines passed over, the first {}", counts.bad_lines,
                               counts.first_bad_line));
  }
}

void tell_left_out(const SourceFiles& source, const DatasetProgress& progress) {
  if (source.left_out.empty()) return;
  constexpr size_t kNamed = 5;
  std::string names;
  for (size_t i = 0; i < std::min(source.left_out.size(), kNamed); ++i)
    names += (i > 0 ? ", " : "") + source.left_out[i];
  if (source.left_out.size() > kNamed) names += fmt::format(" and {} more", source.left_out.size() - kNamed);
  note(progress, fmt::format("data: left out, since empty or binary: {}", names));
}

Manifest make_tokens(const std::string& folder, const DatasetRecipe& recipe,
                     const std::vector<SourceFiles>& sources, const DatasetProgress& progress) {
  for (const SourceFiles& source : sources) tell_left_out(source, progress);
  const Tokenizer tokenizer =
      recipe.tokenizer.empty()
          ? Tokenizer::train(sample_text(recipe, sources, progress), recipe.vocab_size, progress.on_merge)
          : Tokenizer::load(recipe.tokenizer);
  tokenizer.save(tokenizer_path(folder));

  int64_t done = 0, bytes = 0;
  for (const SourceFiles& source : sources) bytes += source.bytes;
  Manifest manifest;
  DocumentCounts counts;
  for (size_t k = 0; k < sources.size(); ++k) {
    const auto writer = [&](const char* part) {
      return StreamWriter(folder, fmt::format("{}-{}", part, k), tokenizer, recipe.shard_bytes,
                          !sources[k].one_text());
    };
    StreamWriter training = writer("training"), held_out = writer("held_out");
    DocumentEncoder encoder(tokenizer, &training, &held_out);
    counts += read_documents(
        sources[k], recipe.documents, [&](const DocumentPart& part) { encoder.take(part); },
        [&](int64_t read) {
          done += read;
          if (progress.on_encode) progress.on_encode(done, bytes);
        });
    encoder.finish();
    manifest.training.push_back(training.finish());
    if (held_out.size() > 0) manifest.held_out.push_back(held_out.finish());
  }
  tell_counts(counts, progress);
  check<ValueError>(recipe.documents.held_out == 0 || !manifest.held_out.empty(),
                    "[data] nothing is held out of {} documents; give more of them, another --split-seed, or "
                    "--held-out 0",
                    counts.documents);
  return manifest;
}

// What the tokens in `folder` were made from. A tokenizer that is given now and is theirs makes the same ones,
// even if it was trained then.
json made_from_by_now(const std::string& folder, json before, const json& now) {
  json& was = before["tokenizer"];
  const json& is = now.at("tokenizer");
  if (was != is && is == describe_given(Tokenizer::load(tokenizer_path(folder)))) was = is;
  return before;
}

/// The folder's tokens if they were made from `made_from`; otherwise nothing, and why.
std::optional<DatasetFolder> open_if_made_from(const json& made_from, const std::string& folder,
                                               const std::vector<double>& weights, std::string* why_not) {
  *why_not = "they were not finished";
  if (!fs::exists(manifest_path(folder))) return std::nullopt;
  try {
    const Manifest manifest = read_manifest(folder);
    *why_not = difference(made_from_by_now(folder, manifest.made_from, made_from), made_from);
    if (!why_not->empty()) return std::nullopt;
    DatasetFolder opened = open_dataset(folder, weights);
    if (opened.hash == manifest.hash) return opened;
    *why_not = "another process made other ones meanwhile";
  } catch (const json::exception& error) {
    *why_not = fmt::format("{} is damaged: {}", manifest_path(folder), error.what());
  } catch (const ValueError& error) {
    *why_not = error.what();
  }
  return std::nullopt;
}

}  // namespace

DatasetFolder open_dataset(const std::string& folder, std::vector<double> weights) {
  const std::string file = read_manifest_file(folder);
  const Manifest manifest = parse_manifest(folder, file);
  Tokenizer tokenizer = Tokenizer::load(tokenizer_path(folder));
  const std::string hash = tokenizer.hash();
  const auto open = [&](const std::vector<StreamFiles>& list) {
    std::vector<TokenStream> streams;
    for (const StreamFiles& files : list) {
      streams.push_back(open_stream(folder, files));
      check<ValueError>(streams.back().vocab_size() == tokenizer.vocab_size(),
                        "[data] {} holds tokens of a vocabulary of {}, but its tokenizer has {}", folder,
                        streams.back().vocab_size(), tokenizer.vocab_size());
      check_same_tokenizer({"tokens in " + folder, streams.back().tokenizer_hash()},
                           {tokenizer_path(folder), hash},
                           "put the tokenizer back, or remove the folder and make the tokens again");
    }
    return streams;
  };
  Dataset training(open(manifest.training), std::move(weights));
  std::optional<Dataset> held_out;
  if (!manifest.held_out.empty()) held_out.emplace(open(manifest.held_out));
  // It is removed before anything else, so what was opened while it stood belongs together.
  check<ValueError>(fs::exists(manifest_path(folder)) && read_file(manifest_path(folder)) == file,
                    "[data] the tokens in {} were made again while they were read; try again", folder);
  return {.hash = manifest.hash,
          .reused = true,
          .tokenizer = std::move(tokenizer),
          .training = std::move(training),
          .held_out = std::move(held_out)};
}

DatasetFolder prepare_dataset(const std::string& folder, const DatasetRecipe& recipe,
                              std::vector<double> weights, const DatasetProgress& progress) {
  const std::vector<SourceFiles> sources = find_sources(recipe.sources);
  const json made_from = describe(recipe, sources, progress);
  std::string why_not;
  // What is there already takes no lock, so that a folder that others own will do.
  if (auto there = open_if_made_from(made_from, folder, weights, &why_not)) return std::move(*there);
  const FolderLock lock(folder, [&](const std::string& process) {
    note(progress,
         fmt::format("data: process {} is at work in {}: waiting until it is done", process, folder));
  });
  // By now.
  if (auto there = open_if_made_from(made_from, folder, weights, &why_not)) return std::move(*there);
  if (remove_tokens(folder)) note(progress, fmt::format("data: tokens are made again: {}", why_not));
  Manifest made;
  try {
    made = make_tokens(folder, recipe, sources, progress);
  } catch (...) {
    remove_tokens(folder);
    throw;
  }
  const json manifest = {{"version", kVersion},
                         {"hash", hash_of(made_from)},
                         {"made_from", made_from},
                         {"training", to_json(made.training)},
                         {"held_out", to_json(made.held_out)}};
  write_file_atomically(manifest_path(folder), manifest.dump(2) + "\n");
  DatasetFolder opened = open_dataset(folder, std::move(weights));
  opened.reused = false;
  return opened;
}

void check_sources(const std::string& folder, const std::vector<std::string>& sources) {
  const json before = read_manifest(folder).made_from;
  json now = before;
  now["sources"] = describe(find_sources(sources), DatasetProgress());
  const std::string different = difference(before, now);
  check<ValueError>(different.empty(),
                    "[data] {} was made from other sources: {}; give another folder, or remove this one",
                    folder, different);
}

}  // namespace tapehead
