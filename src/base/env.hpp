// The process's PLAIT_* variables in a struct. env.def defines names, kinds and ranges. An unlisted
// name or a value out of range is an error that names the variable.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace plait {

/// A choice that plait makes by itself unless the variable says no or yes.
enum class AutoFlag { automatic, off, on };

struct Env {
  using text = std::string;
  using flag = bool;
  using auto_flag = AutoFlag;
  using integer = int;
  using real = double;
  using byte_count = std::uint64_t;
#define PLAIT_ENV(name, field, kind, fallback, low, high, meaning) kind field = fallback;
#include "base/env.def"
#undef PLAIT_ENV
  std::vector<std::string> given;  ///< names of the variables that were set
  bool has(const std::string& name) const;
  bool operator==(const Env&) const = default;
};

/// Parses "NAME=value" entries up to a null pointer; skips names without PLAIT_.
/// Error(invalid_argument) names the variable, the values wanted and the value found.
Env parse_env(const char* const* entries);
/// parse_env() of this process; ignores all variables in a set-uid program.
Env read_env();
/// Returns the value of another tool's variable (RANK, SLURM_PROCID, ...); empty if unset.
std::string foreign_env(const char* name);
/// The same, with nothing for an unset variable.
std::optional<std::string> foreign_variable(const char* name);
/// Sets another tool's variable unless the variable is set. Readers above wait meanwhile, since
/// setenv moves the environment.
void set_foreign_env(const char* name, const char* value);

/// A row of env.def, for documentation.
struct EnvRow {
  const char* name;
  const char* kind;
  const char* fallback;
  const char* meaning;
};
const std::vector<EnvRow>& env_rows();

/// Parses a whole decimal number. Error(invalid_argument) names `what`.
std::int64_t parse_integer(const std::string& what, const std::string& value, std::int64_t low,
                           std::int64_t high);
double parse_real(const std::string& what, const std::string& value, double low, double high);
/// Parses a size: "64M" gives 67108864.
std::uint64_t parse_bytes(const std::string& what, const std::string& value, std::uint64_t low,
                          std::uint64_t high);
std::vector<std::string> split(const std::string& whole, char separator);

}  // namespace plait
