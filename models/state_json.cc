#include "tapehead/models/state_json.h"

#include "tapehead/core/error.h"

namespace tapehead {

static constexpr const char* kHead = "head";

static const char* name_of(StateKind kind) { return kind == StateKind::head ? "a head alone" : "a model"; }

std::string write_state(StateKind kind, const std::function<void(StateWriter)>& fields) {
  Json json = {{"version", kStateVersion}};
  if (kind == StateKind::head) json["kind"] = kHead;
  fields(StateWriter{json});
  return json.dump(2);
}

void read_state(const std::string& text, StateKind kind,
                const std::function<void(StateReader, int64_t version)>& fields) try {
  const Json json = parse_json_or_throw(text);
  const int64_t version = json.is_object() ? json.value("version", int64_t{1}) : 1;
  check<ValueError>(version <= kStateVersion,
                    "it is of version {}, and this program reads versions up to {}: use a newer one", version,
                    kStateVersion);
  const bool head = json.is_object() && json.value("kind", "") == kHead;
  const StateKind found = head ? StateKind::head : StateKind::model;
  check<ValueError>(found == kind, "it is a checkpoint of {}, and one of {} is needed here", name_of(found),
                    name_of(kind));
  fields(StateReader{json}, version);
} catch (const Json::exception& e) {
  fail<ValueError>("it is damaged, or of another version: its state cannot be read ({})", e.what());
}

}  // namespace tapehead
