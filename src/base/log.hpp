// Lines for people, in the form cluster tools already know: `host:pid:tid [rank] PLAIT INFO ...`.
// What is printed and where is PLAIT_DEBUG and PLAIT_DEBUG_FILE; off unless asked for.
#pragma once
#include <string>

namespace plait {

/// Each level prints those before it too.
enum class LogLevel : int { none, version, warn, info, explain };

/// "INFO" -> LogLevel::info, in any case; "" -> none. Error(invalid_argument) on other words.
LogLevel parse_log_level(const std::string& word);
/// PLAIT_DEBUG_FILE with %h and %p put in; Error(invalid_argument) on another % sequence.
std::string expand_log_file(const std::string& pattern, const std::string& host, int pid);
/// Reads the two settings anew. A file is made with mode 0600, appended to, and never a link.
void set_log(const std::string& level, const std::string& file);
bool log_enabled(LogLevel level);
/// One line, written with one write(). rank < 0 = no rank yet.
void log(LogLevel level, int rank, const std::string& message);
/// A warning that comes unasked: on stderr where PLAIT_DEBUG is not set, nowhere with NONE.
void warn_unasked(int rank, const std::string& message);
/// The line as it is written, without its newline.
std::string log_line(LogLevel level, int rank, const std::string& message);

}  // namespace plait
