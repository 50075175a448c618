// Joins the ranks of a node by sockets that the transport sets up, and extends each step of a call
// over the transport.
#include "comm/multinode/multinode_host_side.hpp"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/text.hpp"
#include "comm/bootstrap/interrupt.hpp"
#include "comm/bootstrap/links.hpp"
#include "comm/bootstrap/process_file.hpp"
#include "comm/choose/multinode_choice.hpp"

namespace plait {
namespace {

Joined with_names(Joined joined, const Multinode& multinode) {
  for (const int rank : multinode.nodes.peers())
    joined.names.push_back(multinode.transport_comm->name_of_rank(rank));
  return joined;
}

CommunicatorOptions without_device(CommunicatorOptions options) {
  options.device = kNoDevice;
  return options;
}

/// Watches the processes of this node until the communicator is made. A rank that has ended may
/// have ended by an error that is on its way to this rank, so the loss is reported after a while.
class SetUpWatch {
 public:
  explicit SetUpWatch(const Multinode& multinode) : multinode_(multinode) {
    for (const int rank : multinode.nodes.peers()) {
      const int process = multinode.processes[static_cast<std::size_t>(rank)];
      if (process == 0 || process == ::getpid()) continue;
      Fd file = open_process(process);
      if (file.valid() || errno == ESRCH) peers_.push_back({rank, process, std::move(file)});
    }
  }
  /// Throws Error(peer_lost).
  void check() {
    for (const Peer& peer : peers_) {
      if (peer.process.valid() && !has_ended(peer.process)) continue;
      if (ended_ns_ == 0) ended_ns_ = now_ns();
      if (now_ns() - ended_ns_ < kGraceNs) return;
      throw Error(ErrorCode::peer_lost,
                  text("{} (pid {}) ended while the ranks made a communicator",
                       multinode_.transport_comm->name_of_rank(peer.rank), peer.pid));
    }
  }

