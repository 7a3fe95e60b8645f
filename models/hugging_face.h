// Models as folders of Hugging Face's transformers: config.json beside model.safetensors, whole or in shards.
//
// Parameters have transformers' names and layouts here, so that what is read is what is computed with.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "tapehead/models/hugging_face_config.h"

namespace tapehead {

/// What `from_pretrained` of transformers makes of a folder: the model of its config.json
/// with the weights beside it, of any floating dtype, converted to `dtype`. Names may lack
/// their beginning "transformer." or "model.", as those of a model saved without its head
/// do, and buffers that old versions saved among the weights (attention's mask, the rotary
/// frequencies) are skipped. A tied head may be in the file, too, equal to the embeddings.
///   progress  if given, is told after each tensor how many are done and how many there are
///
/// Throws what read_pretrained_config and ShardedSafetensors::open throw; ValueError that
/// names every tensor which is missing, not the model's, of another shape (both are
/// stated), no floating one, or not finite in `dtype`.
std::unique_ptr<LanguageModel> load_pretrained(
    const std::string& folder, DType dtype = DType::f32, Device device = default_device(),
    const std::function<void(int64_t done, int64_t all)>& progress = {});

/// Writes what `from_pretrained` reads, model.safetensors in `dtype` and, last,
/// config.json, into a folder that exists. Throws ValueError that names the tensor with a
/// number beyond `dtype`, SystemError if the machine refuses.
void save_pretrained(const std::string& folder, const LanguageModel& model, DType dtype,
                     const SpecialTokenIds& tokens = {});

}  // namespace tapehead
