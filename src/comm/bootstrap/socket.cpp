// Frames over Unix stream sockets. A frame is a header of 24 bytes (magic, kind, length, number of
// descriptors), sent with the descriptors, followed by the bytes.
#include "comm/bootstrap/socket.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>

#include "base/system_call.hpp"
#include "base/text.hpp"
#include "plait/error.hpp"

namespace plait {
namespace {

constexpr std::uint32_t kFrameMagic = 0x706c6974;  // "plit"
constexpr int kCheckEveryMs = 10;

struct FrameHeader {
  std::uint32_t magic = kFrameMagic;
  std::uint32_t kind = 0;
  std::uint64_t bytes = 0;
  std::uint64_t fds = 0;
};

[[noreturn]] void lost(const std::string& peer, const std::string& how) {
  throw Error(ErrorCode::peer_lost, text("{} {}", peer, how));
}

void wait_or_throw(int socket, short events, const Deadline& deadline, const std::string& peer) {
  if (!wait_socket(socket, events, deadline))
    throw Error(ErrorCode::timeout,
                text("{}{} before the deadline", peer,
                     (events & POLLIN) != 0 ? " sent nothing" : " took nothing"));
}

/// Repeats sendmsg until all bytes are sent. Descriptors travel with the first byte.
void send_all(int socket, const char* data, std::size_t bytes, const std::vector<int>& fds,
              const Deadline& deadline, const std::string& peer) {
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kMaxFrameFds)] = {};
  bool fds_gone = fds.empty();
  while (bytes > 0) {
    iovec part{const_cast<char*>(data), bytes};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    if (!fds_gone) {
      message.msg_control = control;
      message.msg_controllen = CMSG_SPACE(sizeof(int) * fds.size());
      cmsghdr* header = CMSG_FIRSTHDR(&message);
      header->cmsg_level = SOL_SOCKET;
      header->cmsg_type = SCM_RIGHTS;
      header->cmsg_len = CMSG_LEN(sizeof(int) * fds.size());
      std::memcpy(CMSG_DATA(header), fds.data(), sizeof(int) * fds.size());
    }
    const ssize_t sent = sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent > 0) {
      data += sent, bytes -= static_cast<std::size_t>(sent), fds_gone = true;
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      wait_or_throw(socket, POLLOUT, deadline, peer);
    } else if (errno == EPIPE || errno == ECONNRESET) {
      lost(peer, "closed its socket");
    } else if (errno != EINTR) {
      throw call_failed(ErrorCode::io_error, "sendmsg", errno, text("sending to {}", peer));
    }
  }
}

[[noreturn]] void too_few_descriptors(const std::string& peer) {
  throw call_failed(ErrorCode::io_error, "recvmsg", EMFILE,
                    text("receiving the descriptors of {}", peer));
}

void take_fds(msghdr& message, std::vector<Fd>& fds, const std::string& peer) {
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr;
       header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(header) + i * sizeof(int), sizeof(int));
      fds.emplace_back(fd);
    }
  }
  // Thrown only after `fds` owns every descriptor, so that none stays open.
  if (std::any_of(fds.begin(), fds.end(), [](const Fd& one) { return !one.valid(); }))
    too_few_descriptors(peer);
}

void receive_all(int socket, char* data, std::size_t bytes, std::vector<Fd>& fds,
                 const Deadline& deadline, const std::string& peer) {
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kMaxFrameFds)];
  while (bytes > 0) {
    iovec part{data, bytes};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    const ssize_t got = recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (got > 0) {
      take_fds(message, fds, peer);
      const bool is_cut = (message.msg_flags & MSG_CTRUNC) != 0;
      // The kernel also cuts the list if this process has reached its limit of open files.
      if (is_cut && fds.size() < kMaxFrameFds) too_few_descriptors(peer);
      if (is_cut)
        throw Error(ErrorCode::parse_error,
                    text("{} sent more descriptors than can be taken", peer));
      data += got, bytes -= static_cast<std::size_t>(got);
    } else if (got == 0) {
      lost(peer, "closed its socket");
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      wait_or_throw(socket, POLLIN, deadline, peer);
    } else if (errno == ECONNRESET) {
      lost(peer, "closed its socket");
    } else if (errno != EINTR) {
      throw call_failed(ErrorCode::io_error, "recvmsg", errno, text("receiving from {}", peer));
    }
  }
}

}  // namespace

Fd::Fd(int fd) : fd_(above_stderr(fd)) {}

