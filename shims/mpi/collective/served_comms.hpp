// All states of the process, and the spares among them. A new state of a persistent request takes
// milliseconds, so the state of a freed request is kept for a later request on the communicator.
#pragma once
#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "shims/mpi/collective/attach.hpp"
#include "shims/mpi/collective/serve.hpp"

namespace plait::mpi {

/// Owns all ServedComms of the process, in order of creation; a CommEntry has a bare pointer.
struct ServedComms {
  std::mutex mutex;
  std::vector<std::shared_ptr<ServedComm>> all;
  std::atomic<int> threads{0};  ///< number of threads that still run started calls
};
ServedComms& served_comms();

/// Adds a state, in the place of a spare if `most` states exist. Returns false if all of these are
/// in use.
bool add_state(const std::shared_ptr<ServedComm>& state, std::size_t most);
/// Drops the state, and the spares of a communicator's state. Does not wait.
void release_state(ServedComm* state);
/// Called after a persistent request is freed and has ended: keeps the state as a spare if a later
/// request can use the state, else drops the state.
void release_persistent_state(ServedComm* state);

/// The largest message of a request whose state is kept: shared memory grows with messages.
inline constexpr std::uint64_t kMostSpareBytes = 1 << 20;

/// Makes the state a spare of `owner` once the request is freed.
void own(const ServedComm& owner, ServedComm& state, std::size_t slot);
/// Keeps the state from becoming a spare.
void disown(ServedComm& state);
/// Empties a slot: drops a spare, and disowns a state in use.
void clear_slot(const ServedComm& owner, std::size_t slot);

/// The spares that this rank offers while the ranks choose. No other thread drops them meanwhile.
class SpareOffer {
 public:
  /// Waits until the threads of the spares are idle: their calls have ended.
  explicit SpareOffer(const ServedComm& owner);
  /// Gives back the spares that were not taken.
  ~SpareOffer();
  SpareOffer(const SpareOffer&) = delete;
  SpareOffer& operator=(const SpareOffer&) = delete;
  std::array<bool, kSpareSlots> slots() const;
  ServedComm* take(std::size_t slot);

 private:
  std::array<std::shared_ptr<ServedComm>, kSpareSlots> spares_;
};

}  // namespace plait::mpi
