// Which units of every part go which way, and in how large tiles: the same on all ranks. The kernel
// computes it for itself, and tests on the host do.
#pragma once
#include "exec/cuda/kernel_args.hpp"

#ifdef __CUDACC__
#define PLAIT_ON_BOTH __host__ __device__
#else
#define PLAIT_ON_BOTH
#endif

namespace plait::cuda {

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
