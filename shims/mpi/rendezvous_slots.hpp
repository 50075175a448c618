// The messages between ranks of one node that plait moves: where MPI matches them, only a header
// travels. What the header stands for its sender shows in a slot of memory that all ranks of the
// node share, where the receiver says when it has taken the message.
#pragma once
#include <atomic>
#include <cstdint>
#include <optional>

#include "plait/error.hpp"
#include "shims/mpi/pull.hpp"
#include "shims/mpi/real.hpp"

namespace plait::mpi {

/// Since MPI_Init, on all ranks of the job alike.
extern constinit std::atomic<bool> rendezvous_enabled;
inline bool uses_rendezvous() { return rendezvous_enabled.load(std::memory_order_relaxed); }
/// Collective over MPI_COMM_WORLD. can: this rank's MPI lets its messages go on in all its calls.
void begin_rendezvous(bool can);
void end_rendezvous();

enum class SlotState : std::uint32_t {
  free,
  offered,         ///< the receiver may take it
  host_requested,  ///< it cannot reach the GPU's memory: the sender is to bring the message to the
                   ///< host
  on_host,         ///< the sender has
  taken,           ///< the sender may give the slot to another message
  abandoned,       ///< by its sender: the communicator has been revoked
};

struct MessageSlot {
  std::atomic<SlotState> state;
  std::int32_t tag;
  std::uint64_t number;  ///< of this message among its sender's
  std::uint64_t bytes;
  std::uint64_t host;  ///< address in the sender's memory; 0 = it lies on a GPU
  std::int32_t process;
  std::int32_t source;       ///< the sender's rank in the message's communicator
  std::int32_t is_exported;  ///< on_gpu says where
  ExportedMemory exported;
};

/// A header's length tells its slot, so that who probes for it knows the message's size. A message
/// of the MPI's that has such a length takes the slot out of use first; while the slot is in use,
/// the message has a header too, which is shorter: others take the lowest slots last. Lengths hold
/// whole elements of all types of numbers, since MPICH asserts that; they are odd multiples, which
/// others seldom are.
inline constexpr unsigned kSlots = 72;  ///< of a pair of ranks, one way: 64 messages, and kLow
inline constexpr unsigned kLow = 8;     ///< of these
inline constexpr std::uint64_t kLengthUnit = 96;
inline constexpr std::uint64_t kMinHeader = 11 * kLengthUnit;
inline constexpr std::uint64_t header_bytes(unsigned slot) {
  return kMinHeader + 2 * kLengthUnit * slot;
}
inline constexpr std::uint64_t kMaxHeader = header_bytes(kSlots - 1);
inline bool is_header_length(std::uint64_t bytes) {
  return bytes >= kMinHeader && bytes <= kMaxHeader && bytes % (2 * kLengthUnit) == kLengthUnit;
}
/// Of a header length.
inline unsigned slot_of_length(std::uint64_t bytes) {
  return static_cast<unsigned>((bytes - kMinHeader) / (2 * kLengthUnit));
}

/// What a header's message begins with: first what tells it from others, where not all of it comes.
struct RtsHeader {
  std::uint64_t number;
  std::uint64_t job[2];
  std::int32_t from;  ///< of the node's ranks
  std::uint32_t slot;
};

/// Whether all ranks of the job are on this node, and move messages.
bool is_one_node();
/// A communicator's rank among those of this node; nothing where it is elsewhere.
std::optional<int> rank_in_node(Handle comm, int rank);
/// Of the node's ranks, this one.
bool is_this_rank(int node_rank);
/// Whether the process of one of them has ended.
bool has_ended(int node_rank);

/// A slot for a message to `to`, or one whose header is shorter than that of `below`; nothing where
/// none is free. Its owner fills it in.
std::optional<unsigned> claim_slot(int to);
std::optional<unsigned> claim_slot_below(int to, unsigned below);
void release_slot(int to, unsigned slot);
/// Where the MPI may send a message of such a length by itself: no header can be taken for it.
/// False while the slot is in use.
bool retire_slot(int to, std::uint64_t bytes);
MessageSlot& slot_of(int to, unsigned slot);
RtsHeader rts_header(int to, unsigned slot);
/// The slot that a header names; null where it is no header. Throws aborted where its sender has
/// given the message up.
MessageSlot* find_slot(const RtsHeader& header);
/// The error for that; from: of the node's ranks.
Error abandoned_error(int from);
/// A receive had no room for a header: its sender goes on. The status names sender and tag, and
/// with some MPIs the header's length; `first` is as much of the header as came. Nothing is done
/// where that fits several messages, or none.
void complete_truncated_send(const void* status, const std::byte* first, std::size_t bytes);
/// How many bytes the message has that a probe found; the MPI's own count where it is no header.
/// The tag is a guard for what retire_slot() leaves: more messages under way than there are slots.
std::uint64_t probed_bytes(Handle comm, int source, int tag, std::uint64_t bytes);

}  // namespace plait::mpi
