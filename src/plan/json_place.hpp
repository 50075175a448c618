// JSON text -> typed values, strictly: whatever is not wanted is Error(parse_error) with its place
// in the document. Size and depth are capped, so that a hostile file stays cheap.
#pragma once
#include <cstdint>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace plait {

using Json = nlohmann::ordered_json;

inline constexpr std::size_t kMaxJsonBytes = 64U << 20;
inline constexpr int kMaxJsonDepth = 64;

/// "JSON: lanes[3].rank: wanted ..., found ...".
[[noreturn]] void refuse_json(const std::string& place, const std::string& wanted,
                              const std::string& found);
/// Refuses what is too long, too deep, malformed, or names a key twice in one object.
Json parse_json(std::string_view json);

/// A JSON value and its place in the document.
class JsonPlace {
 public:
  JsonPlace(const Json& value, std::string name) : value_(value), name_(std::move(name)) {}

  const std::string& name() const { return name_; }
  const Json& value() const { return value_; }
  std::size_t size() const { return value_.size(); }

  /// Refuses anything but an object with just these keys, all of which must be there.
  void object(std::initializer_list<const char*> keys) const;
  JsonPlace at(const char* key) const;
  /// The items of an array.
  std::vector<JsonPlace> items() const;
  std::string string() const;
  bool boolean() const;
  std::int64_t integer(std::int64_t low, std::int64_t high) const;
  int index(int low = 0) const;
  std::uint64_t bytes() const;
  [[noreturn]] void refuse(const std::string& wanted) const;

  /// One of `count` names that name_of() gives to the enum's values.
  template <class Enum>
  Enum name_in(int count) const {
    const std::string given = string();
    std::string known;
    for (int i = 0; i < count; ++i) {
      const std::string candidate = name_of(static_cast<Enum>(i));
      if (given == candidate) return static_cast<Enum>(i);
      known += (i == 0 ? "" : ", ") + candidate;
    }
    refuse("one of " + known);
  }

 private:
  const Json& value_;
  std::string name_;
};

}  // namespace plait
