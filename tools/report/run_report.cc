#include "tapehead/tools/report/run_report.h"

#include <fmt/core.h>

#include <array>
#include <cstdlib>
#include <filesystem>
#include <map>

#include "tapehead/core/error.h"
#include "tapehead/core/json.h"
#include "tapehead/tools/format.h"
#include "tapehead/tools/json_lines.h"
#include "tapehead/tools/progress_line.h"
#include "tapehead/tools/report/thinned_series.h"

namespace tapehead {

namespace {

using json = Json;

/// Numbers of a line that are drawn, where it has them.
constexpr std::array kDrawn = {"loss", "smoothed_loss", "held_out_loss",     "bits_per_byte",
                               "lr",   "grad_norm",     "held_out_accuracy", "held_out_entropy"};

/// Six digits: more than one sees, and few to write.
double rounded(double value) { return std::strtod(fmt::format("{:.6g}", value).c_str(), nullptr); }

json to_json(const ThinnedSeries& series) {
  json x = json::array(), y = json::array();
  for (const Point& p : series.points()) {
    x.push_back(static_cast<int64_t>(p.x));
    y.push_back(rounded(p.y));
  }
  return {{"x", std::move(x)}, {"y", std::move(y)}};
}

void read_history(const RunFolder& run, json& report) {
  std::map<std::string, ThinnedSeries> series;
  int64_t steps = 0, skipped = 0;
  double tokens = 0, seconds = 0;
  ProgressLine progress;
  for_each_json_line(run.metrics(), [&](int64_t step, const auto& line) {
    const auto x = static_cast<double>(step);
    for (const char* key : kDrawn) {
      const auto found = line.find(key);
      if (found != line.end() && found->is_number()) series[key].add({x, found->template get<double>()});
    }
    if (!line.contains("loss")) return;  // an evaluation
    const double step_tokens = line.value("tokens", 0.0), step_seconds = line.value("seconds", 0.0);
    if (step_seconds > 0) series["tokens_per_second"].add({x, step_tokens / step_seconds});
    steps = step;
    skipped += line.contains("skipped");
    tokens += step_tokens;
    seconds += step_seconds;
    if (step % 1024 == 0 && progress.due()) {
      progress.show(fmt::format("{}  step {}", run.metrics(), format_count(step)));
    }
  });
  report["totals"] = {
      {"steps", steps}, {"skipped", skipped}, {"tokens", tokens}, {"seconds", rounded(seconds)}};
  for (const auto& [key, points] : series) report["series"][key] = to_json(points);
}

/// Adds the numbers and words of `object` under their names, "outer.inner" for those of objects in it.
void add_settings(const std::string& prefix, const json& object, json& settings) {
  for (const auto& [key, value] : object.items()) {
    if (value.is_object()) {
      add_settings(prefix + key + ".", value, settings);
    } else {
      settings[prefix + key] = value;
    }
  }
}

json settings_of(const json& state, const json& data) {
  json settings = json::object();
  for (const char* group : {"model", "training", "head"}) {
    if (state.contains(group)) add_settings(std::string(group) + ".", state.at(group), settings);
  }
  for (const char* key : {"name", "hash", "weights"}) {
    if (data.contains(key)) settings[fmt::format("data.{}", key)] = data.at(key);
  }
  return settings;
}

}  // namespace

json run_report(const RunFolder& run, const std::string& name) {
  check<ValueError>(std::filesystem::exists(run.metrics()),
                    "[report] {} holds no run with a history; `tapehead train` makes one", run.path);
  json report = {{"name", name}, {"series", json::object()}};
  read_history(run, report);
  const json state = find_json_object(run.checkpoint_state()), data = find_json_object(run.data());
  report["unit"] = data.contains("features") ? "row" : "token";
  report["settings"] = settings_of(state, data);
  report["samples"] = json::array();
  if (std::filesystem::exists(run.samples())) {
    for_each_json_line(run.samples(), [&](int64_t, const auto& line) { report["samples"].push_back(line); });
  }
  report["memory"] = find_json_object(run.memory());
  return report;
}

}  // namespace tapehead
