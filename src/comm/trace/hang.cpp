// Compares the recorders call number by call number. Ranks that enter different calls under one
// number come first, since later numbers follow from that; then ranks that are behind.
#include "comm/trace/hang.hpp"

#include <unistd.h>

#include <algorithm>
#include <cmath>

#include "base/text.hpp"
#include "comm/bootstrap/socket.hpp"
#include "comm/bootstrap/wait_warning.hpp"
#include "plait/plan.hpp"
#include "plan/blocks.hpp"

namespace plait {
namespace {

template <class Enum>
std::string name_in(std::uint8_t value, Enum last) {
  if (value > static_cast<std::uint8_t>(last)) return text("?{}", int{value});
  return name_of(static_cast<Enum>(value));
}

std::string collective_text(const FlightCall& call) {
  const auto collective = static_cast<Collective>(call.collective);
  std::string line = name_in(call.collective, Collective::copy);
  if (call.reason != 0) return line + text(" of {} bytes", call.count);
  if (call.counts_hash != 0) line += "_v";
  line += text(" of {} {}", call.count, name_in(call.type, DataType::fp8e5m2));
  if (reduces(collective)) line += text(", {}", name_in(call.op, ReduceOp::bit_xor));
  if (has_root(collective)) line += text(", root {}", call.root);
  if (call.most_blocks != 0) line += text(", at most {} blocks", call.most_blocks);
  if (call.engines_move) line += ", by copy engines";
  return line;
}

const RankFlight* of_rank(const std::vector<RankFlight>& ranks, int rank) {
  for (const RankFlight& one : ranks)
    if (one.rank == rank) return &one;
  return nullptr;
}

const FlightCall* numbered(const RankFlight& rank, std::uint64_t number) {
  for (const FlightCall& call : rank.calls)
    if (call.number == number) return &call;
  return nullptr;
}

/// Returns the time in seconds, to a tenth.
double seconds(std::int64_t ns) { return std::round(static_cast<double>(ns) * 1e-8) * 0.1; }

/// Returns "rank 2" or "ranks 0, 1".
std::string list_of(const std::vector<int>& ranks) {
  std::string line = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size(); ++i) line += text("{}{}", i == 0 ? "" : ", ", ranks[i]);
  return line;
}

const char* state_text(ProcessState state) {
  switch (state) {
    case ProcessState::stopped: return ", stopped (SIGSTOP or a debugger)";
    case ProcessState::dead: return ", dead";
    case ProcessState::runs: break;
  }
  return "";
}

/// Returns "was last in call 16 (barrier), 3.1 s ago".
std::string last_text(const std::vector<FlightCall>& calls, std::int64_t now_ns) {
  if (calls.empty()) return "has made no call";
  const FlightCall& last = calls.back();
  return text("was last in {}, {} s ago",
              last.number != 0 ? text("call {} ({})", last.number, call_text(last))
                               : "a " + call_text(last),
              seconds(now_ns - last.entered_ns));
}

/// Returns the rank with its process, state and last call.
std::string whereabouts(const RankFlight& rank, std::int64_t now_ns) {
  return text("rank {} (pid {}{}) {}", rank.rank, rank.pid, state_text(rank.state),
              last_text(rank.calls, now_ns));
}

/// Returns the rank's first numbered call that may not have ended; null if all have.
const FlightCall* first_open(const RankFlight& mine) {
  for (const FlightCall& call : mine.calls)
    if (call.index > mine.ended && call.number != 0) return &call;
  return nullptr;
}

/// Returns the rank's last message that may not have ended; null = none.
const FlightCall* last_message(const RankFlight& mine) {
  const FlightCall* found = nullptr;
  for (const FlightCall& call : mine.calls)
    if (call.index > mine.ended && call.is_message()) found = &call;
  return found;
}

/// Counts a rank's recorded messages of a kind with a peer.
std::ptrdiff_t messages_of(const RankFlight& rank, FlightKind kind, int peer) {
  return std::count_if(rank.calls.begin(), rank.calls.end(), [&](const FlightCall& call) {
    return call.kind == kind && call.root == peer;
  });
}

/// Whether the recorder still has the rank's first call.
bool is_whole(const RankFlight& rank) { return rank.calls.empty() || rank.calls[0].index == 1; }

/// Returns the first number from `first` to `last` under which a rank makes another call than
/// `mine`; 0 = none.
std::uint64_t first_unlike(const std::vector<RankFlight>& ranks, const RankFlight& mine,
                           std::uint64_t first, std::uint64_t last) {
  for (std::uint64_t number = first; number <= last; ++number) {
    const FlightCall* const here = numbered(mine, number);
    if (here == nullptr) continue;
    for (const RankFlight& other : ranks)
      if (const FlightCall* const there = numbered(other, number))
        if (!there->matches(*here)) return number;
  }
  return 0;
}

/// Returns each rank's call under the number, and whether a rank makes this rank's call under a
/// later one.
std::string unlike_text(const std::vector<RankFlight>& ranks, const RankFlight& mine,
                        std::uint64_t number) {
  const FlightCall& here = *numbered(mine, number);
  std::string line =
      text("calls {} are unlike: rank {} makes {}", number, mine.rank, call_text(here));
  std::string order;
  for (const RankFlight& other : ranks) {
    const FlightCall* const there = numbered(other, number);
    if (there == nullptr || there->matches(here)) continue;
    line += text(", rank {} {}", other.rank, call_text(*there));
    for (const FlightCall& later : other.calls)
      if (order.empty() && later.number > number && later.matches(here))
        order = text("; rank {} makes rank {}'s call {} as call {}: the order is unlike",
                     other.rank, mine.rank, number, later.number);
    for (const FlightCall& later : mine.calls)
      if (order.empty() && later.number > number && later.matches(*there))
        order = text("; rank {} makes rank {}'s call {} as call {}: the order is unlike", mine.rank,
                     other.rank, number, later.number);
  }
  return line + order;
}

Hang collective_hang(const std::vector<RankFlight>& ranks, const RankFlight& mine,
                     const FlightCall& open, int all_ranks, std::int64_t now_ns) {
  std::uint64_t least = mine.numbered;
  for (const RankFlight& one : ranks) least = std::min(least, one.numbered);
  Hang hang;
  hang.number = std::clamp(least + 1, open.number, mine.numbered);
  const std::uint64_t unlike = first_unlike(ranks, mine, open.number, hang.number);
  if (unlike != 0) hang.number = unlike;
  std::vector<int> entered;
  std::string others;
  for (const RankFlight& one : ranks) {
    if (one.numbered < hang.number)
      others += "; " + whereabouts(one, now_ns);
    else if (one.state != ProcessState::runs)
      others += text("; rank {} (pid {}) is{}", one.rank, one.pid, state_text(one.state) + 1);
    if (one.numbered >= hang.number) entered.push_back(one.rank);
  }
  if (unlike != 0)
    hang.reason = unlike_text(ranks, mine, unlike);
  else if (entered.size() == ranks.size())
    hang.reason = text("entered by all ranks{}",
                       ranks.size() < static_cast<std::size_t>(all_ranks) ? " of this host" : "");
  else
    hang.reason = text("entered by {} alone", list_of(entered));
  hang.reason += others;
  hang.has_cause = unlike != 0 || !others.empty();
  const FlightCall* const call = numbered(mine, hang.number);
  hang.call = text("call {} ({})", hang.number, call == nullptr ? "?" : call_text(*call));
  return hang;
}

/// A peer without the other end of the message is the cause, as far as the recorders tell.
Hang message_hang(const std::vector<RankFlight>& ranks, const RankFlight& mine,
                  const FlightCall& open, std::int64_t now_ns) {
  Hang hang;
  hang.call = text("a {}", call_text(open));
  const RankFlight* const peer = of_rank(ranks, open.root);
  if (peer == nullptr) {
    hang.reason = text("rank {} is on another host", open.root);
    return hang;
  }
  const FlightKind other = open.kind == FlightKind::send ? FlightKind::receive : FlightKind::send;
  hang.reason = whereabouts(*peer, now_ns);
  hang.has_cause = peer->state != ProcessState::runs ||
                   (is_whole(mine) && is_whole(*peer) &&
                    messages_of(*peer, other, mine.rank) < messages_of(mine, open.kind, open.root));
  return hang;
}

}  // namespace

