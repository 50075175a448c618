// PLAIT_PROFILE: enters native collectives into the call book, alongside served collectives.
#pragma once
#include <atomic>
#include <optional>

#include "comm/trace/call_book.hpp"
#include "shims/mpi/args/collective_args.hpp"
#include "shims/mpi/args/shape.hpp"

namespace plait::mpi {

/// Set by MPI_Init if PLAIT_PROFILE is set.
extern constinit std::atomic<bool> counting;
inline bool is_counting() { return counting.load(std::memory_order_relaxed); }

/// Scope of a native call.
class CountedNative {
 public:
  explicit CountedNative(const CollectiveArgs& args) {
    if (is_counting()) begin(args);
  }

 private:
  void begin(const CollectiveArgs& args);
  std::optional<CountedCall> counted_;
};

/// Message bytes of a served call for the call book.
std::uint64_t counted_bytes(const CallShape& shape);

}  // namespace plait::mpi
