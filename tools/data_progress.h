// How far the making of tokens is, for people.
#pragma once

#include "tapehead/models/dataset_folder.h"
#include "tapehead/tools/progress_line.h"

namespace tapehead {

/// Tells of it in `line`, which must outlive the result, and what came of it on standard output.
DatasetProgress tell_on(ProgressLine& line);

}  // namespace tapehead
