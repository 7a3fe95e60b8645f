// The page of `tapehead report`, but for the numbers: page.html with its style, its script and the library
// that draws.
#pragma once

#include <string_view>

namespace tapehead {

/// What stands before the numbers, a JSON object in which every '<' is escaped, and what stands behind them.
extern const std::string_view kReportPageBegin, kReportPageEnd;

}  // namespace tapehead
