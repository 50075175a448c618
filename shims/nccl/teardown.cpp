// Teardown of plait's state of a communicator. A rank watches its peers until its own work has
// ended, and publishes each step of the teardown. Waits for a peer fail 0.5 s after the peer was
// killed or failed in a call. Waits fail 5 s after a peer's process ended without destroying the
// communicator, since the peer's last data may still be in queues here.
#include "shims/nccl/teardown.hpp"

#include <utility>

#include "base/deferred_teardown.hpp"
#include "base/log.hpp"
#include "base/text.hpp"
#include "comm/bootstrap/vote.hpp"
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
    if (left == DetachStage::work_ended) {
      unwatch(*state);
      state->report_losses();
    }
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

CommState::CommState()
    : PeerObserver(kGraceSeconds), number([] {
        static std::atomic<std::uint64_t> made{0};
        return ++made;
      }()) {}

CallsEnded CommState::calls_ended() {
  if (!order.knows_end()) return CallsEnded::unknown;
  return marker->is_ahead() || !engine->has_ended(true) ? CallsEnded::no : CallsEnded::yes;
}

void CommState::look() {
  const HangWatch* const hang = flight == nullptr ? nullptr : flight->hang();
  const bool serves = phase.load() == AttachPhase::attached && !has_lost.load();
  if (serves && engine->should_begin_arena()) engine->begin_arena();
  const bool is_due = hang != nullptr && hang->is_due();
  if (serves && (is_due || engine->wants_trim())) query_once();
}

/// Writes and asks the driver: look() and lost() may do neither.
void CommState::query() {
  report_losses();
  if (phase.load() != AttachPhase::attached || has_lost.load()) return;
  if (engine->wants_trim()) engine->trim([this] { return calls_ended() == CallsEnded::yes; });
  HangWatch* const hang = flight == nullptr ? nullptr : flight->hang();
  if (hang == nullptr) return;
  if (!hang->is_due()) return;
  const std::string line = hang->look([this] { return calls_ended(); });
  if (!line.empty()) warn_unasked(rank, line);
}

bool CommState::is_known_to_hang() const {
  return flight != nullptr && flight->hang() != nullptr && flight->hang()->has_open();
}

/// Logs on the lowest rank of this host with the most calls: ranks behind may abort no call.
void CommState::warn_of_abort() const noexcept {
  static_cast<void>(attempt([&] {
    const std::uint64_t mine = flight->info()->mine->numbered();
    const auto is_behind = [&](const FlightRank& one) { return one.ring->numbered() < mine; };
    if (!is_spokesman(*flight->info(), is_behind)) return;
    const std::string written = write_last_calls();
    warn_unasked(
        rank, text("rank {} aborts communicator {} with calls under way{}", rank, comm, written));
  }));
}

void CommState::lost(int peer, int process, Loss how) {
  has_lost.store(true);
  if (how != Loss::ended) killed.store(true);
  fail_streams_in(kAbortSeconds);
  const std::lock_guard<std::mutex> hold(noting);
  losses.push_back({peer, process, how});
  query_once();
}

namespace {

/// Logs on one rank of this host. A process may look alive for a while after its end is known.
void report_death(const CommState& state, int peer, const std::string& who) {
  const FlightInfo* const info = state.flight == nullptr ? nullptr : state.flight->info();
  const std::string last = info == nullptr ? std::string() : last_call_text(*info, peer);
  const std::string line = text("{} has died: calls on communicator {} fail from here on{}{}", who,
                                state.comm, last.empty() ? "" : "; ", last);
  const auto is_lost = [&](const FlightRank& one) {
    return one.rank == peer || state.peers->has_ended(one.rank);
  };
  if (info != nullptr && is_spokesman(*info, is_lost))
    warn_unasked(state.rank, line + write_last_calls());
  else
    log(LogLevel::warn, state.rank, line);
}

void report(const CommState& state, const CommState::LostRank& loss) {
  const std::string who = text("rank {} (process {})", loss.rank, loss.process);
  if (loss.how == Loss::killed) return report_death(state, loss.rank, who);
  if (loss.how == Loss::ended)  // a program that never destroys communicators: no error
    log(LogLevel::info, state.rank,
        text("{} has ended, and communicator {} with it", who, state.comm));
  else
    log(LogLevel::warn, state.rank,
        text("{} broke a call off, and says why: calls on communicator {} fail from here on", who,
             state.comm));
}

}  // namespace

void CommState::report_losses() noexcept {
  static_cast<void>(attempt([&] {
    std::vector<LostRank> found;
    {
      const std::lock_guard<std::mutex> hold(noting);
      found.swap(losses);
    }
    for (const LostRank& one : found) report(*this, one);
  }));
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