std::string call_text(const FlightCall& call) {
  switch (call.kind) {
    case FlightKind::none: return "no call";
    case FlightKind::collective: return collective_text(call);
    case FlightKind::plan: return "a plan of " + collective_text(call);
    case FlightKind::counts: return collective_text(call) + ", by own counts";
    case FlightKind::barrier: return "barrier";
    case FlightKind::exchange: return "exchange";
    case FlightKind::adopt_device: return "adopt_device";
    case FlightKind::suspend: return "suspend";
    case FlightKind::resume: return "resume";
    case FlightKind::send: return text("send of {} bytes to rank {}", call.count, call.root);
    case FlightKind::receive:
      return text("receive of {} bytes from rank {}", call.count, call.root);
  }
  return "?";
}

Hang explain_hang(const std::vector<RankFlight>& ranks, int rank, int all_ranks,
                  std::int64_t now_ns) {
  const RankFlight* const mine = of_rank(ranks, rank);
  if (mine == nullptr) return {};
  Hang hang;
  if (const FlightCall* const open = first_open(*mine))
    hang = collective_hang(ranks, *mine, *open, all_ranks, now_ns);
  const FlightCall* const message = last_message(*mine);
  if (hang.has_cause || message == nullptr) return hang;
  Hang of_message = message_hang(ranks, *mine, *message, now_ns);
  return of_message.has_cause || hang.call.empty() ? of_message : hang;
}

std::string last_call_text(const FlightInfo& info, int rank) {
  for (const FlightRank& one : info.here)
    if (one.rank == rank)
      if (const std::vector<FlightCall> calls = one.ring->calls(); !calls.empty())
        return "the rank " + last_text(calls, now_ns());
  return {};
}

