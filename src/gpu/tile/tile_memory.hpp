// Flags, memory and kernels of `tiled`.
#pragma once
#include <string>

#include "gpu/abi/tile_args.hpp"
#include "gpu/engine/resources.hpp"

namespace plait::cuda {

inline constexpr ArenaFlags<TileFlags> kTileFlags{"tiled"};
/// DeviceArenaSizes::divided(): blocks that have slots; 0 = kTileBlocks.
inline constexpr ArenaPart kTileMemory{"tiles", "slots of tiles"};
extern const KernelFamily kTiledKernels;
inline constexpr PlanFlagRange kTilePlanFlags{3 << 9, 1 << 11};
const Resources& tile_resources();

/// Blocks of tiled calls that have slots.
unsigned blocks_of_tiles(const Group& group);

std::string tiled_kernel(const Request& request);

}  // namespace plait::cuda
