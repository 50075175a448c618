// Moves messages: one thread at a time makes progress for all messages of a mailbox, spins a
// little, and then sleeps on the sockets of the streams that matter. The background thread takes
// over a millisecond after a message was posted that no thread waits for.
#include <poll.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <system_error>
#include <utility>

#include "base/log.hpp"
#include "base/text.hpp"
#include "base/threads.hpp"
#include "comm/bootstrap/wait_warning.hpp"
#include "comm/p2p/mailbox.hpp"
#include "cpu/spin.hpp"

namespace plait::p2p {
namespace {

constexpr std::int64_t kMs = 1'000'000;
constexpr std::int64_t kGraceNs = kMs;  // before the background thread: most calls wait at once
constexpr std::int64_t kSliceNs = 100 * kMs;  // of a sleep, after which a signal is heard at last
/// Time for another thread of the program to post the receives of messages in full buffers.
constexpr std::int64_t kHeldBackNs = 1000 * kMs;
constexpr std::int64_t kHandOverNs = 2 * kMs;
constexpr std::int64_t kSpinNs = 100'000;
constexpr std::int64_t kBoundSpinNs = 20'000;  // ranks bound to a core each, or all to the same
constexpr std::int64_t kMostSpinNs = 600'000;  // for a large send, which the peer is reading
constexpr int kMostFailures = 4, kSkippedWaits = 50;

std::chrono::nanoseconds time_left(std::int64_t end_ns, std::int64_t most_ns) {
  return std::chrono::nanoseconds(std::clamp<std::int64_t>(end_ns - now_ns(), 0, most_ns));
}

void set_timer(const Fd& timer, std::int64_t in_ns) {
  itimerspec times{};
  times.it_value = {in_ns / 1'000'000'000, in_ns % 1'000'000'000};
  ::timerfd_settime(timer.get(), 0, &times, nullptr);
}

}  // namespace

SpinBudget::SpinBudget(int ranks) {
  cpu_set_t cores;
  const bool known = ::sched_getaffinity(0, sizeof cores, &cores) == 0;
  if (!known || ranks <= CPU_COUNT(&cores))
    most_ns_ = kSpinNs;
  else if (ranks <= ::sysconf(_SC_NPROCESSORS_ONLN))
    most_ns_ = kBoundSpinNs;
}

std::int64_t SpinBudget::begin(std::uint64_t sent) {
  if (most_ns_ == 0) return 0;
  if (waits_to_skip_ > 0) {
    --waits_to_skip_;
    return 0;
  }
  if (++failures_ >= kMostFailures) {
    failures_ = 0;
    waits_to_skip_ = kSkippedWaits;
  }
  return std::min(most_ns_ + static_cast<std::int64_t>(sent >> 12) * 1000, kMostSpinNs);
}

/// Moves all bytes that can be moved without waiting.
void Mailbox::progress() {
  if (!closed_.empty()) return;
  Messages done;
  for (const auto& out : out_) {
    if (out == nullptr || !out->has_unsent()) continue;
    out->progress(done);
    finish_all(done);
    if (!out->is_open()) close_sends_to(out->peer());
  }
  if (receives_.empty() && std::none_of(in_.begin(), in_.end(), [](const auto& from) {
        return from != nullptr && (from->in_message() || !from->by_ring.empty());
      }))
    return;
  if (awaits_connection()) accept_streams();
  std::uint64_t before = 0;
  do {  // A stream that gives room back may let an earlier stream go on.
    before = buffers_.used();
    for (const auto& from : in_)
      if (from != nullptr) read(*from);
  } while (buffers_.used() < before);
  fail_held_back();
}

/// Names the messages that a receive's sources sent before, if these may hold the receive back.
std::string Mailbox::held_back_text(const Message& message) const {
  for (const auto& from : in_) {
    if (message.kind_ == Message::Kind::send || from == nullptr) continue;
    if (message.peer_ != kAnySource && message.peer_ != from->peer()) continue;
    std::uint64_t bytes = 0;
    bool is_held_back = false;
    for (const auto& one : from->unexpected) {
      bytes += one->bytes;
      is_held_back |= one->address != 0 && !buffers_.has_room(one->bytes);
    }
    std::optional<MessageHeader> header;
    if (!from->in_message()) header = from->peek_header();
    if (!is_held_back && (!header || !holds_back(*from, *header))) continue;
    return text(
        "; rank {} sent {} messages of {} bytes before that have no receive, and at most {} bytes "
        "of such messages are buffered: receive them first",
        from->peer(), from->unexpected.size(), bytes, buffers_.most());
  }
  return {};
}

/// Fails the receives of a source whose next message the full buffers have held back for a while:
/// they wait for messages behind it. Receives of any source may be served by others.
void Mailbox::fail_held_back() {
  for (const auto& from : in_) {
    if (from == nullptr || from->held_back_since_ns == 0) continue;
    if (now_ns() - from->held_back_since_ns < kHeldBackNs) continue;
    from->held_back_since_ns = 0;
    Messages failed;
    std::erase_if(receives_, [&](const auto& one) {
      const bool fails = one->peer_ == from->peer();
      if (fails) failed.push_back(one);
      return fails;
    });
    for (const auto& message : failed)
      fail(*message, ErrorCode::out_of_memory, "not in the buffers" + held_back_text(*message));
  }
}

/// Whether a posted receive may be for a peer that has not connected yet.
bool Mailbox::awaits_connection() const {
  return std::any_of(receives_.begin(), receives_.end(),
                     [&](const auto& one) { return awaits_connection(*one); });
}

bool Mailbox::awaits_connection(const Message& message) const {
  if (message.peer_ != kAnySource) return in_[static_cast<std::size_t>(message.peer_)] == nullptr;
  for (int rank = 0; rank < ranks_; ++rank)
    if (rank != rank_ && in_[static_cast<std::size_t>(rank)] == nullptr) return true;
  return false;
}

void Mailbox::wait(const std::shared_ptr<Message>& message, double seconds) {
  if (message->is_done()) return;
  check_process();
  const std::int64_t end_ns = deadline_in(seconds);
  // Internal messages have waits of their own that say more.
  std::int64_t warn_ns = message->key_.context < 0 ? end_ns : deadline_in(wait_warning_s());
  Lock lock(mutex_);
  message->is_waited_for_ = true;
  const auto is_over = [&] { return message->is_done(); };
  try {
    while (!message->is_done() && now_ns() < end_ns) {
      const std::int64_t until_ns = std::min(end_ns, warn_ns);
      if (become_driver(lock, until_ns)) drive(lock, is_over, message.get(), until_ns, false);
      if (message->is_done() || now_ns() < warn_ns || warn_ns >= end_ns) continue;
      warn_ns = end_ns;
      warn(lock, *message);
    }
  } catch (...) {
    message->is_waited_for_ = false;  // the background thread takes over
    leave(lock);
    throw;
  }
  if (!message->is_done())
    withdraw(lock, message, ErrorCode::timeout,
             text("not done within {} s{}", seconds, held_back_text(*message)));
  leave(lock);
}

/// Says which message a thread has waited for since PLAIT_WARN_S.
void Mailbox::warn(Lock& lock, const Message& message) {
  const bool is_receive = message.kind_ == Message::Kind::receive;
  const std::string line = text("rank {} waits in a {}{}: {} s so far{}", rank_, message.what(),
                                is_receive ? text(" of {} bytes", message.bytes_) : "",
                                wait_warning_s(), held_back_text(message));
  lock.unlock();
  warn_unasked(rank_, line);
  lock.lock();
}

/// Lets the program end a wait.
void Mailbox::ask_program(Lock& lock) {
  if (!interrupt_) return;
  lock.unlock();
  try {
    interrupt_();
  } catch (...) {
    lock.lock();
    throw;
  }
  lock.lock();
}

void Mailbox::wake_driver() const { ::eventfd_write(wake_.get(), 1); }

/// Asks the thread that makes progress to hand over, or waits a little for news. Returns whether
/// this thread now makes progress.
bool Mailbox::become_driver(Lock& lock, std::int64_t end_ns) {
  if (has_driver_) {
    ++wanting_;
    ++waiting_;
    if (driver_sleeps_ && driver_is_background_) wake_driver();
    changed_.wait_for(lock, time_left(end_ns, driver_is_background_ ? kHandOverNs : kSliceNs));
    --waiting_;
    --wanting_;
    ask_program(lock);
    return false;
  }
  has_driver_ = true;
  driver_is_background_ = false;
  return true;
}

void Mailbox::stop_driving() {
  has_driver_ = false;
  if (waiting_ > 0) changed_.notify_all();
}

/// Makes progress until is_over() or the time. until: the message that the thread waits for.
void Mailbox::drive(Lock& lock, const std::function<bool()>& is_over, const Message* until,
                    std::int64_t end_ns, bool is_background) {
  struct Stop {
    ~Stop() { mailbox.stop_driving(); }
    Mailbox& mailbox;
  } const stop{*this};
  const bool is_send = until != nullptr && until->kind_ == Message::Kind::send;
  std::int64_t spin_ns = until == nullptr ? 0 : spins_.begin(is_send ? until->bytes_ : 0);
  const bool spins = spin_ns > 0;
  std::int64_t ask_ns = now_ns() + kSliceNs;
  for (;;) {
    progress();
    if (is_over() || !closed_.empty()) {
      if (spins && spin_ns > 0) spins_.succeeded();
      return;
    }
    if (!callbacks_.empty()) {
      run_callbacks(lock);
      continue;
    }
    if (now_ns() >= end_ns) return;
    if (spin_ns > 0) {
      const std::int64_t began_ns = now_ns();
      spin(lock, until, spin_ns);
      spin_ns -= now_ns() - began_ns;
      continue;
    }
    if (relieve_senders()) continue;
    const bool has_slept_well = sleep(lock, is_background ? end_ns : std::min(end_ns, ask_ns));
    if (is_background || (has_slept_well && now_ns() < ask_ns)) continue;
    ask_program(lock);
    ask_ns = now_ns() + kSliceNs;
  }
}

/// Polls the rings that the message needs, without the lock. Shows the receiver of a send meanwhile
/// that this thread spins.
void Mailbox::spin(Lock& lock, const Message* until, std::int64_t spin_ns) {
  std::vector<RingWord> words;
  const OutgoingStream* to = nullptr;
  if (until->kind_ == Message::Kind::send) {
    to = out_[static_cast<std::size_t>(until->peer_)].get();
    if (to != nullptr) to->add_words(words);
  } else {
    for (const auto& from : in_)
      if (from != nullptr && (until->peer_ == kAnySource || until->peer_ == from->peer()))
        words.push_back(from->word());
  }
  const auto has_news = [&] {
    return std::any_of(words.begin(), words.end(),
                       [](const RingWord& one) { return one.has_changed(); }) ||
           until->is_done();
  };
  lock.unlock();
  std::int64_t now = now_ns();
  const std::int64_t end_ns = now + spin_ns;
  for (bool found = false; !found && now < end_ns; now = now_ns()) {
    if (to != nullptr) to->show_spin(now);
    for (int round = 0; round < 32 && !found; ++round) {
      found = has_news();
      if (!found) pause_once();
    }
  }
  if (to != nullptr) to->show_spin(0);
  lock.lock();
}

/// A sleep in poll(): descriptors, and the streams that marked themselves asleep.
struct Mailbox::Sleep {
  std::vector<pollfd> entries;
  std::vector<IncomingStream*> from;  ///< null for other entries; same index
  std::vector<OutgoingStream*> to;
  void add(int descriptor, IncomingStream* incoming, OutgoingStream* outgoing) {
    if (descriptor < 0) return;
    entries.push_back({descriptor, POLLIN | POLLRDHUP, 0});
    from.push_back(incoming);
    to.push_back(outgoing);
  }
  void add(const Wire& wire, IncomingStream* incoming, OutgoingStream* outgoing) {
    add(wire.socket(), incoming, outgoing);
    add(wire.process_descriptor(), incoming, outgoing);
  }
};

/// Marks the streams that matter as asleep. Returns false if there is news by then.
bool Mailbox::prepare_sleep(Sleep& sleep) {
  bool is_quiet = true;
  std::vector<RingWord> words;
  sleep.add(wake_.get(), nullptr, nullptr);
  if (awaits_connection() && !lacks_files_) {
    sleep.add(listener_.get(), nullptr, nullptr);
    for (const Fd& one : arrivals_) sleep.add(one.get(), nullptr, nullptr);
  }
  for (const auto& from : in_) {
    if (from == nullptr || !reads_from(*from)) continue;
    from->control().reader_sleeps.store(1);
    words.push_back(from->word());
    sleep.add(from->wire(), from.get(), nullptr);
  }
  for (const auto& out : out_) {
    if (out == nullptr || !out->is_open()) continue;
    const auto peer = static_cast<std::size_t>(out->peer());
    // The far end of this stream shows whether a source has ended that has not connected.
    const bool is_source = in_[peer] == nullptr &&
                           std::any_of(receives_.begin(), receives_.end(), [&](const auto& one) {
                             return one->peer_ == kAnySource || one->peer_ == out->peer();
                           });
    const bool is_awaited = out->has_unsent() || !closing_.empty();
    if (!is_source && !is_awaited) continue;
    if (is_awaited) {
      out->control().writer_sleeps.store(1);
      out->add_words(words);
    }
    sleep.add(out->wire(), nullptr, out.get());
  }
  for (const RingWord& one : words) is_quiet = is_quiet && one.word->load() == one.seen;
  return is_quiet;
}

void Mailbox::after_sleep(const Sleep& sleep) {
  for (std::size_t at = 0; at < sleep.entries.size(); ++at) {
    const auto [descriptor, ignored, found] = sleep.entries[at];
    if (IncomingStream* const from = sleep.from[at]) {
      from->control().reader_sleeps.store(0);
      if (found != 0 && from->wire().has_ended(descriptor, found)) from->note_end();
    } else if (OutgoingStream* const out = sleep.to[at]) {
      out->control().writer_sleeps.store(0);
      if (found == 0 || !out->is_open() || !out->wire().has_ended(descriptor, found)) continue;
      Messages done;
      out->progress(done);  // confirmed pulls count
      finish_all(done);
      out->end();
      close_sends_to(out->peer());
    } else if (found != 0 && descriptor == wake_.get()) {
      eventfd_t wakes = 0;
      ::eventfd_read(wake_.get(), &wakes);
    }
  }
}

/// Sleeps until news, the time, or a signal. Returns false after a signal.
bool Mailbox::sleep(Lock& lock, std::int64_t end_ns) {
  Sleep sleep;
  bool is_interrupted = false;
  if (prepare_sleep(sleep)) {
    // Connections that could not be taken, and full buffers, are looked at again after a slice.
    const bool is_short = lacks_files_ || std::any_of(in_.begin(), in_.end(), [](const auto& from) {
                            return from != nullptr && from->held_back_since_ns != 0;
                          });
    const std::int64_t left_ns = time_left(end_ns, is_short ? kSliceNs : 60'000 * kMs).count();
    const timespec most{left_ns / 1'000'000'000, left_ns % 1'000'000'000};
    driver_sleeps_ = true;
    lock.unlock();
    is_interrupted = ::ppoll(sleep.entries.data(), sleep.entries.size(), &most, nullptr) < 0;
    lock.lock();
    driver_sleeps_ = false;
  } else {  // threads that post get the lock in between
    lock.unlock();
    ::sched_yield();
    lock.lock();
  }
  after_sleep(sleep);
  return !is_interrupted;
}

// The background thread.

/// Whether a message that no thread waits for needs progress.
bool Mailbox::needs_background() const {
  const auto is_left = [](const auto& one) { return !one->is_waited_for_ && !one->is_done(); };
  if (std::any_of(receives_.begin(), receives_.end(), is_left)) return true;
  for (const auto& out : out_) {
    if (out == nullptr || !out->has_unsent()) continue;
    const Messages unsent = out->unsent();
    if (std::any_of(unsent.begin(), unsent.end(), is_left)) return true;
  }
  for (const auto& from : in_) {
    if (from == nullptr) continue;
    const Messages filled = from->receives();
    if (std::any_of(filled.begin(), filled.end(), is_left)) return true;
  }
  return false;
}

/// Sets the timer of the background thread, if it is not set. A wait does not clear the timer,
/// since that costs a system call a message, and a wake-up in vain only one a millisecond.
void Mailbox::arm_background() {
  if (timer_is_set_ || !closed_.empty() || !needs_background()) return;
  try {
    if (!background_.joinable())
      background_ = quiet_thread([this] {
        run_background();
        if (!is_left_to_background_) return;
        background_.detach();
        delete this;
      });
  } catch (const std::system_error&) {  // no more threads: waits alone make progress
    return;
  }
  timer_is_set_ = true;
  set_timer(timer_, kGraceNs);
}

void Mailbox::run_background() {
  for (;;) {
    std::uint64_t expired = 0;
    while (::read(timer_.get(), &expired, sizeof expired) < 0 && errno == EINTR) {
    }
    Lock lock(mutex_);
    timer_is_set_ = false;
    if (!closed_.empty()) return;
    const auto is_over = [&] { return wanting_ > 0 || !needs_background(); };
    if (!has_driver_ && needs_background()) {
      has_driver_ = driver_is_background_ = true;
      drive(lock, is_over, nullptr, deadline_in(1e9), true);
      run_callbacks(lock);
    }
    if (!has_driver_) arm_background();
    if (!closed_.empty()) return;
  }
}

void Mailbox::stop_background(Lock& lock) noexcept {
  if (!background_.joinable() || is_in_background()) return;
  std::thread ended = std::move(background_);
  set_timer(timer_, 1);
  lock.unlock();
  ended.join();
  lock.lock();
}

void Mailbox::end() noexcept {
  if (!is_in_background()) {
    delete this;
    return;
  }
  is_left_to_background_ = true;  // run_background() still needs the mailbox
  close("it was destroyed");
}

// The end of a group.

void Mailbox::drain(Lock& lock, std::int64_t end_ns) {
  WaitWarning warning;
  const auto is_drained = [&] {
    return std::all_of(out_.begin(), out_.end(),
                       [](const auto& out) { return out == nullptr || out->is_drained(); });
  };
  while (closed_.empty() && !is_drained() && now_ns() < end_ns) {
    const std::int64_t slice_ns = std::min(end_ns, now_ns() + 5 * kMs);
    if (become_driver(lock, end_ns)) drive(lock, is_drained, nullptr, slice_ns, false);
    for (const auto& out : out_) {
      if (out == nullptr || out->is_drained()) continue;
      warning.look(rank_, [&] {
        return text("rank {} destroys its group, and waits for rank {} to receive the {}", rank_,
                    out->peer(), out->unreceived_text());
      });
    }
  }
}

}  // namespace plait::p2p
