// The process's PLAIT_* variables -> one struct. Names, kinds and ranges come from env.def; a name
// not listed there, or a value out of its range, is an error that says which.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace plait {

struct Env {
  using text = std::string;
  using flag = bool;
  using integer = int;
  using real = double;
  using byte_count = std::uint64_t;
#define PLAIT_ENV(name, field, kind, fallback, low, high, meaning) kind field = fallback;
#include "base/env.def"
#undef PLAIT_ENV
  std::vector<std::string> given;  ///< the names that were set
  bool has(const std::string& name) const;
  bool operator==(const Env&) const = default;
};

/// Reads "NAME=value" entries, ignoring those that do not begin with PLAIT_; a null pointer ends
/// them. Error(invalid_argument) naming the variable, what was wanted and what was found.
Env parse_env(const char* const* entries);
/// parse_env of this process; nothing is honoured in a set-uid program.
Env read_env();
/// The value of another tool's variable (RANK, SLURM_PROCID, ...); empty where it is not set.
std::string foreign_env(const char* name);

/// One row of env.def, for documentation.
struct EnvRow {
  const char* name;
  const char* kind;
  const char* fallback;
  const char* meaning;
};
const std::vector<EnvRow>& env_rows();

/// A whole decimal number, or Error(invalid_argument) naming `what`.
std::int64_t parse_integer(const std::string& what, const std::string& value, std::int64_t low,
                           std::int64_t high);
double parse_real(const std::string& what, const std::string& value, double low, double high);
/// "64M" -> 67108864.
std::uint64_t parse_bytes(const std::string& what, const std::string& value, std::uint64_t low,
                          std::uint64_t high);
std::vector<std::string> split(const std::string& whole, char separator);

}  // namespace plait
