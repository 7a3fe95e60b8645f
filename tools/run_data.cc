#include "tapehead/tools/run_data.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <utility>

#include "tapehead/core/byte_size.h"
#include "tapehead/core/error.h"
#include "tapehead/core/file.h"
#include "tapehead/core/json.h"
#include "tapehead/models/dataset_folder.h"
#include "tapehead/tools/data_progress.h"
#include "tapehead/tools/format.h"

namespace tapehead {

namespace {

namespace fs = std::filesystem;
using json = Json;

std::string absolute_or_empty(const std::string& path) {
  return path.empty() ? "" : fs::absolute(path).string();
}

// ---- Sources

struct WeighedSource {
  std::string path;
  std::optional<double> weight;
};

/// PATH=WEIGHT, unless there is a file of that whole name.
WeighedSource parse_source(const std::string& word) {
  const size_t sign = word.rfind('=');
  if (sign == std::string::npos || fs::exists(word)) return {word, {}};
  const char *begin = word.data() + sign + 1, *end = word.data() + word.size();
  double weight = 0;
  const auto [next, error] = std::from_chars(begin, end, weight);
  check<ValueError>(error == std::errc() && next == end && weight > 0 && std::isfinite(weight),
                    "[data] {}: \"{}\" is no weight; give a positive number, as in book.txt=2", word, begin);
  return {word.substr(0, sign), weight};
}

struct Sources {
  std::vector<std::string> paths;
  std::vector<double> weights;  // empty where none is given
};

Sources parse_sources(const DataOptions& options) {
  Sources sources;
  if (!options.text.empty()) {
    check<ValueError>(!fs::is_directory(options.text),
                      "[data] {} is a folder; name a file in it, or all of it with --data", options.text);
    sources.paths = {options.text};
    return sources;
  }
  bool weighed = false;
  for (const std::string& word : options.sources) {
    const WeighedSource source = parse_source(word);
    sources.paths.push_back(source.path);
    sources.weights.push_back(source.weight.value_or(1));
    weighed = weighed || source.weight;
  }
  if (!weighed) sources.weights.clear();
  return sources;
}

std::string name_of(const std::vector<std::string>& paths) {
  const std::string name = base_name(paths.front());
  return paths.size() == 1 ? name : fmt::format("{} and {} more", name, paths.size() - 1);
}

// ---- What is told

void tell_long_documents(const Dataset& data, int64_t context) {
  int64_t count = 0, longest = 0;
  for (const TokenStream& stream : data.streams()) {
    const DocumentTable* documents = stream.documents();
    for (int64_t i = 0; documents && i < documents->size(); ++i) {
      const DocumentPlace document = (*documents)[i];
      const int64_t inputs = document.end - 1 - document.begin;
      count += inputs > context;
      longest = std::max(longest, inputs);
    }
  }
  if (count == 0) return;
  fmt::print("data: documents longer than a context of {} tokens, which are split: {}, the longest of {}\n",
             format_count(context), format_count(count), format_count(longest));
}

// ---- data.json

struct DataFile {
  std::string name = {};
  std::string shards = {}, hash = {};  // a dataset_folder, and which
  std::vector<double> weights = {};
  std::string training_tokens = {}, held_out_tokens = {};  // or token files
};

void write_data_file(const RunFolder& run, const DataFile& file) {
  json object = {{"name", file.name}};
  if (file.shards.empty()) {
    object["training_tokens"] = file.training_tokens;
    object["held_out_tokens"] = file.held_out_tokens;
  } else {
    object["shards"] = file.shards;
    object["hash"] = file.hash;
    object["weights"] = file.weights;
  }
  write_file_atomically(run.data(), object.dump(2) + "\n");
}

DataFile read_data_file(const RunFolder& run) {
  check<ValueError>(fs::exists(run.data()), "[data] {} holds no run; `tapehead train` makes one", run.path);
  // A name is within the run's folder; a whole path stays what it is.
  const auto locate = [&](const std::string& name) {
    return name.empty() ? "" : (fs::path(run.path) / name).string();
  };
  try {
    const json object = parse_json_or_throw(read_file(run.data()));
    check<ValueError>(!object.contains("features"),
                      "[data] {} holds a head that `tapehead train-head` trained, and no model", run.path);
    DataFile file = {.name = object.at("name")};
    if (object.contains("shards")) {
      file.shards = locate(object.at("shards"));
      file.hash = object.at("hash");
      file.weights = object.at("weights").get<std::vector<double>>();
    } else {
      file.training_tokens = locate(object.at("training_tokens"));
      file.held_out_tokens = locate(object.at("held_out_tokens"));
    }
    return file;
  } catch (const json::exception&) {
    fail<ValueError>("[data] {} is damaged; remove it, and `tapehead train` makes it anew", run.data());
  }
}

// ---- Preparing

/// Keeps a copy of the tokenizer that token files were made with.
void adopt_token_files(const RunFolder& run, const DataOptions& options) {
  make_folder(run.path);
  if (!options.tokenizer.empty()) Tokenizer::load(options.tokenizer).save(run.tokenizer());
  write_data_file(run, {.name = name_of({options.tokens}),
                        .training_tokens = absolute_or_empty(options.tokens),
                        .held_out_tokens = absolute_or_empty(options.held_out_tokens)});
}

/// Whether the tokens were there already.
bool tokenize_sources(const RunFolder& run, const DataOptions& options) {
  const Sources sources = parse_sources(options);
  const std::string folder = options.shards.empty() ? run.tokens() : options.shards;
  ProgressLine line;
  const DatasetFolder made =
      prepare_dataset(folder,
                      {.sources = sources.paths,
                       .tokenizer = options.tokenizer,
                       .vocab_size = options.vocab_size,
                       .documents = {.held_out = options.held_out,
                                     .split_seed = static_cast<uint64_t>(options.split_seed),
                                     .skip_bad_lines = options.skip_bad_lines},
                       .shard_bytes = parse_size(options.shard_size)},
                      sources.weights, tell_on(line));
  made.tokenizer.save(run.tokenizer());
  write_data_file(run, {.name = name_of(sources.paths),
                        .shards = options.shards.empty() ? base_name(folder) : absolute_or_empty(folder),
                        .hash = made.hash,
                        .weights = sources.weights});
  return made.reused;
}

}  // namespace

RunData prepare_data(const RunFolder& run, const DataOptions& options, int64_t context) {
  bool reused = false;
  if (options.tokens.empty()) {
    reused = tokenize_sources(run, options);
  } else {
    adopt_token_files(run, options);
  }
  RunData data = open_data(run);
  fmt::print("data: {} tokens to train on, {} held out, a vocabulary of {}{}\n",
             format_count(data.training.size()), data.held_out ? format_count(data.held_out->size()) : "none",
             format_count(data.training.vocab_size()),
             reused ? " (there already: tokenizer and encoding skipped)" : "");
  tell_long_documents(data.training, context);
  std::fflush(stdout);
  return data;
}

void check_data(const RunFolder& run, const DataOptions& options) {
  const Sources sources = parse_sources(options);
  if (sources.paths.empty()) return;
  const DataFile file = read_data_file(run);
  check<ValueError>(!file.shards.empty(),
                    "[data] {} was made from token files, so {} cannot be held against them; leave it out",
                    run.path, sources.paths.front());
  check_sources(file.shards, sources.paths);
}

RunData open_data(const RunFolder& run) {
  const DataFile file = read_data_file(run);
  if (!file.shards.empty()) {
    DatasetFolder made = open_dataset(file.shards, file.weights);
    check<ValueError>(
        made.hash == file.hash,
        "[data] {} was made from other tokens than {} holds by now; name its sources anew for a new run",
        run.path, file.shards);
    return {.name = file.name,
            .training = std::move(made.training),
            .held_out = std::move(made.held_out),
            .tokenizer = std::move(made.tokenizer)};
  }
  std::optional<Tokenizer> tokenizer;
  if (fs::exists(run.tokenizer())) tokenizer = Tokenizer::load(run.tokenizer());
  const std::optional<int64_t> vocab_size = tokenizer ? std::optional(tokenizer->vocab_size()) : std::nullopt;
  const std::string hash = tokenizer ? tokenizer->hash() : "";
  std::optional<Dataset> held_out;
  if (!file.held_out_tokens.empty()) held_out = TokenFile::open(file.held_out_tokens, vocab_size, hash);
  return {.name = file.name,
          .training = TokenFile::open(file.training_tokens, vocab_size, hash),
          .held_out = std::move(held_out),
          .tokenizer = std::move(tokenizer)};
}

}  // namespace tapehead
