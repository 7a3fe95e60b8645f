// The report, as the program writes it and as a browser shows it.
#include "tapehead/tests/tools/browser.h"
#include "tapehead/tests/tools/program_fixture.h"

namespace tapehead::testing_program {
namespace {

using nlohmann::json;

// Markup that would end the page's data, change its title, or ask for a file.
constexpr const char* kHostile = "</script><script>document.title = 'broken'</script><img src=x>";

class Report : public ProgramTest {
 protected:
  /// A run whose loss falls from 10 by 0.01 a step.
  void write_run(const std::string& name, int64_t steps, int layers) {
    fs::create_directories(folder_ / name);
    std::string metrics;
    for (int64_t step = 1; step <= steps; ++step) {
      metrics += fmt::format(
          R"({{"step":{0},"loss":{1},"smoothed_loss":{1},"lr":0.001,"grad_norm":1.5,"tokens":100,"seconds":0.01}})"
          "\n",
          step, 10 - 0.01 * static_cast<double>(step));
      if (step % 50 == 0) {
        metrics += fmt::format(
            R"({{"step":{},"held_out_loss":9,"held_out_accuracy":0.25,"held_out_entropy":3,"seconds":1}})"
            "\n",
            step);
      }
    }
    write_file(folder_ / name / "metrics.jsonl", metrics + "{\"step\":2,\"lo");
    json state = {
        {"step", steps}, {"model", {{"n_layer", layers}, {"n_head", 2}}}, {"training", {{"seed", kHostile}}}};
    write_file(folder_ / name / "checkpoint.json", state.dump());
  }

  json data_of(const std::string& page) const {
    const std::string begin = R"(id="data">)";
    const size_t from = page.find(begin) + begin.size();
    return json::parse(page.substr(from, page.find("</script>", from) - from));
  }
};

TEST_F(Report, HoldsWhatTheRunsTell) {
  write_run("a", 100, 2);
  const Result result = run({"report", path("a"), "--out", path("page.html")});
  ASSERT_EQ(result.status, 0) << result.err;
  const json a = data_of(read_file(folder_ / "page.html")).at("runs").at(0);
  EXPECT_EQ(a.at("name"), "a");
  EXPECT_EQ(a.at("totals"), (json{{"steps", 100}, {"skipped", 0}, {"tokens", 10000.0}, {"seconds", 1.0}}));
  EXPECT_EQ(a.at("series").at("loss").at("y").at(49), 9.5);
  EXPECT_EQ(a.at("series").at("tokens_per_second").at("y").at(0), 10000.0);
  EXPECT_EQ(a.at("series").at("held_out_accuracy"), (json{{"x", {50, 100}}, {"y", {0.25, 0.25}}}));
  EXPECT_EQ(a.at("settings").at("model.n_layer"), 2);
  EXPECT_TRUE(a.at("memory").is_null());
}

TEST_F(Report, OfALongRunIsSmall) {
  write_run("long", 100000, 2);
  ASSERT_EQ(run({"report", path("long"), "--out", path("page.html")}).status, 0);
  EXPECT_LT(fs::file_size(path("page.html")), 400000u);
}

TEST_F(Report, SaysWhatIsNoRun) {
  fs::create_directories(folder_ / "empty");
  expect_error({"report", path("empty")}, 2, "ValueError", "holds no run");
  write_run("a", 5, 2);
  expect_error({"report", path("a"), "--out", path("none/page.html")}, 1, "SystemError", "none/page.html");
}

class ReportPage : public Report {
 protected:
  void SetUp() override {
    Report::SetUp();
    const auto program = Browser::find();
    if (!program)
      GTEST_SKIP() << "there is no Chromium here: tools/setup chromium-headless-shell installs it";
    write_run("a", 100, 2);
    write_run("b", 200, 3);
    write_file(folder_ / "b/samples.jsonl",
               json({{"step", 50}, {"prompt", kHostile}, {"text", " early"}}).dump() + "\n" +
                   json({{"step", 100}, {"prompt", kHostile}, {"text", " late"}}).dump() + "\n");
    write_file(folder_ / "b/memory.json",
               json({{"moments", {{{"at", kHostile}, {"parameters", 1024}, {"head", 2048}}}},
                     {"counted", {{{"at", "embedding"}, {"parameters", 1024}, {"activations", 4096}}}}})
                   .dump());
    ASSERT_EQ(run({"report", path("a"), path("b"), "--out", path("page.html")}).status, 0);
    browser_.emplace(*program, path("browser"));
    browser_->open_file(path("page.html"));
  }

  /// What one reads there, with spaces for the ends of lines.
  std::string text_of(const std::string& selector) {
    std::string text = browser_->evaluate("document.querySelector('" + selector + "').innerText");
    std::ranges::replace(text, '\n', ' ');
    return text;
  }

  /// The place in the window where the first chart has `step`, in the plot's middle.
  json place_of(int step) {
    return browser_->evaluate(fmt::format(
        "(() => {{ const plot = document.querySelector('.plot'); plot.scrollIntoView({{block: 'center'}});"
        "const box = plot.getBoundingClientRect();"
        "return {{x: box.left + drawn[0].graph.toDomXCoord({}), y: box.top + box.height / 2}} }})()",
        step));
  }

