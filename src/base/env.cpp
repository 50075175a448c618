// Parses PLAIT_* variables strictly into Env: env.def lists all variables, and a misspelt name is
// an error.
#include "base/env.hpp"

#include <sys/auxv.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <shared_mutex>

#include "base/text.hpp"
#include "plait/error.hpp"

namespace plait {
namespace {

/// Never destroyed, since threads may read at exit.
std::shared_mutex& environment_guard() {
  static auto* const guard = new std::shared_mutex;
  return *guard;
}

[[noreturn]] void refuse(const std::string& what, const std::string& wanted,
                         const std::string& found) {
  throw Error(ErrorCode::invalid_argument, text("{}: wanted {}, found '{}'", what, wanted, found));
}

void set_text(std::string& field, const char* name, const std::string& value, double, double) {
  if (value.find('\n') != std::string::npos) refuse(name, "one line", value);
  field = value;
}

void set_flag(bool& field, const char* name, const std::string& value, double, double) {
  if (value != "0" && value != "1") refuse(name, "0 or 1", value);
  field = value == "1";
}

void set_auto_flag(AutoFlag& field, const char* name, const std::string& value, double, double) {
  if (value != "auto" && value != "0" && value != "1") refuse(name, "auto, 0 or 1", value);
  field = value == "auto" ? AutoFlag::automatic : value == "1" ? AutoFlag::on : AutoFlag::off;
}

void set_integer(int& field, const char* name, const std::string& value, double low, double high) {
  field = static_cast<int>(
      parse_integer(name, value, static_cast<std::int64_t>(low), static_cast<std::int64_t>(high)));
}

void set_real(double& field, const char* name, const std::string& value, double low, double high) {
  field = parse_real(name, value, low, high);
}

void set_byte_count(std::uint64_t& field, const char* name, const std::string& value, double low,
                    double high) {
  field =
      parse_bytes(name, value, static_cast<std::uint64_t>(low), static_cast<std::uint64_t>(high));
}

/// Returns the known name most similar to a wrong name, by equal letters at equal positions.
std::string nearest_name(const std::string& name) {
  std::string best;
  std::size_t best_common = 0;
  for (const EnvRow& row : env_rows()) {
    const std::size_t length = std::min(name.size(), std::strlen(row.name));
    std::size_t common = 0;
    while (common < length && name[common] == row.name[common]) ++common;
    if (common > best_common) best = row.name, best_common = common;
  }
  return best;
}

bool assign(Env& env, const std::string& name, const std::string& value) {
#define PLAIT_ENV(variable, field, kind, fallback, low, high, meaning) \
  if (name == #variable) {                                             \
    set_##kind(env.field, #variable, value, low, high);                \
    return true;                                                       \
  }
#include "base/env.def"
#undef PLAIT_ENV
  return false;
}

}  // namespace

bool Env::has(const std::string& name) const {
  return std::find(given.begin(), given.end(), name) != given.end();
}

const std::vector<EnvRow>& env_rows() {
  static const std::vector<EnvRow> rows = {
#define PLAIT_ENV(name, field, kind, fallback, low, high, meaning) \
  {#name, #kind, #fallback, meaning},
#include "base/env.def"
#undef PLAIT_ENV
  };
  return rows;
}

Env parse_env(const char* const* entries) {
  Env env;
  for (; entries != nullptr && *entries != nullptr; ++entries) {
    if (std::strncmp(*entries, "PLAIT_", 6) != 0) continue;
    const std::string entry = *entries;
    const std::size_t equals = entry.find('=');
    if (equals == std::string::npos) continue;
    const std::string name = entry.substr(0, equals);
    const std::string value = entry.substr(equals + 1);
    // Shells and launchers unset a variable for a command by an empty value.
    if (!value.empty() && !assign(env, name, value))
      throw Error(ErrorCode::invalid_argument, text("environment: {} is no variable of plait; did "
                                                    "you mean {}? unset it or correct the name",
                                                    name, nearest_name(name)));
    if (!value.empty()) env.given.push_back(name);
  }
  const std::string& order = env.sum_order;
  if (!order.empty() && order != "rank" && order != "rank_order" && order != "tree" &&
      order != "tree_rounded")
    refuse("environment: PLAIT_SUM_ORDER", "rank_order, tree or tree_rounded", order);
  if (!order.empty()) env.bitwise = true;  // a named order is a demand
  return env;
}

Env read_env() {
  if (getauxval(AT_SECURE) != 0) return Env{};
  const std::shared_lock<std::shared_mutex> hold(environment_guard());
  return parse_env(environ);
}

void set_foreign_env(const char* name, const char* value) {
  const std::lock_guard<std::shared_mutex> hold(environment_guard());
  ::setenv(name, value, 0);
}

std::optional<std::string> foreign_variable(const char* name) {
  const std::shared_lock<std::shared_mutex> hold(environment_guard());
  const char* value = secure_getenv(name);
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);
}

std::string foreign_env(const char* name) { return foreign_variable(name).value_or(""); }

std::int64_t parse_integer(const std::string& what, const std::string& value, std::int64_t low,
                           std::int64_t high) {
  std::int64_t number = 0;
  const char* end = value.data() + value.size();
  const auto [stop, error] = std::from_chars(value.data(), end, number);
  if (error != std::errc() || stop != end || number < low || number > high)
    refuse(what, text("a whole number from {} to {}", low, high), value);
  return number;
}

double parse_real(const std::string& what, const std::string& value, double low, double high) {
  double number = 0.0;
  const char* end = value.data() + value.size();
  const auto [stop, error] = std::from_chars(value.data(), end, number);
  if (error != std::errc() || stop != end || !std::isfinite(number) || number < low ||
      number > high)
    refuse(what, text("a number from {} to {}", low, high), value);
  return number;
}

std::uint64_t parse_bytes(const std::string& what, const std::string& value, std::uint64_t low,
                          std::uint64_t high) {
  std::string digits = value;
  int shift = 0;
  const std::string units = "KMGT";
  if (!digits.empty()) {
    const std::size_t unit = units.find(digits.back());
    if (unit != std::string::npos) shift = 10 * (static_cast<int>(unit) + 1), digits.pop_back();
  }
  std::uint64_t number = 0;
  const char* end = digits.data() + digits.size();
  const auto [stop, error] = std::from_chars(digits.data(), end, number);
  if (error != std::errc() || stop != end || number > (high >> shift) || number << shift < low)
    refuse(what, text("bytes from {} to {}, such as 4096 or 64M", low, high), value);
  return number << shift;
}

std::vector<std::string> split(const std::string& whole, char separator) {
  std::vector<std::string> parts;
  std::size_t start = 0;
  while (start <= whole.size()) {
    const std::size_t end = std::min(whole.find(separator, start), whole.size());
    if (end > start) parts.push_back(whole.substr(start, end - start));
    start = end + 1;
  }
  return parts;
}

}  // namespace plait
