// tapehead eval: the loss of a trained model on text that it has not seen.
#include <fmt/core.h>

#include <filesystem>
#include <memory>
#include <optional>

#include "tapehead/core/error.h"
#include "tapehead/models/checkpoint.h"
#include "tapehead/models/evaluation.h"
#include "tapehead/models/target_bytes.h"
#include "tapehead/models/text.h"
#include "tapehead/tools/commands.h"
#include "tapehead/tools/compute_options.h"
#include "tapehead/tools/format.h"
#include "tapehead/tools/run_data.h"
#include "tapehead/tools/run_tokenizer.h"

namespace tapehead {

namespace {

struct EvalOptions {
  std::string run;
  std::string text;
  int64_t batch_size = 16;
  ComputeOptions compute;
};

void evaluate_run(const EvalOptions& options) {
  const DeviceGuard device = options.compute.use_device();
  const RunFolder run = {options.run};
  std::optional<Tokenizer> tokenizer;
  std::optional<Dataset> tokens;
  if (options.text.empty()) {
    RunData data = open_data(run);
    check<ValueError>(data.held_out.has_value(),
                      "[eval] {} has no held-out tokens; name a text with --text FILE", run.path);
    tokenizer = std::move(data.tokenizer);
    tokens = std::move(data.held_out);
  } else {
    // An imported model has a tokenizer, but no tokens.
    check<ValueError>(std::filesystem::exists(run.tokenizer()),
                      "[eval] {} has no tokenizer to read a text with", run.path);
    tokenizer = Tokenizer::load(run.tokenizer());
    tokens = TokenFile::temporary(tokenizer->encode(read_text(options.text)), tokenizer->vocab_size(),
                                  tokenizer->hash());
  }
  const LoadedModel loaded = load_model(run.checkpoint());
  check_tokenizer(run, loaded.state.tokenizer_hash, tokens->tokenizer_hash());
  const Evaluation evaluation = evaluate(*loaded.model, *tokens, options.batch_size, loaded.state.config.head,
                                         loaded.state.config.document_mask);
  fmt::print("loss: {:.4f} nats per token", evaluation.loss);
  if (tokenizer)
    fmt::print(", {:.4f} bits per byte", bits_per_byte(evaluation, target_bytes(*tokens, *tokenizer)));
  fmt::print(" ({} tokens, model of step {})\n", format_count(evaluation.tokens),
             format_count(loaded.state.progress.step));
}

}  // namespace

void add_eval(Command program) {
  Command eval = program.add_command("eval", "Measure a model's loss on text that it has not seen");
  const auto options = std::make_shared<EvalOptions>();
  eval.add_option("RUN", options->run, "folder of the run").required();
  eval.add_option("--text", options->text, "measure on this text instead of the run's held-out part")
      .type_name("FILE");
  eval.add_option("--batch-size", options->batch_size, "contexts computed at once").show_default();
  options->compute.add_to(eval);
  eval.footer(
      "Example:\n"
      "  tapehead eval runs/book\n"
      "  tapehead eval runs/book --text another.txt");
  eval.callback([=] { evaluate_run(*options); });
}

}  // namespace tapehead
