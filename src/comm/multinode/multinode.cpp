// Joins ranks of several nodes. Ranks exchange set-up records first: a refusal on any rank becomes
// an error on all.
#include "comm/multinode/multinode.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <mutex>
#include <numeric>

#include "base/error_reason.hpp"
#include "base/text.hpp"
#include "comm/bootstrap/host_name.hpp"
#include "comm/bootstrap/interrupt.hpp"
#include "comm/bootstrap/rendezvous.hpp"
#include "comm/bootstrap/unique_id.hpp"
#include "comm/bootstrap/vote.hpp"
#include "comm/choose/reach.hpp"
#include "comm/node/setup.hpp"
#include "comm/transport/mpi/mpi_transport.hpp"
#include "plait/error.hpp"
#include "topo/cluster.hpp"

namespace plait {
namespace {

/// Returns this host's name for messages. host_name() identifies hosts.
std::string host_label() {
  char name[256] = "?";
  ::gethostname(name, sizeof name - 1);
  return name;
}

std::vector<int> all_ranks(const TransportComm& transport_comm) {
  std::vector<int> ranks(static_cast<std::size_t>(transport_comm.ranks()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

double copy_s(TransportComm& transport_comm, std::vector<int> pair, bool sends, std::uint64_t bytes,
              const Deadline& deadline) {
  auto memory = std::make_unique<std::vector<char>>(bytes);
  Request request;
  request.collective = Collective::copy;
  request.type = DataType::uint8;
  request.count = bytes;
  request.ranks = 2;
  const auto began = std::chrono::steady_clock::now();
  for (int direction = 0; direction < 2; ++direction) {  // there and back
    request.root = direction;
    request.peer = 1 - direction;
    transport_comm.run(request, pair, sends ? 0 : 1, memory->data(), memory->data(), memory,
                       deadline, "a first message between nodes");
  }
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count() / 2;
}

/// Latency and rate between nodes, measured for an earlier communicator of this process, as "NS
/// GB/S"; empty = not measured. Cached, since programs may make many communicators and each
/// measurement sends 8 MiB.
std::string& network_cache() {
  static auto* const known = new std::string;
  return *known;
}

std::mutex& network_guard() {
  static auto* const guard = new std::mutex;
  return *guard;
}

std::string cached_network() {
  const std::lock_guard lock(network_guard());
  return network_cache();
}

Network network_from(const std::string& sums, int nodes) {
  const std::vector<std::string> parts = split(sums, ' ');
  if (parts.size() != 2)
    throw Error(ErrorCode::parse_error, "measured network is malformed: wanted latency and rate");
  Network network;
  network.nodes = nodes;
  network.latency_ns = parse_real("latency between nodes", parts[0], 1.0, 1e9);
  network.gb_per_s = parse_real("rate between nodes", parts[1], 1e-6, 1e6);
  return network;
}

/// Measures latency and rate between the first ranks of the first two nodes. Rank 0's values count.
Network measure_network(Multinode& multinode, const Deadline& deadline) {
  constexpr std::uint64_t kLongBytes = 8 << 20;  // more than the burst of a shaped link
  const int first = multinode.nodes.members[0][0], second = multinode.nodes.members[1][0];
  const int me = multinode.nodes.peers()[static_cast<std::size_t>(multinode.nodes.place)];
  double short_s = 0, long_s = 0;
  if (me == first || me == second) {
    static_cast<void>(copy_s(*multinode.transport_comm, {first, second}, me == first, 8, deadline));
    short_s = copy_s(*multinode.transport_comm, {first, second}, me == first, 8, deadline);
    long_s = copy_s(*multinode.transport_comm, {first, second}, me == first, kLongBytes, deadline);
  }
  Network network;
  network.nodes = multinode.nodes.count();
  network.latency_ns = std::clamp(short_s * 1e9, 500.0, 1e7);
  network.gb_per_s = std::clamp(kLongBytes / std::max(long_s - short_s, 1e-6) / 1e9, 0.001, 1000.0);
  return network;
}

/// Returns the settings that must be equal on all nodes. Launchers may give the environment to the
/// first node alone.
std::string settings_of(const CommunicatorOptions& options, const Env& env) {
  return text(
      "plait={} PLAIT_BITWISE={} PLAIT_SUM_ORDER={} PLAIT_ALGO={} PLAIT_NODE_SIZE={} arrive_s={} "
      "deadline_s={} unique_id={} node={}",
      PLAIT_VERSION, is_bitwise(options, env), name_of(order_of(options, env)), env.algo,
      env.node_size, options.arrive_s, options.deadline_s, options.unique_id,
      options.node.empty() ? "found" : "given");
}

enum class Hosts { one, several, unknown };

/// Returns whether the ranks are on several hosts, as far as this rank knows before set-up. With a
/// unique id, a launcher may know only some of the ranks, so the hosts are unknown until set-up.
Hosts hosts_of(const CommunicatorOptions& options, const Env& env) {
  if (options.transport != nullptr) return Hosts::several;
  const bool by_id = !options.unique_id.empty();
  if (options.ranks < 2 || !options.rendezvous.empty()) return Hosts::one;
  if (!by_id && !env.rendezvous.empty()) return Hosts::one;
  if (env.node_size > 0 && env.node_size < options.ranks) return Hosts::several;
  if (by_id) return launcher_has_one_host() ? Hosts::one : Hosts::unknown;
  return why_not_one_host(env, options.ranks).empty() ? Hosts::one : Hosts::several;
}

/// Throws for options that several hosts do not support.
void check_multinode(const CommunicatorOptions& options, const Env& env) {
  if (options.ranks > kMaxRanks)
    throw Error(ErrorCode::unsupported, text("ranks over nodes: wanted at most {} ranks, found {}",
                                             kMaxRanks, options.ranks));
  if (!options.topology.empty() || !env.topology.empty() ||
      !requested_masks(options.masks, env).empty())
    throw Error(ErrorCode::unsupported,
                "topologies by name and masks work on one host only; these ranks are on several");
}

/// Returns the remedy if no transport joins the ranks' hosts; empty if all ranks may be on this
/// host.
std::string why_no_transport(const CommunicatorOptions& options, const Env& env) {
  const std::string remedy = text(
      "nothing carries bytes between nodes: initialise MPI first (pip install mpich mpi4py; "
      "MPI_Init, or from mpi4py import MPI), with {} ranks in all, or a group of torch.distributed "
      "(pip install torch; init_process_group(\"gloo\"))",
      options.ranks);
  if (env.node_size > 0)
    return text("PLAIT_NODE_SIZE makes several nodes of these {} ranks, and {}", options.ranks,
                remedy);
  if (!options.unique_id.empty() && !is_made_here(parse_unique_id(options.unique_id)))
    return text(
        "unique_id: it was made on another host than that of rank {}, and {}; where all ranks are "
        "on one host, make the id there",
        options.rank, remedy);
  return why_not_one_host(env, options.ranks);
}

/// Returns null without a transport if all ranks may be on this host.
std::unique_ptr<TransportComm> transport_comm_of(const CommunicatorOptions& options,
                                                 const Env& env) {
  std::shared_ptr<Transport> transport = options.transport;
  if (transport == nullptr)
    transport = mpi_transport(options.rank, options.ranks,
                              {deadline_in(options.arrive_s), now_and_then(options.interrupt)},
                              options.arrive_s, !options.unique_id.empty());
  if (transport == nullptr && transport_factory())
    transport =
        transport_factory()(options.rank, options.ranks, options.arrive_s, options.unique_id);
  if (transport == nullptr) {
    if (const std::string why = why_no_transport(options, env); !why.empty())
      throw Error(ErrorCode::unsupported, why);
    return nullptr;
  }
  std::vector<int> members(static_cast<std::size_t>(options.ranks));
  std::iota(members.begin(), members.end(), 0);
  return std::make_unique<TransportComm>(std::move(transport), std::move(members), options.rank);
}

/// Returns the error of the lowest rank with an error. Called by all ranks together. shown, if not
/// null, gets each rank's bytes.
std::optional<Error> first_error(TransportComm& transport_comm, const std::optional<Error>& mine,
                                 const Deadline& deadline, const std::string& bytes = {},
                                 std::vector<std::string>* shown = nullptr) {
  const std::vector<std::string> records =
      transport_comm.exchange(encode_vote(mine, bytes), deadline);
  for (std::size_t rank = 0; rank < records.size(); ++rank) {
    const std::optional<Error> first = attempt([&] {
      std::string one =
          decode_vote(records[rank], transport_comm.name_of_rank(static_cast<int>(rank)));
      if (shown != nullptr) shown->push_back(std::move(one));
    });
    if (first) return first;
  }
  return std::nullopt;
}

/// Exchanges set-up records and fills in the nodes. settings: settings_of(); wrong: this rank's own
/// error, if any.
void bootstrap_nodes(Multinode& multinode, const CommunicatorOptions& options, const Env& env,
                     const std::string& settings, const std::optional<Error>& wrong,
                     const Deadline& deadline) {
  std::vector<std::string> records;
  const bool named = !options.node.empty();
  const std::string record = pack({named ? options.node : host_name(), settings, host_label(),
                                   cached_network(), nic_rate(), text("{}", ::getpid())});
  publish_errors(*multinode.transport_comm,
                 [&] { agree(*multinode.transport_comm, wrong, deadline, record, &records); });
  std::vector<std::string> hosts, names, rates;
  for (const std::string& shown : records) {
    const std::vector<std::string> parts = unpack(shown);
    constexpr const char* kMalformed = "set-up record of a rank is malformed: wanted 6 fields";
    if (parts.size() < 2) throw Error(ErrorCode::parse_error, kMalformed);
    if (parts[1] != unpack(records[0])[1])
      throw AgreedError(ErrorCode::mismatch,
                        text("rank {} has other settings ({}) than rank 0 ({})", hosts.size(),
                             parts[1], unpack(records[0])[1]));
    if (parts.size() != 6) throw Error(ErrorCode::parse_error, kMalformed);
    hosts.push_back(parts[0]);
    names.push_back(parts[2]);
    rates.push_back(parts[4]);
    const bool is_here = !named && parts[0] == host_name();
    multinode.processes.push_back(
        is_here ? static_cast<int>(parse_integer("pid", parts[5], 1, 1 << 30)) : 0);
    if (multinode.network.empty()) multinode.network = parts[3];
  }
  multinode.nodes = nodes_of(hosts, named ? 0 : env.node_size, options.rank);
  if (named || env.node_size == 0)  // pretended nodes use no NICs
    multinode.nodes.network_gb_per_s = network_gb_per_s_of(rates);
  std::vector<TransportComm::HostLocation> places(names.size());
  for (int node = 0; node < multinode.nodes.count(); ++node)
    for (const int rank : multinode.nodes.members[static_cast<std::size_t>(node)])
      places[static_cast<std::size_t>(rank)] = {names[static_cast<std::size_t>(rank)], node};
  multinode.transport_comm->set_locations(std::move(places));
}

}  // namespace

Multinode join_multinode(const CommunicatorOptions& options, const Env& env) {
  const Hosts known = hosts_of(options, env);
  if (known == Hosts::one) return {};
  std::string settings;
  const std::optional<Error> wrong = attempt([&] {
    settings = settings_of(options, env);
    if (!options.unique_id.empty()) static_cast<void>(parse_unique_id(options.unique_id));
    if (known == Hosts::several) check_multinode(options, env);
  });
  Multinode multinode;
  try {
    multinode.transport_comm = transport_comm_of(options, env);
  } catch (const Error&) {
    if (wrong) throw Error(*wrong);
    throw;
  }
  if (multinode.transport_comm == nullptr) return {};
  const Deadline deadline{deadline_in(options.arrive_s), now_and_then(options.interrupt)};
  bootstrap_nodes(multinode, options, env, settings, wrong, deadline);
  if (multinode.nodes.count() == 1)
    return {};  // the launcher counts hosts otherwise than the system
  if (known == Hosts::unknown)
    publish_errors(*multinode.transport_comm, [&] {
      agree(*multinode.transport_comm, attempt([&] { check_multinode(options, env); }), deadline);
    });
  return multinode;
}

Topology topology_of(Multinode& multinode, const Deadline& deadline) {
  std::size_t most = 0;
  for (const std::vector<int>& members : multinode.nodes.members)
    most = std::max(most, members.size());
  Network network = multinode.network.empty()
                        ? measure_network(multinode, deadline)
                        : network_from(multinode.network, multinode.nodes.count());
  std::string shape;
  const std::optional<Error> missed = attempt([&] {
    if (multinode.nodes.mine != 0 || multinode.nodes.place != 0) return;
    const Topology node = local_cpu(static_cast<int>(most));
    Nic nic;
    for (int device = 0; device < static_cast<int>(node.devices.size()); ++device)
      nic.affinity.push_back(device);
    network.nics.push_back(nic);
    shape = pack(
        {to_json(cluster_of(node, network)), text("{} {}", network.latency_ns, network.gb_per_s)});
  });
  std::vector<std::string> shown;
  agree(*multinode.transport_comm, missed, deadline, shape, &shown);
  const std::vector<std::string> parts =
      unpack(shown[static_cast<std::size_t>(multinode.nodes.members[0][0])]);
  if (parts.size() != 2) throw Error(ErrorCode::parse_error, "rank 0 sent no topology");
  const std::lock_guard lock(network_guard());
  network_cache() = parts[1];
  return topology_from_json(parts[0]);
}

std::vector<int> devices_of(const Topology& topology, const Nodes& nodes) {
  const std::vector<int> all = rank_devices(topology);
  const std::size_t each = all.size() / nodes.members.size();
  std::vector<int> devices(static_cast<std::size_t>(nodes.ranks()));
  for (std::size_t node = 0; node < nodes.members.size(); ++node)
    for (std::size_t place = 0; place < nodes.members[node].size(); ++place)
      devices[static_cast<std::size_t>(nodes.members[node][place])] = all[node * each + place];
  return devices;
}

void agree(TransportComm& transport_comm, const std::optional<Error>& mine,
           const Deadline& deadline, const std::string& bytes, std::vector<std::string>* shown) {
  if (const auto first = first_error(transport_comm, mine, deadline, bytes, shown))
    throw AgreedError(first->code(), reason_of(*first));
}

std::optional<Error> multinode_call_error(TransportComm& transport_comm, const CallDescriptor& mine,
                                          const std::optional<Error>& refused,
                                          const Deadline& deadline) {
  const std::string said = print(mine);
  const std::uint64_t hash = hash_bytes(said.data(), said.size(), mine.plan_hash);
  auto kept = std::make_unique<std::array<std::uint64_t, 3>>();
  std::array<std::uint64_t, 3>& sums = *kept;
  sums = {refused ? static_cast<std::uint64_t>(refused->code()) : 0, hash, ~hash};
  Request request;
  request.collective = Collective::all_reduce;
  request.type = DataType::uint64;
  request.op = ReduceOp::max;
  request.count = sums.size();
  request.ranks = transport_comm.ranks();
  transport_comm.run(request, all_ranks(transport_comm), transport_comm.rank(), sums.data(),
                     sums.data(), kept, deadline, "a call that the ranks of all nodes make");
  if (sums[0] == 0 && sums[1] == ~sums[2]) return std::nullopt;
  if (sums[0] != 0) return first_error(transport_comm, refused, deadline);
  const std::vector<std::string> all =
      transport_comm.exchange(text("{}, by plan {}", said, mine.plan_hash), deadline);
  const auto other =
      std::find_if(all.begin(), all.end(), [&](const std::string& one) { return one != all[0]; });
  return Error(ErrorCode::mismatch,
               text("rank 0 calls {}, rank {} calls {}", all[0], other - all.begin(),
                    other == all.end() ? "it otherwise" : *other));
}

}  // namespace plait
