// tapehead generate: text from a trained model.
#include "tapehead/models/generate.h"

#include <fmt/core.h>

#include <cstdio>
#include <memory>

#include "tapehead/core/error.h"
#include "tapehead/core/file.h"
#include "tapehead/core/stopwatch.h"
#include "tapehead/models/checkpoint.h"
#include "tapehead/models/stream_decoder.h"
#include "tapehead/models/tokenizer.h"
#include "tapehead/tools/commands.h"
#include "tapehead/tools/compute_options.h"
#include "tapehead/tools/format.h"
#include "tapehead/tools/progress_line.h"
#include "tapehead/tools/run_tokenizer.h"
#include "tapehead/tools/stop_strings.h"

namespace tapehead {

namespace {

struct GenerateCommand {
  std::string run;
  std::string prompt, prompt_file, prompts_file;
  std::vector<std::string> stop_strings;
  GenerateOptions options;
  ComputeOptions compute;
};

std::vector<std::string> prompts_of(const GenerateCommand& command) {
  if (!command.prompt_file.empty()) return {read_file(command.prompt_file)};
  if (command.prompts_file.empty()) return {command.prompt};
  const std::string text = read_file(command.prompts_file);
  std::vector<std::string> prompts;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    if (end > begin) prompts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  check<ValueError>(!prompts.empty(), "[generate] {} holds no prompt: write one on each line",
                    command.prompts_file);
  return prompts;
}

// Whether it could be written; what could not is reported when the program ends.
bool show(std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  return std::fflush(stdout) == 0;
}

/// The samples of one prompt: one alone is shown as it comes, several one after another when all are there.
void generate_samples(const LanguageModel& model, const Tokenizer& tokenizer, const std::string& prompt,
                      const GenerateCommand& command, const std::string& heading) {
  GenerateOptions options = command.options;
  const bool streams = options.samples == 1;
  const auto count = static_cast<size_t>(options.samples);
  std::vector<StreamDecoder> decoders(count, StreamDecoder(tokenizer));
  std::vector<StopStrings> stops(count, StopStrings(command.stop_strings));
  std::vector<std::string> texts(count);
  ProgressLine progress;
  const Stopwatch stopwatch;
  int64_t made = 0;
  options.stop_token = tokenizer.end_of_text();
  options.vocab_size = tokenizer.vocab_size();
  options.on_token = [&](int64_t sample, int32_t token) {
    const auto i = static_cast<size_t>(sample);
    const std::string text = stops[i].add(decoders[i].add(token));
    ++made;
    if (streams) return show(text) && !stops[i].found();
    texts[i] += text;
    if (progress.due()) {
      progress.show(fmt::format("{} of at most {} tokens  {:.0f} tokens/s", format_count(made),
                                format_count(options.samples * options.max_tokens),
                                static_cast<double>(made) / stopwatch.seconds()));
    }
    return !stops[i].found();
  };
  if (streams) show(heading + prompt);
  // A model needs something to go on from: a line's end is where a new line begins.
  generate(model, tokenizer.encode(prompt.empty() ? "\n" : prompt), options);
  progress.clear();
  for (size_t i = 0; i < count; ++i) {
    if (!streams) show(fmt::format("--- sample {} ---\n", i + 1) + prompt + texts[i]);
    show(stops[i].add(decoders[i].finish()));
    show(stops[i].finish() + "\n");
  }
}

void generate_text(const GenerateCommand& command) {
  const DeviceGuard device = command.compute.use_device();
  for (const std::string& stop : command.stop_strings) {
    check<ValueError>(!stop.empty(), "[generate] --stop is empty: it would end every text before it begins");
  }
  command.options.sampler.validate();
  const std::vector<std::string> prompts = prompts_of(command);
  const RunFolder run = {command.run};
  const LoadedModel loaded = load_model(run.checkpoint());
  const Tokenizer tokenizer = Tokenizer::load(run.tokenizer());
  check_tokenizer(run, loaded.state.tokenizer_hash, tokenizer.hash());
  for (size_t i = 0; i < prompts.size(); ++i) {
    const std::string heading = prompts.size() > 1 ? fmt::format("--- prompt {} ---\n", i + 1) : "";
    if (command.options.samples > 1) show(heading);
    generate_samples(*loaded.model, tokenizer, prompts[i], command, heading);
  }
}

}  // namespace

void add_generate(Command program) {
  Command generate = program.add_command("generate", "Write text with a model");
  const auto command = std::make_shared<GenerateCommand>();
  GenerateOptions& options = command->options;
  SamplerOptions& sampler = options.sampler;
  generate.show_defaults_from_here();
  generate.add_option("RUN", command->run, "folder of the run").required();
  Option prompt = generate.add_option("--prompt", command->prompt, "what the text begins with");
  Option prompt_file = generate.add_option("--prompt-file", command->prompt_file, "or the whole of this file")
                           .type_name("FILE");
  generate
      .add_option("--prompts", command->prompts_file,
                  "or every line of this file, one text after another; empty lines are passed over")
      .type_name("FILE")
      .excludes(prompt)
      .excludes(prompt_file);
  prompt_file.excludes(prompt);
  generate.add_option("--tokens", options.max_tokens, "how many to add");
  generate.add_option("--samples", options.samples, "texts from each prompt, computed together");
  generate.add_option("--stop", command->stop_strings, "end before this text; may be given again")
      .one_at_a_time()
      .type_name("TEXT");
  generate.add_option("--repetition-penalty", sampler.repetition_penalty,
                      "above 1: what the text holds already gets less likely");
  generate.add_option("--temperature", sampler.temperature, "0: always the likeliest token");
  generate.add_option("--top-k", sampler.top_k, "draw from so many of the likeliest tokens; 0: from all");
  generate.add_option("--top-p", sampler.top_p,
                      "then from the likeliest that have this probability together");
  generate.add_option("--min-p", sampler.min_p,
                      "then from those that have this part of the likeliest one's probability");
  generate.add_option("--seed", options.seed, "another seed, another text; sample i has that of seed + i");
  generate.add_flag("!--no-cache", options.use_cache,
                    "read the context again for every token: slower, the same text");
  command->compute.add_to(generate);
  generate.footer(
      "The rules are Hugging Face's, in this order: penalty, temperature, top-k, top-p, min-p.\n\n"
      "Example:\n"
      "  tapehead generate runs/book --prompt \"Once upon a time\" --tokens 100 --temperature 0.7\n"
      "  tapehead generate runs/book --prompts questions.txt --samples 4 --stop \"Q:\"");
  generate.callback([=] { generate_text(*command); });
}

}  // namespace tapehead
