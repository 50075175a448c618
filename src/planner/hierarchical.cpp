// hierarchical: a three-stage all-reduce for machines with slow links between sockets. Each socket
// reduces to its leader, the leaders exchange and reduce, and each leader broadcasts in its socket.
// Chunks are pipelined: all three stages run at once. Leaders use the fastest path (NVLink, or host
// memory and the bus); inside a socket a share may go through host memory alongside the direct
// link.
// Source: Temucin et al., "Accelerating Deep Learning using Interconnect-Aware UCX Communication
// for MPI Collectives" (IEEE Micro 2021), generalised to any number and size of groups.
#include <algorithm>
#include <map>

#include "base/text.hpp"
#include "plait/courier.hpp"
#include "plait/error.hpp"

namespace plait {
namespace {

constexpr int kMostHostPermille = 500;
constexpr int kSlots = 3;  // a chunk being received, one reduced, one sent back

double best_gb_per_s(const Topology& topology, int src_device, int dst_device) {
  return path_gb_per_s(topology, courier_path(topology, src_device, dst_device));
}

struct RankGroup {
  std::vector<int> members;  // ranks, ascending, with the leader
  int leader = 0;
};

// Ranks by NUMA node (and machine), in the order of their lowest ranks.
std::vector<RankGroup> groups_of(const Topology& topology, const Request& request) {
  std::map<std::pair<int, int>, std::size_t> group_of_socket;
  std::vector<RankGroup> groups;
  for (int rank = 0; rank < request.ranks; ++rank) {
    const int index = request.devices[static_cast<std::size_t>(rank)];
    const Device& device = topology.devices[static_cast<std::size_t>(index)];
    if (device.numa < 0)
      throw Error(
          ErrorCode::unsupported,
          text("wanted the NUMA node of every rank's device, topology {} does not state that of {}",
               topology.name, device_label(topology, index)));
    const auto [entry, is_new] =
        group_of_socket.try_emplace({device.node, device.numa}, groups.size());
    if (is_new) groups.emplace_back();
    groups[entry->second].members.push_back(rank);
  }
  if (groups.size() < 2)
    throw Error(
        ErrorCode::unsupported,
        text("wanted ranks on at least two NUMA nodes, found all {} on one", request.ranks));
  if (groups.size() == static_cast<std::size_t>(request.ranks))
    throw Error(ErrorCode::unsupported, "wanted a NUMA node with two ranks or more, found none");
  return groups;
}

// The leader of the first group is the rank with the fastest path to the other groups; leaders of
// the rest are the ranks with the fastest path to the first leader.
void choose_leaders(const Builder& builder, std::vector<RankGroup>& groups) {
  const auto speed = [&](int from, int to) {
    return best_gb_per_s(builder.topology(), builder.device(from), builder.device(to));
  };
  double fastest = -1.0;
  for (const int rank : groups[0].members)
    for (std::size_t other = 1; other < groups.size(); ++other)
      for (const int peer : groups[other].members)
        if (const double found = speed(rank, peer); found > fastest) {
          fastest = found;
          groups[0].leader = rank;
        }
  for (std::size_t other = 1; other < groups.size(); ++other) {
    fastest = -1.0;
    for (const int peer : groups[other].members)
      if (const double found = speed(groups[0].leader, peer); found > fastest) {
        fastest = found;
        groups[other].leader = peer;
      }
  }
}

// Returns the share of transfers inside a socket that goes through host memory: none if the direct
// link is as fast as the path between leaders. That path is then the bottleneck and may need the
// host link.
int default_host_permille(const Builder& builder, const std::vector<RankGroup>& groups) {
  const Topology& topology = builder.topology();
  const int leader = groups[0].leader;
  const Path across =
      courier_path(topology, builder.device(leader), builder.device(groups[1].leader));
  const double across_gb_per_s = path_gb_per_s(topology, across);
  int least = kMostHostPermille;
  for (const RankGroup& group : groups)
    for (const int member : group.members) {
      if (member == group.leader) continue;
      const int from = builder.device(member), to = builder.device(group.leader);
      const std::vector<Path> paths = paths_between(topology, from, to);
      const auto host = std::find_if(paths.begin(), paths.end(),
                                     [](const Path& path) { return path.kind == PathKind::host; });
      const Path direct = courier_path(topology, from, to);
      const double direct_gb_per_s = path_gb_per_s(topology, direct);
      if (host == paths.end() || direct.kind == PathKind::host ||
          direct_gb_per_s >= across_gb_per_s)
        return 0;
      double free_gb_per_s = path_gb_per_s(topology, *host);
      if (across.kind == PathKind::host) free_gb_per_s -= across_gb_per_s;
      if (free_gb_per_s <= 0) return 0;
      const double share = free_gb_per_s / (free_gb_per_s + direct_gb_per_s);
      least = std::min(least, static_cast<int>(1000.0 * share));
    }
  return least;
}

class ThreeStages {
 public:
  ThreeStages(Builder& builder, std::vector<RankGroup> groups, int host_permille)
      : builder_(builder), groups_(std::move(groups)), host_permille_(host_permille) {}

