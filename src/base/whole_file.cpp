// Opens, checks and reads a file, in this order; each step has a separate error.
#include "base/whole_file.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/system_call.hpp"
#include "base/text.hpp"
#include "plait/error.hpp"

namespace plait {
namespace {

struct OpenFile {
  int fd = -1;
  ~OpenFile() {
    if (fd >= 0) close(fd);
  }
};

std::string wanted_writers(Writers writers) {
  if (writers == Writers::anyone) return "";
  if (writers == Writers::this_user_alone) return text(" that user {} alone may write", geteuid());
  return text(" of user {} or root that not everybody may write", geteuid());
}

[[noreturn]] void refuse(const std::string& file, const FileTerms& terms, ErrorCode code,
                         const std::string& found) {
  throw Error(
      code, text("{} {}: wanted a readable file of at most {} MiB{}, found {}; {}", terms.what,
                 file, terms.most_bytes >> 20, wanted_writers(terms.writers), found, terms.advice));
}

}  // namespace

std::string distrust(const struct stat& facts, Writers writers) {
  const bool alone = writers == Writers::this_user_alone;
  if (writers == Writers::anyone) return "";
  if (facts.st_uid != geteuid() && (alone || facts.st_uid != 0))
    return text("user {}'s", facts.st_uid);
  const mode_t others = alone ? S_IWGRP | S_IWOTH : S_IWOTH;
  if ((facts.st_mode & others) == 0) return "";
  return (facts.st_mode & S_IWOTH) != 0 ? "one that everybody may write"
                                        : "one its group may write";
}

std::optional<std::string> read_to_end(int fd, std::int64_t bytes) {
  std::string whole(static_cast<std::size_t>(bytes) + 1,
                    '\0');  // a byte more, to detect a longer file
  std::size_t at = 0;
  while (at < whole.size()) {
    const ssize_t got = read(fd, whole.data() + at, whole.size() - at);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return std::nullopt;
    if (got == 0) break;
    at += static_cast<std::size_t>(got);
  }
  errno = 0;
  if (at + 1 != whole.size()) return std::nullopt;
  whole.pop_back();
  return whole;
}

std::optional<std::string> read_whole_file(const std::string& file, const FileTerms& terms) {
  // O_NONBLOCK: does not wait for the writer of a pipe.
  const OpenFile opened{
      above_stderr(open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY))};
  if (opened.fd < 0 && errno == ENOENT && terms.may_be_missing) return std::nullopt;
  struct stat facts{};
  if (opened.fd < 0 || fstat(opened.fd, &facts) != 0)
    refuse(file, terms, ErrorCode::io_error, std::strerror(errno));
  if (!S_ISREG(facts.st_mode)) refuse(file, terms, ErrorCode::io_error, "no regular file");
  const std::string doubt = distrust(facts, terms.writers);
  if (!doubt.empty()) refuse(file, terms, ErrorCode::permission, doubt);
  if (facts.st_size > terms.most_bytes)
    refuse(file, terms, ErrorCode::io_error, text("{} bytes", facts.st_size));
  std::optional<std::string> whole = read_to_end(opened.fd, facts.st_size);
  if (!whole)
    refuse(
        file, terms, ErrorCode::io_error,
        errno != 0
            ? std::strerror(errno)
            : text("another length than its {} bytes: it is being written, or is no file on a disk",
                   facts.st_size));
  return whole;
}

}  // namespace plait
