// Flight recorder of collectives and barriers that the native MPI serves, for `plait status`: one
// ring for the process, with PLAIT_WARN_S set. Ranks of a native communicator do not know their
// peers' processes, so the recorder names this rank's call, and compares no calls.
#pragma once
#include <atomic>

#include "comm/trace/flight_ring.hpp"
#include "shims/mpi/args/collective_args.hpp"
#include "shims/mpi/args/fallback.hpp"

namespace plait::mpi {

/// Set by read_settings() if PLAIT_WARN_S is set.
extern constinit std::atomic<bool> recording_native;
inline bool records_native() { return recording_native.load(std::memory_order_relaxed); }

/// Lists the recorder and answers `plait status`, if records_native(). After MPI_Init. Logs a
/// failure; calls are not recorded then.
void begin_native_flight() noexcept;

/// Scope of a native call: recorded from entry to return. A non-blocking call returns once started.
class RecordedNative {
 public:
  RecordedNative(const CollectiveArgs& args, Fallback why) {
    if (records_native()) begin(args, why);
  }
  /// A barrier.
  explicit RecordedNative(Handle comm) {
    if (records_native()) begin(comm);
  }
  ~RecordedNative() {
    if (is_open_) end();
  }
  RecordedNative(const RecordedNative&) = delete;
  RecordedNative& operator=(const RecordedNative&) = delete;

 private:
  void begin(const CollectiveArgs& args, Fallback why) noexcept;
  void begin(Handle comm) noexcept;
  void enter(Handle comm, const FlightCall& call) noexcept;
  void end() noexcept;
  bool is_open_ = false;
};

}  // namespace plait::mpi
