// Arguments of the tiled kernels, and the flags of their blocks across ranks.
#pragma once
#include "gpu/abi/call_args.hpp"
#include "gpu/abi/direct_shape.hpp"

namespace plait::cuda {

inline constexpr int kTileSlots = 4;  ///< most tiles of a block in flight to each peer

// Threads of a tiled block by role. 512 threads have 128 registers each and spill nothing. All
// threads that handle tiles handle the same tile together: the sooner a tile is done, the fewer
// need be in flight.
inline constexpr int kPushThreads = 32;
inline constexpr int kCollectThreads = 32;
inline constexpr int kSignalThreads = 2 * 32;
inline constexpr int kHandleThreads = 3 * 128;
inline constexpr int kTileThreads =
    kHandleThreads + kPushThreads + kCollectThreads + kSignalThreads;
inline constexpr unsigned kBulkBytes = 16 << 10;  ///< most bytes of a bulk copy
// Bulk copies in flight through a block's shared memory.
inline constexpr int kPushStages = 7;
inline constexpr int kCollectStages = 5;
inline constexpr unsigned kTileSharedBytes = (kPushStages + kCollectStages) * kBulkBytes;

/// Order in which a rank visits targets. Values are those of the parameter `order`.
enum TargetOrder : std::int32_t { kByRank = 0, kQuadratic = 2 };

/// Flags of a block in a rank's memory that peers raise, each with a single writer. The flags count
/// the block's tiles of all calls and are never reset. The arena has an element for each block with
/// slots (kTileFlags).
struct TileFlags {
  alignas(128) std::uint32_t parts[kMaxCudaRanks];  ///< by sender: parts are here
  std::uint32_t parts_taken[kMaxCudaRanks];         ///< by owner: parts have been read
  std::uint32_t results[kMaxCudaRanks];             ///< by owner: results are here
  std::uint32_t results_taken[kMaxCudaRanks];       ///< by reader: results were copied out
  std::uint32_t ended[kMaxCudaRanks];               ///< by peer: reads from slots are over
  std::uint32_t tiles;                              ///< my own: tiles of finished calls
};

/// A tiled call. Owners handle parts of part_bytes each (the last may be short). Sets of ranks are
/// masks.
struct TiledArgs : CallArgs {
  TileFlags* flags[kMaxCudaRanks];  ///< every rank's, as mapped here, by block
  char* slots[kMaxCudaRanks];
  const std::uint32_t* poisoned;  ///< mine, if exchanges borrow my slots; null = they do not
  std::uint32_t blocks;           ///< blocks of the launch
  std::uint32_t most_units;       ///< most 16-byte units of a tile
  std::uint32_t block_bytes;      ///< bytes of a block's slots, the same in all calls
  std::uint32_t part_rings;       ///< rings of slots for parts; rings for results follow
  std::uint32_t slot_bytes;       ///< bytes of a slot, which holds a tile
  std::uint32_t window;           ///< tiles of a block in flight to each peer, a slot each
  std::int32_t handling;          ///< TileHandling
  std::uint32_t senders;          ///< ranks that send parts
  std::uint32_t owners;           ///< ranks that parts go to
  std::uint32_t readers;          ///< ranks that get the results of other owners
  std::uint32_t keepers;          ///< owners that keep the own result in the output
  std::int32_t shift;             ///< not 0: a rank's parts go to rank + shift only
  std::int32_t target_order;      ///< TargetOrder; CallArgs::order is that of sums
  std::uint32_t turns;            ///< 1 = each block begins with another target
  std::uint32_t piece_bytes;      ///< most bytes of a bulk copy to peers
  std::uint32_t in_turn;          ///< 1 = each piece goes to the next target
  std::uint32_t ps_per_kib;       ///< time in which a block sends a KiB of its parts; 0 = no limit
  std::uint64_t part_bytes;       ///< bytes of an owner's part
  std::uint64_t total_bytes;      ///< bytes of all owners' parts
  std::uint64_t part_stride;      ///< in the input, from each owner's part to the next
  std::uint64_t result_stride;    ///< in the output, from each owner's result to the next
  std::uint64_t place_stride;     ///< in the output, from each rank's part to the next
  std::uint64_t own_from;         ///< data that stays on this rank: offset in the input,
  std::uint64_t own_to;           ///< in the output,
  std::uint64_t own_bytes;
};

}  // namespace plait::cuda
