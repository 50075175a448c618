// Makes pair communicators. A rank publishes the wanted peers in the control page; a waiting rank
// reads all peers' pages. The requesting thread removes a failed attempt, or the next request does.
#include "comm/p2p/pairs.hpp"

#include <chrono>

#include "base/threads.hpp"
#include "comm/bootstrap/interrupt.hpp"
#include "comm/bootstrap/wait_warning.hpp"

namespace plait {
namespace {

template <class Result>
bool is_ready(const Result& result) {
  return result.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
}

/// Returns the communicator of a finished attempt; null if the attempt failed.
template <class Result>
Communicator* made_by(const Result& result) noexcept {
  try {
    return result.get().get();
  } catch (...) {
    return nullptr;  // the requesting thread gets the error
  }
}

}  // namespace

PairCommunicators::~PairCommunicators() {
  for (auto& [peer, making] : by_peer_)
    if (making.thread.joinable()) making.thread.join();
}

void PairCommunicators::want(int peer, bool wanted) const {
  std::uint32_t& word = controls_.mine().wants[static_cast<std::size_t>(peer)];
  std::atomic_ref<std::uint32_t>(word).store(wanted ? 1 : 0);
}

PairCommunicators::Started PairCommunicators::start(int peer) {
  const std::lock_guard lock(guard_);
  const auto found = by_peer_.find(peer);
  if (found != by_peer_.end()) return {found->second.result, found->second.number};
  std::packaged_task<std::shared_ptr<Communicator>()> task([this, peer] { return make_(peer); });
  const Started started{task.get_future().share(), ++made_so_far_};
  Making& making = by_peer_[peer];  // before the thread exists, since that must be joined
  try {
    making = {started.result, quiet_thread(std::move(task)), started.number};
  } catch (...) {
    by_peer_.erase(peer);
    throw;
  }
  return started;
}

/// Starts pairs that peers want. An attempt that failed unasked is repeated only on a local
/// request.
void PairCommunicators::pair_with_askers() {
  for (int peer = 0; peer < controls_.ranks(); ++peer)
    if (peer != controls_.rank() && load(controls_.of(peer).wants[controls_.rank()]) != 0)
      start(peer);
}

void PairCommunicators::forget(int peer, int number) {
  const std::lock_guard lock(guard_);
  const auto found = by_peer_.find(peer);
  if (found == by_peer_.end() || found->second.number != number) return;
  found->second.thread.join();  // the thread has ended
  by_peer_.erase(found);
}

Communicator& PairCommunicators::get(int peer) {
  want(peer, true);
  Started started = start(peer);
  if (is_ready(started.result) && made_by(started.result) == nullptr) {
    forget(peer, started.number);  // an earlier attempt, requested by the peer only
    started = start(peer);
  }
  WaitWarning warning;
  const std::function<void()> ask = now_and_then(interrupt_);
  while (started.result.wait_for(std::chrono::milliseconds(1)) != std::future_status::ready) {
    pair_with_askers();
    if (ask) ask();
    warning.look(controls_.rank(), [&] {
      return text("rank {} waits for rank {} to come to its end of a send, receive or exchange",
                  controls_.rank(), peer);
    });
  }
  try {
    return *started.result.get();
  } catch (...) {
    want(peer, false);
    forget(peer, started.number);
    throw;
  }
}

std::vector<Communicator*> PairCommunicators::made() {
  const std::lock_guard lock(guard_);
  std::vector<Communicator*> all;
  for (const auto& [peer, making] : by_peer_)
    if (Communicator* one = is_ready(making.result) ? made_by(making.result) : nullptr)
      all.push_back(one);
  return all;
}

void PairCommunicators::abort() noexcept {
  const std::lock_guard lock(guard_);
  for (const auto& [peer, making] : by_peer_)
    if (Communicator* one = is_ready(making.result) ? made_by(making.result) : nullptr)
      one->abort();
}

}  // namespace plait
