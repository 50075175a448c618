// Senders, receivers and tile sizes of a tiled call: the same on all ranks, computed alike in
// kernels, for copy engines and in tests.
#pragma once
#include "gpu/abi/direct_shape.hpp"
#include "gpu/abi/tile_args.hpp"

namespace plait::cuda {

/// Ranks whose parts go to `owner`, without `owner` itself.
PLAIT_ON_BOTH inline std::uint32_t senders_to(const TiledArgs& args, int owner) {
  if ((args.owners >> owner & 1) == 0) return 0;
  const std::uint32_t others = args.senders & ~(1u << owner);
  if (args.shift == 0) return others;
  return others & 1u << (owner - args.shift + args.ranks) % args.ranks;
}

PLAIT_ON_BOTH inline int ranks_in(std::uint32_t mask) {
#ifdef __CUDA_ARCH__
  return __popc(mask);
#else
  return __builtin_popcount(mask);
#endif
}

/// Index of an owner among the owners.
PLAIT_ON_BOTH inline int index_of(const TiledArgs& args, int owner) {
  return ranks_in(args.owners & ((1u << owner) - 1));
}

/// Bytes of an owner's part; the last part may be short or empty.
PLAIT_ON_BOTH inline std::uint64_t part_bytes(const TiledArgs& args, int owner) {
  const std::uint64_t begin = static_cast<std::uint64_t>(index_of(args, owner)) * args.part_bytes;
  if (begin >= args.total_bytes) return 0;
  return args.part_bytes < args.total_bytes - begin ? args.part_bytes : args.total_bytes - begin;
}

/// Ranks that `rank` sends parts of its input to.
PLAIT_ON_BOTH inline std::uint32_t pushes_to(const TiledArgs& args, int rank) {
  std::uint32_t to = 0;
  for (int owner = 0; owner < args.ranks; ++owner)
    to |= (senders_to(args, owner) >> rank & 1) << owner;
  return to;
}
/// Ranks that get results from `owner`.
PLAIT_ON_BOTH inline std::uint32_t readers_of(const TiledArgs& args, int owner) {
  return (args.owners >> owner & 1) != 0 ? args.readers & ~(1u << owner) : 0;
}
/// Ranks that `rank` gets results from.
PLAIT_ON_BOTH inline std::uint32_t read_by(const TiledArgs& args, int rank) {
  return (args.readers >> rank & 1) != 0 ? args.owners & ~(1u << rank) : 0;
}

/// Target k (1 to ranks - 1) in a block's order of targets.
PLAIT_ON_BOTH inline int target(const TiledArgs& args, unsigned block, int k) {
  const int n = args.ranks;
  if (args.turns != 0)
    k = 1 + static_cast<int>((static_cast<unsigned>(k) - 1 + block) % static_cast<unsigned>(n - 1));
  if (args.target_order == kQuadratic && (n & (n - 1)) == 0) k = k * (k + 1) / 2;
  return (args.rank + k) % n;
}

/// Units of a tile: as few tiles as `most_units` allows, equal for all blocks.
PLAIT_ON_BOTH inline std::uint32_t tile_units(const TiledArgs& args) {
  const std::uint64_t units = (args.part_bytes + 15) / 16;
  const std::uint64_t share = (units + args.blocks - 1) / args.blocks;
  const std::uint64_t steps = (share + args.most_units - 1) / args.most_units;
  return steps == 0 ? 1 : static_cast<std::uint32_t>((share + steps - 1) / steps);
}

/// First unit of a block's tile within a part.
PLAIT_ON_BOTH inline unsigned long long first_unit(const TiledArgs& args, std::uint32_t tile_units,
                                                   unsigned block, unsigned tile) {
  return (block + static_cast<unsigned long long>(tile) * args.blocks) * tile_units;
}

/// Ranks whose tiles lie in slots of rank `at`. Stage 0: parts, by sender. Stage 1: results, by
/// owner.
PLAIT_ON_BOTH inline std::uint32_t in_slots(const TiledArgs& args, int at, int stage) {
  return stage == 0 ? senders_to(args, at) : read_by(args, at);
}
/// Offset of the tile's slot in a ring of `window` slots.
PLAIT_ON_BOTH inline unsigned long long slot_in_ring(const TiledArgs& args, unsigned tile) {
  return tile % args.window * static_cast<unsigned long long>(args.slot_bytes);
}
/// Offset of a slot within the rank's slots. A block has a fixed region in all calls, with a ring
/// of `window` slots for each rank of in_slots(). Slots therefore move between calls, and a block
/// writes into a peer's region only once nothing is read from that region any more
/// (TileFlags::ended).
PLAIT_ON_BOTH inline unsigned long long slot_offset(const TiledArgs& args, unsigned block, int at,
                                                    int stage, int from, unsigned tile) {
  const std::uint32_t before = in_slots(args, at, stage) & ((1u << from) - 1);
  const std::uint32_t ring =
      (stage == 0 ? 0 : args.part_rings) + static_cast<std::uint32_t>(ranks_in(before));
  return static_cast<unsigned long long>(block) * args.block_bytes +
         ring * args.window * args.slot_bytes + slot_in_ring(args, tile);
}

}  // namespace plait::cuda
