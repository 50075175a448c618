// Frames of bytes and descriptors over Unix stream sockets of a single user. Every read has a
// deadline, every length is checked before memory is allocated, every descriptor is close-on-exec.
#pragma once
#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace plait {

/// A file descriptor above stderr's that closes itself.
class Fd {
 public:
  Fd() = default;
  /// Takes over a new descriptor by above_stderr().
  explicit Fd(int fd);
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept;
  ~Fd();
  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

/// steady_clock in ns, the time base of every deadline.
std::int64_t now_ns();
/// Returns now + seconds, without overflow for any finite seconds >= 0.
std::int64_t deadline_in(double seconds);

/// End of a wait, and a check called at least every 10 ms meanwhile; the check may throw.
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

/// Throws Error(timeout), Error(peer_lost) or Error(io_error). `peer`: name of the far end for
/// messages.
void send_frame(int socket, FrameKind kind, const std::string& bytes, const std::vector<int>& fds,
                const Deadline& deadline, const std::string& peer);
/// Also throws Error(parse_error) if no frame comes, or a frame with too many bytes or descriptors.
Frame receive_frame(int socket, std::uint64_t max_bytes, std::size_t max_fds,
                    const Deadline& deadline, const std::string& peer);
/// Waits until the socket has any of poll()'s `events`. Returns false at the deadline.
bool wait_socket(int socket, short events, const Deadline& deadline);

/// Throws Error(permission) unless the process at the far end runs as user `uid`.
void check_peer_uid(int socket, uid_t uid);
/// Throws Error(invalid_argument) unless the descriptor is an open Unix stream socket.
void check_stream_socket(int socket);

/// Makes the folder with mode 0700 if missing. Throws Error(permission) if the folder is not
/// private: a link, another owner, or a mode that admits other users.
void private_folder(const std::string& path);
/// True if private_folder() accepts this existing folder.
bool is_private_folder(const std::string& path);

/// Throws Error(permission) unless the socket's folder is private. Error(invalid_argument) if the
/// folder is still missing at `missing_until`.
void check_folder_of(const std::string& path, const Deadline& missing_until = {});

/// Returns a listening socket at the path, or an invalid Fd if another process answers at the path.
/// Replaces a stale socket if the folder is private.
Fd listen_at(const std::string& path, int backlog);
/// Ends the error of a rank that did not come: which settings decide where ranks meet.
std::string why_elsewhere();
/// Connects; retries until the deadline. Throws Error(timeout) if no process listens at the path by
/// then.
Fd connect_to(const std::string& path, const Deadline& deadline);
/// Accepts a connection; an invalid Fd at the deadline.
Fd accept_from(int listener, const Deadline& deadline);

/// Packs strings into a single string and back. unpack throws Error(parse_error) for bytes that
/// pack did not make.
std::string pack(const std::vector<std::string>& parts);
std::vector<std::string> unpack(const std::string& bytes);

}  // namespace plait
