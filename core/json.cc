#include "tapehead/core/json.h"

namespace tapehead {

Json parse_json(std::string_view text) { return Json::parse(text, nullptr, /*allow_exceptions=*/false); }

Json parse_json_or_throw(std::string_view text) { return Json::parse(text); }

}  // namespace tapehead
