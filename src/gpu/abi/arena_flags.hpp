// Rows of the arena's header: each room states the flags and counters that its kernels keep in
// every rank's arena (arena/arena.hpp lays the rows out).
#pragma once
#include <cstdint>

namespace plait::cuda {

/// Flags of a kind, named for errors. Initially zero.
struct FlagsRow {
  const char* name;
  std::uint64_t bytes;
  std::uint64_t alignment;
};

/// The row of a struct of flags.
template <class Flags>
struct ArenaFlags : FlagsRow {
  constexpr explicit ArenaFlags(const char* of, std::uint64_t aligned_to = alignof(Flags))
      : FlagsRow{of, sizeof(Flags), aligned_to} {}
};

}  // namespace plait::cuda
