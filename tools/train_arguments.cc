#include "tapehead/tools/train_arguments.h"

#include "tapehead/core/error.h"
#include "tapehead/tools/data_arguments.h"
#include "tapehead/tools/presets.h"

namespace tapehead {

namespace {

// ---- What there is

void add_model_options(Command train, ModelConfig& model) {
  for (Option option : {
           train.add_option("--architecture", model.architecture, "gpt2 or llama"),
           train.add_option("--n-layer", model.n_layer, "transformer blocks"),
           train.add_option("--n-head", model.n_head, "attention heads in a block"),
           train.add_option("--n-kv-head", model.n_kv_head,
                            "of a llama: heads of keys and values; 0: one for each of queries"),
           train.add_option("--n-embd", model.n_embd, "width"),
           train.add_option("--n-inner", model.n_inner,
                            "width of the MLP; 0: 4 n-embd, of a llama 8/3 n-embd in multiples of 32"),
           train.add_option("--rope-theta", model.rope_theta, "of a llama: base of the rotary positions"),
           train.add_option("--tied-head", model.tied_head,
                            "of a llama: whether the head is the token embeddings, true or false"),
           train.add_option("--context", model.n_positions, "tokens that the model sees at once"),
           train.add_option("--dropout", model.dropout, "in [0, 1)"),
       }) {
    option.group("Model");
  }
}

void add_training_options(Command train, TrainArguments& arguments) {
  TrainConfig& config = arguments.config;
  for (Option option : {
           train.add_option("--dtype", arguments.dtype,
                            "f32, or bf16: weights, activations and gradients of 16 bits"),
           train.add_option("--batch-size", config.batch_size, "contexts in a step"),
           train.add_option("--accumulate", arguments.accumulate,
                            "compute a step in so many parts: less memory, the same step"),
           train
               .add_option("--freeze", config.freeze,
                           "train all but the parameters with such names, as in 'transformer.h.0.*,*.bias'")
               .type_name("PATTERNS"),
           train.add_flag("--recompute-activations", config.recompute_activations,
                          "less memory: backward runs each block again"),
           train.add_option("--seed", config.seed, "of initialisation, order and dropout"),
       }) {
    option.group("Training");
  }
  train.add_flag("--document-mask", config.document_mask, "no position sees documents other than its own")
      .group("Data");
}

}  // namespace

void TrainArguments::add_options(Command train) {
  train.show_defaults_from_here();
  run.add_folder_options(train);
  train
      .add_option("--preset", preset,
                  "options that have a name together; --config and the command line go before them: " +
                      preset_names())
      .type_name("NAME");
  Option from_option =
      train
          .add_option("--from", from,
                      "begin with the weights of the run, or of the checkpoint, in this place")
          .type_name("FOLDER");
  add_data_options(train, data);
  add_model_options(train, config.model);
  for (const char* name : {"--architecture", "--n-layer", "--n-head", "--n-kv-head", "--n-embd", "--n-inner",
                           "--rope-theta", "--tied-head", "--vocab-size"})
    from_option.excludes(name);
  add_training_options(train, *this);
  // Sources are allowed with --resume, to make sure that they are the run's.
  run.add_run_options(train, config, {"--text", "--data"});
  train.add_flag("--capture", capture, "on cuda: record a step once and replay it, which spares the host");
  train
      .add_option(
          "--sample-prompt", sample_prompts,
          "let the model go on from this text at every evaluation, for `tapehead report`; may be given again")
      .one_at_a_time()
      .type_name("TEXT");
}

void TrainArguments::settle(Command train) {
  run.settle(train, preset);
  check<ValueError>(accumulate >= 1, "[train] --accumulate is {}, but a step has at least 1 part",
                    accumulate);
  config.micro_batch_size = (config.batch_size + accumulate - 1) / accumulate;
  check<ValueError>(dtype == "f32" || dtype == "bf16",
                    "[train] --dtype {}: a model is trained in f32 or in bf16", dtype);
  config.dtype = parse_dtype(dtype);
  config.model.vocab_size = data.vocab_size;
  config.validate();
}

}  // namespace tapehead
