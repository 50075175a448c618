// Makes listening and connected sockets at paths. Paths lie in private folders, so that other users
// cannot put a socket at the path first. Abstract names have no permissions and are not used. A
// bound socket does not answer before listen(), so bind() and the removal of stale sockets happen
// under a lock of the folder.
#include <fcntl.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/env.hpp"
#include "base/system_call.hpp"
#include "base/text.hpp"
#include "comm/bootstrap/socket.hpp"
#include "plait/error.hpp"

namespace plait {
namespace {

sockaddr_un address_of(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path[0] != '/' || path.size() >= sizeof(address.sun_path))
    throw Error(ErrorCode::invalid_argument,
                text("rendezvous: wanted an absolute path of at most {} bytes, found '{}'",
                     sizeof(address.sun_path) - 1, path));
  std::memcpy(address.sun_path, path.data(), path.size());
  return address;
}

std::string folder_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  return slash == 0 ? "/" : path.substr(0, slash);
}

Fd new_socket() {
  Fd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) throw call_failed(ErrorCode::io_error, "socket", errno);
  return fd;
}

/// True if a process answers at the path. A full backlog (EAGAIN) counts as an answer.
bool is_answered(const sockaddr_un& address) {
  const Fd probe = new_socket();
  return connect(probe.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0 ||
         errno == EAGAIN || errno == EINPROGRESS;
}

/// flock() on the folder itself: leaves no lock file, and is released if the holder is killed.
class FolderLock {
 public:
  explicit FolderLock(const std::string& folder)
      : fd_(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)) {
    if (!fd_.valid())
      throw call_failed(ErrorCode::io_error, "open", errno, text("rendezvous folder '{}'", folder));
    const std::int64_t deadline_ns = now_ns() + kLongestNs;
    while (flock(fd_.get(), LOCK_EX | LOCK_NB) != 0) {
      if (errno == EBADF || errno == ENOLCK || errno == EOPNOTSUPP)
        return;  // some network file systems
      if (errno != EWOULDBLOCK && errno != EINTR)
        throw call_failed(ErrorCode::io_error, "flock", errno,
                          text("rendezvous folder '{}'", folder));
      if (now_ns() >= deadline_ns)
        throw Error(ErrorCode::timeout, text("rendezvous folder '{}': another process has held the "
                                             "lock for 10 s; is it stopped?",
                                             folder));
      poll(nullptr, 0, 1);
    }
    is_held_ = true;
  }
  bool is_held() const { return is_held_; }
  /// Unlocks explicitly: after close() alone, a child forked meanwhile would still hold the lock.
  ~FolderLock() { flock(fd_.get(), LOCK_UN); }
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

 private:
  static constexpr std::int64_t kLongestNs = 10'000'000'000;  // the lock is held for microseconds
  Fd fd_;
  bool is_held_ = false;
};

bool is_socket_of_ours(const std::string& path) {
  struct stat status{};
  return lstat(path.c_str(), &status) == 0 && S_ISSOCK(status.st_mode) &&
         status.st_uid == geteuid();
}

}  // namespace

bool is_private_folder(const std::string& path) {
  struct stat status{};
  return lstat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode) &&
         status.st_uid == geteuid() && (status.st_mode & 077) == 0;
}

void private_folder(const std::string& path) {
  if (mkdir(path.c_str(), 0700) != 0 && errno != EEXIST)
    throw Error(ErrorCode::io_error,
                text("cannot make the folder '{}': {}", path, std::strerror(errno)));
  if (!is_private_folder(path))
    throw Error(ErrorCode::permission,
                text("rendezvous folder '{}': wanted a folder of user {} with mode 0700, found "
                     "another owner, mode or kind; remove it or choose another",
                     path, geteuid()));
}

void check_folder_of(const std::string& path, const Deadline& missing_until) {
  static_cast<void>(address_of(path));
  const std::string folder = folder_of(path);
  struct stat status{};
  while (lstat(folder.c_str(), &status) != 0) {
    if (now_ns() >= missing_until.at_ns)
      throw Error(ErrorCode::invalid_argument,
                  text("rendezvous '{}': found no folder '{}': make it with mode 0700, or choose "
                       "another",
                       path, folder));
    if (missing_until.check) missing_until.check();
    poll(nullptr, 0, 10);
  }
  if (!is_private_folder(folder))
    throw Error(ErrorCode::permission,
                text("rendezvous '{}': wanted a folder of user {} with mode 0700, found '{}' with "
                     "another owner, mode or kind",
                     path, geteuid(), folder));
}

Fd listen_at(const std::string& path, int backlog) {
  const sockaddr_un address = address_of(path);
  check_folder_of(path);
  const FolderLock lock(folder_of(path));
  Fd listener = new_socket();
  const auto* name = reinterpret_cast<const sockaddr*>(&address);
  for (int attempt = 0; attempt < 3; ++attempt) {
    if (bind(listener.get(), name, sizeof(address)) == 0) {
      if (listen(listener.get(), backlog) != 0)
        throw call_failed(ErrorCode::io_error, "listen", errno, text("rendezvous '{}'", path));
      return listener;
    }
    if (errno != EADDRINUSE)
      throw Error(ErrorCode::io_error, text("bind '{}': {}", path, std::strerror(errno)));
    if (is_answered(address)) return Fd();
    if (!lock.is_held()) {  // gives the process that has just bound time to listen
      poll(nullptr, 0, 20);
      if (is_answered(address)) return Fd();
    }
    if (is_socket_of_ours(path)) unlink(path.c_str());  // stale socket of a killed process
  }
  throw Error(ErrorCode::io_error, text("bind '{}': a file that is no socket has this path", path));
}

std::string why_elsewhere() {
  const auto here = [](const char* name) {
    const std::string value = foreign_env(name);
    return value.empty() ? "unset" : text("'{}'", value);
  };
  return text(
      "; a rank is late or meets the others elsewhere: PLAIT_RENDEZVOUS (here {}) and "
      "PLAIT_NODE_SIZE (here {}) must be the same on all ranks",
      here("PLAIT_RENDEZVOUS"), here("PLAIT_NODE_SIZE"));
}

Fd connect_to(const std::string& path, const Deadline& deadline) {
  const sockaddr_un address = address_of(path);
  Fd fd = new_socket();
  for (;;) {
    if (deadline.check) deadline.check();
    // The folder may not exist yet. An existing folder must be private.
    if (access(folder_of(path).c_str(), F_OK) == 0) {
      if (!is_private_folder(folder_of(path)))
        throw Error(ErrorCode::permission,
                    text("rendezvous '{}': its folder is open to other users", path));
      if (connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0) {
        check_peer_uid(fd.get(), geteuid());
        return fd;
      }
      const bool attached =
          errno == ENOENT || errno == ECONNREFUSED || errno == EAGAIN || errno == EINTR;
      if (!attached)
        throw Error(ErrorCode::io_error, text("connect '{}': {}", path, std::strerror(errno)));
    }
    if (now_ns() >= deadline.at_ns)
      throw Error(ErrorCode::timeout,
                  text("rank 0 did not come to '{}' before the deadline{}", path, why_elsewhere()));
    poll(nullptr, 0, 2);
  }
}

Fd accept_from(int listener, const Deadline& deadline) {
  for (;;) {
    Fd fd(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (fd.valid()) return fd;
    const bool later =
        errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR || errno == ECONNABORTED;
    if (!later) throw call_failed(ErrorCode::io_error, "accept4", errno);
    if (!wait_socket(listener, POLLIN, deadline)) return Fd();
  }
}

}  // namespace plait
