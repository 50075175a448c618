// Rows of the arena's header: each room states the flags and counters that its kernels keep in
// every rank's arena (arena/arena.hpp lays the rows out).
#pragma once
#include <cstdint>

namespace plait::cuda {

struct ArenaPart;

/// Flags of a kind, named for errors. Initially zero.
struct FlagsRow {
  const char* name;
  std::uint64_t bytes;
  std::uint64_t alignment;
  /// Not null: an array of such flags, one for each of DeviceArenaSizes::divided() of the part.
  const ArenaPart* each = nullptr;
};

/// The row of a struct of flags.
template <class Flags>
struct ArenaFlags : FlagsRow {
  constexpr explicit ArenaFlags(const char* of, std::uint64_t aligned_to = alignof(Flags),
                                const ArenaPart* each_of = nullptr)
      : FlagsRow{of, sizeof(Flags), aligned_to, each_of} {}
};

}  // namespace plait::cuda
