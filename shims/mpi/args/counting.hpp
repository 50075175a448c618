// What is recorded of native collectives: PLAIT_PROFILE enters them into the call book, alongside
// served collectives, and PLAIT_DEBUG=EXPLAIN logs the reasons (explain.hpp).
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
/// Set by MPI_Init if PLAIT_DEBUG is EXPLAIN.
extern constinit std::atomic<bool> explaining;
inline bool is_explaining() { return explaining.load(std::memory_order_relaxed); }
/// Set by MPI_Init if either is set, or PLAIT_WARN_S (native_flight.hpp): no call is passed on at
/// once.
extern constinit std::atomic<bool> recording;
inline bool is_recording() { return recording.load(std::memory_order_relaxed); }

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

/// Message bytes of a native call; 0 if an argument is wrong.
std::uint64_t bytes_of_native(const CollectiveArgs& args);

/// Message bytes of a served call for the call book.
std::uint64_t counted_bytes(const CallShape& shape);

}  // namespace plait::mpi
