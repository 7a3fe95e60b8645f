#include "tapehead/models/documents.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "tapehead/core/error.h"
#include "tapehead/core/file.h"
#include "tapehead/core/random.h"
#include "tapehead/models/text.h"

namespace tapehead {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr int64_t kPart = 1 << 20;  // bytes handed on at once

bool is_json_lines(const std::string& path) { return path.ends_with(".jsonl") || path.ends_with(".ndjson"); }

std::string_view text_of(const MappedFile& file) {
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

// ---- Files

// Git's rule for what is no text.
bool is_binary(std::string_view bytes) { return bytes.substr(0, 8000).find('\0') != std::string_view::npos; }

std::vector<std::string> files_below(const std::string& folder) {
  std::vector<std::string> files;
  try {
    for (auto entry = fs::recursive_directory_iterator(folder); entry != fs::recursive_directory_iterator();
         ++entry) {
      if (entry->path().filename().string().starts_with('.')) {
        entry.disable_recursion_pending();
      } else if (entry->is_regular_file()) {
        files.push_back(entry->path().string());
      }
    }
  } catch (const fs::filesystem_error& error) {
    fail<SystemError>("[data] cannot look through the folder {}: {}", folder, error.code().message());
  }
  std::ranges::sort(files);
  return files;
}

// ---- Drawing what is held out

/// Draws `wanted` of `total` things in their order, each as likely as any other (Knuth,
/// TAOCP 2, algorithm 3.4.2S).
class Selection {
 public:
  Selection(int64_t wanted, int64_t total, uint64_t seed) : wanted_(wanted), left_(total), random_{seed} {}

  bool next() {
    if (wanted_ == 0) return false;
    const bool drawn = static_cast<int64_t>(random_.below(static_cast<uint64_t>(left_--))) < wanted_;
    wanted_ -= drawn;
    return drawn;
  }

 private:
  int64_t wanted_, left_;
  Generator random_;
};

bool is_blank(std::string_view line) {
  return line.find_first_not_of(" \t\r\n\v\f") == std::string_view::npos;
}

/// Calls f(line, number) for every line that is not blank, numbers counting from 1; gives
/// memory back as it goes.
template <class F>
void for_each_line(MappedFile& file, F&& f) {
  const std::string_view text = text_of(file);
  int64_t number = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    ++number;
    if (const std::string_view line = text.substr(begin, end - begin); !is_blank(line)) f(line, number);
    begin = std::min(end + 1, text.size());
    file.release_before(static_cast<int64_t>(begin));
  }
}

int64_t count_documents(const std::string& path) {
  if (!is_json_lines(path)) return 1;
  int64_t count = 0;
  MappedFile file(path);
  for_each_line(file, [&](std::string_view, int64_t) { ++count; });
  return count;
}

Selection select_held_out(const SourceFiles& source, const ReadDocumentsOptions& options) {
  int64_t total = 0;
  for (const std::string& path : source.files) total += count_documents(path);
  int64_t wanted = 0;
  if (options.held_out > 0 && total > 1) {
    wanted = std::clamp<int64_t>(std::llround(options.held_out * static_cast<double>(total)), 1, total - 1);
  }
  return {wanted, total, options.split_seed};
}

// ---- Lines of JSON

struct JsonDocument {
  std::string prompt, text;
};

const std::string& string_in(const json& object, const char* key) {
  check<ValueError>(object.contains(key), "it has no \"{}\"", key);
  check<ValueError>(object.at(key).is_string(), "its \"{}\" is no string", key);
  return object.at(key).get_ref<const std::string&>();
}

JsonDocument parse_line(std::string_view line) {
  json object;
  try {
    object = json::parse(line);
  } catch (const json::exception& error) {
    // The library's messages begin with "[json.exception.NAME] ", and count lines in what it was given: one.
    constexpr std::string_view kLine = "line 1, ";
    std::string what = error.what();
    what.erase(0, what.find(' ') + 1);
    if (const size_t at = what.find(kLine); at != what.npos) what.erase(at, kLine.size());
    fail<ValueError>("{}", what);
  }
  check<ValueError>(object.is_object(), "it is no JSON object");
  if (object.contains("prompt") || object.contains("completion")) {
    check<ValueError>(!object.contains("text"), "it has a \"text\" beside \"prompt\" and \"completion\"");
    return {string_in(object, "prompt"), string_in(object, "completion")};
  }
  check<ValueError>(object.contains("text"), "it has neither \"text\" nor \"prompt\" and \"completion\"");
  return {"", string_in(object, "text")};
}

// ---- Reading

class Reader {
 public:
  Reader(const ReadDocumentsOptions& options, const std::function<void(const DocumentPart&)>& take,
         const std::function<void(int64_t)>& on_read)
      : options_(options), take_(take), on_read_(on_read) {}

  /// One text, by blocks of lines.
  void read_blocks(const std::string& path) {
    MappedFile file(path);
    const std::string_view text = text_of(file);
    std::vector<TextBlock> blocks = {{0, std::ssize(text), false}};
    if (options_.held_out > 0) {
      blocks = split_held_out(text, options_.held_out, options_.split_seed,
                              [&](int64_t end) { file.release_before(end); });
    }
    for (const TextBlock& block : blocks) hand_on(file, block.begin, block.end, block.held_out, false);
    counts.documents = 1;
  }

