// Log lines in the form that cluster tools know: `host:pid:tid [rank] PLAIT INFO ...`. PLAIT_DEBUG
// and PLAIT_DEBUG_FILE select level and file; off by default.
#pragma once
#include <string>

namespace plait {

/// Each level includes all levels before it.
enum class LogLevel : int { none, version, warn, info, explain };

/// Parses a level: "INFO" in any case gives LogLevel::info, "" none. Error(invalid_argument) on
/// other words.
LogLevel parse_log_level(const std::string& word);
/// Replaces %h and %p in PLAIT_DEBUG_FILE. Error(invalid_argument) on other % sequences.
std::string expand_log_file(const std::string& pattern, const std::string& host, int pid);
/// Applies the two settings. A log file is made with mode 0600, appended to, and never a link.
void set_log(const std::string& level, const std::string& file);
bool log_enabled(LogLevel level);
/// Writes a line with a single write(). rank < 0 = no rank yet.
void log(LogLevel level, int rank, const std::string& message);
/// Writes a warning also if PLAIT_DEBUG is unset, to stderr. Nothing with NONE.
void warn_unasked(int rank, const std::string& message);
/// The same for news that are no warning.
void tell_unasked(int rank, const std::string& message);
/// Returns the line without a newline.
std::string log_line(LogLevel level, int rank, const std::string& message);

}  // namespace plait
