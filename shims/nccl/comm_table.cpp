// Entering and removing communicators; see comm_table.hpp for why readers need no lock.
#include "shims/nccl/comm_table.hpp"

#include <chrono>

namespace plait::nccl {
bool CommTable::insert(std::unique_ptr<State> state) {
  const std::lock_guard<std::mutex> hold(writing_);
  const Comm comm = state->comm;
  for (std::size_t i = 0, at = home(comm); i < kSlots; ++i, at = (at + 1) % kSlots) {
    Slot& slot = slots_[at];
    const Comm there = slot.comm.load();
    if ((there != nullptr && there != gone()) || slot.users.load() != 0) continue;
    slot.state = state.release();
    slot.comm.store(comm);
    return true;
  }
  return false;
}

std::unique_ptr<State> CommTable::remove(Comm comm, double wait_s) {
  const std::lock_guard<std::mutex> hold(writing_);
  for (std::size_t i = 0, at = home(comm); i < kSlots; ++i, at = (at + 1) % kSlots) {
    Slot& slot = slots_[at];
    const Comm there = slot.comm.load();
    if (there == nullptr) return nullptr;
    if (there != comm) continue;
    slot.comm.store(gone());
    const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(wait_s);
    while (slot.users.load() != 0) {
      if (std::chrono::steady_clock::now() > end) return nullptr;
      std::this_thread::yield();
    }
    return std::unique_ptr<State>(std::exchange(slot.state, nullptr));
  }
  return nullptr;
}

CommTable& comms() {
  static auto* const table = new CommTable;
  return *table;
}

}  // namespace plait::nccl
