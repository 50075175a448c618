// Maps memory shared by the ranks of a node, made by the first rank: kSlots slots from each rank to
// each peer.
#include "shims/mpi/p2p/rendezvous_slots.hpp"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bitset>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <random>
#include <string>
#include <vector>

#include "base/log.hpp"
#include "base/text.hpp"
#include "comm/bootstrap/vote.hpp"
#include "comm/p2p/pull.hpp"
#include "comm/shm/shown_memory.hpp"
#include "plait/error.hpp"
#include "shims/mpi/abi/status.hpp"
#include "shims/mpi/args/gpu_memory.hpp"
#include "shims/mpi/args/settings.hpp"
#include "shims/mpi/requests/freed_comm.hpp"

namespace plait::mpi {

namespace {

constexpr int kMaxNodeRanks = 64;

struct NodeState {
  std::array<std::uint64_t, 2> job{};
  p2p::PullProbe probe;
  int rank = 0, ranks = 0;
  Mapping memory;
  std::vector<int> processes;           ///< by node rank
  std::vector<int> node_rank_of_world;  ///< by rank in MPI_COMM_WORLD; -1 = on another node
  std::mutex mutex;
  std::vector<std::bitset<kSlots>> in_use, retired;  ///< by node rank
  std::uint64_t made = 0;
};

NodeState& node_state() {
  static auto* const one = new NodeState;
  return *one;
}

int keyval = 0;  ///< attribute: the node ranks of a communicator's ranks

RendezvousSlot& slot_between(int from, int to, unsigned slot) {
  const auto at = (static_cast<std::size_t>(from) * static_cast<std::size_t>(node_state().ranks) +
                   static_cast<std::size_t>(to)) *
                      kSlots +
                  slot;
  return reinterpret_cast<RendezvousSlot*>(node_state().memory.base())[at];
}

RtsHeader header_between(int from, int to, unsigned slot) {
  return {
      slot_between(from, to, slot).number, {node_state().job[0], node_state().job[1]}, from, slot};
}

bool all_can(bool mine, Handle comm) {
  const int can = mine ? 1 : 0;
  int all = 0;
  return native().Allreduce(&can, &all, 1, native().abi.int32, native().abi.min, comm) == 0 &&
         all == 1;
}

/// Gathers a string of fewer than `kMost` bytes from every rank.
std::vector<std::string> exchange(const std::string& mine, Handle comm, int ranks) {
  constexpr std::size_t kMost = 64;
  std::array<char, kMost> shown{};
  std::memcpy(shown.data(), mine.data(), std::min(mine.size(), kMost - 1));
  std::vector<char> all(kMost * static_cast<std::size_t>(ranks));
  const Handle byte = native().abi.byte;
  native().Allgather(shown.data(), kMost, byte, all.data(), kMost, byte, comm);
  std::vector<std::string> found;
  for (int rank = 0; rank < ranks; ++rank)
    found.emplace_back(all.data() + kMost * static_cast<std::size_t>(rank));
  return found;
}

/// A rank's process, and bytes that peers read from the rank's memory as a test.
struct ReachProbe {
  std::uint64_t host;
  p2p::ShownProbe probe;
  std::int32_t process, world_rank;
};

/// Returns whether this rank can read the memory of all peers; containers and Yama may forbid it.
bool can_reach(const std::vector<ReachProbe>& all, int rank) {
  return std::all_of(all.begin(), all.end(), [&](const ReachProbe& one) {
    return one.host == all[0].host &&
           (&one == &all[static_cast<std::size_t>(rank)] || p2p::can_pull(one.process, one.probe));
  });
}

bool bootstrap_node(Handle comm, int world_rank) {
  NodeState& here = node_state();
  native().Comm_rank(comm, &here.rank);
  native().Comm_size(comm, &here.ranks);
  if (here.ranks < 2 || here.ranks > kMaxNodeRanks) return false;
  const ReachProbe mine{host_id(), here.probe.shown(), ::getpid(), world_rank};
  std::vector<ReachProbe> all(static_cast<std::size_t>(here.ranks));
  native().Allgather(&mine, sizeof mine, native().abi.byte, all.data(), sizeof mine,
                     native().abi.byte, comm);
  if (!all_can(can_reach(all, here.rank), comm)) return false;
  const auto pairs =
      static_cast<std::uint64_t>(here.ranks) * static_cast<std::uint64_t>(here.ranks);
  here.memory =
      memory_of_rank_0([&](const std::string& shown) { return exchange(shown, comm, here.ranks); },
                       here.rank, pairs * kSlots * sizeof(RendezvousSlot));
  if (here.memory.base() == nullptr) return false;
  for (std::size_t node_rank = 0; node_rank < all.size(); ++node_rank)
    here.node_rank_of_world[static_cast<std::size_t>(all[node_rank].world_rank)] =
        static_cast<int>(node_rank);
  for (const ReachProbe& one : all) here.processes.push_back(one.process);
  here.in_use.assign(all.size(), {});
  here.retired.assign(all.size(), {});
  return true;
}

int copy_nothing(Handle, int, void*, void*, void*, int* flag) {
  *flag = 0;
  return 0;
}

int communicator_freed(Handle, int, void* value, void*) {
  delete static_cast<std::vector<int>*>(value);
  return 0;
}

std::vector<int>* cached_node_ranks(Handle comm) {
  void* value = nullptr;
  int flag = 0;
  const int code = native().Comm_get_attr(comm, keyval, static_cast<void*>(&value), &flag);
  return code == 0 && flag != 0 ? static_cast<std::vector<int>*>(value) : nullptr;
}

/// Returns the node ranks of a communicator's ranks; empty for an intercommunicator. Threads may
/// ask for the first time at once.
std::vector<int>* node_ranks(Handle comm) {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  if (auto* const cached = cached_node_ranks(comm)) return cached;
  if (FreedCommScope::has(comm)) return nullptr;
  auto made = std::make_unique<std::vector<int>>();
  int inter = 0, ranks = 0;
  Handle group = 0, of_world = 0;
  if (native().Comm_test_inter(comm, &inter) == 0 && inter == 0 &&
      native().Comm_size(comm, &ranks) == 0) {
    std::vector<int> own(static_cast<std::size_t>(ranks)), world(own.size(), -1);
    for (std::size_t rank = 0; rank < own.size(); ++rank) own[rank] = static_cast<int>(rank);
    native().Comm_group(comm, &group);
    native().Comm_group(native().abi.world, &of_world);
    native().Group_translate_ranks(native().abi.at(&group, 0), ranks, own.data(),
                                   native().abi.at(&of_world, 0), world.data());
    native().Group_free(&group);
    native().Group_free(&of_world);
    const auto cached = static_cast<int>(node_state().node_rank_of_world.size());
    for (const int rank : world)  // MPI_UNDEFINED is negative
      made->push_back(rank >= 0 && rank < cached
                          ? node_state().node_rank_of_world[static_cast<std::size_t>(rank)]
                          : -1);
  }
  if (native().Comm_set_attr(comm, keyval, made.get()) != 0) return nullptr;
  return made.release();
}

}  // namespace

void begin_rendezvous(bool can) {
  const Handle world = native().abi.world;
  const std::uint64_t host = min_bytes_on_host(Collective::send_recv);
  const std::uint64_t gpus = job_uses_gpus() ? min_bytes_on_gpus(Collective::send_recv) : kNever;
  int rank = 0, ranks = 0;
  native().Comm_rank(world, &rank);
  const auto explain = [&](const char* why) {
    if (rank == 0) log(LogLevel::explain, rank, text("messages go to the MPI: {}", why));
  };
  if (std::min(host, gpus) == kNever) return explain("PLAIT_OPS does not name send_recv");
  if (!all_can(can, world))
    return explain("the MPI does not make progress on messages in all its functions");
  native().Comm_size(world, &ranks);
  NodeState& here = node_state();
  here.node_rank_of_world.assign(static_cast<std::size_t>(ranks), -1);
  std::random_device random;
  for (std::uint64_t& cookie : here.job) cookie = std::uint64_t{random()} << 32 | random();
  native().Bcast(here.job.data(), sizeof here.job, native().abi.byte, 0, world);
  Handle node_comm = 0;
  if (native().Comm_split_type(world, native().abi.shared_kind, rank, native().abi.no_info,
                               &node_comm) != 0)
    return;
  node_comm = native().abi.at(&node_comm, 0);
  if (!bootstrap_node(node_comm, rank))
    log(LogLevel::info, rank, "messages between the ranks of this node are native");
  native().Comm_free(&node_comm);
  native().Comm_create_keyval(copy_nothing, communicator_freed, &keyval, nullptr);
  rendezvous_enabled.store(true);
}

void end_rendezvous() { rendezvous_enabled.store(false); }

bool is_one_node() {
  return static_cast<std::size_t>(node_state().ranks) == node_state().node_rank_of_world.size() &&
         node_state().memory.base() != nullptr;
}

std::optional<int> rank_in_node(Handle comm, int rank) {
  if (rank < 0 || native().abi.key(comm) == native().abi.no_comm) return std::nullopt;
  const auto* ranks = cached_node_ranks(comm);
  // Without memory for the list the message is native, like a message between nodes.
  if (ranks == nullptr && attempt([&] { ranks = node_ranks(comm); })) return std::nullopt;
  if (ranks == nullptr || static_cast<std::size_t>(rank) >= ranks->size()) return std::nullopt;
  const int found = (*ranks)[static_cast<std::size_t>(rank)];
  return found < 0 ? std::nullopt : std::optional(found);
}

bool is_this_rank(int node_rank) { return node_rank == node_state().rank; }

bool has_ended(int node_rank) {
  return ::kill(node_state().processes[static_cast<std::size_t>(node_rank)], 0) != 0 &&
         errno == ESRCH;
}

namespace {

/// Claims the first free slot of `slots` from `first` on, in steps of `step` (1 or -1).
std::optional<unsigned> claim(int to, unsigned first, unsigned slots, int step) {
  const std::lock_guard lock(node_state().mutex);
  std::bitset<kSlots>& in_use = node_state().in_use[static_cast<std::size_t>(to)];
  const std::bitset<kSlots> taken = in_use | node_state().retired[static_cast<std::size_t>(to)];
  for (unsigned slot = first; slots > 0; --slots, slot += static_cast<unsigned>(step)) {
    if (taken[slot]) continue;
    in_use.set(slot);
    slot_between(node_state().rank, to, slot).number = ++node_state().made;
    return slot;
  }
  return std::nullopt;
}

}  // namespace

std::optional<unsigned> claim_slot(int to) {
  const std::optional<unsigned> high = claim(to, kLow, kSlots - kLow, 1);
  return high ? high : claim(to, 0, kLow, 1);
}

std::optional<unsigned> claim_slot_below(int to, unsigned below) {
  return claim(to, below - 1, below, -1);
}

void release_slot(int to, unsigned slot) {
  std::atomic<SlotState>& state = slot_of(to, slot).state;
  if (state.load() != SlotState::abandoned) state.store(SlotState::free);
  const std::lock_guard lock(node_state().mutex);
  node_state().in_use[static_cast<std::size_t>(to)].reset(slot);
}

bool retire_slot(int to, std::uint64_t bytes) {
  const unsigned slot = slot_of_length(bytes);
  const std::lock_guard lock(node_state().mutex);
  if (node_state().in_use[static_cast<std::size_t>(to)][slot]) return false;
  node_state().retired[static_cast<std::size_t>(to)].set(slot);
  return true;
}

RendezvousSlot& slot_of(int to, unsigned slot) { return slot_between(node_state().rank, to, slot); }

RtsHeader rts_header(int to, unsigned slot) { return header_between(node_state().rank, to, slot); }

Error abandoned_error(int from) {
  return Error(
      ErrorCode::aborted,
      text("message abandoned by rank {} of this node: its communicator has been revoked", from));
}

RendezvousSlot* find_slot(const RtsHeader& header) {
  const NodeState& here = node_state();
  if (header.job[0] != here.job[0] || header.job[1] != here.job[1]) return nullptr;
  if (here.memory.base() == nullptr || header.from < 0 || header.from >= here.ranks) return nullptr;
  if (header.slot >= kSlots) return nullptr;
  RendezvousSlot& slot = slot_between(header.from, here.rank, header.slot);
  const SlotState state = slot.state.load();
  if (slot.number != header.number) return nullptr;
  if (state != SlotState::abandoned) return state == SlotState::offered ? &slot : nullptr;
  throw abandoned_error(header.from);
}

void complete_truncated_send(const void* status, const std::byte* first, std::size_t bytes) {
  const NodeState& here = node_state();
  if (here.memory.base() == nullptr) return;
  const auto* const source =
      reinterpret_cast<const int*>(static_cast<const std::byte*>(status) + native().abi.source_at);
  const std::uint64_t length = received_bytes(status);
  RendezvousSlot* found = nullptr;
  for (int from = 0; from < here.ranks; ++from)
    for (unsigned at = 0; at < kSlots; ++at) {
      RendezvousSlot& slot = slot_between(from, here.rank, at);
      if (slot.state.load() != SlotState::offered || slot.source != source[0] ||
          slot.tag != source[1])
        continue;
      if (is_header_length(length) && slot_of_length(length) != at) continue;
      const RtsHeader header = header_between(from, here.rank, at);
      if (bytes != 0 && std::memcmp(&header, first, std::min(bytes, sizeof header)) != 0) continue;
      if (found != nullptr) return;
      found = &slot;
    }
  if (found != nullptr) found->state.store(SlotState::taken);
}

std::uint64_t probed_bytes(Handle comm, int source, int tag, std::uint64_t bytes) {
  if (!is_header_length(bytes)) return bytes;
  const std::optional<int> from = rank_in_node(comm, source);
  if (!from) return bytes;
  const RendezvousSlot& slot = slot_between(*from, node_state().rank, slot_of_length(bytes));
  return slot.state.load() == SlotState::offered && slot.tag == tag ? slot.bytes : bytes;
}

}  // namespace plait::mpi
