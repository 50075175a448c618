// Explains errno values by the usual cause: a kernel or seccomp profile gives each for a single
// reason, whatever the call.
#include "base/system_call.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/text.hpp"

namespace plait {
namespace {

bool is_denied(int error) { return error == EPERM || error == EACCES || error == ENOSYS; }

std::string advice_of(const std::string& call, int error) {
  if (is_denied(error))
    return text(
        "; wanted Linux 5.4 or later, and a seccomp profile that allows {} (docs/containers.md; "
        "`plait doctor` tests it)",
        call);
  if (error == EMFILE) return "; raise this process's limit of open files: ulimit -n";
  if (error == ENFILE) return "; the system has no open file left (fs.file-max)";
  if (error == EAGAIN && call == "pthread_create")
    return "; raise the limit of processes (ulimit -u) or of the container (pids.max)";
  return {};
}

}  // namespace

Error call_failed(ErrorCode code, const std::string& call, int error, const std::string& what) {
  return Error(is_denied(error) ? ErrorCode::unsupported : code,
               text("{}{}{}: {}{}", what, what.empty() ? "" : ": ", call, std::strerror(error),
                    advice_of(call, error)));
}

int above_stderr(int fd) {
  if (fd < 0 || fd > STDERR_FILENO) return fd;
  const int moved = fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
  const int error = errno;
  close(fd);
  errno = error;
  return moved;
}

}  // namespace plait
