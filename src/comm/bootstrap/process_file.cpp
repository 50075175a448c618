// Descriptors of processes, by pidfd_open and poll.
#include "comm/bootstrap/process_file.hpp"

#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

#include "base/system_call.hpp"
#include "plait/error.hpp"

namespace plait {

Fd open_process(int process) {
  // close-on-exec by default
  return Fd(static_cast<int>(::syscall(SYS_pidfd_open, process, 0)));
}

Fd open_own_process() {
  Fd opened = open_process(::getpid());
  if (!opened.valid()) throw call_failed(ErrorCode::unsupported, "pidfd_open", errno);
  return opened;
}

bool has_ended(const Fd& process) {
  pollfd entry{process.get(), POLLIN, 0};
  return process.valid() && ::poll(&entry, 1, 0) > 0;
}

}  // namespace plait
