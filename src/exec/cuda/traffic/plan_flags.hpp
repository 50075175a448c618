// Flag::index of engines' words in their plans. Engines that share an arena number their words
// apart, so that no call seems to wait for another engine's: each room adds its first one here.
#pragma once

namespace plait::cuda {

inline constexpr int kCopyFlagsBase = 0;        ///< where a word's row lies in EngineFlags
inline constexpr int kHostFlagsBase = 1 << 10;  ///< likewise in HostWords
inline constexpr int kTileFlagsBase = 3 << 9;   ///< of blocks of tiles
inline constexpr int kMessageFlagsBase = 1 << 11;
inline constexpr int kEventFlagsBase = 1
                                       << 13;  ///< of a rank itself: one for each event it records
inline constexpr int kPartFlagsBase = 1
                                      << 15;  ///< of a part of a call that states no counts: lines

}  // namespace plait::cuda
