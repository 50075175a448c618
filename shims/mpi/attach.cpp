// All that is said between ranks here goes over the MPI itself, on the communicator in question.
#include "shims/mpi/attach.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <climits>
#include <cstring>
#include <fstream>

#include "base/env.hpp"
#include "base/log.hpp"
#include "base/text.hpp"
#include "comm/rendezvous.hpp"
#include "shims/mpi/requests.hpp"

namespace plait::mpi {
namespace {

/// Each takes descriptors and shared memory, which are the program's too.
constexpr std::size_t kMostAttached = 64;
/// MPI waits for a rank as long as it takes; a rank that ends is noticed at once.
constexpr double kForeverS = 1e8;
constexpr std::uint64_t kNever = ~std::uint64_t{0};
/// Smaller messages in device memory are staged and are the MPI's: ranks need not agree then.
constexpr std::uint64_t kLeastOnGpus = 16 << 10;

/// The least message of each collective that plait takes unless told otherwise: from where on it
/// was faster than Open MPI and MPICH on two ranks (docs/mpi.md).
std::uint64_t usual_least(Collective collective) {
  switch (collective) {
    case Collective::all_reduce:
    case Collective::reduce_scatter: return 64 << 10;
    case Collective::reduce: return 4 << 20;
    default: return kNever;
  }
}

/// Message that is served, by Collective.
using Least = std::array<std::uint64_t, 16>;

struct Settings {
  bool disabled = false;
  bool host = false;    ///< host memory is served
  bool broken = false;  ///< a variable was wrong: all ranks hear of it
  Least on_host{}, on_gpus{};
  std::string topology;
  double arrive_s = kForeverS, deadline_s = kForeverS;
  int node = 0;  ///< world rank of this node's first rank
};

Settings& settings() {
  static auto* const one = new Settings;
  return *one;
}

/// From PLAIT_OPS and PLAIT_MIN_BYTES: the former names collectives, the latter is for all served.
void set_least(const Env& env, Settings& found) {
  found.on_host.fill(kNever);
  found.on_gpus.fill(kNever);
  const auto set = [&](Collective collective, std::uint64_t host, std::uint64_t gpus) {
    const bool told = env.has("PLAIT_MIN_BYTES");
    const auto at = static_cast<std::size_t>(collective);
    if (found.host) found.on_host[at] = told && host != kNever ? env.min_bytes : host;
    found.on_gpus[at] = told ? env.min_bytes : gpus;
  };
  if (!env.ops.empty()) {
    for (const std::string& name : split(env.ops, ','))
      set(parse_collective(name), 64 << 10, kLeastOnGpus);
    return;
  }
#define PLAIT_COLLECTIVE(name, input, output, busbw) \
  set(Collective::name, usual_least(Collective::name), kLeastOnGpus);
#include "plait/collectives.def"
#undef PLAIT_COLLECTIVE
}

/// A bad value is no reason to end somebody's program: it is this rank's reason to pass on.
void read_settings(Settings& found) {
  try {
    const Env env = read_env();
    found.disabled = env.disable;
    found.host = env.mpi_host;
    set_log(env.debug, env.debug_file);
    set_least(env, found);
    if (env.has("PLAIT_ARRIVE_S")) found.arrive_s = env.arrive_s;
    if (env.has("PLAIT_DEADLINE_S")) found.deadline_s = env.deadline_s;
    found.topology = env.topology;
  } catch (const Error& error) {
    warn_unasked(-1, text("MPI calls pass on: ", error.what()));
    found.broken = true;
  }
}

/// What tells one machine, and what a process sees of it, from another: a path of one must be the
/// same file for all.
std::uint64_t host_id() {
  std::string words;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> words;
  for (const char* space : {"/proc/self/ns/pid", "/proc/self/ns/mnt", "/proc/self/ns/net"}) {
    std::array<char, 128> name{};
    if (::readlink(space, name.data(), name.size() - 1) > 0) words += name.data();
  }
  std::uint64_t hash = 14695981039346656037ull;
  for (const unsigned char byte : words) hash = (hash ^ byte) * 1099511628211ull;
  return hash;
}

/// The least of each over all ranks of a communicator.
template <std::size_t kNumbers>
std::array<int, kNumbers> least(const std::array<int, kNumbers>& mine, Handle comm) {
  const Abi& abi = real().abi;
  std::array<int, kNumbers> all{};
  const int code =
      real().small.Allreduce(mine.data(), all.data(), int{kNumbers}, abi.int32, abi.min, comm);
  return code == 0 ? all : std::array<int, kNumbers>{};
}

bool all_of(bool mine, Handle comm) { return least(std::array{mine ? 1 : 0}, comm)[0] == 1; }

/// All ranks that this launcher started have the drop-in. Open MPI hands its environment on to
/// other nodes only by name.
bool is_everywhere() {
  const std::string ranks = foreign_env("OMPI_COMM_WORLD_SIZE");
  if (ranks == foreign_env("OMPI_COMM_WORLD_LOCAL_SIZE")) return true;
  return foreign_env("OMPI_MCA_mca_base_env_list").find("LD_PRELOAD") != std::string::npos;
}

/// The world rank of the first rank on this node, as the MPI sees nodes.
int node_of(Handle world) {
  const Abi& abi = real().abi;
  Handle shared = 0;
  int first = 0;
  real().Comm_rank(world, &first);
  if (real().Comm_split_type(world, abi.shared_kind, first, abi.no_info, &shared) != 0) return -1;
  real().small.Bcast(&first, 1, abi.int32, 0, shared);
  real().Comm_free(&shared);
  return first;
}

struct Offer {
  std::uint64_t host = 0;
  int node = 0;
  std::array<char, 200> place{};  ///< where to meet
};

/// rank 0's own.
Offer new_offer() {
  static std::atomic<unsigned> made{0};
  Offer offer;
  offer.host = host_id();
  offer.node = settings().node;
  try {
    const std::string place = text("unix:", rendezvous_folder(), "/mpi-", getpid(), "-", made++);
    if (place.size() < offer.place.size())
      std::memcpy(offer.place.data(), place.data(), place.size());
  } catch (const Error& error) {  // an empty place: nobody takes it
    log(LogLevel::warn, 0, error.what());
  }
  return offer;
}

std::unique_ptr<Communicator> meet_at(const Offer& offer, const Place& place, int device) {
  CommunicatorOptions options;
  options.rank = place.rank;
  options.ranks = place.ranks;
  options.rendezvous = offer.place.data();
  options.topology = settings().topology;
  options.arrive_s = settings().arrive_s;
  options.deadline_s = settings().deadline_s;
  options.device = device;
  options.meanwhile = let_mpi_progress;
  try {
    return Communicator::create(options);
  } catch (const Error& error) {
    const bool on_gpus = device != kNoDevice;
    log(LogLevel::warn, place.rank,
        text(on_gpus ? "device memory of a communicator is staged: "
                     : "a communicator stays with the MPI: ",
             error.what()));
    return nullptr;
  }
}

}  // namespace

bool agreed_to_serve() {
  Settings& mine = settings();
  read_settings(mine);
  if (!is_everywhere()) {
    if (mine.disabled || (!mine.host && !sees_gpus())) return false;
    warn_unasked(-1,
                 "MPI calls pass on: this job has several nodes, and Open MPI starts the others' "
                 "ranks without the drop-in; set OMPI_MCA_mca_base_env_list to "
                 "\"LD_PRELOAD;PLAIT_MPI_HOST\" (docs/mpi.md)");
    return false;
  }
  const Handle world = real().abi.world;
  int ranks = 0;
  real().Comm_size(world, &ranks);
  if (ranks < 2) return false;
  std::string shown = text(PLAIT_VERSION, ' ', mine.topology, ' ', mine.arrive_s, ' ',
                           mine.deadline_s, ' ', mine.host, ' ', mine.disabled);
  for (const Least* least : {&mine.on_host, &mine.on_gpus})
    for (const std::uint64_t bytes : *least) shown += text(' ', bytes);
  std::uint64_t hash = 14695981039346656037ull;
  for (const unsigned char byte : shown) hash = (hash ^ byte) * 1099511628211ull;
  const int word = static_cast<int>(hash >> 33);
  const auto [lowest, least_negated, whole, blind] =
      least(std::array{word, -word, mine.broken ? 0 : 1, sees_gpus() ? 0 : 1}, world);
  if (lowest != -least_negated || whole == 0) {
    warn_unasked(-1, "MPI calls pass on: PLAIT_ variables differ between ranks, or are wrong");
    return false;
  }
  if (mine.disabled) return false;
  const bool gpus = blind == 0;
  if (!mine.host && !gpus) return false;
  gpus_in_job.store(gpus);
  mine.node = node_of(world);
  return true;
}

bool can_attach(Handle comm, Place& place) {
  int inter = 0;
  if (real().Comm_test_inter(comm, &inter) != 0 || inter != 0) return false;
  real().Comm_size(comm, &place.ranks);
  real().Comm_rank(comm, &place.rank);
  return place.ranks > 1 && place.ranks <= kMostRanks;
}

bool may_be_wanted(Collective collective, std::uint64_t most_bytes) {
  const Settings& mine = settings();
  const auto at = static_cast<std::size_t>(collective);
  const std::uint64_t least =
      may_meet_gpus() ? std::min(mine.on_host[at], mine.on_gpus[at]) : mine.on_host[at];
  return least != kNever && most_bytes >= least;
}

std::uint64_t least_on_host(Collective collective) {
  return settings().on_host[static_cast<std::size_t>(collective)];
}

Wanted wanted_of(const Shape& shape) {
  const Settings& mine = settings();
  const auto at = static_cast<std::size_t>(shape.request.collective);
  if (shape.has_own_counts()) return {mine.on_host[at] != kNever, false};  // ranks ask each other
  const std::uint64_t bytes = message_bytes(shape.request);
  return {mine.on_host[at] != kNever && bytes >= mine.on_host[at],
          may_meet_gpus() && mine.on_gpus[at] != kNever && bytes >= mine.on_gpus[at]};
}

std::unique_ptr<Communicator> attach(Handle comm, const Place& place, std::size_t held,
                                     int device) {
  const InProgram here;
  const Abi& abi = real().abi;
  Offer offer;
  if (place.rank == 0) offer = new_offer();
  const int code = real().small.Bcast(&offer, sizeof(Offer), abi.byte, 0, comm);
  const bool near = code == 0 && offer.host == host_id() && offer.node == settings().node;
  const bool can = near && offer.place[0] != '\0' && held < kMostAttached;
  if (!all_of(can, comm)) return nullptr;
  std::unique_ptr<Communicator> made = meet_at(offer, place, device);
  if (!all_of(made != nullptr, comm)) return nullptr;
  return made;
}

}  // namespace plait::mpi
