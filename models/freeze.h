// Training a part of a model.
#pragma once

#include <string>

#include "tapehead/models/module.h"

namespace tapehead {

/// Takes from training every parameter whose name matches one of the patterns, as in
/// "transformer.h.*,*.bias": shell patterns (fnmatch: * ? [...]), separated by commas. Frozen parameters
/// get no gradient and no state of an optimiser, and what depends on nothing else leaves nothing on the
/// tape. Throws ValueError for a pattern that matches no name, and if no parameter is left to train.
void freeze(const ParameterList& parameters, const std::string& patterns);

}  // namespace tapehead
