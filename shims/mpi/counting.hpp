// Under PLAIT_PROFILE: the book of calls has the collectives too that are the MPI's own.
#pragma once
#include <atomic>
#include <optional>

#include "comm/call_book.hpp"
#include "shims/mpi/collective_args.hpp"
#include "shims/mpi/shape.hpp"

namespace plait::mpi {

/// Since MPI_Init, in a process that was told PLAIT_PROFILE.
extern constinit std::atomic<bool> counting;
inline bool is_counting() { return counting.load(std::memory_order_relaxed); }

/// While it lives, the MPI does such a call.
class CountedNative {
 public:
  explicit CountedNative(const CollectiveArgs& args) {
    if (is_counting()) begin(args);
  }

 private:
  void begin(const CollectiveArgs& args);
  std::optional<CountedCall> counted_;
};

/// Bytes of a call that plait serves, as the book has them.
std::uint64_t counted_bytes(const CallShape& shape);

}  // namespace plait::mpi