  /// A file that is a document.
  void read_text(const std::string& path, bool held_out) {
    MappedFile file(path);
    if (file.bytes().empty()) {
      ++counts.empty;
      return;
    }
    hand_on(file, 0, std::ssize(file.bytes()), held_out, true);
    count(held_out);
  }

  void read_lines(const std::string& path, Selection& held_out) {
    MappedFile file(path);
    int64_t told = 0;
    const std::string_view text = text_of(file);
    for_each_line(file, [&](std::string_view line, int64_t number) {
      read_line(line, fmt::format("{}:{}", path, number), held_out.next());
      if (const int64_t done = line.data() + line.size() - text.data(); done - told >= kPart) {
        tell(done - std::exchange(told, done));
      }
    });
    tell(std::ssize(text) - told);
  }

  DocumentCounts counts;

 private:
  // Bytes begin .. end - 1, a part at a time.
  void hand_on(MappedFile& file, int64_t begin, int64_t end, bool held_out, bool ends) {
    const std::string_view text = text_of(file);
    while (begin < end) {
      const int64_t next = std::min(begin + kPart, end);
      take_({.text = text.substr(static_cast<size_t>(begin), static_cast<size_t>(next - begin)),
             .held_out = held_out,
             .ends = ends && next == end});
      file.release_before(next);
      tell(next - begin);
      begin = next;
    }
  }

  void read_line(std::string_view line, const std::string& place, bool held_out) {
    JsonDocument document;
    try {
      document = parse_line(line);
    } catch (const ValueError& error) {
      check<ValueError>(
          options_.skip_bad_lines,
          "[data] {} cannot be read: {}; mend the line, or pass over such lines with --skip-bad-lines", place,
          error.what());
      if (counts.bad_lines++ == 0) counts.first_bad_line = fmt::format("{}: {}", place, error.what());
      return;
    }
    if (document.text.empty()) {
      ++counts.empty;
      return;
    }
    if (!document.prompt.empty()) take_({.text = document.prompt, .prompt = true, .held_out = held_out});
    take_({.text = document.text, .held_out = held_out, .ends = true});
    count(held_out);
  }

  void count(bool held_out) {
    ++counts.documents;
    counts.held_out += held_out;
  }

  void tell(int64_t bytes) const {
    if (on_read_ && bytes > 0) on_read_(bytes);
  }

  const ReadDocumentsOptions& options_;
  const std::function<void(const DocumentPart&)>& take_;
  const std::function<void(int64_t)>& on_read_;
};

}  // namespace

bool SourceFiles::one_text() const { return files.size() == 1 && !is_json_lines(files.front()); }

SourceFiles find_files(const std::string& path) {
  SourceFiles found = {.path = path};
  const bool folder = fs::is_directory(path);
  check<ValueError>(
      folder || fs::is_regular_file(path) || !fs::exists(path),
      "[data] {} is no file or folder, and a source is read more than once; write it to a file first", path);
  for (std::string& file : folder ? files_below(path) : std::vector<std::string>{path}) {
    const MappedFile mapped(file);
    const auto size = std::ssize(mapped.bytes());
    if (folder && (size == 0 || is_binary(text_of(mapped)))) {
      found.left_out.push_back(std::move(file));
      continue;
    }
    check<ValueError>(size > 0, "[data] {} is empty; there is nothing to learn from it", file);
    found.files.push_back(std::move(file));
    found.bytes += size;
  }
  check<ValueError>(!found.files.empty(),
                    "[data] the folder {} holds no text: files in it that are empty or binary: {}", path,
                    found.left_out.size());
  return found;
}

DocumentCounts& DocumentCounts::operator+=(const DocumentCounts& other) {
  if (bad_lines == 0) first_bad_line = other.first_bad_line;
  documents += other.documents;
  held_out += other.held_out;
  empty += other.empty;
  bad_lines += other.bad_lines;
  return *this;
}

DocumentCounts read_documents(const SourceFiles& source, const ReadDocumentsOptions& options,
                              const std::function<void(const DocumentPart&)>& take,
                              const std::function<void(int64_t)>& on_read) {
  check<ValueError>(0 <= options.held_out && options.held_out < 1,
                    "[data] the held-out fraction is {}, but must be at least 0 and less than 1",
                    options.held_out);
  Reader reader(options, take, on_read);
  if (source.one_text()) {
    reader.read_blocks(source.files.front());
  } else {
    Selection held_out = select_held_out(source, options);
    for (const std::string& path : source.files) {
      if (is_json_lines(path)) {
        reader.read_lines(path, held_out);
      } else {
        reader.read_text(path, held_out.next());
      }
    }
  }
  const DocumentCounts& counts = reader.counts;
  check<ValueError>(counts.documents > 0,
                    "[data] {} has no document to learn from: {} are empty, and {} lines cannot be read{}{}",
                    source.path, counts.empty, counts.bad_lines, counts.bad_lines > 0 ? ", the first " : "",
                    counts.first_bad_line);
  return reader.counts;
}

}  // namespace tapehead