  double scratch_per_byte() const {
    std::size_t most = 1;
    for (const RankGroup& group : groups_) most = std::max(most, group.members.size());
    return kSlots * (static_cast<double>(most) + 2.0);
  }

  void write(Courier& courier, Range chunk) {
    for (const RankGroup& group : groups_) reduce_in(courier, group, chunk);
    if (groups_.size() == 2)
      exchange_whole(courier, chunk);
    else
      exchange_shards(courier, chunk);
    for (const RankGroup& group : groups_) broadcast_in(courier, group, chunk);
  }

 private:
  // Cuts a transfer inside a socket in two: for the direct link and for the host path.
  std::pair<Range, Range> parts(Range chunk) const {
    const std::uint64_t granule = builder_.granule();
    const std::uint64_t bytes = chunk.bytes / 1000 * static_cast<std::uint64_t>(host_permille_);
    const std::uint64_t host = std::min(chunk.bytes, bytes / granule * granule);
    return {{chunk.offset, chunk.bytes - host}, {chunk.offset + chunk.bytes - host, host}};
  }

  struct Arrival {
    Message direct, host;
  };
  template <class Source>
  Arrival carry(Courier& courier, int from, int to, Range chunk, const Source& source) {
    const auto [direct, host] = parts(chunk);
    courier.send(from, to, {source(from, host)}, Route::host);
    courier.send(from, to, {source(from, direct)});
    Arrival arrival;
    arrival.direct = courier.receive(to, from, direct.bytes);
    arrival.host = courier.receive(to, from, host.bytes, Route::host);
    return arrival;
  }

  // Sums a group in rank order to the leader's output.
  void reduce_in(Courier& courier, const RankGroup& group, Range chunk) {
    const int leader = group.leader;
    courier.on("up");
    if (group.members.size() == 1) return;
    std::vector<Arrival> arrivals;
    std::vector<Region> direct_srcs, host_srcs;
    const auto [direct, host] = parts(chunk);
    for (const int member : group.members) {
      if (member == leader) {
        direct_srcs.push_back(builder_.input(leader, direct));
        host_srcs.push_back(builder_.input(leader, host));
        continue;
      }
      arrivals.push_back(carry(courier, member, leader, chunk,
                               [&](int rank, Range part) { return builder_.input(rank, part); }));
      direct_srcs.push_back(arrivals.back().direct.region);
      host_srcs.push_back(arrivals.back().host.region);
    }
    courier.reduce(leader, builder_.output(leader, direct), direct_srcs, false);
    courier.reduce(leader, builder_.output(leader, host), host_srcs, false);
    for (const Arrival& arrival : arrivals) {
      courier.release(arrival.direct);
      courier.release(arrival.host);
    }
  }

  Region group_sum(const RankGroup& group, Range range) const {
    return group.members.size() == 1 ? builder_.input(group.leader, range)
                                     : builder_.output(group.leader, range);
  }

  void send_across(Courier& courier) {
    for (const RankGroup& group : groups_) courier.follow(group.leader, "across", "up");
    courier.on("across");
  }

  // The sum overwrites the data sent to other leaders, and follows that send.
  void join(Courier& courier) {
    for (const RankGroup& group : groups_) courier.follow(group.leader, "join", "across");
    courier.on("join");
  }

  // Two leaders exchange whole sums; both reduce (first group, second group).
  void exchange_whole(Courier& courier, Range chunk) {
    const RankGroup& first = groups_[0];
    const RankGroup& second = groups_[1];
    send_across(courier);
    courier.send(first.leader, second.leader, {group_sum(first, chunk)});
    courier.send(second.leader, first.leader, {group_sum(second, chunk)});
    join(courier);
    const Message to_first = courier.receive(first.leader, second.leader, chunk.bytes);
    courier.reduce(first.leader, builder_.output(first.leader, chunk),
                   {group_sum(first, chunk), to_first.region}, true);
    courier.release(to_first);
    const Message to_second = courier.receive(second.leader, first.leader, chunk.bytes);
    courier.reduce(second.leader, builder_.output(second.leader, chunk),
                   {to_second.region, group_sum(second, chunk)}, true);
    courier.release(to_second);
  }

