// Teardown of plait's state of a communicator. A rank watches its peers until its own work has
// ended, and publishes each step of the teardown. Waits for a peer fail 0.5 s after the peer was
// killed or failed in a call. Waits fail 5 s after a peer's process ended without destroying the
// communicator, since the peer's last data may still be in queues here.
#include "shims/nccl/teardown.hpp"

#include <utility>

#include "base/deferred_teardown.hpp"
#include "base/log.hpp"
#include "base/text.hpp"
#include "comm/trace/status.hpp"
#include "shims/nccl/attach.hpp"
#include "shims/nccl/never_free.hpp"

namespace plait::nccl {
namespace {

constexpr double kGraceSeconds = 5;
/// Time for the program to abort the communicator after ncclCommGetAsyncError reports a lost rank:
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
  made.free = [state] {
    state->flight.reset();
    state->engine.reset();
    state->staging.reset();
  };
  return made;
}

}  // namespace

CommState::CommState() : PeerObserver(kGraceSeconds) {}

CallsEnded CommState::calls_ended() {
  if (!order.knows_end()) return CallsEnded::unknown;
  return marker->is_ahead() || !engine->has_ended(true) ? CallsEnded::no : CallsEnded::yes;
}

void CommState::look() {
  const HangWatch* const hang = flight == nullptr ? nullptr : flight->hang();
  const bool serves = phase.load() == AttachPhase::attached && !has_lost.load();
  if (hang != nullptr && serves && hang->is_due()) query_once();
}

/// Asks the driver, since look() must not.
void CommState::query() {
  const std::string line = flight->hang()->look(calls_ended());
  if (!line.empty()) warn_unasked(rank, line);
}

/// One rank of this host says so unasked.
void CommState::warn_of_death(int peer, const std::string& who) const {
  const bool has_flight = flight != nullptr && flight->info() != nullptr;
  const std::string last = has_flight ? last_call_text(*flight->info(), peer) : std::string();
  const std::string line = text("{} has died: calls on communicator {} fail from here on{}{}", who,
                                comm, last.empty() ? "" : "; ", last);
  if (has_flight && is_spokesman(*flight->info()))
    warn_unasked(rank, line + write_last_calls());
  else
    log(LogLevel::warn, rank, line);
}

void CommState::warn_of_abort() {
  if (flight == nullptr || flight->info() == nullptr || calls_ended() != CallsEnded::no) return;
  const std::string written = write_last_calls();
  if (!is_spokesman(*flight->info())) return;
  warn_unasked(rank,
               text("rank {} aborts communicator {} with calls under way{}", rank, comm, written));
}

void CommState::lost(int peer, int process, Loss how) {
  const std::string who = text("rank {} (process {})", peer, process);
  if (how == Loss::ended)  // a program that never destroys communicators: no error
    log(LogLevel::info, rank, text("{} has ended, and communicator {} with it", who, comm));
  else if (how == Loss::failed)
    log(LogLevel::warn, rank,
        text("{} broke a call off, and says why: calls on communicator {} fail from here on", who,
             comm));
  else
    warn_of_death(peer, who);
  has_lost.store(true);
  if (how != Loss::ended) killed.store(true);
  fail_streams_in(kAbortSeconds);
}

void tear_down(std::unique_ptr<CommState> given) {
  given->children.hide_grow();
  if (!await_attached(*given, given->attach_s)) {
    log(LogLevel::warn, given->rank,
        text("communicator {} ended while plait was attaching to it", given->comm));
    return never_free(std::move(given));
  }
  if (given->peers == nullptr) {  // never attached: no rank has mapped memory of another
    publish_detach(given->liveness_index, DetachStage::unmapped);
    if (given->engine != nullptr) never_free(std::move(given));  // an attach that failed midway
    return;
  }
  const std::shared_ptr<CommState> state = std::move(given);
  if (state->has_lost.load() && state->phase.load() != AttachPhase::aborted) state->engine->fail();
  state->engine->end_nccl();
  const bool is_broken = state->phase.load() == AttachPhase::aborted || state->has_lost.load();
  TeardownTimeouts waits;
  if (is_broken) waits.peers_work_s = 0;  // after an abort or a lost rank, wait for no peer
  defer_teardown(teardown_of(state), waits);
}

}  // namespace plait::nccl
