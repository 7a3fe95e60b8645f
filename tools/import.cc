// tapehead import: a run's folder from a model in a folder of Hugging Face's transformers.
#include <fmt/core.h>

#include <filesystem>
#include <memory>
#include <optional>

#include "tapehead/core/error.h"
#include "tapehead/core/file.h"
#include "tapehead/models/checkpoint.h"
#include "tapehead/models/hugging_face.h"
#include "tapehead/models/tokenizer.h"
#include "tapehead/tools/commands.h"
#include "tapehead/tools/compute_options.h"
#include "tapehead/tools/format.h"
#include "tapehead/tools/progress_line.h"
#include "tapehead/tools/run_folder.h"

namespace tapehead {

namespace {

struct ImportOptions {
  std::string folder;
  std::string out;
  std::string dtype = "f32";
  std::string tokenizer;
  bool no_tokenizer = false;
};

/// The tokenizer that belongs to the model, if one is wanted.
std::optional<Tokenizer> read_tokenizer(const ImportOptions& options, const ModelConfig& model) {
  if (options.no_tokenizer) return std::nullopt;
  const std::string folder = options.tokenizer.empty() ? options.folder : options.tokenizer;
  Tokenizer tokenizer = Tokenizer::load(folder);
  check<ValueError>(
      tokenizer.vocab_size() <= model.vocab_size,
      "[import] the tokenizer in {} has {} tokens, but the model knows {}; name the model's own with "
      "--tokenizer FOLDER",
      folder, tokenizer.vocab_size(), model.vocab_size);
  return tokenizer;
}

void import_model(const ImportOptions& options) {
  const RunFolder run = {options.out};
  check<ValueError>(options.dtype == "f32" || options.dtype == "bf16",
                    "[import] --dtype {}: a run's model is in f32 or in bf16", options.dtype);
  check_new_folder(run.path);
  const DType dtype = parse_dtype(options.dtype);
  ProgressLine progress;
  const std::unique_ptr<LanguageModel> model =
      load_pretrained(options.folder, dtype, {}, [&](int64_t done, int64_t all) {
        if (progress.due()) progress.show(fmt::format("reading  {} of {} tensors", done, all));
      });
  const std::optional<Tokenizer> tokenizer = read_tokenizer(options, model->config());

  make_folder(run.path);
  if (tokenizer) tokenizer->save(run.tokenizer());
  TrainState state;
  state.config.model = model->config();
  state.config.dtype = dtype;
  state.config.tokenizer = tokenizer ? "tokenizer" : "";
  state.tokenizer_hash = tokenizer ? tokenizer->hash() : "";
  progress.clear();
  save_checkpoint(run.checkpoint(), state, *model, nullptr);
  fmt::print("imported {}: {}, {} parameters in {}, contexts of {} tokens, a vocabulary of {}\n",
             options.folder, model->config().architecture, format_count(model->parameter_count()), dtype,
             format_count(model->config().n_positions), format_count(model->config().vocab_size));
  fmt::print("written to {}: the model{}\n", run.path, tokenizer ? ", its tokenizer" : "");
}

}  // namespace

void add_import(Command program) {
  Command command =
      program.add_command("import", "Take over a model from a folder of Hugging Face's transformers");
  const auto options = std::make_shared<ImportOptions>();
  command.show_defaults_from_here();
  command.add_option("DIR", options->folder, "folder with config.json, model.safetensors and a tokenizer")
      .required();
  command.add_option("--out", options->out, "folder of the run").type_name("FOLDER").required();
  command.add_option("--dtype", options->dtype,
                     "f32, which holds every number of f16 and bf16 files, or bf16");
  Option tokenizer =
      command.add_option("--tokenizer", options->tokenizer, "take the tokenizer from this folder")
          .type_name("FOLDER");
  command.add_flag("--no-tokenizer", options->no_tokenizer, "do without: the run is for token files")
      .excludes(tokenizer);
  add_threads_option(command);
  command.footer(
      "Example:\n"
      "  tapehead import models/gpt2 --out runs/gpt2\n"
      "  tapehead generate runs/gpt2 --prompt \"Once upon a time\"");
  command.callback([=] { import_model(*options); });
}

}  // namespace tapehead
