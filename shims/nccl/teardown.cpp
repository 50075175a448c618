// A rank watches the others until its own work has ended, and they hear how far it has come in
// leaving. Killed, or failed in a call: what waits for it fails half a second later. Ended by
// itself without leaving: after five seconds, since what it sent last may still be on its way
// through queues here.
#include "shims/nccl/teardown.hpp"

#include <utility>

#include "base/deferred_teardown.hpp"
#include "base/log.hpp"
#include "base/text.hpp"
#include "shims/nccl/attach.hpp"
#include "shims/nccl/never_free.hpp"

namespace plait::nccl {
namespace {

constexpr double kGraceSeconds = 5;
/// For the program to abort the communicator once ncclCommGetAsyncError says that a rank is lost:
/// PyTorch's watchdog asks ten times a second.
constexpr double kAbortSeconds = 0.5;
static_assert(LivenessPage::kSlots >= CommTable::kSlots, "a place for every communicator");

DeferredTeardown teardown_of(const std::shared_ptr<CommState>& state) {
  DeferredTeardown made;
  made.has_ended = [state] {
    return !state->marker->is_ahead() && state->engine->has_ended(state->order.knows_end());
  };
  made.publish = [state](DetachStage left) {
    if (left == DetachStage::work_ended) unwatch(*state);
    publish_detach(state->liveness_index, left);
  };
  made.peers_reached = [state](DetachStage left, bool elsewhere) {
    return state->peers->peers_reached(left, elsewhere);
  };
  made.unmap = [state] { state->engine->unmap_peers(); };
  made.free = [state] { state->engine.reset(); };
  return made;
}

}  // namespace

CommState::CommState() : PeerObserver(kGraceSeconds) {}

void CommState::lost(int peer, int process, Loss how) {
  const std::string who = text("rank ", peer, " (process ", process, ")");
  if (how == Loss::ended)  // as programs end that never destroy what they made: no fault of theirs
    log(LogLevel::info, rank, text(who, " has ended, and communicator ", comm, " with it"));
  else
    log(LogLevel::warn, rank,
        text(who, how == Loss::failed ? " broke a call off, and says why" : " has died",
             ": calls on communicator ", comm, " fail from here on"));
  has_lost.store(true);
  if (how != Loss::ended) killed.store(true);
  fail_streams_in(kAbortSeconds);
}

void tear_down(std::unique_ptr<CommState> given) {
  if (!await_attached(*given, given->attach_s)) {
    log(LogLevel::warn, given->rank,
        text("communicator ", given->comm, " ended while plait was attaching to it"));
    return never_free(std::move(given));
  }
  if (given->peers == nullptr) {  // never attached: no rank has anything of another's
    publish_detach(given->liveness_index, DetachStage::unmapped);
    if (given->engine != nullptr)
      never_free(std::move(given));  // but for one that broke off on the way
    return;
  }
  const std::shared_ptr<CommState> state = std::move(given);
  if (state->has_lost.load() && state->phase.load() != AttachPhase::aborted) state->engine->fail();
  state->engine->end_nccl();
  const bool is_broken = state->phase.load() == AttachPhase::aborted || state->has_lost.load();
  TeardownTimeouts waits;
  if (is_broken) waits.peers_work_s = 0;  // who aborts, or has lost a rank, waits for no other
  defer_teardown(teardown_of(state), waits);
}

}  // namespace plait::nccl
