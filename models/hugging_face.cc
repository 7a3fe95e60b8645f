#include "tapehead/models/hugging_face.h"

#include <cstring>
#include <filesystem>
#include <set>
#include <string_view>

#include "tapehead/core/file.h"
#include "tapehead/core/problem_list.h"
#include "tapehead/core/sharded_safetensors.h"

namespace tapehead {
namespace {

constexpr std::string_view kHead = "lm_head.weight";

// How transformers names an architecture's weights.
struct Names {
  std::string body;                  // of all but the head, where the head was saved with them
  std::string embedding;             // which a tied head is
  std::vector<std::string> buffers;  // ends of names that are no parameters
};

Names names_of(const ModelConfig& config) {
  if (config.architecture == "llama") {
    return {.body = "model.", .embedding = "model.embed_tokens.weight", .buffers = {".rotary_emb.inv_freq"}};
  }
  return {.body = "transformer.",
          .embedding = "transformer.wte.weight",
          .buffers = {".attn.bias", ".attn.masked_bias"}};
}

std::string path_in(const std::string& folder, const char* file) {
  return (std::filesystem::path(folder) / file).string();
}

bool same_bytes(const Tensor& a, const Tensor& b) {
  if (a.shape() != b.shape() || a.dtype() != b.dtype()) return false;
  return a.numel() == 0 || std::memcmp(a.raw_data(), b.raw_data(), static_cast<size_t>(a.bytes())) == 0;
}

// Pairs every parameter with the tensor in the file that it comes from.
class Weights {
 public:
  Weights(const ShardedSafetensors& file, const LanguageModel& model)
      : file_(file), names_(names_of(model.config())) {
    for (const std::string& name : file.names()) whole_ = whole_ || name.starts_with(names_.body);
    for (const auto& [name, parameter] : model.parameters()) find(name, parameter);
    for (const std::string& name : file.names()) {
      if (!taken_.contains(name)) consider_extra(name);
    }
  }

  struct Pair {
    std::string name;
    Tensor from, to;
  };
  const std::vector<Pair>& pairs() const { return pairs_; }
  const ProblemList& problems() const { return problems_; }

 private:
  // A parameter's name in this file.
  std::string local(const std::string& name) const {
    return !whole_ && name.starts_with(names_.body) ? name.substr(names_.body.size()) : name;
  }

  void find(const std::string& parameter_name, const Tensor& parameter) {
    const std::string name = local(parameter_name);
    taken_.insert(name);
    if (!file_.contains(name)) {
      problems_.add("{} {} is missing", name, parameter.shape());
      return;
    }
    Tensor tensor = file_.tensor(name);
    if (!is_floating(tensor.dtype())) {
      problems_.add("{} is of dtype {}", name, tensor.dtype());
    } else if (tensor.shape() != parameter.shape()) {
      problems_.add("{} has shape {}, but by the config {}", name, tensor.shape(), parameter.shape());
    } else {
      pairs_.push_back({name, std::move(tensor), parameter});
    }
  }

  // A tensor that is no parameter's.
  void consider_extra(const std::string& name) {
    for (const std::string& buffer : names_.buffers) {
      if (name.ends_with(buffer)) return;
    }
    const std::string embedding = local(names_.embedding);
    if (name == kHead && file_.contains(embedding)) {  // the model has no such parameter: its head is tied
      if (!same_bytes(file_.tensor(name), file_.tensor(embedding))) {
        problems_.add("{} differs from {}, but by the config (tie_word_embeddings) they are one", name,
                      embedding);
      }
      return;
    }
    problems_.add("{} is no part of the model", name);
  }

  const ShardedSafetensors& file_;
  Names names_;
  bool whole_ = false;  // whether the names have their beginning
  std::set<std::string> taken_;
  std::vector<Pair> pairs_;
  ProblemList problems_;
};

}  // namespace

std::unique_ptr<LanguageModel> load_pretrained(
    const std::string& folder, DType dtype, Device device,
    const std::function<void(int64_t done, int64_t all)>& progress) {
  const ModelConfig config = read_pretrained_config(path_in(folder, "config.json"));
  const ShardedSafetensors file = ShardedSafetensors::open(folder);
  // Before a model of that many layers is made.
  check<ValueError>(config.n_layer <= std::ssize(file.names()),
                    "[hugging_face] {}: its config.json says that there are {} layers, but it has {} tensors",
                    folder, config.n_layer, file.names().size());
  std::unique_ptr<LanguageModel> model =
      make_model(config, {.dtype = dtype, .device = device, .values = Initializer::unset});
  const Weights weights(file, *model);
  check<ValueError>(weights.problems().empty(),
                    "[hugging_face] the weights in {} do not fit its config.json: {}", folder,
                    weights.problems().text());
  ProblemList problems;
  const NoGradGuard no_grad;
  int64_t done = 0;
  for (const auto& [name, from, to] : weights.pairs()) {
    Tensor(to).copy_from(from);
    if (!device_runtime(device).all_finite(to)) problems.add("{}", name);
    if (progress) progress(++done, std::ssize(weights.pairs()));
  }
  check<ValueError>(problems.empty(), "[hugging_face] {} holds tensors with a NaN or an infinity in {}: {}",
                    folder, dtype, problems.text());
  return model;
}

void save_pretrained(const std::string& folder, const LanguageModel& model, DType dtype,
                     const SpecialTokenIds& tokens) {
  ParameterList tensors;
  for (const auto& [name, parameter] : model.parameters()) {
    tensors.emplace_back(name, parameter.to(Device{}).to(dtype));
    check<ValueError>(device_runtime({}).all_finite(tensors.back().second),
                      "[hugging_face] {} holds a number beyond {}; choose another dtype", name, dtype);
  }
  // transformers wants to be told that these are PyTorch's layouts.
  write_safetensors(path_in(folder, "model.safetensors"), tensors, {{"format", "pt"}});
  write_file_atomically(path_in(folder, "config.json"), to_pretrained_config(model.config(), dtype, tokens));
}

}  // namespace tapehead
