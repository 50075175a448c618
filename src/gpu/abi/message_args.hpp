// Arguments of the message kernel (point-to-point sends and receives): plain structs that both
// compilers read.
#pragma once
#include "gpu/abi/call_args.hpp"
#include "gpu/abi/tile_args.hpp"

namespace plait::cuda {

// Two ranks are joined by channels. A block serves a single channel, with a team of threads per
// direction.
inline constexpr int kMessageChannels = 32;  ///< Between two ranks, at most.
inline constexpr int kMessageSlots = 8;      ///< Tiles of a channel in flight.
inline constexpr unsigned kMessageSlotBytes = 64 << 10;
inline constexpr int kMessagePacketDepth = 4;  ///< Messages by LL packets in flight.
/// LL packets per channel and message, at most.
inline constexpr unsigned kMessagePacketUnits = 512;
inline constexpr int kMessageTeamThreads = 256;
inline constexpr int kMessageMovers = 2;  ///< Threads of a team that move tiles in bulk, in turns.
inline constexpr int kMessageStages = 3;  ///< Bulk copies of each in flight through shared memory.
inline constexpr unsigned kMessageTeamBytes = kMessageMovers * kMessageStages * kBulkBytes;
inline constexpr int kMessageWorks = 32;    ///< In the arguments of a launch.
inline constexpr int kMessageNoted = 2048;  ///< Works of a group beyond the works in the arguments.
inline constexpr int kMessageBlocks = 64;   ///< Most blocks of a launch.
/// In MessageFlags::begun: blocks that begin later serve abandoned endpoints.
inline constexpr std::uint32_t kEndsLeft = 1u << 31;

// For two ranks, additional host channels carry a share of long messages through host memory. Host
// slots lie in memory that both ranks map, the receiver's slots in rank order.
inline constexpr int kMessageHostChannels = 2;
inline constexpr int kMessageHostSlots = 4;
inline constexpr std::uint64_t kMessageHostBytes =
    2ull * kMessageHostChannels * kMessageHostSlots * kMessageSlotBytes;
inline constexpr int kMessageRows = kMessageChannels + kMessageHostChannels;  ///< Rows of flags.
/// In MessageFlags::numbers: the slot holds no tile, and the message ends here.
inline constexpr std::uint32_t kNoTile = ~0u;

enum MessageSide : std::uint32_t { kSend, kReceive, kKeep };

/// Endpoint of a message. Channels and tiles follow from the size, alike on both endpoints.
struct MessageWork {
  char* memory;      ///< Caller's buffer: read by kSend, written by kReceive and kKeep.
  const char* kept;  ///< kKeep: source of a message to this rank itself.
  std::uint64_t bytes;
  std::uint32_t channels;    ///< Channels the message uses.
  std::uint32_t tile_units;  ///< In 16-byte units; tile i uses channel i % channels.
  std::uint32_t peer;
  std::uint32_t side : 8;        ///< MessageSide
  std::uint32_t by_packets : 4;  ///< 1 = flagged LL packets, a tile per channel; 0 = tiles.
  std::uint32_t shared : 4;  ///< 1 = host channels take tiles from the end of each channel's list.
  std::uint32_t element : 16;  ///< Alignment of `memory` in bytes, 8 at most.
};

/// Progress of a team at an abandoned endpoint.
struct MessagePlace {
  std::uint32_t work;      ///< Index over all works of the launch.
  std::uint32_t moved;     ///< Tiles of that work.
  std::uint64_t since_ns;  ///< Start of the wait that ended with abandoning the endpoint.
};

/// Flags and counters of a rank, by channel and rank. Peers write the first three, a single writer
/// each. The first three count messages and tiles over all calls and are never reset.
struct MessageFlags {
  using Counters = std::uint32_t[kMessageRows][kMaxCudaRanks];
  Counters packets_taken;  ///< By receiver: LL messages taken from this rank.
  Counters arrived;        ///< By sender: tiles in my slots.
  Counters taken;          ///< By receiver: this rank's tiles taken out of the receiver's slots.
  /// By sender: number of the shared message's tile in the slot, or kNoTile.
  std::uint32_t numbers[kMessageRows][kMaxCudaRanks][kMessageSlots];
  // Own counters of finished calls: LL messages and tiles, to and from each rank.
  Counters packets[2];
  Counters tiles[2];
  Counters shares[2];  ///< Shared messages.
  // Own, per receiver: tiles of a channel's shared message not yet claimed (message_share.cuh).
  unsigned long long claims[kMessageChannels][kMaxCudaRanks];
  // Own, of the running launch (message_ends.cuh). All bits are 0 between launches.
  unsigned long long left[2];  ///< By side: a bit per block with an abandoned endpoint.
  std::uint32_t begun;         ///< Blocks that have begun, and kEndsLeft.
  std::uint32_t unused;
  MessagePlace places[2][kMessageBlocks];
  MessageWork noted[kMessageNoted];
};

struct MessageArgs {
  MessageFlags* flags[kMaxCudaRanks];  ///< By rank, as mapped here.
  char* packets[kMaxCudaRanks];
  char* slots[kMaxCudaRanks];
  char* host_slots;  ///< Slots of both ranks, as mapped here.
  DeviceState* state;
  StopPage* stop_page;
  std::uint64_t wait_ns;
  std::int32_t rank;
  std::int32_t ranks;
  std::uint32_t all_channels;        ///< Channels between two ranks that memory is reserved for.
  std::uint32_t channels;            ///< Channels per peer in this launch, without host channels.
  std::uint32_t peers;               ///< Number of peers.
  std::uint8_t peer[kMaxCudaRanks];  ///< Peer of the first range of blocks, of the second, ...
  std::uint8_t block_end[kMaxCudaRanks];  ///< End of each range of blocks.
  std::uint32_t bulk;                     ///< Not 0: the launch has shared memory for bulk copies.
  std::uint32_t notes;       ///< 1 = this launch only stores works, for the launch that moves the
                             ///< messages.
  std::uint32_t noted;       ///< Works stored by earlier launches, first in order.
  std::uint32_t work_count;  ///< In `works`.
  // Works of a side and rank, by position in `peer`: from `first` to before `end`.
  std::uint16_t first[2][kMaxCudaRanks];
  std::uint16_t end[2][kMaxCudaRanks];
  MessageWork works[kMessageWorks];
};

}  // namespace plait::cuda
