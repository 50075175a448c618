// A rank shows in its control page whom it asks for; who waits looks at all others' pages.
#include "comm/pairs.hpp"

#include <chrono>

#include "base/threads.hpp"

namespace plait {

Pairs::~Pairs() {
  for (auto& [peer, making] : by_peer_)
    if (making.thread.joinable()) making.thread.join();
}

Pairs::Result Pairs::start(int peer) {
  const std::lock_guard lock(guard_);
  const auto known = by_peer_.find(peer);
  if (known != by_peer_.end()) return known->second.result;
  std::packaged_task<std::shared_ptr<Communicator>()> task([this, peer] { return make_(peer); });
  Result result = task.get_future().share();
  by_peer_[peer] = {result, quiet_thread(std::move(task))};
  return result;
}

void Pairs::meet_who_asks() {
  for (int peer = 0; peer < controls_.ranks(); ++peer)
    if (peer != controls_.rank() && load(controls_.of(peer).wants[controls_.rank()]) != 0)
      start(peer);
}

void Pairs::forget(int peer) {
  const std::lock_guard lock(guard_);
  const auto known = by_peer_.find(peer);
  if (known == by_peer_.end()) return;
  if (known->second.thread.joinable()) known->second.thread.join();  // it has ended
  by_peer_.erase(known);
}

Communicator& Pairs::get(int peer) {
  std::atomic_ref<std::uint32_t>(controls_.mine().wants[static_cast<std::size_t>(peer)]).store(1);
  const Result result = start(peer);
  while (result.wait_for(std::chrono::milliseconds(1)) != std::future_status::ready)
    meet_who_asks();
  try {
    return *result.get();
  } catch (...) {
    forget(peer);
    throw;
  }
}

std::vector<Communicator*> Pairs::made() {
  const std::lock_guard lock(guard_);
  std::vector<Communicator*> all;
  for (const auto& [peer, making] : by_peer_) {
    if (making.result.wait_for(std::chrono::seconds(0)) != std::future_status::ready) continue;
    try {
      all.push_back(making.result.get().get());
    } catch (...) {
      // Who asks for it will hear of it.
    }
  }
  return all;
}

}  // namespace plait
