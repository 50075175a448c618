// Keeps spares among the states of the process. A spare leaves when the communicator is freed, or
// when a new state needs the place.
#include "shims/mpi/collective/served_comms.hpp"

#include <sched.h>

#include <algorithm>
#include <iterator>
#include <utility>

namespace plait::mpi {

ServedComms& served_comms() {
  static auto* const one = new ServedComms;
  return *one;
}

namespace {

using States = std::vector<std::shared_ptr<ServedComm>>;

/// Moves a state out of the list; null if the list has none. The lock must be held.
std::shared_ptr<ServedComm> taken_out(States::iterator at) {
  if (at == served_comms().all.end()) return nullptr;
  std::shared_ptr<ServedComm> taken = std::move(*at);
  served_comms().all.erase(at);
  return taken;
}

States::iterator place_of(const ServedComm* state) {
  States& all = served_comms().all;
  return std::find_if(all.begin(), all.end(), [&](const auto& one) { return one.get() == state; });
}

/// Ends the thread of a state that is out of the list.
void close(const std::shared_ptr<ServedComm>& state) {
  if (state != nullptr) state->close();
}

/// Drops the spares among the states that `has` selects, and disowns the states in use. The lock
/// must be held. Returns the spares.
template <class Has>
States cleared(const Has& has) {
  States spares;
  for (std::shared_ptr<ServedComm>& one : served_comms().all) {
    SpareState& spare = one->spare();
    if (!has(spare)) continue;
    spare.owner = nullptr;
    if (std::exchange(spare.is_free, false)) spares.push_back(std::move(one));
  }
  std::erase(served_comms().all, nullptr);
  return spares;
}

}  // namespace

bool add_state(const std::shared_ptr<ServedComm>& state, std::size_t most) {
  std::shared_ptr<ServedComm> dropped;
  bool has_room = false;
  {
    const std::lock_guard lock(served_comms().mutex);
    States& all = served_comms().all;
    if (all.size() >= most)
      dropped = taken_out(std::find_if(all.begin(), all.end(),
                                       [](const auto& one) { return one->spare().is_free; }));
    has_room = all.size() < most;
    if (has_room) all.push_back(state);
  }
  close(dropped);
  return has_room;
}

void release_state(ServedComm* state) {
  std::shared_ptr<ServedComm> owned;
  States spares;
  {
    const std::lock_guard lock(served_comms().mutex);
    owned = taken_out(place_of(state));
    spares = cleared([&](const SpareState& spare) { return spare.owner == state; });
  }
  close(owned);
  std::for_each(spares.begin(), spares.end(), close);
}

void release_persistent_state(ServedComm* state) {
  std::shared_ptr<ServedComm> whole;  // dropped without the lock
  {
    const std::lock_guard lock(served_comms().mutex);
    const auto at = place_of(state);
    if (at == served_comms().all.end()) return;  // MPI_Finalize has dropped the state
    whole = state->leave_gpus();
    state->spare().is_free = state->spare().owner != nullptr && state->is_reusable();
    if (state->spare().is_free) return;
  }
  release_state(state);
}

void own(const ServedComm& owner, ServedComm& state, std::size_t slot) {
  const std::lock_guard lock(served_comms().mutex);
  state.spare() = {&owner, slot, false};
}

void disown(ServedComm& state) {
  const std::lock_guard lock(served_comms().mutex);
  state.spare().owner = nullptr;
}

void clear_slot(const ServedComm& owner, std::size_t slot) {
  States dropped;
  {
    const std::lock_guard lock(served_comms().mutex);
    dropped = cleared(
        [&](const SpareState& spare) { return spare.owner == &owner && spare.slot == slot; });
  }
  std::for_each(dropped.begin(), dropped.end(), close);
}

SpareOffer::SpareOffer(const ServedComm& owner) {
  {
    const std::lock_guard lock(served_comms().mutex);
    for (const std::shared_ptr<ServedComm>& one : served_comms().all) {
      SpareState& spare = one->spare();
      if (spare.owner == &owner && std::exchange(spare.is_free, false)) spares_[spare.slot] = one;
    }
  }
  for (const std::shared_ptr<ServedComm>& one : spares_)
    while (one != nullptr && !one->is_idle()) ::sched_yield();
}

SpareOffer::~SpareOffer() {
  for (const std::shared_ptr<ServedComm>& one : spares_)
    if (one != nullptr) release_persistent_state(one.get());
}

std::array<bool, kSpareSlots> SpareOffer::slots() const {
  std::array<bool, kSpareSlots> are_free{};
  std::transform(spares_.begin(), spares_.end(), are_free.begin(),
                 [](const auto& one) { return one != nullptr; });
  return are_free;
}

ServedComm* SpareOffer::take(std::size_t slot) {
  return std::exchange(spares_[slot], nullptr).get();
}

}  // namespace plait::mpi
