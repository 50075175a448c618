// A path -> the whole text of a file that is believed: opened once and looked at through what was
// opened (so that nothing can take its place), regular, of bounded size, of an owner to trust, and
// the same file from its first byte to its last.
#pragma once
#include <sys/stat.h>

#include <cstdint>
#include <optional>
#include <string>

namespace plait {

/// Who may be able to write what is read.
enum class Writers : std::uint8_t {
  anyone,         // the user named the file, and so has looked
  not_everybody,  // this user's or root's, and others at most as a group
  this_user_alone,
};

/// What of an owner and a mode is against the rule, as "found ..." goes on; empty where nothing is.
std::string distrust(const struct stat& facts, Writers writers);

struct FileTerms {
  const char* what;  // "tuning table": how messages begin
  std::int64_t most_bytes;
  Writers writers = Writers::anyone;
  const char* advice;  // how messages end
  bool may_be_missing = false;
};

/// Error(io_error) where it cannot be read or is no regular file, is too long or is changed
/// meanwhile; Error(permission) where its writers are not those of the terms. Nothing where there
/// is no such file and it may be missing.
std::optional<std::string> read_whole_file(const std::string& file, const FileTerms& terms);

/// The next bytes of an open file, which must end right there: a file that is shorter or longer
/// than it was when it was looked at is being rewritten, and what was read is neither its old nor
/// its new text. Empty then; errno says why, 0 where it is the length.
std::optional<std::string> read_to_end(int fd, std::int64_t bytes);

}  // namespace plait
