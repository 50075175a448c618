// Who sends what to whom in a tiled call, and in how large tiles: the same on all ranks, computed
// alike in kernels, for copy engines and in tests.
#pragma once
#include "exec/cuda/tiles/tile_args.hpp"
#include "exec/cuda/traffic/hop_shape.hpp"

namespace plait::cuda {

/// Ranks whose parts come to `owner`, but its own.
PLAIT_ON_BOTH inline std::uint32_t senders_to(const TiledArgs& args, int owner) {
  if ((args.owners >> owner & 1) == 0) return 0;
  const std::uint32_t others = args.senders & ~(1u << owner);
  if (args.shift == 0) return others;
  return others & 1u << (owner - args.shift + args.ranks) % args.ranks;
}

/// Of an owner among the owners.
PLAIT_ON_BOTH inline int index_of(const TiledArgs& args, int owner) {
  const std::uint32_t before = args.owners & ((1u << owner) - 1);
#ifdef __CUDA_ARCH__
  return __popc(before);
#else
  return __builtin_popcount(before);
#endif
}

/// Bytes of an owner's part; the last may be short or empty.
PLAIT_ON_BOTH inline std::uint64_t part_bytes(const TiledArgs& args, int owner) {
  const std::uint64_t begin = static_cast<std::uint64_t>(index_of(args, owner)) * args.part_bytes;
  if (begin >= args.total_bytes) return 0;
  return args.part_bytes < args.total_bytes - begin ? args.part_bytes : args.total_bytes - begin;
}

/// Units of a tile: as few tiles as `most_units` allows, and all blocks alike.
PLAIT_ON_BOTH inline std::uint32_t tile_units(const TiledArgs& args) {
  const std::uint64_t units = (args.part_bytes + 15) / 16;
  const std::uint64_t share = (units + args.blocks - 1) / args.blocks;
  const std::uint64_t steps = (share + args.most_units - 1) / args.most_units;
  return steps == 0 ? 1 : static_cast<std::uint32_t>((share + steps - 1) / steps);
}

/// The first unit of a block's tile within a part.
PLAIT_ON_BOTH inline unsigned long long first_unit(const TiledArgs& args, std::uint32_t tile_units,
                                                   unsigned block, unsigned tile) {
  return (block + static_cast<unsigned long long>(tile) * args.blocks) * tile_units;
}

/// Of all slots of a rank: a ring of kTileSlots for each block, stage and rank. `stage` 0: parts,
/// by sender; 1: results, by owner. `turn`: tiles of the block in all calls before this one.
PLAIT_ON_BOTH inline unsigned long long slot_index(int ranks, unsigned block, int stage, int from,
                                                   unsigned turn) {
  return ((static_cast<unsigned long long>(block) * 2 + stage) * ranks + from) * kTileSlots +
         turn % kTileSlots;
}

}  // namespace plait::cuda
