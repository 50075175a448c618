// What host code hands to the kernel of messages: what one rank sends another, with no third in the
// call. Plain structs read by both compilers.
#pragma once
#include "exec/cuda/device/call_args.hpp"
#include "exec/cuda/tiles/tile_args.hpp"

namespace plait::cuda {

// Between two ranks lie channels; a block serves one, with a team of threads for each direction.
inline constexpr int kMessageChannels = 32;  ///< between two ranks, at most
inline constexpr int kMessageSlots = 8;      ///< tiles of a channel under way
inline constexpr unsigned kMessageSlotBytes = 64 << 10;
inline constexpr int kMessagePacketDepth = 4;  ///< messages by lines under way
inline constexpr unsigned kMessagePacketUnits =
    512;  ///< lines of a channel that a message may have
inline constexpr int kMessageTeamThreads = 256;
inline constexpr int kMessageMovers = 2;  ///< threads of a team that move tiles in bulk, in turns
inline constexpr int kMessageStages = 3;  ///< bulk copies of each under way through shared memory
inline constexpr unsigned kMessageTeamBytes = kMessageMovers * kMessageStages * kBulkBytes;
inline constexpr int kMessageWorks = 32;    ///< in the arguments of one launch
inline constexpr int kMessageNoted = 2048;  ///< of one group: those that its arguments do not hold
inline constexpr int kMessageBlocks = 64;   ///< of one launch, at most
/// In MessageFlags::begun: blocks that begin later serve ends that teams have left.
inline constexpr std::uint32_t kEndsLeft = 1u << 31;

// Of two ranks, channels beside those take a share of long messages through host memory. Their
// slots lie in memory that both ranks map, the receiver's in the order of ranks.
inline constexpr int kMessageHostChannels = 2;
inline constexpr int kMessageHostSlots = 4;
inline constexpr std::uint64_t kMessageHostBytes =
    2ull * kMessageHostChannels * kMessageHostSlots * kMessageSlotBytes;
inline constexpr int kMessageRows = kMessageChannels + kMessageHostChannels;  ///< of words
/// In MessageFlags::numbers: no tile lies in the slot, and the message is over here.
inline constexpr std::uint32_t kNoTile = ~0u;

enum MessageSide : std::uint32_t { kSend, kReceive, kKeep };

/// One end of a message. How it is spread follows from its size, alike on both ends.
struct MessageWork {
  char* memory;      ///< of the caller: read by kSend, written by the others
  const char* kept;  ///< kKeep: what this rank sends itself
  std::uint64_t bytes;
  std::uint32_t channels;    ///< that it goes through
  std::uint32_t tile_units;  ///< of 16 bytes; tile i goes through channel i % channels
  std::uint32_t peer;
  std::uint32_t side : 8;        ///< MessageSide
  std::uint32_t by_packets : 4;  ///< 1 = flag packets, one tile a channel; 0 = tiles
  std::uint32_t shared : 4;      ///< 1 = host channels take tiles from the end of each channel's
  std::uint32_t element : 16;    ///< bytes: what `memory` is aligned to, 8 at most
};

/// How far a team came with an end that it has left.
struct MessagePlace {
  std::uint32_t work;      ///< counted over all of the launch
  std::uint32_t moved;     ///< tiles of that work
  std::uint64_t since_ns;  ///< when the wait began in which it was left
};

/// Words of a rank's memory, by channel and rank. Peers raise the first three, one writer each;
/// they count messages and tiles of all calls, so nothing is reset.
struct MessageFlags {
  using Counters = std::uint32_t[kMessageRows][kMaxCudaRanks];
  Counters packets_taken;  ///< by receiver: my messages by lines that were taken out
  Counters arrived;        ///< by sender: tiles in my slots
  Counters taken;          ///< by receiver: my tiles that were taken out of its slots
  /// By sender: which tile of a shared message lies in the slot; or kNoTile.
  std::uint32_t numbers[kMessageRows][kMaxCudaRanks][kMessageSlots];
  // My own, of finished calls: messages by lines, and tiles, to and from each rank.
  Counters packets[2];
  Counters tiles[2];
  Counters shares[2];  ///< shared messages
  // My own, to each rank: tiles of a channel's shared message that no channel has taken
  // (message_share.cuh).
  unsigned long long claims[kMessageChannels][kMaxCudaRanks];
  // My own, of the running launch (message_ends.cuh). All bits are 0 between launches.
  unsigned long long left[2];  ///< by side: a bit for each block whose end a team has left
  std::uint32_t begun;         ///< blocks that have begun, and kEndsLeft
  std::uint32_t unused;
  MessagePlace places[2][kMessageBlocks];
  MessageWork noted[kMessageNoted];
};

struct MessageArgs {
  MessageFlags* flags[kMaxCudaRanks];  ///< every rank's, as mapped here
  char* packets[kMaxCudaRanks];
  char* slots[kMaxCudaRanks];
  char* host_slots;  ///< both ranks', as mapped here
  DeviceState* state;
  StopPage* stop_page;
  std::uint64_t wait_ns;
  std::int32_t rank;
  std::int32_t ranks;
  std::uint32_t all_channels;             ///< between two ranks: their memory has room for so many
  std::uint32_t channels;                 ///< of each peer in this launch, but for host channels
  std::uint32_t peers;                    ///< how many
  std::uint8_t peer[kMaxCudaRanks];       ///< blocks of the first, of the second, ...
  std::uint8_t block_end[kMaxCudaRanks];  ///< where each's end
  std::uint32_t bulk;                     ///< not 0: the launch has shared memory for bulk copies
  std::uint32_t notes;       ///< 1 = this launch only notes its works, for the one that moves them
  std::uint32_t noted;       ///< works that launches before this one have noted: they come first
  std::uint32_t work_count;  ///< in `works`
  // Which of all works are of one side and rank, by place in `peer`: from first to before end.
  std::uint16_t first[2][kMaxCudaRanks];
  std::uint16_t end[2][kMaxCudaRanks];
  MessageWork works[kMessageWorks];
};

}  // namespace plait::cuda