bool is_spokesman(const FlightInfo& info, const std::function<bool(const FlightRank&)>& is_out) {
  return std::none_of(info.here.begin(), info.here.end(), [&](const FlightRank& one) {
    return one.rank < info.rank && !is_out(one) && state_of(one) == ProcessState::runs;
  });
}

namespace {

/// Whether a rank below `end` has claimed the call.
bool has_named(const std::vector<RankFlight>& ranks, std::uint64_t number, int end) {
  return std::any_of(ranks.begin(), ranks.end(),
                     [&](const RankFlight& one) { return one.rank < end && one.named == number; });
}

}  // namespace

HangWatch::HangWatch(const FlightInfo& info) : HangWatch(info, wait_warning_s()) {}

HangWatch::HangWatch(const FlightInfo& info, double after_s) : info_(info), after_s_(after_s) {}

bool HangWatch::is_due() const {
  const std::uint64_t written = info_.mine->written();
  if (written == done_.load(std::memory_order_relaxed) && !has_open()) return false;
  const std::int64_t now = FlightRing::coarse_ns();
  return static_cast<double>(now - info_.mine->last_entered_ns()) >= after_s_ * 1e9 &&
         now >= next_ns_.load(std::memory_order_relaxed);
}

bool HangWatch::has_open() const {
  const std::uint64_t open = open_.load(std::memory_order_relaxed);
  return open != 0 && open == info_.mine->written();
}

/// Returns how much later than the lowest waiting rank this rank speaks.
std::int64_t HangWatch::turn_ns(const std::vector<RankFlight>& ranks, const Hang& hang) const {
  const auto before = std::count_if(ranks.begin(), ranks.end(), [&](const RankFlight& one) {
    return one.rank < info_.rank && one.state == ProcessState::runs && one.numbered >= hang.number;
  });
  return static_cast<std::int64_t>(static_cast<double>(before) * std::min(after_s_ * 0.2, 0.5) *
                                   1e9);
}

std::string HangWatch::look(CallsEnded ended, const std::string& waits) {
  const std::uint64_t written = info_.mine->written();
  if (ended == CallsEnded::yes) info_.mine->end(written);
  return say(ended, written, waits);
}

/// A call that is not enqueued yet is unknown to the driver, so the answer is not about the call.
std::string HangWatch::look(const std::function<CallsEnded()>& ask) {
  const std::uint64_t enqueued = info_.mine->enqueued(), written = info_.mine->written();
  CallsEnded ended = ask();
  if (ended == CallsEnded::yes) info_.mine->end(enqueued);
  if (ended == CallsEnded::yes && enqueued != written) ended = CallsEnded::unknown;
  return say(ended, written, {});
}

std::string HangWatch::say(CallsEnded ended, std::uint64_t written, const std::string& waits) {
  const std::int64_t now = now_ns();
  open_.store(ended == CallsEnded::no ? written : 0, std::memory_order_relaxed);
  next_ns_.store(now + static_cast<std::int64_t>(std::min(after_s_ * 0.1, 1.0) * 1e9),
                 std::memory_order_relaxed);
  if (ended == CallsEnded::yes || lines_ == kMostLines)
    done_.store(written, std::memory_order_relaxed);
  if (written == done_.load(std::memory_order_relaxed)) return {};
  const std::vector<RankFlight> ranks = flights_of(info_);
  const Hang hang = explain_hang(ranks, info_.rank, info_.ranks, now);
  const auto waited_ns = now - info_.mine->last_entered_ns();
  if (static_cast<double>(waited_ns) < after_s_ * 1e9) return {};  // in a later call
  const bool has_waited = static_cast<double>(waited_ns) >= kNoCauseTimes * after_s_ * 1e9;
  if (hang.call.empty() || (!hang.has_cause && (ended == CallsEnded::unknown || !has_waited)))
    return {};
  // Ranks claim a call first, and speak at a later look: of those that claim at once the lowest.
  if (hang.number != 0 && claimed_ != hang.number) {
    const bool is_taken = has_named(ranks, hang.number, info_.ranks);
    if (is_taken) done_.store(written, std::memory_order_relaxed);
    if (is_taken ||
        static_cast<double>(waited_ns) < after_s_ * 1e9 + static_cast<double>(turn_ns(ranks, hang)))
      return {};
    info_.mine->name(hang.number);
    claimed_ = hang.number;
    return {};
  }
  done_.store(written, std::memory_order_relaxed);
  if (hang.number != 0 && has_named(ranks, hang.number, info_.rank)) return {};
  ++lines_;
  return text("{}: {} s so far; {}; `plait status {}` shows more",
              waits.empty() ? text("rank {} waits in {}{}", info_.rank, hang.call,
                                   info_.name.empty() ? "" : " on communicator " + info_.name)
                            : waits,
              seconds(waited_ns), hang.reason, ::getpid());
}

}  // namespace plait
