// Settings, node detection and communicator set-up. All exchanges here use the native MPI on the
// communicator in question.
#include "shims/mpi/collective/attach.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <climits>
#include <cstring>
#include <fstream>
#include <numeric>
#include <set>
#include <vector>

#include "base/env.hpp"
#include "base/error_reason.hpp"
#include "base/hash.hpp"
#include "base/log.hpp"
#include "base/text.hpp"
#include "comm/bootstrap/links.hpp"
#include "comm/bootstrap/vote.hpp"
#include "comm/transport/mpi/mpi_transport.hpp"
#include "shims/mpi/args/counting.hpp"
#include "shims/mpi/collective/arrival.hpp"
#include "shims/mpi/requests/requests.hpp"

namespace plait::mpi {
namespace {

/// MPI waits for a rank without a limit; a rank that exits is noticed at once.
constexpr double kUnlimitedS = 1e8;
/// Time after which MPI_Init reports the wait.
constexpr double kWarnAfterS = 10;
/// Smaller messages in GPU memory are staged and native without an agreement between ranks.
constexpr std::uint64_t kMinOnGpus = 16 << 10;
constexpr std::uint64_t kMinMultinode = 4 << 20;

/// Default smallest message that plait serves: from this size on plait was faster than Open MPI and
/// MPICH on two ranks (docs/mpi.md).
std::uint64_t default_min_bytes(Collective collective) {
  switch (collective) {
    case Collective::all_reduce:
    case Collective::reduce_scatter: return 64 << 10;
    case Collective::reduce: return 4 << 20;
    default: return kNever;
  }
}

/// The same for ranks on several nodes with several ranks each (docs/mpi.md).
std::uint64_t default_min_bytes_multinode(Collective collective) {
  switch (collective) {
    case Collective::all_reduce:
    case Collective::reduce_scatter:
    case Collective::reduce: return kMinMultinode;
    default: return kNever;
  }
}

/// Smallest message served, indexed by Collective.
using MinBytes = std::array<std::uint64_t, 16>;

struct MpiSettings {
  bool disabled = false;
  bool host = false;    ///< host memory is served
  bool broken = false;  ///< a variable is invalid; all ranks learn this
  const char* native_because = "MPI_Init has not run";  ///< if the job is not served
  MinBytes on_host{}, on_gpus{}, multinode{};
  bool min_bytes_is_set = false;  ///< PLAIT_MIN_BYTES
  int node_size = 0;              ///< PLAIT_NODE_SIZE
  std::string topology;
  double arrive_s = kUnlimitedS, deadline_s = kUnlimitedS;
  int node = 0;            ///< world rank of this node's first rank
  std::vector<int> nodes;  ///< first world rank on the node of each rank of MPI_COMM_WORLD
  Handle world_group = 0;
};

MpiSettings& settings() {
  static auto* const one = new MpiSettings;
  return *one;
}

/// Applies PLAIT_OPS (names of collectives) and PLAIT_MIN_BYTES (holds for all collectives).
void set_min_bytes(const Env& env, MpiSettings& found) {
  found.on_host.fill(kNever);
  found.on_gpus.fill(kNever);
  found.multinode.fill(kNever);
  const auto set = [&](Collective collective, std::uint64_t host, std::uint64_t multinode) {
    const bool is_set = env.has("PLAIT_MIN_BYTES");
    const auto at = static_cast<std::size_t>(collective);
    const auto least = [&](std::uint64_t usual) {
      return is_set && usual != kNever ? env.min_bytes : usual;
    };
    if (found.host) found.on_host[at] = least(host);
    if (found.host) found.multinode[at] = least(multinode);
    found.on_gpus[at] = least(kMinOnGpus);
  };
  if (!env.ops.empty()) {
    for (const std::string& name : split(env.ops, ','))
      set(parse_collective(name), 64 << 10, kMinMultinode);
    return;
  }
#define PLAIT_COLLECTIVE(name, input, output, busbw)         \
  set(Collective::name, default_min_bytes(Collective::name), \
      default_min_bytes_multinode(Collective::name));
#include "plait/collectives.def"
#undef PLAIT_COLLECTIVE
  // PLAIT_OPS must name send_recv for GPUs: rendezvous has not run on GPUs, and a started
  // receive of a persistent request may hold up a blocking send (docs/mpi.md).
  found.on_gpus[static_cast<std::size_t>(Collective::send_recv)] = kNever;
}

/// An invalid value does not end the program: this rank then asks for native calls.
void read_settings(MpiSettings& found) {
  try {
    const Env env = read_env();
    counting.store(!env.profile.empty());
    explaining.store(parse_log_level(env.debug) >= LogLevel::explain);
    recording.store(is_counting() || is_explaining());
    found.disabled = env.disable;
    found.host = env.mpi_host;
    set_log(env.debug, env.debug_file);
    set_min_bytes(env, found);
    if (env.has("PLAIT_ARRIVE_S")) found.arrive_s = env.arrive_s;
    if (env.has("PLAIT_DEADLINE_S")) found.deadline_s = env.deadline_s;
    found.topology = env.topology;
    found.node_size = env.node_size;
    found.min_bytes_is_set = env.has("PLAIT_MIN_BYTES");
  } catch (const std::exception& error) {
    warn_unasked(-1, text("all MPI calls are native: ", error.what()));
    found.broken = true;
  }
}

/// Throws for a failed MPI call on a communicator of the program. The call must not be made again
/// or replaced by another: after a failure on one rank alone, the rank's next receive may match a
/// message that a peer sent for the failed call.
void require_native(int code) {
  if (code != 0) throw NativeFailure{code};
}

/// Returns the minimum of each number over the communicator's ranks.
template <std::size_t kNumbers>
std::array<int, kNumbers> min_over_ranks(const std::array<int, kNumbers>& mine, Handle comm) {
  const Abi& abi = native().abi;
  std::array<int, kNumbers> all{};
  require_native(
      native().Allreduce(mine.data(), all.data(), int{kNumbers}, abi.int32, abi.min, comm));
  return all;
}

bool all_of(bool mine, Handle comm) {
  return min_over_ranks(std::array{mine ? 1 : 0}, comm)[0] == 1;
}

/// Returns whether all ranks of this launcher have the drop-in. Open MPI passes environment
/// variables to other nodes only by name.
bool is_everywhere() {
  const std::string ranks = foreign_env("OMPI_COMM_WORLD_SIZE");
  if (ranks == foreign_env("OMPI_COMM_WORLD_LOCAL_SIZE")) return true;
  return foreign_env("OMPI_MCA_mca_base_env_list").find("LD_PRELOAD") != std::string::npos;
}

/// Returns the world rank of the first rank on this node. Ranks share a node if both the MPI and
/// this machine (host_id) say so; PLAIT_NODE_SIZE emulates smaller nodes.
int node_of(Handle world) {
  const Abi& abi = native().abi;
  Handle shared = 0;
  int me = 0, ranks = 0;
  native().Comm_rank(world, &me);
  if (native().Comm_split_type(world, abi.shared_kind, me, abi.no_info, &shared) != 0) return -1;
  native().Comm_size(shared, &ranks);
  struct NodeRecord {
    std::uint64_t host;
    int rank;
    int emulated;
  };
  const int size = settings().node_size;
  const NodeRecord mine{host_id(), me, size > 0 ? me / size : 0};
  std::vector<NodeRecord> all(static_cast<std::size_t>(ranks), mine);
  native().Allgather(&mine, sizeof mine, abi.byte, all.data(), sizeof mine, abi.byte, shared);
  native().Comm_free(&shared);
  const auto first = std::find_if(all.begin(), all.end(), [&](const NodeRecord& one) {
    return one.host == mine.host && one.emulated == mine.emulated;
  });
  return first->rank;
}

/// Gathers the node of every world rank, so that ranks later know a communicator's nodes without
/// communication.
void exchange_nodes(Handle world, int ranks) {
  MpiSettings& mine = settings();
  const Abi& abi = native().abi;
  mine.node = node_of(world);
  mine.nodes.assign(static_cast<std::size_t>(ranks), mine.node);
  native().Allgather(&mine.node, 1, abi.int32, mine.nodes.data(), 1, abi.int32, world);
  native().Comm_group(world, &mine.world_group);
}

/// Returns the number of nodes of a communicator; 0 if a rank belongs to another MPI_COMM_WORLD
/// (spawn, connect, join). Settings are agreed per world, hence a mixed communicator is native;
/// every rank sees a foreign rank and reaches the same result.
int nodes_of(Handle comm, int ranks) {
  const MpiSettings& mine = settings();
  Handle group = 0;
  if (native().Comm_group(comm, &group) != 0) return 0;
  std::vector<int> here(static_cast<std::size_t>(ranks)), there(here);
  std::iota(here.begin(), here.end(), 0);
  const int code = native().Group_translate_ranks(native().abi.at(&group, 0), ranks, here.data(),
                                                  mine.world_group, there.data());
  native().Group_free(&group);
  if (code != 0) return 0;
  std::set<int> nodes;
  for (const int rank : there) {  // MPI_UNDEFINED is negative
    if (rank < 0 || static_cast<std::size_t>(rank) >= mine.nodes.size()) return 0;
    nodes.insert(mine.nodes[static_cast<std::size_t>(rank)]);
  }
  return static_cast<int>(nodes.size());
}

CommunicatorOptions options_for(const RankPosition& position, int device) {
  CommunicatorOptions options;
  options.rank = position.rank;
  options.ranks = position.ranks;
  options.topology = settings().topology;
  options.arrive_s = settings().arrive_s;
  options.deadline_s = settings().deadline_s;
  options.device = device;
  options.meanwhile = let_mpi_progress;
  return options;
}

/// Returns null and logs the reason if this rank cannot create the communicator.
std::unique_ptr<Communicator> create_or_null(const CommunicatorOptions& options) {
  try {
    return Communicator::create(options);
  } catch (const std::exception& error) {
    const bool on_gpus = options.device != kNoDevice;
    log(LogLevel::warn, options.rank,
        text(on_gpus ? "device memory of a communicator is staged: "
                     : "a communicator stays native: ",
             error.what()));
    return nullptr;
  }
}

/// Attaches ranks on several nodes. The native MPI carries the traffic between nodes, on a
/// communicator that is split off the program's and lives as long as plait's.
std::unique_ptr<Communicator> attach_multinode(Handle comm, const RankPosition& position,
                                               bool can) {
  CommunicatorOptions options = options_for(position, kNoDevice);
  // After the job has lost ranks, messages between nodes on a new communicator may mix with older
  // messages.
  const bool lost = fault_in(native().abi.world) != 0;
  if (lost)
    log(LogLevel::warn, position.rank,
        "a communicator over several nodes stays native: the job has lost ranks");
  if (!all_of(can && !lost, comm)) return nullptr;
  try {
    options.transport = transport_on(comm, position.rank, position.ranks);
  } catch (const std::exception& error) {
    log(LogLevel::warn, position.rank, text("a communicator stays native: ", error.what()));
  }
  if (!all_of(options.transport != nullptr, comm)) return nullptr;
  options.node = text(settings().node);
  return create_or_null(options);
}

/// Broadcasts rank 0's socket path over the communicator itself; fails on all ranks if any rank
/// failed (links.hpp).
std::string exchange_path(Handle comm, const RankPosition& position, std::optional<Error> failure,
                          const std::string& path) {
  std::array<char, 128> buffer{};  // a socket path has at most 107 bytes
  if (path.size() < buffer.size())
    std::memcpy(buffer.data(), path.data(), path.size());
  else if (!failure)
    failure = Error(ErrorCode::invalid_argument, text("path too long for a socket: ", path));
  if (failure)
    log(LogLevel::warn, position.rank, text("a communicator stays native: ", failure->what()));
  const bool all_can = all_of(!failure, comm);
  if (!all_can && failure) throw AgreedError(failure->code(), reason_of(*failure));
  if (!all_can) throw AgreedError(ErrorCode::aborted, "another rank cannot join");
  require_native(
      native().Bcast(buffer.data(), static_cast<int>(buffer.size()), native().abi.byte, 0, comm));
  return buffer.data();
}

/// Attaches ranks of the same node and the same MPI_COMM_WORLD (can_attach).
std::unique_ptr<Communicator> attach_in_node(Handle comm, const RankPosition& position, bool can,
                                             int device) {
  if (!all_of(can, comm)) return nullptr;
  CommunicatorOptions options = options_for(position, device);
  SocketLinks links;
  try {
    links = link_ranks(position.rank, position.ranks,
                       [&](const auto& failure, const std::string& path) {
                         return exchange_path(comm, position, failure, path);
                       });
  } catch (const AgreedError&) {  // each rank has logged the reason
    return nullptr;
  }
  options.rendezvous = links.rendezvous();
  return create_or_null(options);
}

}  // namespace

std::uint64_t host_id() {
  std::string words;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> words;
  for (const char* space : {"/proc/self/ns/pid", "/proc/self/ns/mnt", "/proc/self/ns/net"}) {
    std::array<char, 128> name{};
    if (::readlink(space, name.data(), name.size() - 1) > 0) words += name.data();
  }
  return hash_bytes(words.data(), words.size());
}

const char* why_job_is_native() { return settings().native_because; }

bool agreed_to_serve() {
  MpiSettings& mine = settings();
  read_settings(mine);
  const auto native_because = [&](const char* reason) {
    mine.native_because = reason;
    return false;
  };
  constexpr const char* kDisabled = "PLAIT_DISABLE is set";
  constexpr const char* kNothing = "PLAIT_MPI_HOST is not set, and no node has a GPU";
  if (!is_everywhere()) {
    if (mine.disabled) return native_because(kDisabled);
    if (!mine.host && !sees_gpus()) return native_because(kNothing);
    warn_unasked(
        -1,
        "all MPI calls are native: this job has several nodes, and Open MPI starts ranks on "
        "other nodes without the drop-in; set OMPI_MCA_mca_base_env_list to "
        "\"LD_PRELOAD;PLAIT_MPI_HOST\" (docs/mpi.md)");
    return native_because("ranks on other nodes may lack the drop-in");
  }
  const Handle world = native().abi.world;
  wait_for_all_ranks(world, std::min(kWarnAfterS, mine.arrive_s));
  int ranks = 0;
  native().Comm_size(world, &ranks);
  std::string shown = text(PLAIT_VERSION, ' ', mine.topology, ' ', mine.arrive_s, ' ',
                           mine.deadline_s, ' ', mine.host, ' ', mine.disabled);
  for (const MinBytes* least : {&mine.on_host, &mine.on_gpus, &mine.multinode})
    for (const std::uint64_t bytes : *least) shown += text(' ', bytes);
  shown += text(' ', mine.node_size, ' ', mine.min_bytes_is_set);
  const int hash = static_cast<int>(hash_bytes(shown.data(), shown.size()) >> 33);
  const auto [lowest, least_negated, whole, blind] =
      min_over_ranks(std::array{hash, -hash, mine.broken ? 0 : 1, sees_gpus() ? 0 : 1}, world);
  if (lowest != -least_negated || whole == 0) {
    warn_unasked(-1,
                 "all MPI calls are native: PLAIT_ variables differ between ranks or are invalid");
    return native_because("PLAIT_ variables differ between ranks or are invalid");
  }
  if (mine.disabled) return native_because(kDisabled);
  const bool gpus = blind == 0;
  if (!gpus && !mine.host) return native_because(kNothing);
  if (!gpus && ranks < 2)  // a single rank only stages GPU memory
    return native_because("the job has one rank, and no node has a GPU");
  gpus_in_job.store(gpus);
  exchange_nodes(world, ranks);
  return true;
}

bool can_attach(Handle comm, RankPosition& position) {
  int inter = 0;
  if (native().Comm_test_inter(comm, &inter) != 0 || inter != 0) return false;
  native().Comm_size(comm, &position.ranks);
  native().Comm_rank(comm, &position.rank);
  if (position.ranks < 2 || position.ranks > kMaxRanks) return false;
  position.nodes = nodes_of(comm, position.ranks);
  return position.nodes > 1 || (position.nodes == 1 && position.ranks <= kMostRanks);
}

bool any_uses_gpus(Handle comm) { return !all_of(!uses_gpus(), comm); }

std::uint64_t min_bytes_on_host(Collective collective) {
  return settings().on_host[static_cast<std::size_t>(collective)];
}

std::uint64_t min_bytes_multinode(Collective collective) {
  return settings().multinode[static_cast<std::size_t>(collective)];
}

std::uint64_t min_bytes_on_gpus(Collective collective) {
  return settings().on_gpus[static_cast<std::size_t>(collective)];
}

bool is_thin(const RankPosition& position) {
  return position.nodes > 1 && position.nodes == position.ranks && !settings().min_bytes_is_set;
}

ServedLocations served_locations_of(const CallShape& shape, const RankPosition& position) {
  const MpiSettings& mine = settings();
  const auto at = static_cast<std::size_t>(shape.request.collective);
  if (position.nodes > 1) {
    if (is_thin(position)) return {};
    const bool even = !shape.has_own_counts() && shape.request.counts.empty();
    return {
        even && mine.multinode[at] != kNever && message_bytes(shape.request) >= mine.multinode[at],
        false};
  }
  if (shape.has_own_counts())
    return {mine.on_host[at] != kNever, false};  // ranks compare sizes later
  const std::uint64_t bytes = message_bytes(shape.request);
  return {mine.on_host[at] != kNever && bytes >= mine.on_host[at],
          job_uses_gpus() && mine.on_gpus[at] != kNever && bytes >= mine.on_gpus[at]};
}

std::unique_ptr<Communicator> attach(Handle comm, const RankPosition& position, bool can,
                                     int device) {
  const ProgramThreadScope here;
  const RevocationScope revocable(comm, nullptr);
  std::unique_ptr<Communicator> one = position.nodes > 1
                                          ? attach_multinode(comm, position, can)
                                          : attach_in_node(comm, position, can, device);
  if (!all_of(one != nullptr, comm)) return nullptr;
  return one;
}

}  // namespace plait::mpi
