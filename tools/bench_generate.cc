// tapehead bench generate: how fast a model writes, with its cache of keys and values and without.
#include <fmt/core.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "tapehead/core/memory.h"
#include "tapehead/models/generate.h"
#include "tapehead/tools/bench.h"
#include "tapehead/tools/compute_options.h"
#include "tapehead/tools/format.h"
#include "tapehead/tools/product_floor.h"
#include "tapehead/tools/progress_line.h"
#include "tapehead/tools/step_arguments.h"
#include "tapehead/tools/timing.h"

namespace tapehead {
namespace {

using json = nlohmann::ordered_json;

struct GenerateBench {
  StepArguments step;
  int64_t prompt_tokens = 8, tokens = 128, samples = 1, repeats = 3;
  bool both_ways = false, as_json = false;
  ComputeOptions compute;
};

struct Written {
  double seconds;
  int64_t peak_bytes;  // beside the model
  std::vector<std::vector<int32_t>> tokens;
};

Written write(const LanguageModel& model, std::span<const int32_t> prompt, const GenerateBench& o,
              bool use_cache, ProgressLine& progress) {
  GenerateOptions options = {.max_tokens = o.tokens, .samples = o.samples, .use_cache = use_cache};
  int64_t made = 0;
  options.on_token = [&](int64_t, int32_t) {
    ++made;
    if (progress.due()) {
      progress.show(fmt::format("{} the cache: {} of {} tokens", use_cache ? "with" : "without",
                                format_count(made), format_count(o.tokens * o.samples)));
    }
    return true;
  };
  const Device device = model.device();
  const int64_t before = memory_stats(device).live_bytes;
  reset_peak(device);
  Written written;
  written.seconds = seconds_of([&] { written.tokens = generate(model, prompt, options); });
  written.peak_bytes = memory_stats(device).peak_bytes - before;
  return written;
}

void bench_generate(const GenerateBench& o) {
  const auto at_least_1 = [](int64_t value, const char* option) {
    check<ValueError>(value >= 1, "{} {}: at least 1", option, value);
  };
  at_least_1(o.prompt_tokens, "--prompt-tokens");
  at_least_1(o.tokens, "--tokens");
  at_least_1(o.samples, "--samples");
  at_least_1(o.repeats, "--repeats");
  const DeviceGuard device = o.compute.use_device();
  const TrainConfig config = o.step.config();
  const ModelConfig& sizes = config.model;
  check<ValueError>(
      o.prompt_tokens + o.tokens <= sizes.n_positions,
      "--prompt-tokens {} and --tokens {} are {}, and the model sees {} at once: beyond, the cache "
      "would be filled again; give a larger --context",
      o.prompt_tokens, o.tokens, o.prompt_tokens + o.tokens, sizes.n_positions);
  const std::unique_ptr<LanguageModel> model = make_model(sizes, config.seed, config.dtype);
  std::vector<int32_t> prompt(static_cast<size_t>(o.prompt_tokens));
  Generator random{.seed = 1};
  for (int32_t& token : prompt)
    token = static_cast<int32_t>(random.below(static_cast<uint64_t>(sizes.vocab_size)));

  ProgressLine progress;
  std::vector<double> with, without;
  Written cached, read_again;
  for (int64_t i = 0; i < o.repeats; ++i) {
    cached = write(*model, prompt, o, true, progress);
    with.push_back(cached.seconds);
    if (!o.both_ways) continue;
    read_again = write(*model, prompt, o, false, progress);
    without.push_back(read_again.seconds);
  }
  progress.clear();

  const double seconds = median(with), positions = static_cast<double>(o.tokens);
  // Every position of all samples together reads the weights once.
  const double weight_bytes = static_cast<double>(multiplied_weights(*model) * size_of(config.dtype)),
               pace = weight_bytes * positions / seconds;
  json result = {{"n_layer", sizes.n_layer},
                 {"n_head", sizes.n_head},
                 {"n_embd", sizes.n_embd},
                 {"context", sizes.n_positions},
                 {"vocab_size", sizes.vocab_size},
                 {"parameters", model->parameter_count()},
                 {"prompt_tokens", o.prompt_tokens},
                 {"tokens", o.tokens},
                 {"samples", o.samples},
                 {"seconds", seconds},
                 {"tokens_per_second", positions * static_cast<double>(o.samples) / seconds},
                 {"weight_bytes_per_second", pace},
                 {"peak_bytes", cached.peak_bytes}};
  if (o.both_ways) {
    result["seconds_without_cache"] = median(without);
    result["times_as_fast"] = median(without) / seconds;
    result["peak_bytes_without_cache"] = read_again.peak_bytes;
    result["same_tokens"] = cached.tokens == read_again.tokens;
  }
  if (o.as_json) return fmt::print("{}\n", result.dump());
  fmt::print("{} layers, {} heads, width {}, vocabulary {}: {} parameters in {}; medians of {}\n",
             sizes.n_layer, sizes.n_head, sizes.n_embd, format_count(sizes.vocab_size),
             format_count(model->parameter_count()), config.dtype, o.repeats);
  const auto line = [](const std::string& what, const std::string& value) {
    fmt::print("  {:<40}{:>14}\n", what, value);
  };
  line(fmt::format("{} x {} tokens after {}", o.samples, format_count(o.tokens), o.prompt_tokens),
       fmt::format("{:.3f} s", seconds));
  line("tokens a second", fmt::format("{:.1f}", result["tokens_per_second"].get<double>()));
  line("the model's weights are read at", fmt::format("{:.1f} GB/s", pace / 1e9));
  line("memory beside the model", format_bytes(cached.peak_bytes));
  if (!o.both_ways) return;
  line("the same without the cache", fmt::format("{:.3f} s", median(without)));
  line("times as fast with it", fmt::format("{:.1f}", median(without) / seconds));
  line("memory without it", format_bytes(read_again.peak_bytes));
  line("the tokens are", cached.tokens == read_again.tokens ? "the same" : "not all the same");
}

}  // namespace

void add_bench_generate(Command bench) {
  Command command = bench.add_command("generate", "Tokens from a model of random weights, one after another");
  const auto options = std::make_shared<GenerateBench>();
  options->step.add_model_options(command);
  command.add_option("--prompt-tokens", options->prompt_tokens, "random ones that the text begins with")
      .show_default();
  command.add_option("--tokens", options->tokens, "how many to add").show_default();
  command.add_option("--samples", options->samples, "texts, computed together").show_default();
  command.add_option("--repeats", options->repeats, "how often; medians are printed").show_default();
  command.add_flag("--both-ways", options->both_ways,
                   "in turn with generation that reads the context again for every token");
  options->compute.add_to(command);
  command.add_flag("--json", options->as_json, "print one JSON object");
  command.footer(
      "For one sample every token reads all weights that it is multiplied with, so the pace at which that "
      "happens\n"
      "is to be held against what the machine's memory can.\n\n"
      "Example:\n  tapehead bench generate --preset gpt2-124m --tokens 512 --both-ways --repeats 1");
  command.callback([=] { bench_generate(*options); });
}

}  // namespace tapehead
