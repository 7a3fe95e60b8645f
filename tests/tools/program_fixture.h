// Runs the tapehead program as people run it, each test in a folder of its own.
#pragma once

#include <fcntl.h>
#include <fmt/core.h>
#include <gtest/gtest.h>
#include <pty.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace tapehead::testing_program {

namespace fs = std::filesystem;

constexpr const char* kProgram = "tools/tapehead";

inline std::string read_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

inline void write_file(const fs::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

inline int64_t count_lines(const std::string& text) { return std::count(text.begin(), text.end(), '\n'); }

using Args = std::vector<std::string>;

inline Args operator+(Args a, const Args& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

struct Result {
  int status = -1;  // of exit, or 128 + the signal, as a shell has it
  std::string out, err;
};

/// What the program meets outside its arguments.
struct Surroundings {
  rlim_t file_bytes = RLIM_INFINITY;  // the largest file that it may write: a full disk
  std::string stdin_text = {};
  std::string stdout_path = {};  // empty: a file of its own
};

class ProgramTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::path(testing::TempDir()) / testing::UnitTest::GetInstance()->current_test_info()->name();
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }

  std::string path(const std::string& name) const { return folder_ / name; }

  pid_t start(const Args& args, const Surroundings& around = {}) {
    write_file(folder_ / "stdin", around.stdin_text);
    const pid_t child = fork();
    if (child == 0) {
      const auto redirect = [](const std::string& to, int flags, int descriptor) {
        dup2(open(to.c_str(), flags, 0600), descriptor);
      };
      redirect(path("stdin"), O_RDONLY, STDIN_FILENO);
      redirect(around.stdout_path.empty() ? path("stdout") : around.stdout_path, O_WRONLY | O_CREAT | O_TRUNC,
               STDOUT_FILENO);
      redirect(path("stderr"), O_WRONLY | O_CREAT | O_TRUNC, STDERR_FILENO);
      const rlimit limit = {around.file_bytes, around.file_bytes};
      setrlimit(RLIMIT_FSIZE, &limit);
      exec(args);
    }
    return child;
  }

  /// Until a file of the test holds `text`, or the child has ended.
  void wait_for(pid_t child, const std::string& file, const std::string& text) const {
    siginfo_t ended = {};
    while (read_file(path(file)).find(text) == std::string::npos) {
      waitid(P_PID, static_cast<id_t>(child), &ended, WEXITED | WNOHANG | WNOWAIT);
      ASSERT_EQ(ended.si_pid, 0) << "the program ended first: " << read_file(path("stderr"));
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }

  Result finish(pid_t child) {
    int status = 0;
    waitpid(child, &status, 0);
    return {WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status), read_file(path("stdout")),
            read_file(path("stderr"))};
  }

  Result run(const Args& args, const Surroundings& around = {}) { return finish(start(args, around)); }

  /// What a terminal is shown by a program that ends well; none where there is no pseudo-terminal.
  std::optional<std::string> seen_on_a_terminal(const Args& args) {
    int terminal = -1;
    const pid_t child = forkpty(&terminal, nullptr, nullptr, nullptr);
    if (child == 0) exec(args);
    if (child < 0) return std::nullopt;
    std::string seen;
    char part[4096];
    for (ssize_t n; (n = ::read(terminal, part, sizeof(part))) > 0;)
      seen.append(part, static_cast<size_t>(n));
    close(terminal);
    EXPECT_EQ(finish(child).status, 0) << seen;
    return seen;
  }

  /// Expects an end with `status`, and one line that begins with the error's type and holds `part`.
  void expect_error(const Args& args, int status, const std::string& type, const std::string& part,
                    const Surroundings& around = {}) {
    const Result result = run(args, around);
    EXPECT_EQ(result.status, status) << result.err;
    EXPECT_TRUE(result.err.starts_with("error: " + type + ": ")) << result.err;
    EXPECT_NE(result.err.find(part), std::string::npos) << result.err;
    EXPECT_EQ(count_lines(result.err), 1) << result.err;
  }

  // ---- A run to look at

  /// text.txt: so many lines to train on.
  void write_text(int lines = 200) const {
    std::string text;
    for (int i = 0; i < lines; ++i) text += fmt::format("line {} tells of {} apples\n", i, i * i % 37);
    write_file(folder_ / "text.txt", text);
  }

  /// Begins a new run on text.txt, of a model so small that its steps take no time.
  Args train_tiny(const std::string& out, const Args& more = {}) const {
    const Args tiny = {"--n-layer", "1", "--n-head",     "1",   "--n-embd",  "8", "--context",    "8",
                       "--warmup",  "2", "--vocab-size", "260", "--threads", "1", "--batch-size", "2"};
    return Args{"train", "--text", path("text.txt"), "--out", path(out)} + tiny + more;
  }

  std::string checkpoint(const std::string& run) const { return path(run + "/checkpoint.safetensors"); }

  /// The files in a run's folder, if there is one.
  Args names(const std::string& run) const {
    Args list;
    std::error_code none;
    for (const auto& entry : fs::directory_iterator(folder_ / run, none))
      list.push_back(entry.path().filename());
    std::ranges::sort(list);
    return list;
  }

  /// A run's history without what no two runs share: how long its steps took.
  std::string history(const std::string& run) const {
    std::string text = read_file(path(run + "/metrics.jsonl"));
    for (size_t at; (at = text.find("\"seconds\":")) != text.npos;)
      text.erase(at, text.find_first_of(",}", at) - at);
    return text;
  }

  /// Until the history of "run" is longer than `lines`, or the child has ended.
  void wait_for_step(pid_t child, int64_t lines) const {
    siginfo_t ended = {};
    while (count_lines(read_file(folder_ / "run/metrics.jsonl")) <= lines && ended.si_pid == 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      waitid(P_PID, static_cast<id_t>(child), &ended, WEXITED | WNOHANG | WNOWAIT);
    }
  }

  [[noreturn]] void exec(const Args& args) const {
    std::vector<char*> argv = {const_cast<char*>(program_.c_str())};
    for (const std::string& arg : args) argv.push_back(const_cast<char*>(arg.c_str()));
    argv.push_back(nullptr);
    execv(program_.c_str(), argv.data());
    _exit(127);
  }

  fs::path folder_;
  std::string program_ = kProgram;
};

}  // namespace tapehead::testing_program
