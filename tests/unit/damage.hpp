// Damages JSON text at random: flipped bits, truncation, swapped, missing, repeated or nested
// tokens, extreme numbers. As a bad disk, a bad merge or an attacker would.
#pragma once
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "plait/error.hpp"

namespace plait_test {

/// Runs `read`. Returns true on success, false on an Error(parse_error) that names the wanted
/// input; anything else fails the test.
template <class Read>
bool is_read(const Read& read) {
  try {
    read();
    return true;
  } catch (const plait::Error& error) {
    CHECK(error.code() == plait::ErrorCode::parse_error);
    CHECK(std::string(error.what()).find("wanted") != std::string::npos);
    return false;
  }
}

/// Splits JSON into tokens: strings, numbers, names, and single characters.
inline std::vector<std::string> json_words(const std::string& json) {
  const auto is_plain = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '.' || c == '-' || c == '+';
  };
  std::vector<std::string> words;
  for (std::size_t at = 0; at < json.size();) {
    std::size_t end = at + 1;
    if (json[at] == '"') {
      while (end < json.size() && json[end] != '"') end += json[end] == '\\' ? 2 : 1;
      end = std::min(end + 1, json.size());
    } else if (is_plain(json[at])) {
      while (end < json.size() && is_plain(json[end])) ++end;
    }
    words.push_back(json.substr(at, end - at));
    at = end;
  }
  return words;
}

inline void damage_words(std::string& json, std::mt19937_64& random) {
  constexpr std::array<const char*, 12> kWild = {
      "0",     "-1",   "1e308",  "1e-320",     "2147483647",           "4294967296",
      "1e999", "null", "[[[[[]", "{\"a\":[]}", "18446744073709551615", "\"\\ud800\""};
  std::vector<std::string> words = json_words(json);
  const std::size_t at = random() % words.size();
  switch (random() % 6) {
    case 0: std::swap(words[at], words[random() % words.size()]); break;
    case 1: words[at].clear(); break;
    case 2: words[at] += words[at]; break;
    case 3: words[at] = kWild[random() % kWild.size()]; break;
    case 4: words[at] = words[random() % words.size()]; break;
    default:
      for (int depth = static_cast<int>(random() % 200); depth > 0; --depth)
        words[at].insert(0, random() % 2 == 0 ? "[" : "{\"\":");
  }
  json.clear();
  for (const std::string& word : words) json += word;
}

/// Returns `json` (not empty) with 1 to 3 damages.
inline std::string damaged(std::string json, std::mt19937_64& random) {
  for (std::uint64_t n = 1 + random() % 3; n > 0 && !json.empty(); --n) {
    const std::size_t at = random() % json.size();
    switch (random() % 8) {
      case 0: json[at] = static_cast<char>(json[at] ^ 1 << random() % 8); break;
      case 1: json.resize(at); break;
      case 2: json.erase(at, random() % 64); break;
      case 3: json.insert(at, json.substr(random() % json.size(), random() % 64)); break;
      default: damage_words(json, random);
    }
  }
  return json;
}

}  // namespace plait_test
