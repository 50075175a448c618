// Inserts and removes communicators; comm_table.hpp says why readers need no lock.
#include "shims/nccl/comm_table.hpp"

#include <chrono>
#include <exception>

#include "base/log.hpp"
#include "base/text.hpp"
#include "shims/nccl/teardown.hpp"

namespace plait::nccl {
namespace {

/// Deleter of a state without references.
void end(CommState* state) noexcept {
  const Comm comm = state->comm;
  try {
    tear_down(std::unique_ptr<CommState>(state));
  } catch (const std::exception& error) {
    log(LogLevel::warn, -1, text("tearing down communicator {}: {}", comm, error.what()));
  }
}

}  // namespace

void LateLaunches::add(std::function<void()> then) {
  const std::lock_guard<std::mutex> hold(guard_);
  then_.push_back(std::move(then));
  any_.store(true, std::memory_order_release);
}

void LateLaunches::done() {
  if (!any()) return;
  const std::lock_guard<std::mutex> hold(guard_);
  any_.store(false, std::memory_order_release);
  std::exception_ptr first;
  for (const auto& step : std::exchange(then_, {})) {
    try {
      step();
    } catch (const std::exception&) {
      if (first == nullptr) first = std::current_exception();
    }
  }
  if (first != nullptr) std::rethrow_exception(first);
}

std::shared_ptr<CommState> CommTable::insert(std::unique_ptr<CommState> state) {
  const std::lock_guard<std::mutex> hold(writing_);
  const Comm comm = state->comm;
  for (std::size_t i = 0, at = home(comm); i < kSlots; ++i, at = (at + 1) % kSlots) {
    TableSlot& slot = slots_[at];
    const Comm there = slot.comm.load();
    if ((there != nullptr && there != gone()) || slot.users.load() != 0 ||
        slot.handover.load() != Handover::no)
      continue;
    const std::shared_ptr<CommState> entered(state.release(), end);
    slot.state = entered;
    slot.comm.store(comm);
    return entered;
  }
  return nullptr;
}

std::shared_ptr<CommState> CommTable::take(TableSlot& slot) noexcept {
  Handover expected = Handover::by_last_user;
  if (!slot.handover.compare_exchange_strong(expected, Handover::taken)) return nullptr;
  std::shared_ptr<CommState> state = std::move(slot.state);
  slot.handover.store(Handover::no);
  return state;
}

std::shared_ptr<CommState> CommTable::remove(Comm comm, double wait_s) {
  const std::lock_guard<std::mutex> hold(writing_);
  for (std::size_t i = 0, at = home(comm); i < kSlots; ++i, at = (at + 1) % kSlots) {
    TableSlot& slot = slots_[at];
    const Comm there = slot.comm.load();
    if (there == nullptr) return nullptr;
    if (there != comm) continue;
    slot.comm.store(gone());
    const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(wait_s);
    while (slot.users.load() != 0 && std::chrono::steady_clock::now() < end)
      std::this_thread::yield();
    slot.handover.store(Handover::by_last_user);
    return slot.users.load() == 0 ? take(slot) : nullptr;
  }
  return nullptr;
}

CommTable& comms() {
  static auto* const table = new CommTable;
  return *table;
}

}  // namespace plait::nccl
