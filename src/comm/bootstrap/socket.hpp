// Frames of bytes and descriptors over Unix stream sockets of one user: every read has a deadline,
// every length is checked before memory is taken, every descriptor is close-on-exec.
#pragma once
#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace plait {

/// A file descriptor that closes itself.
class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept;
  ~Fd();
  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

/// steady_clock in ns: what every deadline is measured on.
std::int64_t now_ns();
/// now + seconds, without overflow for any finite seconds >= 0.
std::int64_t deadline_in(double seconds);

/// How long to wait, and whom to ask meanwhile (at least every 10 ms); the question may throw.
struct Deadline {
  std::int64_t at_ns = 0;
  std::function<void()> check;
};

enum class FrameKind : std::uint32_t { data = 1, failure = 2 };

struct Frame {
  FrameKind kind = FrameKind::data;
  std::string bytes;
  std::vector<Fd> fds;
};

inline constexpr std::uint64_t kMaxFrameBytes = 96ull << 20;
inline constexpr std::size_t kMaxFrameFds = 128;

/// Error(timeout), Error(peer_lost) or Error(io_error); `peer` names the other end in the message.
void send_frame(int socket, FrameKind kind, const std::string& bytes, const std::vector<int>& fds,
                const Deadline& deadline, const std::string& peer);
/// Also Error(parse_error) where what comes is no frame, too long, or carries other than `fds`
/// descriptors.
Frame receive_frame(int socket, std::uint64_t max_bytes, std::size_t max_fds,
                    const Deadline& deadline, const std::string& peer);
/// Waits until the socket has one of `events` (poll's) or the deadline passes (false).
bool wait_socket(int socket, short events, const Deadline& deadline);

/// Throws Error(permission) unless the user at the other end is `uid`.
void check_peer_uid(int socket, uid_t uid);
/// Throws Error(invalid_argument) unless the descriptor is an open Unix stream socket.
void check_stream_socket(int socket);

/// The folder, made with mode 0700 if missing. Error(permission) where it is not a folder of this
/// user alone: a link, another owner, or a mode that lets others in.
void private_folder(const std::string& path);
/// True where private_folder would have nothing to say about an existing folder.
bool is_private_folder(const std::string& path);

/// A listening socket at the path, or an invalid Fd where somebody answers there already. A file
/// that nobody answers at is replaced if its folder is private.
Fd listen_at(const std::string& path, int backlog);
/// Tries until the deadline. Error(timeout) where nobody listens at the path by then.
Fd connect_to(const std::string& path, const Deadline& deadline);
/// One connection, or an invalid Fd at the deadline.
Fd accept_from(int listener, const Deadline& deadline);

/// Strings as one string and back; unpack throws Error(parse_error) on anything pack did not make.
std::string pack(const std::vector<std::string>& parts);
std::vector<std::string> unpack(const std::string& bytes);

}  // namespace plait
