// What a rank leaves behind when its communicator ends: memory that the others may still store
// into, since their last words (what was taken, what is through) come after this rank's work. It is
// freed once none of them can, by a thread if that takes longer than the program should wait.
#pragma once
#include <cstdint>
#include <functional>

namespace plait {

/// How far a rank has come in leaving its communicator; others see it.
enum class DetachStage : std::uint32_t {
  attached = 0,
  work_ended = 1,  ///< nothing of it is queued or runs any more: it stores into no peer's memory
  unmapped = 2,    ///< and it has let go of the peers' memory
};

/// One rank's. Nothing of it throws; all but have_left is called by one thread at a time.
struct DeferredTeardown {
  std::function<bool()> has_ended;           ///< this rank's own work; asks, and never waits
  std::function<void(DetachStage)> publish;  ///< to the others
  /// Whether each of them has come so far, or is gone with its process. elsewhere: of those in
  /// other processes alone.
  std::function<bool(DetachStage, bool elsewhere)> peers_reached;
  std::function<void()> unmap;  ///< the others' memory; may wait for all that runs on the GPU
  std::function<void()> free;   ///< this rank's own; likewise
};

/// How long who departs waits, in seconds.
struct TeardownTimeouts {
  double own_work_s = 2;    ///< until this rank's work has ended
  double peers_work_s = 2;  ///< then until theirs has, in other processes
  double freed_s = 0.2;     ///< then until all is freed, which has to wait for others' work here
};

/// Returns as soon as all is freed, or waiting is over; then a thread goes on with it as long as
/// the process lives. Ranks of this process are not awaited: the caller may be the one that ends
/// them next. True where all was freed.
bool defer_teardown(DeferredTeardown teardown, const TeardownTimeouts& waits);

}  // namespace plait
