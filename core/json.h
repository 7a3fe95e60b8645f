// JSON, nlohmann's. Its parser takes seconds to compile, so json.cc alone compiles it for all that read whole
// values.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace tapehead {

/// Objects keep their keys in the order in which they came.
using Json = nlohmann::ordered_json;

/// `text` as JSON. Where it is none, a value that is_discarded(): of no type, an object least of all.
Json parse_json(std::string_view text);

/// The same, but where it is none, throws Json::parse_error, which says what is wrong and where.
Json parse_json_or_throw(std::string_view text);

/// The object that a file holds. ValueError "[op] PATH holds no JSON object", and the errors of read_file.
Json read_json_object(const char* op, const std::string& path);

/// The same; null where there is no such file, or it holds something else.
Json find_json_object(const std::string& path);

}  // namespace tapehead