  std::optional<Browser> browser_;
};

TEST_F(ReportPage, ShowsTheValuesUnderTheMouse) {
  const json place = place_of(50);
  browser_->call("Input.dispatchMouseEvent",
                 {{"type", "mouseMoved"}, {"x", place.at("x")}, {"y", place.at("y")}});
  const std::string read = text_of(".read");
  EXPECT_NE(read.find("step 50"), std::string::npos) << read;
  EXPECT_NE(read.find("a training 9.5"), std::string::npos) << read;
  EXPECT_NE(read.find("b held out 9"), std::string::npos) << read;
}

TEST_F(ReportPage, ShowsTheValuesUnderAFingerOnAPhone) {
  browser_->call("Emulation.setDeviceMetricsOverride",
                 {{"width", 360}, {"height", 740}, {"deviceScaleFactor", 2}, {"mobile", true}});
  browser_->call("Emulation.setTouchEmulationEnabled", {{"enabled", true}});
  browser_->wait_for_drawing();
  EXPECT_LE(browser_->evaluate("document.documentElement.scrollWidth"), 360);  // no scrolling sideways
  const json place = place_of(150);
  browser_->call("Input.dispatchTouchEvent", {{"type", "touchStart"}, {"touchPoints", {place}}});
  const std::string read = text_of(".read");
  EXPECT_NE(read.find("step 15"), std::string::npos) << read;  // a finger may miss by some steps
  EXPECT_NE(read.find("b training 8."), std::string::npos) << read;
  EXPECT_NE(read.find("a training –"), std::string::npos) << read;  // it ended before
}

TEST_F(ReportPage, FollowsDarkMode) {
  const std::string brightness =
      "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).reduce((sum, part) => sum + +part, 0)";
  const std::string colors = "drawn[0].graph.getColors().join()";
  const auto prefer = [&](const char* scheme) {
    browser_->call("Emulation.setEmulatedMedia",
                   {{"features", {{{"name", "prefers-color-scheme"}, {"value", scheme}}}}});
    browser_->wait_for_drawing();
  };
  prefer("light");
  const json light = browser_->evaluate(colors);
  EXPECT_GT(browser_->evaluate(brightness), 600);
  prefer("dark");
  EXPECT_LT(browser_->evaluate(brightness), 200);
  EXPECT_NE(browser_->evaluate(colors), light);
}

TEST_F(ReportPage, ComparesSettings) {
  const std::string settings = text_of("#settings table");
  EXPECT_NE(settings.find("model.n_layer\t2\t3"), std::string::npos) << settings;
  EXPECT_EQ(settings.find("n_head"), std::string::npos) << settings;
}

TEST_F(ReportPage, ShowsTheMemoryOfAStepAsPlannedAndAsCounted) {
  const std::string text = text_of("body");
  EXPECT_NE(text.find("as planned before the first step"), std::string::npos) << text;
  EXPECT_NE(text.find("largest at embedding all 5.0 KiB"), std::string::npos) << text;
}

// Hazard: the report of a head that was trained alone speaks of tokens, and skipped steps are nowhere to be seen.
TEST_F(ReportPage, OfAHeadSpeaksOfRowsAndTellsOfSkippedSteps) {
  write_file(folder_ / "a/data.json", R"({"name":"features","features":"features"})");
  write_file(
      folder_ / "a/metrics.jsonl",
      read_file(folder_ / "a/metrics.jsonl") +
          "\n{\"step\":101,\"loss\":99,\"grad_norm\":9,\"tokens\":100,\"seconds\":0.01,\"skipped\":true}\n");
  ASSERT_EQ(run({"report", path("a"), "--out", path("head.html")}).status, 0);
  browser_->open_file(path("head.html"));
  const std::string text = text_of("body");
  EXPECT_EQ(text.find("token"), std::string::npos) << text;
  for (const char* part : {"nats per row", "rows per second", "of held-out rows", "rows/s"})
    EXPECT_NE(text.find(part), std::string::npos) << part << text;
  const std::string summary = text_of("#summary");
  EXPECT_NE(summary.find("steps\tskipped\t"), std::string::npos) << summary;
  EXPECT_NE(summary.find("a\t101\t1\t"), std::string::npos) << summary;
}

TEST_F(ReportPage, HidesARunOnAClick) {
  browser_->evaluate("document.querySelectorAll('#runs button')[0].click()");
  EXPECT_EQ(text_of(".read").find("a training"), std::string::npos);
  EXPECT_NE(text_of(".read").find("b training"), std::string::npos);
}

TEST_F(ReportPage, TakesTextFromARunAsText) {
  EXPECT_EQ(browser_->evaluate("document.title"), "2 runs · Tapehead report");
  EXPECT_EQ(text_of("#samples pre"), std::string(kHostile) + " late");
  browser_->evaluate(
      "(() => { const slider = document.querySelector('#samples input'); slider.value = 0; slider.oninput(); "
      "})()");
  EXPECT_EQ(text_of("#samples pre"), std::string(kHostile) + " early");
  EXPECT_EQ(browser_->evaluate("document.querySelectorAll('img').length"), 0);
}

TEST_F(ReportPage, NeedsNothingElseAndMakesNoMistakes) {
  EXPECT_EQ(browser_->events("Network.requestWillBeSent").size(), 1u);  // the page itself
  EXPECT_TRUE(browser_->events("Runtime.exceptionThrown").empty());
}

}  // namespace
}  // namespace tapehead::testing_program