Fd& Fd::operator=(Fd&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

Fd::~Fd() {
  if (fd_ >= 0) close(fd_);
}

std::int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

std::int64_t deadline_in(double seconds) {
  constexpr double kLongest = 1e9;  // 30 years: far from overflow and longer than any wait
  return now_ns() + static_cast<std::int64_t>(std::clamp(seconds, 0.0, kLongest) * 1e9);
}

bool wait_socket(int socket, short events, const Deadline& deadline) {
  for (;;) {
    if (deadline.check) deadline.check();
    const std::int64_t left_ns = deadline.at_ns - now_ns();
    const std::int64_t left_ms =
        std::clamp<std::int64_t>(left_ns / 1'000'000 + 1, 0, kCheckEveryMs);
    pollfd entry{socket, events, 0};
    const int ready = poll(&entry, 1, left_ns <= 0 ? 0 : static_cast<int>(left_ms));
    if (ready > 0)
      return true;  // also for POLLHUP and POLLERR: the next call on the socket returns the error
    if (ready < 0 && errno != EINTR) throw call_failed(ErrorCode::io_error, "poll", errno);
    if (left_ns <= 0) return false;
  }
}

void send_frame(int socket, FrameKind kind, const std::string& bytes, const std::vector<int>& fds,
                const Deadline& deadline, const std::string& peer) {
  if (bytes.size() > kMaxFrameBytes || fds.size() > kMaxFrameFds)
    throw Error(ErrorCode::invalid_argument, text("frame to {}: wanted at most {} bytes, found {}",
                                                  peer, kMaxFrameBytes, bytes.size()));
  FrameHeader header;
  header.kind = static_cast<std::uint32_t>(kind);
  header.bytes = bytes.size();
  header.fds = fds.size();
  send_all(socket, reinterpret_cast<const char*>(&header), sizeof(header), fds, deadline, peer);
  send_all(socket, bytes.data(), bytes.size(), {}, deadline, peer);
}

Frame receive_frame(int socket, std::uint64_t max_bytes, std::size_t max_fds,
                    const Deadline& deadline, const std::string& peer) {
  FrameHeader header;
  Frame frame;
  receive_all(socket, reinterpret_cast<char*>(&header), sizeof(header), frame.fds, deadline, peer);
  const bool known_kind = header.kind == 1 || header.kind == 2;
  if (header.magic != kFrameMagic || !known_kind)
    throw Error(ErrorCode::parse_error,
                text("{} does not speak plait's rendezvous protocol", peer));
  if (header.bytes > max_bytes || header.fds > max_fds || header.fds != frame.fds.size())
    throw Error(
        ErrorCode::parse_error,
        text("frame from {}: wanted at most {} bytes and {} descriptors, found {} and {} of {}",
             peer, max_bytes, max_fds, header.bytes, frame.fds.size(), header.fds));
  frame.kind = static_cast<FrameKind>(header.kind);
  frame.bytes.resize(header.bytes);
  std::vector<Fd> extra;
  receive_all(socket, frame.bytes.data(), frame.bytes.size(), extra, deadline, peer);
  if (!extra.empty()) throw Error(ErrorCode::parse_error, text("{} sent stray descriptors", peer));
  return frame;
}

void check_peer_uid(int socket, uid_t uid) {
  ucred peer{};
  socklen_t size = sizeof(peer);
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0)
    throw call_failed(ErrorCode::io_error, "getsockopt(SO_PEERCRED)", errno);
  if (peer.uid != uid)
    throw Error(ErrorCode::permission,
                text("rendezvous: wanted a process of user {}, found pid {} of user {}", uid,
                     peer.pid, peer.uid));
}

void check_stream_socket(int socket) {
  int domain = 0;
  int type = 0;
  socklen_t size = sizeof(int);
  if (getsockopt(socket, SOL_SOCKET, SO_DOMAIN, &domain, &size) != 0 ||
      getsockopt(socket, SOL_SOCKET, SO_TYPE, &type, &size) != 0)
    throw Error(ErrorCode::invalid_argument,
                text("rendezvous fd:{}: wanted an inherited socket, found {}", socket,
                     std::strerror(errno)));
  if (domain != AF_UNIX || type != SOCK_STREAM)
    throw Error(ErrorCode::invalid_argument,
                text("rendezvous fd:{}: wanted a Unix stream socket, found another kind", socket));
}

std::string pack(const std::vector<std::string>& parts) {
  std::string bytes;
  for (const std::string& part : parts) {
    const std::uint64_t size = part.size();
    bytes.append(reinterpret_cast<const char*>(&size), sizeof(size));
    bytes += part;
  }
  return bytes;
}

std::vector<std::string> unpack(const std::string& bytes) {
  std::vector<std::string> parts;
  std::size_t at = 0;
  while (at < bytes.size()) {
    std::uint64_t size = 0;
    const bool whole = bytes.size() - at >= sizeof(size);
    if (whole) std::memcpy(&size, bytes.data() + at, sizeof(size));
    if (!whole || size > bytes.size() - at - sizeof(size))
      throw Error(ErrorCode::parse_error, text("packed strings end too early at byte {}", at));
    parts.push_back(bytes.substr(at + sizeof(size), size));
    at += sizeof(size) + size;
  }
  return parts;
}

}  // namespace plait
