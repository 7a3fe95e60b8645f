#include "tapehead/tools/metrics.h"

#include <nlohmann/json.hpp>

namespace tapehead {

using json = nlohmann::ordered_json;

MetricsLog::MetricsLog(std::string path, int64_t step, int64_t evaluated_step)
    : lines_(std::move(path), [=](int64_t at, const json& line) {
        return at <= (line.contains("held_out_loss") ? evaluated_step : step);
      }) {}

void MetricsLog::add(const StepMetrics& m) {
  json line = {{"step", m.step},       {"loss", m.loss},           {"smoothed_loss", m.smoothed_loss},
               {"lr", m.lr},           {"grad_norm", m.grad_norm}, {"tokens", m.tokens},
               {"seconds", m.seconds}, {"epoch", m.epoch}};
  if (m.skipped) line["skipped"] = true;
  if (m.filter.rows > 0) {
    const auto each = [&](double total, int64_t rows) {
      return rows > 0 ? total / static_cast<double>(rows) : 0.0;
    };
    line["head_sparse_share"] = each(static_cast<double>(m.filter.sparse_rows), m.filter.rows);
    line["head_entries_per_row"] = each(static_cast<double>(m.filter.entries), m.filter.sparse_rows);
    line["head_filtered_mass"] = each(m.filter.filtered_mass, m.filter.rows);
  }
  lines_.append(line);
}

void MetricsLog::add(const Evaluation& e, int64_t bytes) {
  json line = {{"step", e.step}, {"held_out_loss", e.loss}};
  if (bytes > 0) line["bits_per_byte"] = bits_per_byte(e, bytes);
  line["held_out_accuracy"] = e.accuracy;
  line["held_out_entropy"] = e.entropy;
  line["tokens"] = e.tokens;
  line["seconds"] = e.seconds;
  lines_.append(line);
}

History read_history(const std::string& path) {
  History history;
  for_each_json_line(path, [&](int64_t step, const json& object) {
    const auto x = static_cast<double>(step);
    if (object.contains("loss") && object.at("loss").is_number())
      history.training.push_back({x, object.at("loss")});
    if (object.contains("held_out_loss") && object.at("held_out_loss").is_number()) {
      history.held_out.push_back({x, object.at("held_out_loss")});
    }
  });
  return history;
}

std::string loss_chart(const History& history, const std::string& subtitle, const std::string& unit) {
  LineChart chart;
  chart.title = "Loss while training";
  chart.subtitle = subtitle;
  chart.x_label = "step";
  chart.y_label = "loss, nats per " + unit;
  chart.series.push_back({.name = "training", .points = history.training, .color = "#9bb8d9", .width = 1.2});
  if (!history.held_out.empty()) {
    chart.series.push_back(
        {.name = "held out", .points = history.held_out, .color = "#c2410c", .width = 1.8, .markers = true});
  }
  return render(chart);
}

}  // namespace tapehead
