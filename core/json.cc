#include "tapehead/core/json.h"

#include <filesystem>

#include "tapehead/core/error.h"
#include "tapehead/core/file.h"

namespace tapehead {

Json parse_json(std::string_view text) { return Json::parse(text, nullptr, /*allow_exceptions=*/false); }

Json parse_json_or_throw(std::string_view text) { return Json::parse(text); }

Json read_json_object(const char* op, const std::string& path) {
  Json object = parse_json(read_file(path));
  check<ValueError>(object.is_object(), "[{}] {} holds no JSON object", op, path);
  return object;
}

Json find_json_object(const std::string& path) {
  if (!std::filesystem::exists(path)) return nullptr;
  Json object = parse_json(read_file(path));
  return object.is_object() ? object : Json(nullptr);
}

}  // namespace tapehead
