// Reads the whole text of a trusted file: opened once and checked through the descriptor (so that
// the file cannot be replaced), regular, of limited size, with a trusted owner, and unchanged from
// first to last byte.
#pragma once
#include <sys/stat.h>

#include <cstdint>
#include <optional>
#include <string>

namespace plait {

/// Users who may be able to write the file.
enum class Writers : std::uint8_t {
  anyone,         // the user named the file, and so vouches for it
  not_everybody,  // this user or root; a group may write, but not everybody
  this_user_alone,
};

/// Returns the reason to distrust an owner and mode, as the text after "found"; empty if trusted.
std::string distrust(const struct stat& facts, Writers writers);

struct FileTerms {
  const char* what;  // "tuning table": begins messages
  std::int64_t most_bytes;
  Writers writers = Writers::anyone;
  const char* advice;  // ends messages
  bool may_be_missing = false;
};

/// Throws Error(io_error) if the file cannot be read, is no regular file, is too long, or changes
/// meanwhile; Error(permission) if the file's writers are not trusted. Returns nothing if the file
/// is missing and may be.
std::optional<std::string> read_whole_file(const std::string& file, const FileTerms& terms);

/// Reads the next bytes of an open file. The file must end after the bytes. A file of another
/// length than before is being rewritten: the text read is neither old nor new. Empty then; errno
/// says why, 0 = the length.
std::optional<std::string> read_to_end(int fd, std::int64_t bytes);

}  // namespace plait
