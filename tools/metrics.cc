#include "tapehead/tools/metrics.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>

#include "tapehead/core/error.h"
#include "tapehead/core/file.h"
#include "tapehead/tools/format.h"

namespace tapehead {

namespace {

using json = nlohmann::ordered_json;

/// Calls take(line, object) for every line that is an object with a step.
void for_each_line(std::string_view text,
                   const std::function<void(std::string_view line, int64_t step, const json& object)>& take) {
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line = text.substr(begin, end - begin);
    const json object = json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (object.is_object() && object.contains("step") && object.at("step").is_number_integer()) {
      take(line, object.at("step").get<int64_t>(), object);
    }
    begin = end + 1;
  }
}

}  // namespace

MetricsLog::MetricsLog(std::string path, int64_t step, int64_t evaluated_step) : path_(std::move(path)) {
  std::string kept;
  if (std::filesystem::exists(path_)) {
    for_each_line(read_file(path_), [&](std::string_view line, int64_t at, const json& object) {
      if (at <= (object.contains("held_out_loss") ? evaluated_step : step)) kept.append(line).append("\n");
    });
  }
  write_file_atomically(path_, kept);
  descriptor_ = open(path_.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC);
  check<SystemError>(descriptor_ >= 0, "cannot open {}: {}", path_, std::strerror(errno));
}

MetricsLog::~MetricsLog() { close(descriptor_); }

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
  append(line.dump());
}

void MetricsLog::add(const Evaluation& e, int64_t bytes) {
  json line = {{"step", e.step}, {"held_out_loss", e.loss}};
  if (bytes > 0) line["bits_per_byte"] = bits_per_byte(e, bytes);
  line["tokens"] = e.tokens;
  line["seconds"] = e.seconds;
  append(line.dump());
}

void MetricsLog::append(const std::string& line) {
  struct stat before;
  check<SystemError>(fstat(descriptor_, &before) == 0, "cannot examine {}: {}", path_, std::strerror(errno));
  const std::string text = line + "\n";
  const ssize_t written = write(descriptor_, text.data(), text.size());
  if (written == std::ssize(text)) return;
  const std::string reason = written < 0 ? std::strerror(errno) : "the disk is full";
  check<SystemError>(written <= 0 || ftruncate(descriptor_, before.st_size) == 0,
                     "cannot undo a part of a line in {}: {}", path_, std::strerror(errno));
  fail<SystemError>("cannot write to {}: {}", path_, reason);
}

void for_each_metrics_line(const std::string& path,
                           const std::function<void(int64_t step, const json& line)>& take) {
  const MappedFile file(path);
  const std::string_view text(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size());
  for_each_line(text, [&](std::string_view, int64_t step, const json& object) { take(step, object); });
}

History read_history(const std::string& path) {
  History history;
  for_each_metrics_line(path, [&](int64_t step, const json& object) {
    const auto x = static_cast<double>(step);
    if (object.contains("loss") && object.at("loss").is_number())
      history.training.push_back({x, object.at("loss")});
    if (object.contains("held_out_loss") && object.at("held_out_loss").is_number()) {
      history.held_out.push_back({x, object.at("held_out_loss")});
    }
  });
  return history;
}

std::string loss_chart(const History& history, const TrainConfig& config, const std::string& data_name) {
  const ModelConfig& model = config.model;
  LineChart chart;
  chart.title = "Loss while training";
  chart.subtitle =
      fmt::format("{} · {} layers, width {}, context {}, vocabulary {} · {} tokens a step", data_name,
                  model.n_layer, model.n_embd, model.n_positions, format_count(model.vocab_size),
                  format_count(config.batch_size * model.n_positions));
  chart.x_label = "step";
  chart.y_label = "loss, nats per token";
  chart.series.push_back({.name = "training", .points = history.training, .color = "#9bb8d9", .width = 1.2});
  if (!history.held_out.empty()) {
    chart.series.push_back(
        {.name = "held out", .points = history.held_out, .color = "#c2410c", .width = 1.8, .markers = true});
  }
  return render(chart);
}

}  // namespace tapehead
