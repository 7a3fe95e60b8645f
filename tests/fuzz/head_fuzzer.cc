// `tapehead head` on arbitrary bytes. The first line of an input is the command's flags;
// the rest is the file.
#include <algorithm>
#include <new>
#include <sstream>
#include <string>
#include <vector>

#include "tapehead/core/error.h"
#include "tapehead/tests/fuzz/fuzzer.h"
#include "tapehead/tests/fuzz/memory_file.h"
#include "tapehead/tools/program.h"

namespace {

// Flags that would write files, or take as long or as many threads as their number says.
bool is_left_out(const std::string& word) {
  return word.starts_with("--out") || word.starts_with("--backward") || word.starts_with("--threads");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tapehead;
  const char* const begin = reinterpret_cast<const char*>(data);
  const char* const line_end = std::find(begin, begin + size, '\n');
  if (line_end == begin + size) return 0;

  const MemoryFile file(line_end + 1, static_cast<size_t>(begin + size - line_end - 1));
  std::vector<std::string> words = {"tapehead", "head", file.path()};
  std::istringstream line(std::string(begin, line_end));
  for (std::string word; line >> word;) {
    if (is_left_out(word)) return 0;
    words.push_back(word);
  }
  std::vector<const char*> argv;
  for (const std::string& word : words) argv.push_back(word.c_str());
  try {
    run_program(static_cast<int>(argv.size()), argv.data());
  } catch (const ValueError&) {  // NOLINT: refusing is what it should do
  } catch (const TypeError&) {
  } catch (const RuntimeError&) {
  } catch (const SystemError&) {
  } catch (const std::bad_alloc&) {  // sizes that the file may name, and no machine has
  }
  return 0;
}
