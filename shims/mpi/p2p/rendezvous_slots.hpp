// Slots of rendezvous messages between the ranks of a node. The native MPI matches an RTS header.
// The header names a slot in memory shared by the node's ranks: the sender describes the payload in
// the slot, the receiver marks it as taken.
#pragma once
#include <atomic>
#include <cstdint>
#include <optional>

#include "plait/error.hpp"
#include "shims/mpi/abi/native_mpi.hpp"
#include "shims/mpi/p2p/pull.hpp"
#include "shims/mpi/requests/job.hpp"

namespace plait::mpi {
/// Collective over MPI_COMM_WORLD. can: this rank's MPI calls a progress hook in all functions.
void begin_rendezvous(bool can);
void end_rendezvous();

enum class SlotState : std::uint32_t {
  free,
  offered,         ///< the receiver may take it
  host_requested,  ///< the receiver cannot reach the GPU's memory: the sender must copy to the host
  on_host,         ///< the payload is in the sender's host memory
  taken,           ///< the sender may reuse the slot
  abandoned,       ///< by the sender: the communicator is revoked
};

struct RendezvousSlot {
  std::atomic<SlotState> state;
  std::int32_t tag;
  std::uint64_t number;  ///< counts the sender's messages
  std::uint64_t bytes;
  std::uint64_t host;  ///< address in the sender's memory; 0 = on a GPU
  std::int32_t process;
  std::int32_t source;       ///< the sender's rank in the message's communicator
  std::int32_t is_exported;  ///< `exported` is valid
  ExportedMemory exported;
};

/// The length of an RTS message encodes the slot, so that a probe can report the payload's size. A
/// native message of a header's length first retires the slot. While the slot is in use, that
/// message goes by rendezvous too, with a shorter header; hence other messages claim the lowest
/// slots last. Lengths are whole elements of all number types, as MPICH asserts, and odd multiples
/// of kLengthUnit, which are rare.
inline constexpr unsigned kSlots = 72;  ///< from a rank to a peer: 64, and kLow
inline constexpr unsigned kLow = 8;     ///< the lowest slots
inline constexpr std::uint64_t kLengthUnit = 96;
inline constexpr std::uint64_t kMinHeader = 11 * kLengthUnit;
inline constexpr std::uint64_t header_bytes(unsigned slot) {
  return kMinHeader + 2 * kLengthUnit * slot;
}
inline constexpr std::uint64_t kMaxHeader = header_bytes(kSlots - 1);
inline bool is_header_length(std::uint64_t bytes) {
  return bytes >= kMinHeader && bytes <= kMaxHeader && bytes % (2 * kLengthUnit) == kLengthUnit;
}
/// The slot of a header length.
inline unsigned slot_of_length(std::uint64_t bytes) {
  return static_cast<unsigned>((bytes - kMinHeader) / (2 * kLengthUnit));
}

/// The start of an RTS message. Identifying fields come first, in case the rest is truncated.
struct RtsHeader {
  std::uint64_t number;
  std::uint64_t job[2];
  std::int32_t from;  ///< rank in the node
  std::uint32_t slot;
};

/// Returns whether all ranks of the job are on this node and have slots.
bool is_one_node();
/// Returns the node rank of a communicator's rank; nothing for a rank on another node.
std::optional<int> rank_in_node(Handle comm, int rank);
/// Returns whether a node rank is this rank.
bool is_this_rank(int node_rank);
/// Returns whether the process of a node rank has ended.
bool has_ended(int node_rank);

/// Claim a slot for a message to `to`, the second with a shorter header than slot `below`. Return
/// nothing if none is free. The caller fills the slot.
std::optional<unsigned> claim_slot(int to);
std::optional<unsigned> claim_slot_below(int to, unsigned below);
void release_slot(int to, unsigned slot);
/// Retires the slot of a header length before a native send of that length, so that nothing is
/// mistaken for a header. Returns false while the slot is in use.
bool retire_slot(int to, std::uint64_t bytes);
RendezvousSlot& slot_of(int to, unsigned slot);
RtsHeader rts_header(int to, unsigned slot);
/// Returns the slot that a header names; null for other data. Throws aborted if the sender has
/// abandoned the message.
RendezvousSlot* find_slot(const RtsHeader& header);
/// That error; from: node rank of the sender.
Error abandoned_error(int from);
/// Completes the sender of a truncated RTS message. The status names sender and tag, with some MPIs
/// the length too; `first` holds the bytes that came. Does nothing unless exactly 1 message fits.
void complete_truncated_send(const void* status, const std::byte* first, std::size_t bytes);
/// Returns the size of a message that a probe found: for an RTS message the payload's size. The tag
/// guards against native messages of a header's length, sent while all slots below were in use.
std::uint64_t probed_bytes(Handle comm, int source, int tag, std::uint64_t bytes);

}  // namespace plait::mpi
