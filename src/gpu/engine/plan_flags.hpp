// Ranges of Flag::index for the flags in engines' plans. Engines that share an arena use separate
// ranges, so no call seems to wait for another engine's flags. Each folder adds its first index
// here.
#pragma once

namespace plait::cuda {

inline constexpr int kCopyFlagsBase = 0;        ///< Rows of EngineFlags.
inline constexpr int kHostFlagsBase = 1 << 10;  ///< Rows of HostFlags.
inline constexpr int kTileFlagsBase = 3 << 9;   ///< Flags of tiled blocks.
inline constexpr int kMessageFlagsBase = 1 << 11;
inline constexpr int kEventFlagsBase = 1 << 13;  ///< One per recorded event of a rank.
inline constexpr int kPartFlagsBase = 1 << 15;   ///< Parts of a call without counts: LL packets.

}  // namespace plait::cuda
