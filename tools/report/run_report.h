// What a report tells of a run: its files, read into JSON for the page.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "tapehead/tools/run_folder.h"

namespace tapehead {

/// {"name", "unit", "series": {KEY: {"x": [...], "y": [...]}}, "totals", "settings": {NAME: value},
/// "samples": [...], "memory": ...}:
///
///   unit      what a loss is per: "token", or "row" of a head that was trained alone
///   series    of the numbers in metrics.jsonl, by step, thinned; "tokens_per_second" among them
///   totals    "steps", of them "skipped", "tokens" (or rows) and "seconds" of training
///   settings  of checkpoint.json, "model.n_layer" and so on, and of data.json
///   samples   the lines of samples.jsonl
///   memory    the object in memory.json; null without one
///
/// Lines that were cut short are passed over. Throws ValueError where there is no metrics.jsonl.
nlohmann::ordered_json run_report(const RunFolder& run, const std::string& name);

}  // namespace tapehead
