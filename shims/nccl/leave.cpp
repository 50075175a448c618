// First nobody watches it any more, then the others hear that this rank has left.
#include "shims/nccl/leave.hpp"

#include <mutex>
#include <utility>
#include <vector>

#include "base/log.hpp"
#include "base/text.hpp"
#include "shims/nccl/attach.hpp"
#include "shims/nccl/lifeline.hpp"

namespace plait::nccl {
namespace {

/// For good, and where tools that look for leaks see it.
template <class Kept>
void keep(std::unique_ptr<Kept> kept) {
  static std::mutex guard;
  static auto* const all = new std::vector<std::unique_ptr<Kept>>;
  const std::lock_guard<std::mutex> hold(guard);
  all->push_back(std::move(kept));
}

}  // namespace

void let_go(std::unique_ptr<State> state, double wait_s) {
  if (!await_attached(*state, wait_s)) {
    log(LogLevel::warn, state->rank,
        text("communicator ", state->comm, " ended while plait was attaching to it"));
    return keep(std::move(state));
  }
  unwatch(*state);
  show_left(state->place, Left::unmapped);
  if (state->phase.load() == Phase::aborted || state->killed.load()) keep(std::move(state->engine));
}

}  // namespace plait::nccl
