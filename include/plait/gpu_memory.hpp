// GPU memory of a communicator on a rank.
#pragma once
#include <cstdint>

namespace plait {

/// Bytes of GPU memory. suspendable: the part that suspend() frees, counted also while the
/// communicator is suspended.
struct GpuMemory {
  std::uint64_t staying = 0;
  std::uint64_t suspendable = 0;
};

}  // namespace plait
