// tapehead generate: text from a trained model.
#include "tapehead/models/generate.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>

#include "tapehead/core/error.h"
#include "tapehead/models/checkpoint.h"
#include "tapehead/models/stream_decoder.h"
#include "tapehead/models/tokenizer.h"
#include "tapehead/tools/commands.h"
#include "tapehead/tools/run_folder.h"
#include "tapehead/tools/threads_option.h"

namespace tapehead {

namespace {

struct GenerateCommand {
  std::string run;
  std::string prompt;
  GenerateOptions options;
};

void generate_text(GenerateCommand& command) {
  const RunFolder run = {command.run};
  const Tokenizer tokenizer = Tokenizer::load(run.tokenizer());
  const LoadedModel loaded = load_model(run.checkpoint());
  fmt::print("{}", command.prompt);
  // A model needs something to go on from: a line's end is where a new line begins.
  const std::vector<int32_t> prompt = tokenizer.encode(command.prompt.empty() ? "\n" : command.prompt);
  command.options.stop_token = tokenizer.end_of_text();
  StreamDecoder decoder(tokenizer);
  const auto show = [](const std::string& bytes) {
    std::fwrite(bytes.data(), 1, bytes.size(), stdout);
    return std::fflush(stdout) == 0;
  };
  command.options.on_token = [&](int32_t token) { return show(decoder.add(token)); };
  generate(*loaded.model, prompt, command.options);
  show(decoder.finish() + "\n");
}

}  // namespace

void add_generate(CLI::App& program) {
  CLI::App* generate = program.add_subcommand("generate", "Write text with a model");
  const auto command = std::make_shared<GenerateCommand>();
  generate->option_defaults()->always_capture_default();
  generate->add_option("RUN", command->run, "folder of the run")->required();
  generate->add_option("--prompt", command->prompt, "what the text begins with");
  generate->add_option("--tokens", command->options.max_tokens, "how many to add");
  generate->add_option("--temperature", command->options.temperature, "0: always the likeliest token");
  generate->add_option("--top-k", command->options.top_k,
                       "draw from so many of the likeliest tokens; 0: from all");
  generate->add_option("--seed", command->options.seed, "another seed, another text");
  add_threads_option(*generate);
  generate->footer(
      "Example:\n"
      "  tapehead generate runs/book --prompt \"Once upon a time\" --tokens 100 --temperature 0.7");
  generate->callback([=] { generate_text(*command); });
}

}  // namespace tapehead