 private:
  static constexpr std::int64_t kGraceNs = 500'000'000;
  const Multinode& multinode_;
  std::vector<Peer> peers_;
  std::int64_t ended_ns_ = 0;  ///< when a rank was first seen to have ended
};

Joined join_nodes(const CommunicatorOptions& options, Multinode& multinode) {
  CommunicatorOptions here = without_device(options_in_node(options, multinode.nodes));
  SetUpWatch watch(multinode);
  const Deadline arrival_deadline{deadline_in(options.arrive_s),
                                  [&watch, ask = now_and_then(options.interrupt)] {
                                    if (ask) ask();
                                    watch.check();
                                  }};
  SocketLinks links =
      link_ranks(here.rank, here.ranks, [&](const auto& wrong, const std::string& word) {
        std::vector<std::string> words;
        agree(*multinode.transport_comm, wrong, arrival_deadline, word, &words);
        return words[static_cast<std::size_t>(multinode.nodes.peers()[0])];
      });
  here.rendezvous = links.rendezvous();
  Joined made;
  const std::optional<Error> error = attempt([&] { made = join(here, nullptr); });
  links = {};  // closed before ranks wait for each other, so that ranks still in join() see the end
  agree(*multinode.transport_comm, error, arrival_deadline);
  made.topology = topology_of(multinode, arrival_deadline);
  return with_names(std::move(made), multinode);
}

/// A rank of a far pair is the only rank of its node.
Joined join_far_pair(const CommunicatorOptions& options, const PairOf& pair,
                     const Multinode& multinode) {
  Joined made;
  const std::optional<Error> error = attempt(
      [&] { made = join(without_device(options_in_node(options, multinode.nodes)), nullptr); });
  if (error) throw Error(*error);
  made.topology = pair.topology;
  return with_names(std::move(made), multinode);
}

}  // namespace

CommunicatorOptions options_in_node(const CommunicatorOptions& options, const Nodes& nodes) {
  CommunicatorOptions here = options;
  here.rank = nodes.place;
  here.ranks = nodes.size();
  here.rendezvous.clear();
  here.unique_id.clear();
  here.topology.clear();
  return here;
}

MultinodeHostSide::MultinodeHostSide(const CommunicatorOptions& options, Multinode multinode)
    : MultinodeHostSide(
          options,
          publish_errors(*multinode.transport_comm, [&] { return join_nodes(options, multinode); }),
          {}, std::move(multinode), false) {}

MultinodeHostSide::MultinodeHostSide(const CommunicatorOptions& options, const PairOf& pair,
                                     Multinode multinode)
    : MultinodeHostSide(options,
                        publish_errors(*multinode.transport_comm,
                                       [&] { return join_far_pair(options, pair, multinode); }),
                        pair.devices, std::move(multinode), true) {}

MultinodeHostSide::MultinodeHostSide(const CommunicatorOptions& options, Joined joined,
                                     std::vector<int> devices, Multinode&& multinode, bool is_pair)
    : HostSide(options, std::move(joined), std::move(devices)),
      multinode_(std::move(multinode)),
      is_pair_(is_pair) {
  rank_of_place_ = multinode_.nodes.peers();
  library_ = multinode_.transport_comm.get();
  if (!is_pair) devices_ = devices_of(joined_.topology, multinode_.nodes);
  peers_.set_names(joined_.names);
  peers_.set_remote_check([this] { multinode_.transport_comm->check(); });
}

MultinodeHostSide::~MultinodeHostSide() {
  if (!is_complete_ || (is_owner() && drop_messages())) return;
  static_cast<void>(multinode_.transport_comm.release());
  static_cast<void>(new std::vector<Mapping>(std::move(arena_memory_)));
}

Deadline MultinodeHostSide::deadline_after(double seconds) {
  return {deadline_in(seconds), peers_check("a call between nodes")};
}

std::optional<Error> MultinodeHostSide::agree(const CallDescriptor& mine, const OwnCounts* counts) {
  const std::optional<Error> refused = HostSide::agree(mine, counts);
  return multinode_call_error(*multinode_.transport_comm, mine, refused, deadline_after(arrive_s_));
}

void MultinodeHostSide::agree_on(const std::function<void()>& step, const Deadline& deadline) {
  plait::agree(*multinode_.transport_comm, attempt(step), deadline);
}

std::vector<double> MultinodeHostSide::scalars() {
  const double mine = joined_.controls.scalar_of(local_rank(), call_);
  std::vector<double> by_rank;
  for (const std::string& record : multinode_.transport_comm->exchange(
           std::string(reinterpret_cast<const char*>(&mine), sizeof mine),
           deadline_after(arrive_s_)))
    std::memcpy(&by_rank.emplace_back(), record.data(), sizeof mine);
  return by_rank;
}

std::vector<std::string> MultinodeHostSide::exchange(const std::string& mine) {
  return multinode_.transport_comm->exchange(
      mine, {deadline_in(deadline_s_),
             [this] { peers_.check(text("rank {} waits in exchange", rank())); }});
}

/// Messages end first, since a published failure lets the peers' messages go on.
void MultinodeHostSide::publish_failure(const Error& error) noexcept {
  static_cast<void>(drop_messages());
  if (!is_pair_) multinode_.transport_comm->publish_failure(error);
}

std::string MultinodeHostSide::transport() const {
  return multinode_.transport_comm->transport().name();
}

CallOptions MultinodeHostSide::node_algo() const {
  return multinode_algo(joined_.forced.strategy).strategy.empty() ? joined_.forced : CallOptions{};
}

void MultinodeHostSide::require_own_counts(const Request& request) const {
  throw Error(ErrorCode::unsupported,
              text("{}_v: ranks on several nodes have no plan for blocks that have a count each",
                   name_of(request.collective)));
}

/// Numbers the pair's ranks as all nodes do.
PairOf MultinodeHostSide::pair_at(int place) const {
  PairOf pair = HostSide::pair_at(place);
  pair.devices.clear();
  for (int& one : pair.ranks) {
    one = rank_of_place_[static_cast<std::size_t>(one)];
    pair.devices.push_back(devices_[static_cast<std::size_t>(one)]);
  }
  return pair;
}

/// This rank makes the pair alone, since the transport joins the two already. Each call begins with
/// a message from the peer.
std::unique_ptr<HostSide> MultinodeHostSide::far_pair(int peer, PairOf& pair) const {
  pair.ranks = {std::min(rank(), peer), std::max(rank(), peer)};
  pair.topology = joined_.topology;
  for (const int one : pair.ranks) pair.devices.push_back(devices_[static_cast<std::size_t>(one)]);
  const CommunicatorOptions two = pair_options(options_, pair);
  return std::make_unique<MultinodeHostSide>(
      two, pair,
      Multinode{multinode_.transport_comm->between(peer), {{{0}, {1}}, two.rank, 0}, ""});
}

}  // namespace plait
