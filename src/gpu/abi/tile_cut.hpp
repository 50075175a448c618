// Senders, receivers and tile sizes of a tiled call: the same on all ranks, computed alike in
// kernels, for copy engines and in tests.
#pragma once
#include "gpu/abi/direct_shape.hpp"
#include "gpu/abi/tile_args.hpp"

namespace plait::cuda {

/// Fold: true for ranks of the lower half, with sums that go on to the upper half.
PLAIT_ON_BOTH inline bool is_lower(const TiledArgs& args, int rank) { return rank < args.half; }
/// Rank of the opposite half that handles the same part.
PLAIT_ON_BOTH inline int across(const TiledArgs& args, int rank) {
  return rank < args.half ? rank + args.half : rank - args.half;
}
/// Peers of the same half.
PLAIT_ON_BOTH inline std::uint32_t mates(const TiledArgs& args, int rank) {
  const std::uint32_t lower = (1u << args.half) - 1;
  return (is_lower(args, rank) ? lower : lower << args.half) & ~(1u << rank);
}

/// Ring: a rank's neighbours, and the part owned by the rank `before` places before this rank.
PLAIT_ON_BOTH inline int ring_next(const TiledArgs& args) { return (args.rank + 1) % args.ranks; }
PLAIT_ON_BOTH inline int ring_before(const TiledArgs& args) {
  return (args.rank + args.ranks - 1) % args.ranks;
}
PLAIT_ON_BOTH inline int ring_part(const TiledArgs& args, unsigned before) {
  return (args.rank + args.ranks - static_cast<int>(before) % args.ranks) % args.ranks;
}
/// A ring with a single owner is a chain: each rank sends to the next rank once, up to the owner.
PLAIT_ON_BOTH inline bool is_chain(const TiledArgs& args) {
  return args.ring != 0 && (args.owners & (args.owners - 1)) == 0;
}
PLAIT_ON_BOTH inline int chain_end(const TiledArgs& args) {
#ifdef __CUDA_ARCH__
  return __ffs(static_cast<int>(args.owners)) - 1;
#else
  return __builtin_ctz(args.owners);
#endif
}
/// Number of ranks before `rank` in a chain.
PLAIT_ON_BOTH inline int chain_place(const TiledArgs& args, int rank) {
  return (rank + args.ranks - chain_end(args) - 1) % args.ranks;
}

/// Ranks whose parts go to `owner`, without `owner` itself. In a fold, ring or chain a part may be
/// a partial sum.
PLAIT_ON_BOTH inline std::uint32_t senders_to(const TiledArgs& args, int owner) {
  if (args.ring != 0) {
    if (is_chain(args) && chain_place(args, owner) == 0) return 0;
    return 1u << (owner + args.ranks - 1) % args.ranks;
  }
  if ((args.owners >> owner & 1) == 0) return 0;
  if (args.half != 0)
    return mates(args, owner) | (is_lower(args, owner) ? 0 : 1u << across(args, owner));
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
  if (args.half != 0) return owner % args.half;
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
  if (args.half != 0) return mates(args, rank);
  if (args.ring != 0)
    return is_chain(args) && rank == chain_end(args) ? 0 : 1u << (rank + 1) % args.ranks;
  std::uint32_t to = 0;
  for (int owner = 0; owner < args.ranks; ++owner)
    to |= (senders_to(args, owner) >> rank & 1) << owner;
  return to;
}
/// Ranks that get results from `owner`, whether it handled or received them: all readers; in a ring
/// the next rank; in a fold its mates and, for the upper half, the rank across.
PLAIT_ON_BOTH inline std::uint32_t readers_of(const TiledArgs& args, int owner) {
  if ((args.owners >> owner & 1) == 0) return 0;
  if (args.ring != 0) return args.readers == 0 ? 0 : 1u << (owner + 1) % args.ranks;
  if (args.half == 0) return args.readers & ~(1u << owner);
  return mates(args, owner) | (is_lower(args, owner) ? 0 : 1u << across(args, owner));
}
/// Ranks that `rank` gets results from.
PLAIT_ON_BOTH inline std::uint32_t read_by(const TiledArgs& args, int rank) {
  if (args.half != 0)
    return mates(args, rank) | (is_lower(args, rank) ? 1u << across(args, rank) : 0);
  if (args.ring != 0) return args.readers == 0 ? 0 : 1u << (rank + args.ranks - 1) % args.ranks;
  return (args.readers >> rank & 1) != 0 ? args.owners & ~(1u << rank) : 0;
}

/// Steps of a tile; slots and flags count steps.
PLAIT_ON_BOTH inline unsigned steps_of_tile(const TiledArgs& args) {
  return args.ring != 0 && !is_chain(args) ? static_cast<unsigned>(args.ranks) - 1 : 1;
}

/// Sources of a reduction, in order: parts of ranks, in the upper half after the lower half's sum.
PLAIT_ON_BOTH inline int source_count(const TiledArgs& args) {
  return args.half == 0 ? args.ranks : args.half + (is_lower(args, args.rank) ? 0 : 1);
}
PLAIT_ON_BOTH inline bool is_sum_so_far(const TiledArgs& args, int source) {
  return args.half != 0 && !is_lower(args, args.rank) && source == 0;
}
PLAIT_ON_BOTH inline int source_rank(const TiledArgs& args, int source) {
  if (args.half == 0 || is_lower(args, args.rank)) return source;
  return source == 0 ? across(args, args.rank) : args.half + source - 1;
}

/// True if results stay in the owners' slots, from which readers copy them.
PLAIT_ON_BOTH inline bool pulls_results(const TiledArgs& args) {
  return (args.pull & kPullsResults) != 0;
}
/// True if parts stay in the senders' slots, from which owners load them as they reduce.
PLAIT_ON_BOTH inline bool pulls_parts(const TiledArgs& args) {
  return (args.pull & kPullsParts) != 0;
}

/// True if both ranks push to each other in the same phase of pairs.
PLAIT_ON_BOTH inline bool is_paced(const TiledArgs& args, int other) {
  return args.order == kInPairs && !pulls_parts(args) && (args.ranks & (args.ranks - 1)) == 0 &&
         (pushes_to(args, args.rank) >> other & 1) != 0 &&
         (pushes_to(args, other) >> args.rank & 1) != 0;
}

/// Target k (1 to ranks - 1) in a block's order of targets.
PLAIT_ON_BOTH inline int target(const TiledArgs& args, unsigned block, int k) {
  const int n = args.ranks;
  if (args.turns != 0)
    k = 1 + static_cast<int>((static_cast<unsigned>(k) - 1 + block) % static_cast<unsigned>(n - 1));
  const bool is_power = (n & (n - 1)) == 0;
  if ((args.order == kByXor || args.order == kInPairs) && is_power) return args.rank ^ k;
  if (args.order == kQuadratic && is_power) k = k * (k + 1) / 2;
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

/// Ranks whose tiles lie in slots of rank `at`. Stage 0: parts, by sender, or by owner if owners
/// pull parts (a sum that no output keeps lies in the owner's place). Stage 1: results, by owner.
PLAIT_ON_BOTH inline std::uint32_t in_slots(const TiledArgs& args, int at, int stage) {
  if (stage == 0) return pulls_parts(args) ? pushes_to(args, at) | 1u << at : senders_to(args, at);
  return pulls_results(args) ? 1u << at : read_by(args, at);
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
