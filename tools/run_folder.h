// A run's folder: what stands in it under which name.
//
//   tokenizer/               tokenizer.json, vocab.json and merges.txt
//   tokens/                  the sources as tokens (models/dataset_folder.h), unless they are kept elsewhere
//   data.json                where the tokens are, and how sources are weighed (tools/run_data.h); of
//                            `tapehead train-head`, where the features are
//   config.json              the options that it was begun with, for --config (tools/option_layers.h)
//   checkpoint.safetensors   the model and all that training goes on from (models/checkpoint.h), with
//                            checkpoint.json; others that are kept stand beside them (checkpoint_files.h)
//   head.safetensors         of `tapehead train-head`, once it has ended: the weight, and the bias if any
//   metrics.jsonl            a line of numbers for every step and every evaluation
//   samples.jsonl            what the model wrote at evaluations, a line for each text
//   memory.json              the memory of one step, by what it is for
//   loss.svg                 the loss curve
//   summary.json             how a finished run ended
//   lock                     while a process trains here (tools/run_lock.h)
#pragma once

#include <string>

namespace tapehead {

struct RunFolder {
  std::string path;

  std::string tokenizer() const { return path + "/tokenizer"; }
  std::string tokens() const { return path + "/tokens"; }
  std::string data() const { return path + "/data.json"; }
  std::string config() const { return path + "/config.json"; }
  std::string checkpoint() const { return path + "/checkpoint.safetensors"; }
  std::string head() const { return path + "/head.safetensors"; }
  std::string checkpoint_state() const { return path + "/checkpoint.json"; }
  std::string metrics() const { return path + "/metrics.jsonl"; }
  std::string samples() const { return path + "/samples.jsonl"; }
  std::string memory() const { return path + "/memory.json"; }
  std::string loss_chart() const { return path + "/loss.svg"; }
  std::string summary() const { return path + "/summary.json"; }
};

/// Throws ValueError unless there is nothing at `path`, or an empty folder.
void check_new_folder(const std::string& path);

}  // namespace tapehead
