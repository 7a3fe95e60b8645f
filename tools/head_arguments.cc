#include "tapehead/tools/head_arguments.h"

#include <algorithm>
#include <sstream>

namespace tapehead {

void HeadArguments::add_options(Command command) {
  const std::string loss = "Loss", chunks = "Chunks";
  command.add_option("--reduction", reduction, "mean, sum or none").show_default().group(loss);
  command
      .add_option("--ignore-index", ignore_index, "rows with this target count for nothing; -100 if left out")
      .group(loss);
  command.add_option("--label-smoothing", label_smoothing, "in [0, 1]").show_default().group(loss);
  command.add_option("--softcap", softcap, "z = cap · tanh(z / cap)").group(loss);
  command.add_option("--logit-scale", logit_scale, "multiplies the logits, before the softcap")
      .show_default()
      .group(loss);
  command.add_option("--z-loss", z_loss, "coefficient of lse²").show_default().group(loss);
  command.add_option("--normalizer", normalizer, "mean divides by this instead of its own denominator")
      .group(loss);
  command.add_option("--loss-dtype", loss_dtype, "f64, f32, f16 or bf16; the input's if left out")
      .group(loss);

  command.add_flag("--reference", reference, "hold the whole logits instead of going by chunks")
      .group(chunks);
  command.add_option("--acc-policy", acc_policy, "auto, accurate, balanced or compact")
      .show_default()
      .group(chunks);
  command
      .add_option("--acc-dtype", acc_dtype,
                  "f32 for inputs of f16 and bf16; chosen by the policy if left out")
      .group(chunks);
  command
      .add_option("--chunking-method", chunking_method,
                  "throughput, auto, auto_table, aspect_ratio, aspect_ratio:N, budget:SIZE; none: one chunk; "
                  "throughput if neither this nor the rows are given")
      .group(chunks);
  command.add_option("--batch-chunk-size", batch_chunk_size, "rows per chunk").group(chunks);
  command.add_flag("--allow-retain-graph", allow_retain_graph, "keep gradients for further backwards")
      .group(chunks);
  command.add_flag("--recompute", recompute, "keep no gradients from forward: backward computes again")
      .group(chunks);
  command
      .add_option("--gradient-filter", gradient_filter,
                  "none; stochastic:TAU, without bias; threshold:EPS: leave out most of the gradient's dust")
      .show_default()
      .group(chunks);
  command.add_option("--filter-seed", filter_seed, "of the stochastic filter").show_default().group(chunks);
}

LinearCrossEntropyArgs HeadArguments::args() const {
  LinearCrossEntropyArgs args;
  args.reduction = parse_reduction(reduction);
  args.ignore_index = ignore_index;
  args.label_smoothing = label_smoothing;
  args.softcap = softcap;
  args.logit_scale = logit_scale;
  args.z_loss = z_loss;
  args.normalizer = normalizer;
  if (!loss_dtype.empty()) args.loss_dtype = parse_dtype(loss_dtype);
  if (reference) {
    check<ValueError>(acc_policy == "auto" && acc_dtype.empty() && !chunking_method && !batch_chunk_size &&
                          !allow_retain_graph && !recompute && gradient_filter == "none",
                      "--reference holds the whole logits: it takes no option of chunks");
    return args;
  }
  LinearCrossEntropyOptions::Fields fields = {.allow_retain_graph = allow_retain_graph,
                                              .batch_chunk_size = batch_chunk_size,
                                              .acc_policy = acc_policy,
                                              .recompute = recompute,
                                              .gradient_filter = gradient_filter};
  fields.chunking_method = chunking_method;
  if (!chunking_method && !batch_chunk_size) fields.chunking_method = "throughput";
  if (chunking_method == "none") fields.chunking_method.reset();
  if (!acc_dtype.empty()) fields.acc_dtype = parse_dtype(acc_dtype);
  args.options = LinearCrossEntropyOptions(fields);
  return args;
}

LinearCrossEntropyArgs HeadArguments::args(Generator& numbers) const {
  LinearCrossEntropyArgs args = this->args();
  if (gradient_filter == "none") return args;
  numbers = {.seed = filter_seed};
  args.filter_numbers = &numbers;
  args.filter_stats = std::make_shared<GradientFilterStats>();
  return args;
}

DType parse_input_dtype(const std::string& text) {
  const DType dtype = parse_dtype(text);
  check<ValueError>(is_floating(dtype), "--dtype {}: it is f64, f32, f16 or bf16", text);
  return dtype;
}

FrozenTensors FrozenTensors::parse(const std::string& list) {
  FrozenTensors frozen;
  std::istringstream words(list);
  for (std::string word; std::getline(words, word, ',');) {
    if (word == "input") {
      frozen.input = true;
    } else if (word == "weight") {
      frozen.weight = true;
    } else if (word == "bias") {
      frozen.bias = true;
    } else {
      fail<ValueError>("--freeze names \"{}\": it takes input, weight and bias, with commas between them",
                       word);
    }
  }
  return frozen;
}

nlohmann::ordered_json to_json(const ResolvedLinearCrossEntropyOptions& options) {
  nlohmann::ordered_json json = {{"allow_retain_graph", options.allow_retain_graph},
                                 {"batch_chunk_size", options.batch_chunk_size}};
  json["chunking_method"] =
      options.chunking_method ? nlohmann::ordered_json(name(*options.chunking_method)) : nullptr;
  json["acc_policy"] = name(options.acc_policy);
  json["acc_dtype"] = name(options.acc_dtype);
  json["recompute"] = options.recompute;
  json["gradient_filter"] = name(options.gradient_filter);
  return json;
}

nlohmann::ordered_json to_json(const GradientFilterStats& stats) {
  return {{"rows", stats.rows},
          {"filtered_mass", stats.filtered_mass},
          {"sparse_chunks", stats.sparse_chunks},
          {"dense_chunks", stats.dense_chunks},
          {"sparse_rows", stats.sparse_rows},
          {"entries", stats.entries}};
}

}  // namespace tapehead
