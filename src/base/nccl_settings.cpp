// Reads files of lines NAME=value; lines beginning with # are comments. An unreadable file counts
// as empty, as in NCCL.
#include "base/nccl_settings.hpp"

#include <sys/auxv.h>

#include <cerrno>
#include <cstdlib>
#include <sstream>

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

}  // namespace plait
