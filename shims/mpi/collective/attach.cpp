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
#include <type_traits>
#include <vector>

#include "base/env.hpp"
#include "base/error_reason.hpp"
#include "base/hash.hpp"
#include "base/log.hpp"
#include "base/text.hpp"
#include "comm/bootstrap/links.hpp"
#include "comm/bootstrap/vote.hpp"
#include "comm/bootstrap/wait_warning.hpp"
#include "comm/transport/mpi/mpi_transport.hpp"
#include "shims/mpi/args/counting.hpp"
#include "shims/mpi/collective/arrival.hpp"
#include "shims/mpi/requests/requests.hpp"

namespace plait::mpi {
namespace {

/// The nodes of the job's ranks.
struct JobNodes {
  int node = 0;            ///< world rank of this node's first rank
  std::vector<int> nodes;  ///< first world rank on the node of each rank of MPI_COMM_WORLD
  Handle world_group = 0;
};

JobNodes& job_nodes() {
  static auto* const one = new JobNodes;
  return *one;
}

const char* job_is_native_because = "MPI_Init has not run";  ///< if the job is not served

/// Stores the minimum of each number over the communicator's ranks in `all`. Returns the MPI's
/// code. A failed call is not made again or replaced by another: the rank's next receive might
/// match a message that a peer sent for the failed call.
template <std::size_t kNumbers>
int min_over_ranks(const std::array<int, kNumbers>& mine, std::array<int, kNumbers>& all,
                   Handle comm) {
  const Abi& abi = native().abi;
  return native().Allreduce(mine.data(), all.data(), int{kNumbers}, abi.int32, abi.min, comm);
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
  JobNodes& mine = job_nodes();
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
  const JobNodes& mine = job_nodes();
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

CommunicatorOptions options_for(const RankPosition& position) {
  CommunicatorOptions options;
  options.rank = position.rank;
  options.ranks = position.ranks;
  options.topology = settings().topology;
  options.arrive_s = settings().arrive_s;
  options.deadline_s = settings().deadline_s;
  options.meanwhile = let_mpi_progress;
  return options;
}

/// Thrown on a rank on which the MPI has failed in a step of a set-up. The rank cannot know how its
/// peers' step has ended: they may go on to the next step, and wait there for this rank.
struct StepFailed {
  int code;  ///< the MPI's
};

/// Text that rank 0 sends to all ranks with a step of a set-up: a socket path has at most 107
/// bytes.
using StepText = std::array<char, 128>;

/// A step of a set-up, as ranks exchange it: the minimum of each number over the ranks. All steps
/// have this form, so that a step of one rank pairs with any step of its peers.
struct Step {
  static constexpr std::size_t kWords = sizeof(StepText) / sizeof(int);
  std::array<int, 1 + kWords> numbers;  ///< whether the rank can go on; then rank 0's text

  explicit Step(bool can) {
    numbers.fill(INT_MAX);
    numbers[0] = can ? 1 : 0;
  }
  void set_text(const StepText& from) { std::memcpy(&numbers[1], from.data(), from.size()); }
  StepText step_text() const {
    StepText to;
    std::memcpy(to.data(), &numbers[1], to.size());
    return to;
  }
  bool all_can() const { return numbers[0] == 1; }
};

/// The step in which all ranks agree to go on, or end the set-up. Throws StepFailed.
Step agree(const Step& mine, Handle comm) {
  Step all(true);
  all.numbers[0] = -1;
  const int code = min_over_ranks(mine.numbers, all.numbers, comm);
  if (code == 0) return all;
  if (all.numbers[0] != 0) throw StepFailed{code};
  return Step(false);  // a minimum of 0 is final: the peers have ended the set-up too
}

bool all_can_go_on(bool can, Handle comm) { return agree(Step(can), comm).all_can(); }

/// The last step of a set-up. If the MPI fails on this rank, its peers have no further step to
/// learn of the failure, so a communicator that this rank has stays, unless a peer is known to have
/// none.
bool all_have(bool has, Handle comm) {
  Step all(true);
  const int code = min_over_ranks(Step(has).numbers, all.numbers, comm);
  return code == 0 ? all.all_can() : has && all.numbers[0] != 0;
}

/// Creates the communicator on all ranks, or returns null on all ranks; logs the reason on a rank
/// that cannot.
std::unique_ptr<Communicator> create_on_all(const CommunicatorOptions& options, Handle comm) {
  std::unique_ptr<Communicator> made;
  try {
    made = Communicator::create(options);
  } catch (const std::exception& error) {
    log(LogLevel::warn, options.rank, text("a communicator stays with the MPI: {}", error.what()));
  }
  if (!all_have(made != nullptr, comm)) return nullptr;
  return made;
}

/// Splits a private communicator off the program's, without the attributes, if all ranks can go on.
/// Throws StepFailed.
std::optional<Handle> private_comm(Handle comm, const RankPosition& position, bool can) {
  Handle made = 0;
  if (const int code = native().Comm_split(comm, can ? 0 : 1, position.rank, &made); code != 0) {
    if (can) throw StepFailed{code};
    return std::nullopt;
  }
  const Handle own = native().abi.at(&made, 0);
  int ranks = 0;
  native().Comm_size(own, &ranks);
  if (can && ranks == position.ranks) return own;
  native().Comm_free(&made);
  return std::nullopt;
}

/// Attaches ranks on several nodes. The native MPI carries the traffic between nodes, on a
/// communicator that is split off the program's and lives as long as plait's.
std::unique_ptr<Communicator> attach_multinode(Handle comm, const RankPosition& position,
                                               bool can) {
  CommunicatorOptions options = options_for(position);
  // After the job has lost ranks, messages between nodes on a new communicator may mix with older
  // messages.
  const bool lost = fault_in(native().abi.world) != 0;
  if (lost)
    log(LogLevel::warn, position.rank,
        "a communicator over several nodes stays with the MPI: the job has lost ranks");
  const std::optional<Handle> own = private_comm(comm, position, can && !lost);
  if (!own) return nullptr;
  try {
    options.transport = transport_over(*own, position.rank, position.ranks);
  } catch (const std::exception& error) {
    log(LogLevel::warn, position.rank, text("a communicator stays with the MPI: {}", error.what()));
  }
  try {
    if (!all_can_go_on(options.transport != nullptr, comm)) return nullptr;
  } catch (const StepFailed&) {  // peers may wait for this rank's messages
    std::vector<int> peers(static_cast<std::size_t>(position.ranks));
    std::iota(peers.begin(), peers.end(), 0);
    std::erase(peers, position.rank);
    if (options.transport != nullptr)
      options.transport->publish_failure(
          peers, text("{} the MPI failed in the set-up", ErrorCode::aborted));
    throw;
  }
  options.node = text("{}", job_nodes().node);
  return create_on_all(options, comm);
}

/// Sends rank 0's socket path to all ranks over the communicator itself; fails on all ranks if any
/// rank failed (links.hpp). Throws StepFailed.
std::string exchange_path(Handle comm, const RankPosition& position, std::optional<Error> failure,
                          const std::string& path) {
  StepText buffer{};
  if (path.size() < buffer.size())
    std::memcpy(buffer.data(), path.data(), path.size());
  else if (!failure)
    failure = Error(ErrorCode::invalid_argument, text("path too long for a socket: {}", path));
  if (failure)
    log(LogLevel::warn, position.rank,
        text("a communicator stays with the MPI: {}", failure->what()));
  Step mine(!failure);
  if (position.rank == 0) mine.set_text(buffer);
  const Step all = agree(mine, comm);
  if (!all.all_can() && failure) throw AgreedError(failure->code(), reason_of(*failure));
  if (!all.all_can()) throw AgreedError(ErrorCode::aborted, "another rank cannot join");
  return all.step_text().data();
}

/// Attaches ranks of the same node and the same MPI_COMM_WORLD (can_attach).
std::unique_ptr<Communicator> attach_in_node(Handle comm, const RankPosition& position, bool can) {
  if (!all_can_go_on(can, comm)) return nullptr;
  CommunicatorOptions options = options_for(position);
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
  return create_on_all(options, comm);
}

}  // namespace

const char* why_job_is_native() { return job_is_native_because; }

bool agreed_to_serve() {
  read_settings();
  const MpiSettings& mine = settings();
  const auto native_because = [&](const char* reason) {
    job_is_native_because = reason;
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
  wait_for_all_ranks(world, std::min(wait_warning_s(), mine.arrive_s));
  int ranks = 0;
  native().Comm_size(world, &ranks);
  std::string shown = text("{} {} {} {} {} {}", PLAIT_VERSION, mine.topology, mine.arrive_s,
                           mine.deadline_s, mine.host, mine.disabled);
  for (const MinBytes* least : {&mine.sizes.on_host, &mine.sizes.on_gpus, &mine.sizes.multinode})
    for (const std::uint64_t bytes : *least) shown += text(" {}", bytes);
  shown += text(" {} {}", mine.node_size, mine.min_bytes_is_set);
  const int hash = static_cast<int>(hash_bytes(shown.data(), shown.size()) >> 33);
  std::array<int, 4> all{};
  if (const int code =
          min_over_ranks({hash, -hash, mine.broken ? 0 : 1, sees_gpus() ? 0 : 1}, all, world))
    throw NativeFailure{code};
  const auto [lowest, least_negated, whole, blind] = all;
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

bool any_uses_gpus(Handle comm) {
  std::array<int, 1> none_does{1};
  const int code = min_over_ranks({uses_gpus() ? 0 : 1}, none_does, comm);
  // The peers go on. A minimum of 0 is final: they have found that a rank uses GPUs.
  if (code != 0 && is_revoked(comm)) throw NativeFailure{code};
  if (code != 0)
    log(LogLevel::warn, -1, text("the MPI failed as ranks asked who uses GPUs (code {})", code));
  return none_does[0] == 0;
}

bool is_thin(const RankPosition& position) {
  return position.nodes > 1 && position.nodes == position.ranks && !settings().min_bytes_is_set;
}

ServedLocations served_locations_of(const CallShape& shape, const RankPosition& position) {
  const MpiSizes& sizes = settings().sizes;
  const auto at = static_cast<std::size_t>(shape.request.collective);
  if (position.nodes > 1) {
    if (is_thin(position)) return {};
    const bool even = !shape.has_own_counts() && shape.request.counts.empty();
    const std::uint64_t least = sizes.multinode[at];
    return {even && least != kNever && message_bytes(shape.request) >= least, false};
  }
  if (shape.has_own_counts())
    return {sizes.on_host[at] != kNever, false};  // ranks compare sizes later
  const std::uint64_t bytes = message_bytes(shape.request);
  return {sizes.on_host[at] != kNever && bytes >= sizes.on_host[at],
          job_uses_gpus() && sizes.on_gpus[at] != kNever && bytes >= sizes.on_gpus[at]};
}

namespace {

/// Runs steps of a set-up. Returns an empty result if the MPI fails in a step on this rank.
template <class Steps>
std::invoke_result_t<Steps> set_up(Handle comm, const RankPosition& position, const Steps& steps) {
  const ProgramThreadScope here;
  const RevocationScope revocable(comm, nullptr);
  try {
    return steps();
  } catch (const StepFailed& failed) {
    log(LogLevel::warn, position.rank,
        "a communicator stays with the MPI: the MPI failed on this rank in the set-up");
    // No call on a revoked communicator ends well, so no call pairs with another.
    if (is_revoked(comm)) throw NativeFailure{failed.code};
  }
  // Here all that peers might still wait for is closed, so they come to their next step, and end
  // the set-up because this rank cannot go on. The program's next call would pair with that step.
  Step all(true);
  min_over_ranks(Step(false).numbers, all.numbers, comm);
  return {};
}

}  // namespace

std::unique_ptr<Communicator> attach(Handle comm, const RankPosition& position, bool can) {
  return set_up(comm, position, [&] {
    return position.nodes > 1 ? attach_multinode(comm, position, can)
                              : attach_in_node(comm, position, can);
  });
}

/// The second step tells ranks that go on of a rank on which the MPI has failed in the first step.
/// Without a slot, the first step of attach() does.
SpareChoice choose_spare(Handle comm, const RankPosition& position,
                         const std::array<bool, kSpareSlots>& is_free) {
  return set_up(comm, position, [&]() -> SpareChoice {
    Step mine(true);
    for (std::size_t slot = 0; slot < kSpareSlots; ++slot)
      mine.numbers[1 + slot] = is_free[slot] ? 1 : 0;
    const Step all = agree(mine, comm);
    if (!all.all_can()) return {};
    const auto* const begin = all.numbers.data() + 1;
    const auto* const end = begin + kSpareSlots;
    const auto* const found = std::find(begin, end, 1);
    if (found == end) return {std::nullopt, true};
    if (!all_have(true, comm)) return {};
    return {static_cast<std::size_t>(found - begin), false};
  });
}

}  // namespace plait::mpi
