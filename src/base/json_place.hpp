// Reads JSON strictly into typed values: anything unwanted is Error(parse_error) with the place in
// the document. Size and depth are limited: a hostile file stays cheap. Used for plans, reports and
// topologies.
#pragma once
#include <cstdint>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace plait {

using Json = nlohmann::ordered_json;

inline constexpr std::size_t kMaxJsonBytes = 64U << 20;
inline constexpr int kMaxJsonDepth = 64;

/// Refuses JSON that is too long, too deep, malformed, or names a key twice in an object.
/// `document` ("plan JSON") begins the messages.
Json parse_json(std::string_view json, const char* document);
/// Returns JSON as a line of text; replaces invalid UTF-8.
std::string dumped(const Json& value);

/// A JSON value with a place in the document: "" = the whole, "links[3].gb_per_s".
class JsonPlace {
 public:
  JsonPlace(const Json& value, std::string name, const char* document)
      : value_(value), name_(std::move(name)), document_(document) {}

  const std::string& name() const { return name_; }
  const Json& value() const { return value_; }
  bool has(const char* key) const { return value_.contains(key); }

  /// Refuses anything but an object with exactly `keys`.
  void object(std::initializer_list<const char*> keys) const;
  /// Refuses anything but an object with no keys beyond `keys`; keys may be missing.
  void object_of_some(std::initializer_list<const char*> keys) const;
  JsonPlace at(const std::string& key) const;
  /// Returns the items of an array.
  std::vector<JsonPlace> items() const;
  /// Returns the keys and values of an object.
  std::vector<std::pair<std::string, JsonPlace>> members() const;
  std::string string() const;
  std::string string_or_empty(const char* key) const;
  bool boolean() const;
  std::int64_t integer(std::int64_t low, std::int64_t high) const;
  int index(int low = 0) const;
  std::uint64_t bytes() const;
  /// Returns a finite number above 0, or at least 0 if zero_allowed.
  double number(bool zero_allowed) const;
  /// Throws Error(parse_error): "plan JSON: lanes[3].rank: wanted ..., found ...". An empty `found`
  /// prints the value.
  [[noreturn]] void refuse(const std::string& wanted, const std::string& found = "") const;

  /// Returns the enum value with this string as name_of(), out of `count` values.
  template <class Enum>
  Enum name_in(int count) const {
    const std::string given = string();
    std::string names;
    for (int i = 0; i < count; ++i) {
      const std::string candidate = name_of(static_cast<Enum>(i));
      if (given == candidate) return static_cast<Enum>(i);
      names += (i == 0 ? "" : ", ") + candidate;
    }
    refuse("one of " + names);
  }

 private:
  const Json& value_;
  std::string name_;
  const char* document_;
};

}  // namespace plait
