// The strict reader of JSON (see json_place.hpp).
#include "plan/json_place.hpp"

#include <algorithm>
#include <limits>
#include <set>

#include "base/text.hpp"
#include "plait/error.hpp"

namespace plait {
namespace {

std::string shown(const Json& value) {
  if (value.is_structured() && value.size() > 8)
    return text(value.type_name(), " of ", value.size(), " entries");
  std::string dumped = value.dump(-1, ' ', true, Json::error_handler_t::replace);
  // All ASCII, so that the cut splits no character.
  if (dumped.size() > 60) dumped = dumped.substr(0, 57) + "...";
  return dumped;
}

}  // namespace

void refuse_json(const std::string& place, const std::string& wanted, const std::string& found) {
  throw Error(ErrorCode::parse_error, text("JSON: ", place.empty() ? "the document" : place,
                                           ": wanted ", wanted, ", found ", found));
}

Json parse_json(std::string_view json) {
  if (json.size() > kMaxJsonBytes)
    refuse_json("", text("at most ", kMaxJsonBytes, " bytes"), text(json.size()));
  std::vector<std::set<std::string>> keys;
  const auto watch = [&](int depth, Json::parse_event_t event, Json& value) {
    if (depth >= kMaxJsonDepth)
      refuse_json("", text("nesting of at most ", kMaxJsonDepth), "a deeper one");
    if (event == Json::parse_event_t::object_start) keys.emplace_back();
    if (event == Json::parse_event_t::object_end) keys.pop_back();
    if (event == Json::parse_event_t::key && !keys.back().insert(value.get<std::string>()).second)
      refuse_json("", "each key once", "\"" + value.get<std::string>() + "\" twice in one object");
    return true;
  };
  try {
    return Json::parse(json.begin(), json.end(), watch);
  } catch (const nlohmann::json::parse_error& error) {
    const std::size_t at = std::min(json.size(), static_cast<std::size_t>(error.byte));
    const auto line =
        1 + std::count(json.begin(), json.begin() + static_cast<std::ptrdiff_t>(at), '\n');
    refuse_json(text("line ", line), "well-formed JSON", error.what());
  } catch (const nlohmann::json::exception& error) {
    refuse_json("", "well-formed JSON", error.what());
  }
}

void JsonPlace::refuse(const std::string& wanted) const {
  refuse_json(name_, wanted, shown(value_));
}

void JsonPlace::object(std::initializer_list<const char*> keys) const {
  if (!value_.is_object()) refuse("an object");
  for (const auto& entry : value_.items()) {
    const bool is_known = std::any_of(keys.begin(), keys.end(),
                                      [&](const char* known) { return entry.key() == known; });
    if (is_known) continue;
    std::string known;
    for (const char* one : keys) known += (known.empty() ? "" : ", ") + std::string(one);
    refuse_json(name_, "only the keys " + known, "the key \"" + entry.key() + "\"");
  }
  for (const char* key : keys) at(key);
}

JsonPlace JsonPlace::at(const char* key) const {
  const auto found = value_.find(key);
  const std::string place = name_.empty() ? key : name_ + "." + key;
  if (found == value_.end()) refuse_json(place, "a value", "none");
  return {*found, place};
}

std::vector<JsonPlace> JsonPlace::items() const {
  if (!value_.is_array()) refuse("an array");
  std::vector<JsonPlace> found;
  found.reserve(value_.size());
  for (std::size_t i = 0; i < value_.size(); ++i)
    found.emplace_back(value_[i], text(name_, "[", i, "]"));
  return found;
}

std::string JsonPlace::string() const {
  if (!value_.is_string()) refuse("a string");
  return value_.get<std::string>();
}

bool JsonPlace::boolean() const {
  if (!value_.is_boolean()) refuse("true or false");
  return value_.get<bool>();
}

std::int64_t JsonPlace::integer(std::int64_t low, std::int64_t high) const {
  const std::string wanted = text("a whole number in ", low, "..", high);
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

}  // namespace plait