  // More leaders: each reduces a shard of all groups at once and sends the result to the rest.
  void exchange_shards(Courier& courier, Range chunk) {
    const int count = static_cast<int>(groups_.size());
    const std::vector<Range> shards = partition(chunk, count, builder_.granule());
    const auto group = [&](int i) -> const RankGroup& {
      return groups_[static_cast<std::size_t>(i)];
    };
    const auto shard = [&](int i) { return shards[static_cast<std::size_t>(i)]; };
    send_across(courier);
    for (int turn = 1; turn < count; ++turn)
      for (int from = 0; from < count; ++from) {
        const int to = (from + turn) % count;
        courier.send(group(from).leader, group(to).leader, {group_sum(group(from), shard(to))});
      }
    join(courier);
    for (int to = 0; to < count; ++to) {
      const int leader = group(to).leader;
      std::vector<Region> srcs;
      std::vector<Message> messages;
      for (int from = 0; from < count; ++from) {
        if (from != to)
          messages.push_back(courier.receive(leader, group(from).leader, shard(to).bytes));
        srcs.push_back(from == to ? group_sum(group(to), shard(to)) : messages.back().region);
      }
      courier.reduce(leader, builder_.output(leader, shard(to)), srcs, true);
      for (const Message& message : messages) courier.release(message);
    }
    share(courier, shards);
  }

  // Each leader sends its shard of the result to all other leaders.
  void share(Courier& courier, const std::vector<Range>& shards) {
    const int count = static_cast<int>(groups_.size());
    const auto group = [&](int i) -> const RankGroup& {
      return groups_[static_cast<std::size_t>(i)];
    };
    const auto shard = [&](int i) { return shards[static_cast<std::size_t>(i)]; };
    for (const RankGroup& one : groups_) courier.follow(one.leader, "across", "join");
    courier.on("across");
    for (int turn = 1; turn < count; ++turn)
      for (int from = 0; from < count; ++from)
        courier.send(group(from).leader, group((from + turn) % count).leader,
                     {builder_.output(group(from).leader, shard(from))});
    courier.on("collect");
    for (int turn = 1; turn < count; ++turn)
      for (int from = 0; from < count; ++from) {
        const int leader = group((from + turn) % count).leader;
        const Message message = courier.receive(leader, group(from).leader, shard(from).bytes);
        courier.copy(leader, builder_.output(leader, shard(from)), message.region);
        courier.release(message);
      }
    for (const RankGroup& one : groups_) courier.follow(one.leader, "down", "collect");
  }

  void broadcast_in(Courier& courier, const RankGroup& group, Range chunk) {
    const auto [direct, host] = parts(chunk);
    if (group.members.size() == 1) return;
    courier.follow(group.leader, "down", "join");
    courier.on("down");
    for (const int member : group.members) {
      if (member == group.leader) continue;
      const Arrival arrival =
          carry(courier, group.leader, member, chunk,
                [&](int rank, Range part) { return builder_.output(rank, part); });
      courier.copy(member, builder_.output(member, direct), arrival.direct.region);
      courier.copy(member, builder_.output(member, host), arrival.host.region);
      courier.release(arrival.direct);
      courier.release(arrival.host);
    }
  }

  Builder& builder_;
  std::vector<RankGroup> groups_;
  int host_permille_;
};

int default_chunks(const Request& request) {
  const std::uint64_t bytes = message_bytes(request);
  return bytes <= 256ULL << 10 ? 1 : bytes <= 8ULL << 20 ? 8 : 32;
}

std::vector<Params> candidates(const Topology&, const Request& request) {
  const int chunks = default_chunks(request);
  std::vector<Params> out{{{"chunks", chunks}}};
  if (chunks > 1) {
    out.push_back({{"chunks", 4 * chunks}});
    out.push_back({{"chunks", chunks}, {"host_permille", 250}});
  }
  return out;
}

void write(Builder& builder, const Params& params) {
  const Request& request = builder.request();
  builder.sum_order(SumOrder::algorithm_order);
  std::vector<RankGroup> groups = groups_of(builder.topology(), request);
  choose_leaders(builder, groups);
  CourierCut cut = cut_from(builder, params, "chunks", default_chunks(request), 1);
  const int host_permille =
      param_in(params, "host_permille", cut.chunks > 1 ? default_host_permille(builder, groups) : 0,
               0, kMostHostPermille);
  builder.param("host_permille", host_permille);
  ThreeStages stages(builder, std::move(groups), host_permille);
  cut.lane_name = "stage";
  cut.slots = kSlots;
  cut.scratch_per_byte = stages.scratch_per_byte();
  in_chunks(builder, cut, [&](Courier& courier, Range chunk) { stages.write(courier, chunk); });
}

}  // namespace

const Strategy& hierarchical_strategy() {
  static const Strategy strategy{
      {"hierarchical",
       "each socket reduces to its leader, leaders exchange, sockets broadcast",
       "Micro 2021",
       {Collective::all_reduce}},
      candidates,
      write,
      {"chunks", "lanes", "host_permille"}};
  return strategy;
}

}  // namespace plait
