// Who sends what to whom in a tiled call, which units of every part go which way, and in how large
// tiles: the same on all ranks, computed alike in kernels, for copy engines and in tests.
#pragma once
#include "exec/cuda/kernel_args.hpp"

#ifdef __CUDACC__
#define PLAIT_ON_BOTH __host__ __device__
#else
#define PLAIT_ON_BOTH
#endif

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

struct TileCut {
  std::uint64_t from, to;  ///< units of each part
  std::uint32_t tile_units;
};

/// index: 0 = what goes by NVLink, 1 = through the host. Few tiles, as a fence costs as much as 30
/// KiB, and all blocks alike.
PLAIT_ON_BOTH inline TileCut cut_tiles(const TilePath& path, int index, std::uint64_t part_bytes,
                                       std::uint32_t host_permille) {
  const std::uint64_t units = (part_bytes + 15) / 16;
  const std::uint64_t split = units - units * host_permille / 1000;
  TileCut cut{index == 0 ? 0 : split, index == 0 ? split : units, 1};
  const std::uint64_t share = (cut.to - cut.from + path.blocks - 1) / path.blocks;
  const std::uint64_t steps = (share + path.most_units - 1) / path.most_units;
  if (steps > 0) cut.tile_units = static_cast<std::uint32_t>((share + steps - 1) / steps);
  return cut;
}

}  // namespace plait::cuda
