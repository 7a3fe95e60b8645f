// Logits of a model in a folder of Hugging Face's transformers, for check_hugging_face.py to compare.
//
//   pretrained_logits FOLDER IDS.safetensors LOGITS.safetensors
#include "tapehead/core/error.h"
#include "tapehead/core/safetensors.h"
#include "tapehead/models/hugging_face.h"
#include "tapehead/tools/errors.h"

int main(int argc, char** argv) {
  using namespace tapehead;
  return run_reporting_errors([&] {
    check<ValueError>(argc == 4, "usage: pretrained_logits FOLDER IDS.safetensors LOGITS.safetensors");
    const Tensor ids = SafetensorsFile::open(argv[2]).tensor("input_ids");
    const NoGradGuard no_grad;
    write_safetensors(argv[3], {{"logits", load_pretrained(argv[1])->logits(ids)}});
  });
}
