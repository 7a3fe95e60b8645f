// A page in headless Chromium, moved and read through the DevTools protocol
// (chromedevtools.github.io/devtools-protocol).
#pragma once

#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace tapehead::testing_program {

class Browser {
 public:
  /// The program, if this machine has it.
  static std::optional<std::string> find() {
    std::istringstream folders(std::getenv("PATH") ? std::getenv("PATH") : "/usr/bin");
    for (std::string folder; std::getline(folders, folder, ':');) {
      for (const char* name : {"chromium-headless-shell", "chromium", "google-chrome"}) {
        const std::string path = folder + "/" + name;
        if (access(path.c_str(), X_OK) == 0) return path;
      }
    }
    return std::nullopt;
  }

  /// Begins with an empty page; `folder` takes what the browser writes.
  Browser(const std::string& program, const std::string& folder) {
    int to_browser[2], from_browser[2];
    if (pipe2(to_browser, O_CLOEXEC) != 0 || pipe2(from_browser, O_CLOEXEC) != 0)
      throw std::runtime_error("no pipe");
    child_ = fork();
    if (child_ == 0) {
      // With --remote-debugging-pipe it reads from descriptor 3 and writes to 4. Copies above 4 come first,
      // so that neither overwrites the other.
      const int read_end = fcntl(to_browser[0], F_DUPFD_CLOEXEC, 10),
                write_end = fcntl(from_browser[1], F_DUPFD_CLOEXEC, 10);
      dup2(read_end, 3);
      dup2(write_end, 4);
      dup2(open("/dev/null", O_WRONLY), STDERR_FILENO);
      const std::string data = "--user-data-dir=" + folder;
      // The pages are our own; without the sandbox it runs as root, too.
      execl(program.c_str(), program.c_str(), "--headless", "--no-sandbox", "--disable-gpu",
            "--disable-dev-shm-usage", "--hide-scrollbars", "--remote-debugging-pipe", data.c_str(),
            "about:blank", nullptr);
      _exit(127);
    }
    close(to_browser[0]);
    close(from_browser[1]);
    out_ = to_browser[1];
    in_ = from_browser[0];
    const auto target = call("Target.createTarget", {{"url", "about:blank"}}).at("targetId");
    session_ = call("Target.attachToTarget", {{"targetId", target}, {"flatten", true}}).at("sessionId");
    for (const char* domain : {"Page", "Runtime", "Network"}) call(std::string(domain) + ".enable");
  }

  ~Browser() {
    kill(child_, SIGKILL);
    waitpid(child_, nullptr, 0);
    close(out_);
    close(in_);
  }
  Browser(const Browser&) = delete;
  Browser& operator=(const Browser&) = delete;

  /// A command's result. Throws what the browser says against it.
  nlohmann::json call(const std::string& method,
                      const nlohmann::json& parameters = nlohmann::json::object()) {
    nlohmann::json message = {{"id", ++calls_}, {"method", method}, {"params", parameters}};
    if (!session_.empty()) message["sessionId"] = session_;
    const std::string text = message.dump();
    if (write(out_, text.c_str(), text.size() + 1) != std::ssize(text) + 1)  // a zero ends a message
      throw std::runtime_error("the browser takes no more commands");
    for (;;) {
      const nlohmann::json answer = receive();
      if (!answer.contains("id")) {
        events_.push_back(answer);
      } else if (answer.at("id") == calls_) {
        if (answer.contains("error")) throw std::runtime_error(method + ": " + answer.at("error").dump());
        return answer.at("result");
      }
    }
  }

  /// What happened before is forgotten.
  void open_file(const std::string& path) {
    events_.clear();
    call("Page.navigate", {{"url", "file://" + std::filesystem::absolute(path).string()}});
    while (events("Page.loadEventFired").empty()) events_.push_back(receive());
  }

  /// The value of a JavaScript expression, or of what it promises.
  nlohmann::json evaluate(const std::string& expression) {
    const nlohmann::json result = call(
        "Runtime.evaluate", {{"expression", expression}, {"returnByValue", true}, {"awaitPromise", true}});
    if (result.contains("exceptionDetails")) throw std::runtime_error(result.dump());
    return result.at("result").value("value", nlohmann::json());
  }

  /// Until what was changed before is drawn.
  void wait_for_drawing() {
    evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))");
  }

  /// Parameters of the events of one kind so far.
  std::vector<nlohmann::json> events(const std::string& method) const {
    std::vector<nlohmann::json> found;
    for (const auto& event : events_) {
      if (event.value("method", "") == method) found.push_back(event.at("params"));
    }
    return found;
  }

 private:
  nlohmann::json receive() {
    for (;;) {
      if (const size_t end = received_.find('\0'); end != std::string::npos) {
        const nlohmann::json message = nlohmann::json::parse(received_.substr(0, end));
        received_.erase(0, end + 1);
        return message;
      }
      pollfd ready = {.fd = in_, .events = POLLIN, .revents = 0};
      char part[65536];
      const ssize_t n = poll(&ready, 1, kPatience) == 1 ? read(in_, part, sizeof(part)) : -1;
      if (n <= 0) throw std::runtime_error("the browser does not answer");
      received_.append(part, static_cast<size_t>(n));
    }
  }

  static constexpr int kPatience = 60000;  // milliseconds

  pid_t child_;
  int out_, in_;
  int calls_ = 0;
  std::string session_, received_;
  std::vector<nlohmann::json> events_;
};

}  // namespace tapehead::testing_program
