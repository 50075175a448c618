// Flags, memory and kernels of `tiled`.
#pragma once
#include <string>

#include "gpu/abi/tile_args.hpp"
#include "gpu/engine/resources.hpp"

namespace plait::cuda {

/// DeviceArenaSizes::divided(): blocks that have slots and flags (blocks_of_tiles).
inline constexpr ArenaPart kTileMemory{
    .name = "tiles", .what = "slots of tiles", .step = kTileStep};
inline constexpr ArenaFlags<TileFlags> kTileFlags{"tiled", alignof(TileFlags), &kTileMemory};
extern const KernelFamily kTiledKernels;
inline constexpr PlanFlagRange kTilePlanFlags{3 << 9, 1 << 11};
const Resources& tile_resources();

/// Blocks of tiled calls that have slots and flags: one for each SM of the smallest GPU, at most
/// the budget's (Group::most_blocks) and those that leave whole SMs to others (whole_sm_blocks). A
/// call takes no more blocks, whatever the caller asks for.
unsigned blocks_of_tiles(const Group& group);

std::string tiled_kernel(const Request& request);

}  // namespace plait::cuda
