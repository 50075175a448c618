// Strict JSON reader (see json_place.hpp).
#include "base/json_place.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "base/text.hpp"
#include "plait/error.hpp"

namespace plait {
namespace {

std::string shown(const Json& value) {
  if (value.is_structured() && value.size() > 8)
    return text("{} of {} entries", value.type_name(), value.size());
  std::string dumped = value.dump(-1, ' ', true, Json::error_handler_t::replace);
  // All ASCII, so truncation splits no character.
  if (dumped.size() > 60) dumped = dumped.substr(0, 57) + "...";
  return dumped;
}

[[noreturn]] void refuse_json(const char* document, const std::string& place,
                              const std::string& wanted, const std::string& found) {
  throw Error(ErrorCode::parse_error, text("{}: {}: wanted {}, found {}", document,
                                           place.empty() ? "the document" : place, wanted, found));
}

/// Returns the parser's text without "[json.exception.parse_error.101] ".
std::string without_number(const nlohmann::json::exception& error) {
  const std::string whole = error.what();
  const std::size_t end = whole.rfind('[', 0) == 0 ? whole.find("] ") : std::string::npos;
  return end == std::string::npos ? whole : whole.substr(end + 2);
}

}  // namespace

Json parse_json(std::string_view json, const char* document) {
  const auto refuse = [&](const std::string& wanted, const std::string& found) {
    refuse_json(document, "", wanted, found);
  };
  if (json.size() > kMaxJsonBytes)
    refuse(text("at most {} bytes", kMaxJsonBytes), text("{}", json.size()));
  std::vector<std::set<std::string>> keys;
  const auto watch = [&](int depth, Json::parse_event_t event, Json& value) {
    if (depth >= kMaxJsonDepth)
      refuse(text("nesting of at most {}", kMaxJsonDepth), "a deeper one");
    if (event == Json::parse_event_t::object_start) keys.emplace_back();
    if (event == Json::parse_event_t::object_end) keys.pop_back();
    if (event == Json::parse_event_t::key && !keys.back().insert(value.get<std::string>()).second)
      refuse("each key once", shown(value) + " twice in one object");
    return true;
  };
  try {
    return Json::parse(json.begin(), json.end(), watch);
  } catch (const nlohmann::json::parse_error& error) {
    const std::size_t at = std::min(json.size(), static_cast<std::size_t>(error.byte));
    const auto line =
        1 + std::count(json.begin(), json.begin() + static_cast<std::ptrdiff_t>(at), '\n');
    refuse_json(document, text("line {}", line), "well-formed JSON", without_number(error));
  } catch (const nlohmann::json::exception& error) {
    refuse_json(document, "", "well-formed JSON", without_number(error));
  }
}

std::string dumped(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

void JsonPlace::refuse(const std::string& wanted, const std::string& found) const {
  refuse_json(document_, name_, wanted, found.empty() ? shown(value_) : found);
}

void JsonPlace::object(std::initializer_list<const char*> keys) const {
  object_of_some(keys);
  for (const char* key : keys) at(key);
}

void JsonPlace::object_of_some(std::initializer_list<const char*> keys) const {
  if (!value_.is_object()) refuse("an object");
  for (const auto& entry : value_.items()) {
    const bool is_known = std::any_of(keys.begin(), keys.end(),
                                      [&](const char* names) { return entry.key() == names; });
    if (is_known) continue;
    std::string names;
    for (const char* one : keys) names += (names.empty() ? "" : ", ") + std::string(one);
    refuse("only the keys " + names, "the key " + shown(Json(entry.key())));
  }
}

JsonPlace JsonPlace::at(const std::string& key) const {
  const auto found = value_.find(key);
  const std::string place = name_.empty() ? key : name_ + "." + key;
  if (found == value_.end()) refuse_json(document_, place, "a value", "none");
  return {*found, place, document_};
}

std::vector<JsonPlace> JsonPlace::items() const {
  if (!value_.is_array()) refuse("an array");
  std::vector<JsonPlace> found;
  found.reserve(value_.size());
  for (std::size_t i = 0; i < value_.size(); ++i)
    found.emplace_back(value_[i], text("{}[{}]", name_, i), document_);
  return found;
}

std::vector<std::pair<std::string, JsonPlace>> JsonPlace::members() const {
  if (!value_.is_object()) refuse("an object");
  std::vector<std::pair<std::string, JsonPlace>> found;
  for (const auto& entry : value_.items())
    found.emplace_back(entry.key(), JsonPlace(entry.value(), name_ + "." + entry.key(), document_));
  return found;
}

std::string JsonPlace::string() const {
  if (!value_.is_string()) refuse("a string");
  return value_.get<std::string>();
}

std::string JsonPlace::string_or_empty(const char* key) const {
  return has(key) ? at(key).string() : std::string();
}

bool JsonPlace::boolean() const {
  if (!value_.is_boolean()) refuse("true or false");
  return value_.get<bool>();
}

std::int64_t JsonPlace::integer(std::int64_t low, std::int64_t high) const {
  const std::string wanted = text("a whole number in {}..{}", low, high);
  if (!value_.is_number_integer()) refuse(wanted);
  if (value_.is_number_unsigned() &&
      value_.get<std::uint64_t>() >
          static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()))
    refuse(wanted);
  const auto read = value_.get<std::int64_t>();
  if (read < low || read > high) refuse(wanted);
  return read;
}

int JsonPlace::index(int low) const {
  return static_cast<int>(integer(low, std::numeric_limits<int>::max()));
}

std::uint64_t JsonPlace::bytes() const {
  if (!value_.is_number_unsigned()) refuse("a whole number >= 0 that fits 64 bits");
  return value_.get<std::uint64_t>();
}

double JsonPlace::number(bool zero_allowed) const {
  const char* wanted = zero_allowed ? "a number >= 0" : "a number > 0";
  if (!value_.is_number()) refuse(wanted);
  const auto read = value_.get<double>();
  if (!std::isfinite(read) || read < 0 || (read == 0 && !zero_allowed)) refuse(wanted);
  return read;
}

}  // namespace plait
