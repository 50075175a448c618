// Each rank connects to all others and sends a file before the rank accepts files: a connection
// waits in the listener's queue, and a frame in the socket, so no rank waits for a peer's turn.
#include "comm/shm/socket_files.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <random>
#include <utility>

#include "base/env.hpp"
#include "base/text.hpp"
#include "comm/bootstrap/rendezvous.hpp"
#include "comm/bootstrap/socket.hpp"
#include "plait/error.hpp"

namespace plait {
namespace {

constexpr double kConnectS = 0.1;  // peers listen already, unless they have another file system
constexpr int kMostRanks = 64;

class SocketFiles : public cuda::FileExchange {
 public:
  SocketFiles(double swap_s, std::function<void()> give_up)
      : swap_s_(swap_s), give_up_(std::move(give_up)) {
    static std::atomic<unsigned> made{0};
    std::random_device random;
    address_ = text("{}/files-{}-{}-{}", rendezvous_folder(), ::getpid(), made++, random());
    listener_ = listen_at(address_, kMostRanks);
    if (!listener_.valid())
      throw Error(ErrorCode::io_error, text("a process already listens at {}", address_));
  }
  ~SocketFiles() override { ::unlink(address_.c_str()); }

  const std::string& address() const override { return address_; }

  std::vector<int> swap(const std::vector<std::string>& addresses, int rank, int mine) override {
    const Deadline deadline{deadline_in(swap_s_), give_up_};
    std::vector<Fd> files(addresses.size());
    for (std::size_t peer = 0; peer < addresses.size(); ++peer) {
      if (static_cast<int>(peer) == rank) continue;
      const Fd there = connected(addresses[peer], peer);
      send_frame(there.get(), FrameKind::data, text("{}", rank), {mine}, deadline,
                 text("rank {}", peer));
    }
    for (std::size_t got = 1; got < addresses.size(); ++got) take(files, deadline);
    std::vector<int> all;
    for (const Fd& file : files)
      all.push_back(file.valid() ? ::fcntl(file.get(), F_DUPFD_CLOEXEC, 0) : -1);
    return all;
  }

 private:
  static Fd connected(const std::string& address, std::size_t peer) {
    try {
      return connect_to(address, {deadline_in(kConnectS), nullptr});
    } catch (const Error& error) {
      if (error.code() != ErrorCode::timeout) throw;
      throw Error(ErrorCode::io_error,
                  text("rank {}'s socket {} is not here: do ranks have unlike rendezvous folders?",
                       peer, address));
    }
  }
  void take(std::vector<Fd>& files, const Deadline& deadline) {
    const Fd from = accept_from(listener_.get(), deadline);
    if (!from.valid()) throw Error(ErrorCode::timeout, "a rank's file did not come");
    check_peer_uid(from.get(), ::geteuid());
    Frame frame = receive_frame(from.get(), 16, 1, deadline, "a rank");
    const auto peer = static_cast<std::size_t>(
        parse_integer("rank", frame.bytes, 0, static_cast<std::int64_t>(files.size()) - 1));
    if (frame.fds.size() != 1 || files[peer].valid())
      throw Error(ErrorCode::mismatch,
                  text("rank {} sent {} files in a frame, wanted 1 once", peer, frame.fds.size()));
    files[peer] = std::move(frame.fds[0]);
  }

  const double swap_s_;
  const std::function<void()> give_up_;
  std::string address_;
  Fd listener_;
};

}  // namespace

std::unique_ptr<cuda::FileExchange> open_socket_files(double swap_s,
                                                      std::function<void()> give_up) {
  return std::make_unique<SocketFiles>(swap_s, std::move(give_up));
}

}  // namespace plait
