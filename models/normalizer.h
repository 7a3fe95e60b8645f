// Unicode's normal form C: one spelling for characters that have several.
#pragma once

#include <string>
#include <string_view>

namespace tapehead {

/// `text` in normal form C (Unicode Standard Annex 15) as the `tokenizers` package gives it, whose Unicode is
/// 9.0: marks that came later are left where they stand. Any bytes are accepted: those that are no part of
/// valid UTF-8 stay as they are, and the text around them is normalised as if it ended there. SystemError
/// without memory.
std::string normalize_nfc(std::string_view text);

}  // namespace tapehead
