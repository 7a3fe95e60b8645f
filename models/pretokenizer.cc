#include "tapehead/models/pretokenizer.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <array>
#include <memory>

#include "tapehead/core/error.h"

namespace tapehead {
namespace {

// White space is spelled out as Unicode's White_Space property: PCRE2's own \s also takes U+180E, which
// GPT-2's regular expressions do not.
#define SPACE R"(\t-\r\x{85}\p{Z})"
constexpr char kRule[] = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^)" SPACE R"(\p{L}\p{N}]+|[)" SPACE
                         R"(]+(?![^)" SPACE R"(])|[)" SPACE R"(]+)";
#undef SPACE

struct Free {
  void operator()(pcre2_code* code) const { pcre2_code_free(code); }
  void operator()(pcre2_match_data* match) const { pcre2_match_data_free(match); }
};
using Code = std::unique_ptr<pcre2_code, Free>;
using Match = std::unique_ptr<pcre2_match_data, Free>;

std::string pcre2_message(int error) {
  std::array<PCRE2_UCHAR, 256> message{};
  pcre2_get_error_message(error, message.data(), message.size());
  return reinterpret_cast<const char*>(message.data());
}

Code compile_rule() {
  int error = 0;
  PCRE2_SIZE where = 0;
  Code code(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(kRule), PCRE2_ZERO_TERMINATED,
                          PCRE2_UTF | PCRE2_ANCHORED, &error, &where, nullptr));
  check<SystemError>(code != nullptr, "[tokenizer] the PCRE2 library does not take the splitting rule: {}",
                     pcre2_message(error));
  // Where the machine forbids run-time code this fails, and matching is interpreted: slower, no different.
  pcre2_jit_compile(code.get(), PCRE2_JIT_COMPLETE);
  return code;
}

class Splitter {
 public:
  // How many bytes at the front of `text` are valid UTF-8.
  size_t valid_prefix(std::string_view text) {
    const int found = match(text, 0, 0);
    const bool invalid = PCRE2_ERROR_UTF8_ERR21 <= found && found <= PCRE2_ERROR_UTF8_ERR1;
    return invalid ? pcre2_get_startchar(match_.get()) : text.size();
  }

  void split_valid(std::string_view text, const std::function<void(std::string_view)>& take) {
    for (size_t begin = 0; begin < text.size();) {
      const int found = match(text, begin, PCRE2_NO_UTF_CHECK);
      // Every character is white space, a letter, a number or none of them, so only PCRE2's limits end here.
      check<SystemError>(found > 0, "[tokenizer] PCRE2 cannot split the text at byte {} of {}: {}", begin,
                         text.size(), pcre2_message(found));
      const size_t end = pcre2_get_ovector_pointer(match_.get())[1];
      take(text.substr(begin, end - begin));
      begin = end;
    }
  }

 private:
  int match(std::string_view text, size_t begin, uint32_t options) {
    return pcre2_match(code_, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), begin, options,
                       match_.get(), nullptr);
  }

  static const pcre2_code* rule() {
    static const Code code = compile_rule();
    return code.get();
  }

  const pcre2_code* code_ = rule();
  Match match_{pcre2_match_data_create_from_pattern(code_, nullptr)};
};

}  // namespace

void for_each_piece(std::string_view text, const std::function<void(std::string_view)>& take) {
  Splitter splitter;
  while (!text.empty()) {
    const size_t valid = splitter.valid_prefix(text);
    splitter.split_valid(text.substr(0, valid), take);
    text.remove_prefix(valid);
    if (!text.empty()) {
      take(text.substr(0, 1));
      text.remove_prefix(1);
    }
  }
}

}  // namespace tapehead
