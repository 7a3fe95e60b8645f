#include "tapehead/tools/memory_picture.h"

#include <fmt/core.h>

#include <algorithm>
#include <vector>

#include "tapehead/tools/format.h"
#include "tapehead/tools/svg_chart.h"

namespace tapehead {
namespace {

constexpr int kWidth = 980, kHeight = 560;
constexpr double kLeft = 78, kTop = 118, kBottom = kHeight - 64, kPanel = 420, kGap = 44;
constexpr double kSmallest = 13;  // pixels: below it a buffer has no room for its name

struct Block {
  std::string name;
  int64_t bytes;
  Lifetime lifetime;
};

struct Stage {
  const char* name;
  std::vector<Block> blocks;  // bottom first

  int64_t bytes() const {
    int64_t total = 0;
    for (const Block& b : blocks) total += b.bytes;
    return total;
  }
};

/// Pixels of letters whose text just fits `width`, at most `largest`; a letter is some 0.56 of its size wide.
double fitting_size(std::string_view text, double width, double largest) {
  return std::min(largest, width / (0.56 * static_cast<double>(std::max<size_t>(text.size(), 1))));
}

const char* color(Lifetime lifetime) {
  switch (lifetime) {
    case Lifetime::chunk: return "#f2b134";
    case Lifetime::pass: return "#ed553b";
    case Lifetime::until_backward: return "#3caea3";
    case Lifetime::result: return "#20639b";
  }
  return "";
}

// Buffers of `pass` that live as `wanted` says, largest first, appended to `blocks`.
void add(std::vector<Block>& blocks, const PassPlan& pass, std::initializer_list<Lifetime> wanted) {
  std::vector<Block> more;
  for (const PlannedBuffer& b : pass.buffers) {
    if (std::find(wanted.begin(), wanted.end(), b.lifetime) != wanted.end())
      more.push_back({b.name, b.bytes(), b.lifetime});
  }
  std::stable_sort(more.begin(), more.end(),
                   [](const Block& a, const Block& b) { return a.bytes > b.bytes; });
  blocks.insert(blocks.end(), more.begin(), more.end());
}

// The buffers of each stage. What forward keeps stays at the bottom; what backward hands on takes its place.
std::vector<Stage> stages(const PathPlan& path, bool holds_logits) {
  using enum Lifetime;
  std::vector<Stage> list = {{"forward", {}}, {"between", {}}};
  add(list[0].blocks, path.forward, {until_backward});
  add(list[0].blocks, path.forward, {pass, chunk});
  add(list[0].blocks, path.forward, {result});
  add(list[1].blocks, path.forward, {until_backward});
  add(list[1].blocks, path.forward, {result});
  if (path.backward.peak_bytes == 0) return list;

  Stage back = {"backward", {}}, after = {"after", {}};
  if (holds_logits) {  // first the gradient of the logits, then, without the logits, the products
    Stage first = {"backward: loss", {}};
    add(first.blocks, path.forward, {until_backward});
    add(first.blocks, path.backward, {pass});
    add(first.blocks, path.forward, {result});
    list.push_back(first);
    back.name = "backward: head";
    for (const PlannedBuffer& b : path.backward.buffers) {
      if (b.name == "logits gradient") back.blocks.push_back({b.name, b.bytes(), b.lifetime});
    }
  } else {
    add(back.blocks, path.forward, {until_backward});
    add(back.blocks, path.backward, {pass, chunk});
  }
  add(back.blocks, path.backward, {result});
  add(back.blocks, path.forward, {result});
  list.push_back(back);
  add(after.blocks, path.backward, {result});
  if (path.backward.bytes(result) == 0) add(after.blocks, path.forward, {until_backward});  // handed on
  add(after.blocks, path.forward, {result});
  list.push_back(after);
  return list;
}

void draw_path(Svg& svg, double left, const std::string& title, const std::vector<Stage>& list,
               const Scale& y) {
  svg.text({left, kTop - 22}, title, {.size = 15, .bold = true});
  const double step = kPanel / static_cast<double>(list.size()), width = step * 0.86;
  for (size_t s = 0; s < list.size(); ++s) {
    const double x = left + static_cast<double>(s) * step;
    double at = 0;
    for (const Block& b : list[s].blocks) {
      const double top = y(at + static_cast<double>(b.bytes)), bottom = y(at);
      at += static_cast<double>(b.bytes);
      if (bottom - top < 0.3) continue;
      svg.rectangle({x, top}, width, bottom - top, color(b.lifetime));
      svg.line({x, top}, {x + width, top}, "#ffffff", 1);
      if (bottom - top < kSmallest) continue;
      const double middle = (top + bottom) / 2;
      const bool two_lines = bottom - top >= 2 * kSmallest + 4;
      svg.text({x + width / 2, middle + (two_lines ? -2 : 4)}, b.name,
               {.size = fitting_size(b.name, width - 6, 10.5), .color = "#ffffff", .anchor = "middle"});
      if (two_lines)
        svg.text({x + width / 2, middle + 11}, format_bytes(b.bytes),
                 {.size = 10, .color = "#ffffff", .anchor = "middle"});
    }
    svg.text({x + width / 2, y(at) - 6}, format_bytes(list[s].bytes()),
             {.size = 11, .color = "#222", .anchor = "middle", .bold = true});
    svg.text({x + width / 2, kBottom + 18}, list[s].name,
             {.size = fitting_size(list[s].name, step - 6, 11), .color = "#555", .anchor = "middle"});
  }
  svg.line({left, kBottom}, {left + kPanel, kBottom}, "#888");
}

}  // namespace

std::string memory_picture(const std::string& title, const LinearCrossEntropyPlan& plan) {
  const std::vector<Stage> chunked = stages(plan.chunked, false), reference = stages(plan.reference, true);
  int64_t most = 1;
  for (const auto* list : {&chunked, &reference}) {
    for (const Stage& s : *list) most = std::max(most, s.bytes());
  }
  // Ticks in a power of 1024, so that they are round in the unit that people read.
  double unit = 1;
  while (static_cast<double>(most) / unit >= 1024) unit *= 1024;
  const std::vector<double> ticks = round_ticks(0, static_cast<double>(most) / unit, 5);
  const Scale y = {0, ticks.back() * unit, kBottom, kTop};

  Svg svg(kWidth, kHeight);
  svg.text({kLeft, 34}, "Memory of linear_cross_entropy beyond its arguments", {.size = 18, .bold = true});
  svg.text({kLeft, 56}, title, {.size = 13, .color = "#555"});
  for (const double tick : ticks) {
    svg.line({kLeft, y(tick * unit)}, {kLeft + 2 * kPanel + kGap, y(tick * unit)}, "#e6e6e6");
    svg.text({kLeft - 8, y(tick * unit) + 4}, format_bytes(static_cast<int64_t>(tick * unit)),
             {.size = 11, .color = "#555", .anchor = "end"});
  }
  draw_path(svg, kLeft,
            fmt::format("chunked: {} rows at a time, policy {}", format_count(plan.options.batch_chunk_size),
                        name(plan.options.acc_policy)),
            chunked, y);
  draw_path(svg, kLeft + kPanel + kGap, "reference: the whole logits", reference, y);

  double x = kLeft;
  const std::pair<Lifetime, const char*> legend[] = {{Lifetime::chunk, "used again by every chunk"},
                                                     {Lifetime::pass, "until the pass ends"},
                                                     {Lifetime::until_backward, "until backward"},
                                                     {Lifetime::result, "result"}};
  for (const auto& [lifetime, text] : legend) {
    svg.rectangle({x, kHeight - 26}, 12, 12, color(lifetime));
    svg.text({x + 18, kHeight - 16}, text, {.size = 12, .color = "#333"});
    x += 46 + 6.6 * static_cast<double>(std::string_view(text).size());
  }
  return svg.str();
}

}  // namespace tapehead
