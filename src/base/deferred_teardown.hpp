// Deferred teardown of a closed communicator: peers may still write completion flags into this
// rank's memory, so the memory is freed only when all have detached. A thread finishes the job if
// that takes longer than the program should wait.
#pragma once
#include <cstdint>
#include <functional>

namespace plait {

/// How far a rank has detached from the communicator, as seen by peers.
enum class DetachStage : std::uint32_t {
  attached = 0,
  work_ended = 1,  ///< no work is queued or running: the rank stores into no peer's memory
  unmapped = 2,    ///< the rank has also unmapped the peers' memory
};

/// Callbacks for a rank. None of them throws. All except peers_reached are called by a single
/// thread at a time.
struct DeferredTeardown {
  std::function<bool()> has_ended;           ///< whether this rank's work has ended; never waits
  std::function<void(DetachStage)> publish;  ///< publishes the stage to peers
  /// Whether each peer has reached the stage, or its process has ended. elsewhere: only peers in
  /// other processes count.
  std::function<bool(DetachStage, bool elsewhere)> peers_reached;
  std::function<void()> unmap;  ///< unmaps peers' memory; may wait for all work on the GPU
  std::function<void()> free;   ///< frees this rank's memory; may wait likewise
};

/// Longest waits of the closing rank, in seconds.
struct TeardownTimeouts {
  double own_work_s = 2;    ///< until this rank's work has ended
  double peers_work_s = 2;  ///< then until the work of peers in other processes has
  double freed_s = 0.2;     ///< then until all is freed, which waits for other work in this process
};

/// Returns once all is freed, or when the waits are over; then a thread continues as long as the
/// process lives. Ranks of this process are not awaited, since the caller may close them next.
/// Returns whether all was freed.
bool defer_teardown(DeferredTeardown teardown, const TeardownTimeouts& waits);

}  // namespace plait
