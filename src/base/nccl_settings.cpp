// Reads files of lines NAME=value; lines beginning with # are comments. An unreadable file counts
// as empty, as in NCCL.
#include "base/nccl_settings.hpp"

#include <sys/auxv.h>

#include <cerrno>
#include <cstdlib>
#include <sstream>
#include <string>

#include "base/env.hpp"
#include "base/whole_file.hpp"
#include "plait/error.hpp"

namespace plait {
namespace {

std::optional<std::string> setting_of(const std::string& path, const std::string& name) {
  if (path.empty()) return std::nullopt;
  try {
    const FileTerms terms{.what = "NCCL's settings",
                          .most_bytes = 1 << 20,
                          .writers = Writers::anyone,
                          .advice = "correct that",
                          .may_be_missing = true};
    return nccl_setting_in(read_whole_file(path, terms).value_or(""), name);
  } catch (const Error&) {
    return std::nullopt;
  }
}

std::string user_file() {
  const std::string named = foreign_env("NCCL_CONF_FILE");
  if (!named.empty()) return named;
  const std::string home = foreign_env("HOME");
  return home.empty() ? "" : home + "/.nccl.conf";
}

}  // namespace

std::optional<std::string> nccl_setting_in(const std::string& file, const std::string& name) {
  std::istringstream lines(file);
  std::string line;
  while (std::getline(lines, line)) {
    if (!line.empty() && line.back() == '\r') line.pop_back();
    const std::size_t equals = line.find('=');
    if (equals == name.size() && line.compare(0, equals, name) == 0) return line.substr(equals + 1);
  }
  return std::nullopt;
}

std::optional<std::string> nccl_setting(const std::string& name) {
  if (getauxval(AT_SECURE) != 0) return std::nullopt;
  if (std::optional<std::string> found = foreign_variable(name.c_str())) return found;
  if (std::optional<std::string> found = setting_of(user_file(), name)) return found;
  return setting_of("/etc/nccl.conf", name);
}

std::optional<std::int64_t> nccl_number(const std::string& value) {
  char* end = nullptr;
  errno = 0;
  const long long number = std::strtoll(value.c_str(), &end, 0);
  if (end == value.c_str() || errno != 0) return std::nullopt;
  return number;
}

namespace {

/// True if `entry`, "mlx5_0" or "mlx5_0:1", names the port.
bool names_port(const std::string& entry, const std::string& nic, int port, bool is_exact) {
  const std::size_t colon = entry.find(':');
  const std::string name = entry.substr(0, colon);
  if (is_exact ? nic != name : !nic.starts_with(name)) return false;
  // NCCL takes port -1 for any port, and text without a number for port 0.
  const int wanted = colon == std::string::npos ? -1 : std::atoi(entry.c_str() + colon + 1);
  return wanted == -1 || wanted == port;
}

}  // namespace

bool nccl_uses_nic(const std::string& filter, const std::string& nic, int port) {
  const bool is_left_out = filter.starts_with('^');
  const bool is_exact = filter.compare(is_left_out ? 1 : 0, 1, "=") == 0;
  std::istringstream entries(filter.substr((is_left_out ? 1u : 0u) + (is_exact ? 1u : 0u)));
  bool names_all = true, is_named = false;
  for (std::string entry; std::getline(entries, entry, ',');) {
    if (entry.empty() || entry.front() == ':') continue;
    names_all = false;
    is_named = is_named || names_port(entry, nic, port, is_exact);
  }
  return (names_all || is_named) != is_left_out;
}

}  // namespace plait
