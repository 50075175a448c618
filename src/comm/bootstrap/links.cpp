// Rank 0 listens, the peers connect, rank 0 accepts: three steps without waits.
#include "comm/bootstrap/links.hpp"

#include <unistd.h>

#include "base/text.hpp"
#include "comm/bootstrap/rendezvous.hpp"
#include "comm/bootstrap/unique_id.hpp"
#include "comm/bootstrap/vote.hpp"

namespace plait {
namespace {

constexpr std::int64_t kStepNs = 10'000'000'000;  ///< short: the other end is listening already

/// Rank 0's listening socket, and the path until the ranks have connected.
struct Listener {
  Fd listener;
  std::string path;
  Listener() = default;
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;
  ~Listener() {
    if (listener.valid()) ::unlink(path.c_str());
  }
};

Deadline step_deadline() { return {now_ns() + kStepNs, nullptr}; }

}  // namespace

std::string SocketLinks::rendezvous() const {
  std::string place = "fd:";
  for (const Fd& one : sockets) place += text("{}{}", place.size() > 3 ? "," : "", one.get());
  return place;
}

SocketLinks link_ranks(int rank, int ranks, const Broadcast& broadcast) {
  SocketLinks links;
  Listener own;
  std::optional<Error> failure = attempt([&] {
    if (rank != 0 || ranks < 2) return;
    // The name is random: ranks 0 in two containers that share this folder may have equal pids.
    own.path = text("{}/link-{}", rendezvous_folder(), random_token());
    own.listener = listen_at(own.path, ranks + 16);
    if (!own.listener.valid())
      throw Error(ErrorCode::io_error, text("another process listens at '{}'", own.path));
  });
  const std::string path = broadcast(failure, own.path);
  failure = attempt([&] {
    if (rank != 0) links.sockets.push_back(connect_to(path, step_deadline()));
  });
  broadcast(failure, "");
  failure = attempt([&] {
    for (int peer = 1; rank == 0 && peer < ranks; ++peer) {
      Fd socket = accept_from(own.listener.get(), step_deadline());
      if (!socket.valid())
        throw Error(ErrorCode::timeout, text("a rank did not come to '{}'", own.path));
      check_peer_uid(socket.get(), ::geteuid());
      links.sockets.push_back(std::move(socket));
    }
  });
  broadcast(failure, "");
  return links;
}

}  // namespace plait
