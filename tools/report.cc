// tapehead report: how runs went, as one page that needs nothing else.
#include <fmt/core.h>

#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>

#include "tapehead/core/error.h"
#include "tapehead/core/file.h"
#include "tapehead/tools/commands.h"
#include "tapehead/tools/format.h"
#include "tapehead/tools/report/page.h"
#include "tapehead/tools/report/run_report.h"

namespace tapehead {

namespace {

using json = nlohmann::ordered_json;

struct ReportOptions {
  std::vector<std::string> runs;
  std::string out = "report.html";
};

/// The folders' own names where these differ, else their paths.
std::vector<std::string> names_of(const std::vector<std::string>& runs) {
  std::vector<std::string> names;
  for (const std::string& run : runs) {
    names.push_back(base_name(std::filesystem::absolute(run)));  // "." has a name, too
  }
  return std::set(names.begin(), names.end()).size() == names.size() ? names : runs;
}

/// `text` as JSON inside a page's script element, which "</script>" would end.
std::string escape_for_script(std::string_view text) {
  std::string escaped;
  for (const char c : text) c == '<' ? escaped += "\\u003c" : escaped += c;
  return escaped;
}

void write_report(const ReportOptions& options) {
  const std::vector<std::string> names = names_of(options.runs);
  json data = {{"runs", json::array()}};
  for (size_t i = 0; i < names.size(); ++i) data["runs"].push_back(run_report({options.runs[i]}, names[i]));
  // A name may be any bytes.
  const std::string text = data.dump(-1, ' ', false, json::error_handler_t::replace);
  const std::string page =
      std::string(kReportPageBegin) + escape_for_script(text) + std::string(kReportPageEnd);
  write_file_atomically(options.out, page);
  fmt::print("written to {}: {}; open it in a browser\n", options.out, format_bytes(std::ssize(page)));
}

}  // namespace

void add_report(Command program) {
  Command report = program.add_command("report", "Show how runs went, on a page for the browser");
  const auto options = std::make_shared<ReportOptions>();
  report.add_option("RUN", options->runs, "folders of runs, compared with each other").required();
  report.add_option("--out", options->out, "the page").type_name("FILE").show_default();
  report.footer(
      "The page is one file that needs nothing else, and may be sent to others. What a run generated and how "
      "it is\n"
      "set stand in it.\n\n"
      "Example:\n"
      "  tapehead report runs/book\n"
      "  tapehead report runs/book runs/book16 --out both.html");
  report.callback([=] { write_report(*options); });
}

}  // namespace tapehead
