// Memory over the course of linear_cross_entropy, chunked beside reference, as a picture.
#pragma once

#include <string>

#include "tapehead/ops/linear_cross_entropy_plan.h"

namespace tapehead {

/// An SVG file: for each path the stages forward, between, backward, after; in each the buffers that live
/// then, stacked and named, to one scale.
std::string memory_picture(const std::string& title, const LinearCrossEntropyPlan& plan);

}  // namespace tapehead
