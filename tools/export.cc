// tapehead export: a run's model as a folder that Hugging Face's transformers loads.
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
#include "tapehead/tools/format.h"
#include "tapehead/tools/run_tokenizer.h"

namespace tapehead {

namespace {

struct ExportOptions {
  std::string run;
  std::string folder;
  std::string dtype;
};

void export_model(const ExportOptions& options) {
  const RunFolder run = {options.run};
  check<ValueError>(std::filesystem::exists(run.checkpoint()),
                    "[export] {} holds no model; `tapehead train` or `tapehead import` makes one", run.path);
  check_new_folder(options.folder);
  const LoadedModel loaded = load_model(run.checkpoint());
  const DType dtype = options.dtype.empty() ? loaded.model->dtype() : parse_dtype(options.dtype);
  check<ValueError>(dtype == DType::f32 || is_half(dtype),
                    "[export] --dtype {}: a model is written in f32, f16 or bf16", options.dtype);
  std::optional<Tokenizer> tokenizer;
  if (std::filesystem::exists(run.tokenizer())) {
    tokenizer = Tokenizer::load(run.tokenizer());
    check_tokenizer(run, loaded.state.tokenizer_hash, tokenizer->hash());
  }

  make_folder(options.folder);
  SpecialTokenIds tokens;
  if (tokenizer) {
    tokenizer->save(options.folder);
    // A tokenizer that begins no text lets one begin after the end of another.
    tokens = {.beginning_of_text = tokenizer->beginning_of_text().value_or(tokenizer->end_of_text()),
              .end_of_text = tokenizer->end_of_text()};
  }
  save_pretrained(options.folder, *loaded.model, dtype, tokens);
  fmt::print("exported the model of step {} to {}: {}, {} parameters in {}{}\n",
             format_count(loaded.state.progress.step), options.folder, loaded.model->config().architecture,
             format_count(loaded.model->parameter_count()), dtype,
             tokenizer ? ", its tokenizer" : "; no tokenizer");
}

}  // namespace

void add_export(Command program) {
  Command command =
      program.add_command("export", "Write a model as a folder for Hugging Face's transformers");
  const auto options = std::make_shared<ExportOptions>();
  command.add_option("RUN", options->run, "folder of the run").required();
  command.add_option("DIR", options->folder, "folder to write, new or empty").required();
  command.add_option("--dtype", options->dtype, "f32, f16 or bf16; the run's own, unless given");
  command.footer(
      "Example:\n"
      "  tapehead export runs/book models/book\n"
      "  python -c \"from transformers import pipeline; print(pipeline('text-generation', 'models/book')('In "
      "the'))\"");
  command.callback([=] { export_model(*options); });
}

}  // namespace tapehead
