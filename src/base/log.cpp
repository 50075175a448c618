// Formats and writes log lines. A single write() per line keeps lines of many ranks intact.
#include "base/log.hpp"

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cctype>
#include <cerrno>
#include <cstring>

#include "base/system_call.hpp"
#include "base/text.hpp"
#include "plait/error.hpp"

namespace plait {
namespace {

constexpr const char* kLevels[] = {"NONE", "VERSION", "WARN", "INFO", "EXPLAIN"};

std::atomic<int> current_level{0};
std::atomic<int> log_fd{STDERR_FILENO};
std::atomic<bool> is_silent{false};

std::string host_name() {
  char name[256] = {};
  if (gethostname(name, sizeof(name) - 1) != 0) return "?";
  return name;
}

void write_line(LogLevel level, int rank, const std::string& message) {
  const std::string line = log_line(level, rank, message) + "\n";
  // A full disk or a closed pipe must not end the job: only the line is lost.
  [[maybe_unused]] const auto written = write(log_fd.load(), line.data(), line.size());
}

}  // namespace

LogLevel parse_log_level(const std::string& word) {
  std::string upper;
  for (char letter : word)
    upper += static_cast<char>(std::toupper(static_cast<unsigned char>(letter)));
  if (upper.empty()) return LogLevel::none;
  for (int level = 0; level < 5; ++level)
    if (upper == kLevels[level]) return static_cast<LogLevel>(level);
  throw Error(ErrorCode::invalid_argument,
              text("PLAIT_DEBUG: wanted NONE, VERSION, WARN, INFO or EXPLAIN, found '{}'", word));
}

std::string expand_log_file(const std::string& pattern, const std::string& host, int pid) {
  std::string path;
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    if (pattern[i] != '%') {
      path += pattern[i];
      continue;
    }
    const char letter = i + 1 < pattern.size() ? pattern[++i] : '\0';
    if (letter == 'h')
      path += host;
    else if (letter == 'p')
      path += std::to_string(pid);
    else if (letter == '%')
      path += '%';
    else
      throw Error(ErrorCode::invalid_argument,
                  text("PLAIT_DEBUG_FILE: wanted %h, %p or %% after a %, found '{}'", pattern));
  }
  return path;
}

void set_log(const std::string& level, const std::string& file) {
  const LogLevel wanted = parse_log_level(level);
  int fd = STDERR_FILENO;
  if (!file.empty() && wanted != LogLevel::none) {
    const std::string path = expand_log_file(file, host_name(), getpid());
    fd = above_stderr(open(
        path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW | O_NOCTTY, 0600));
    if (fd < 0)
      throw Error(ErrorCode::io_error,
                  text("PLAIT_DEBUG_FILE: cannot open '{}': {}", path, std::strerror(errno)));
  }
  const int before = log_fd.exchange(fd);
  if (before != STDERR_FILENO) close(before);
  current_level = static_cast<int>(wanted);
  is_silent = !level.empty() && wanted < LogLevel::warn;
}

bool log_enabled(LogLevel level) {
  return level != LogLevel::none && static_cast<int>(level) <= current_level.load();
}

std::string log_line(LogLevel level, int rank, const std::string& message) {
  const long thread = syscall(SYS_gettid);
  const std::string where = rank < 0 ? std::string("-") : std::to_string(rank);
  return text("{}:{}:{} [{}] PLAIT {} {}", host_name(), getpid(), thread, where,
              kLevels[static_cast<int>(level)], message);
}

void log(LogLevel level, int rank, const std::string& message) {
  if (log_enabled(level)) write_line(level, rank, message);
}

void warn_unasked(int rank, const std::string& message) {
  if (!is_silent || log_enabled(LogLevel::warn)) write_line(LogLevel::warn, rank, message);
}

void tell_unasked(int rank, const std::string& message) {
  if (!is_silent) write_line(LogLevel::info, rank, message);
}

}  // namespace plait
