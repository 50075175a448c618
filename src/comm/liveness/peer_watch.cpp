// A single thread per process holds the LivenessFutex of the process's page as long as the process
// lives, and checks the pages and pidfds of all peers. A second thread makes the queries that may
// block, without holding the lock.
#include "comm/liveness/peer_watch.hpp"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <list>
#include <map>
#include <mutex>
#include <utility>

#include "base/liveness_futex.hpp"
#include "base/log.hpp"
#include "base/text.hpp"
#include "base/threads.hpp"
#include "comm/bootstrap/process_file.hpp"
#include "comm/bootstrap/vote.hpp"
#include "comm/trace/open_calls.hpp"
#include "comm/trace/status.hpp"
#include "plait/error.hpp"

namespace plait {
namespace {

constexpr int kLookMs = 20;
constexpr double kRetryS = 1;  ///< after a failure to start a thread

double now_s() { return static_cast<double>(now_ns()) * 1e-9; }

/// Returns the shorter one of two times in milliseconds; -1 = for ever.
int shorter(int one_ms, int other_ms) {
  if (one_ms < 0 || other_ms < 0) return std::max(one_ms, other_ms);
  return std::min(one_ms, other_ms);
}

}  // namespace

void PeerObserver::fail_streams_in(double seconds) {
  std::int64_t none = 0;
  fails_ns_.compare_exchange_strong(none, deadline_in(seconds));
}

namespace {

/// Returns the descriptor of a process, which all communicators of the process's ranks share.
std::shared_ptr<const Fd> descriptor_of(int process) {
  static std::mutex guard;
  static auto* const known = new std::map<int, std::weak_ptr<const Fd>>;
  const std::lock_guard<std::mutex> hold(guard);
  std::erase_if(*known, [](const auto& row) { return row.second.expired(); });
  std::weak_ptr<const Fd>& shared = (*known)[process];
  if (std::shared_ptr<const Fd> found = shared.lock(); found != nullptr && !has_ended(*found))
    return found;
  auto opened = std::make_shared<const Fd>(open_process(process));
  if (opened->valid()) shared = opened;
  return opened;
}

}  // namespace

void WatchedPeers::add(int rank, std::optional<PeerLiveness> liveness,
                       std::shared_ptr<const Fd> process) {
  if (liveness && (process->valid() || liveness->process() == ::getpid()))
    list_.push_back({rank, std::move(*liveness), std::move(process)});
  else
    has_unopened_page_ = true;
}

bool WatchedPeers::peers_reached(DetachStage left, bool elsewhere) const {
  return !has_unopened_page_ &&
         std::all_of(list_.begin(), list_.end(), [&](const WatchedPeer& peer) {
           if (elsewhere && !peer.process->valid()) return true;
           return peer.liveness.has_reached(left) || plait::has_ended(*peer.process);
         });
}

bool WatchedPeers::has_died(int rank) const {
  return std::any_of(list_.begin(), list_.end(), [&](const WatchedPeer& peer) {
    return peer.rank == rank && peer.process->valid() && peer.liveness.has_died();
  });
}

bool WatchedPeers::WatchedPeer::has_ended() const {
  return process->valid() && (liveness.has_died() || plait::has_ended(*process));
}

bool WatchedPeers::has_ended(int rank) const {
  return std::any_of(list_.begin(), list_.end(), [&](const WatchedPeer& peer) {
    return peer.rank == rank && peer.has_ended();
  });
}

int WatchedPeers::first_dead_rank() const {
  const auto gone = std::find_if(list_.begin(), list_.end(),
                                 [](const WatchedPeer& peer) { return peer.has_ended(); });
  return gone == list_.end() ? -1 : gone->rank;
}

/// This process's page and watch thread. Never destroyed; a forked child makes a new watch.
class PeerWatch {
 public:
  static PeerWatch& mine() {
    PeerWatch* found = current.load();
    if (found != nullptr && found->owner_ == ::getpid()) return *found;
    auto* const made = new PeerWatch;
    if (current.compare_exchange_strong(found, made)) return *made;
    delete made;
    return *found;
  }
  /// Null if this process has none.
  static PeerWatch* existing() {
    PeerWatch* const found = current.load();
    return found != nullptr && found->owner_ == ::getpid() ? found : nullptr;
  }
  LivenessPage* page() const { return page_.get(); }

  /// Starts the thread, which answers `plait status` too.
  void begin() {
    StatusSocket::open();
    begin_thread();
  }
  void begin_thread() {
    const std::lock_guard<std::mutex> hold(guard_);
    if (!runs_) quiet_thread([this] { run(); }).detach();
    runs_ = true;
    wake();  // the socket may be new
  }
  void add(std::shared_ptr<WatchedPeers> peers, PeerObserver& by, ObserverCalls wants) {
    begin();
    const std::lock_guard<std::mutex> hold(guard_);
    if (wants == ObserverCalls::look_and_query) begin_queries();
    all_.push_back({std::move(peers), &by, wants});
    changed_.notify_all();
    wake();
  }
  void remove(const PeerObserver& by) {
    std::unique_lock<std::mutex> hold(guard_);
    await(changed_, hold, [&] { return queried_ != &by; });
    all_.remove_if([&](const WatchEntry& entry) { return entry.by == &by; });
    wake();
  }

 private:
  struct WatchEntry {
    std::shared_ptr<WatchedPeers> peers;
    PeerObserver* by;
    ObserverCalls wants;
  };

  PeerWatch() : wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    try {
      page_ = std::make_unique<LivenessPage>();
    } catch (const Error& error) {
      log(LogLevel::warn, -1, text("a rank that dies will not be noticed: {}", error.what()));
    }
  }
  void begin_queries() {
    if (!queries_) quiet_thread([this] { query(); }).detach();
    queries_ = true;
  }
  /// Without the thread nothing is explained, and the program goes on.
  void try_queries() noexcept {
    if (now_s() < next_try_s_) return;
    if (attempt([this] { begin_queries(); })) next_try_s_ = now_s() + kRetryS;
  }
  void wake() const {
    const std::uint64_t one = 1;
    [[maybe_unused]] const auto written = ::write(wake_.get(), &one, sizeof one);
  }
  void run() {
    std::optional<LivenessFutex> liveness;
    if (page_ != nullptr) liveness.emplace(page_->liveness());
    for (;;)
      if (attempt([this] { turn(); })) ::usleep(kLookMs * 1000);  // out of memory, say
  }
  /// Waits for an event, at most for kLookMs while there are peers, and looks at all peers once.
  void turn() {
    // Before file(), which ends with the rest.
    int timeout_ms = shorter(StatusSocket::rest_ms(), open_calls_due_ms());
    // A file of -1 is ignored.
    std::vector<pollfd> files{{wake_.get(), POLLIN, 0}, {StatusSocket::file(), POLLIN, 0}};
    {
      const std::lock_guard<std::mutex> hold(guard_);
      for (const WatchEntry& entry : all_) {
        if (entry.wants != ObserverCalls::process_ends || entry.by->fails_ns_.load() > 0)
          timeout_ms = shorter(timeout_ms, kLookMs);
        for (const WatchedPeers::WatchedPeer& peer : entry.peers->list_) {
          if (!peer.is_open()) continue;
          timeout_ms = shorter(timeout_ms, kLookMs);
          // The pidfd of an exited process stays readable, so it is polled only until the exit
          // is seen.
          if (peer.ended_s == 0) files.push_back({peer.process->get(), POLLIN, 0});
        }
      }
    }
    ::poll(files.data(), files.size(), timeout_ms);
    std::uint64_t count = 0;
    [[maybe_unused]] const auto got = ::read(wake_.get(), &count, sizeof count);
    if (files[1].revents != 0) StatusSocket::answer();
    look_at_open_calls();
    // An observer in a callback cannot be removed meanwhile.
    const std::lock_guard<std::mutex> hold(guard_);
    for (const WatchEntry& entry : all_) {
      static_cast<void>(attempt([&] { look(entry); }));
      if (!entry.by->wants_query_.load()) continue;
      try_queries();
      changed_.notify_all();
    }
  }
  static void look(const WatchEntry& entry) {
    PeerObserver& by = *entry.by;
    for (WatchedPeers::WatchedPeer& peer : entry.peers->list_) {
      if (!peer.is_open()) continue;
      if (peer.liveness.has_failed()) {
        peer.handled = true;
        by.lost(peer.rank, peer.liveness.process(), Loss::failed);
        continue;
      }
      if (!peer.liveness.has_died() && !has_ended(*peer.process)) continue;
      if (peer.ended_s == 0) peer.ended_s = now_s();
      const bool left = peer.liveness.has_reached(DetachStage::work_ended);
      const bool by_itself = peer.liveness.ended_by_itself();
      if (!left && by_itself && now_s() - peer.ended_s < by.grace_s_) continue;
      peer.handled = true;
      if (!left)
        by.lost(peer.rank, peer.liveness.process(), by_itself ? Loss::ended : Loss::killed);
    }
    if (entry.wants != ObserverCalls::process_ends) by.look();
    const std::int64_t fails_ns = by.fails_ns_.load();
    if (fails_ns <= 0 || now_ns() < fails_ns) return;
    by.fails_ns_.store(-1);
    by.fail_streams();
  }

  /// An observer and the position in the list stay until the query returns.
  void query() {
    std::unique_lock<std::mutex> hold(guard_);
    const auto is_asked = [](const WatchEntry& entry) { return entry.by->wants_query_.load(); };
    const auto is_queried = [&](const WatchEntry& entry) {
      return entry.wants == ObserverCalls::look_and_query || is_asked(entry);
    };
    for (;;) {
      await(changed_, hold, [&] { return std::any_of(all_.begin(), all_.end(), is_queried); });
      if (std::none_of(all_.begin(), all_.end(), is_asked))
        changed_.wait_for(hold, std::chrono::milliseconds(kLookMs));
      for (const WatchEntry& entry : all_) {
        if (!is_queried(entry)) continue;
        queried_ = entry.by;
        queried_->wants_query_.store(false);
        hold.unlock();
        static_cast<void>(attempt([this] { queried_->query(); }));
        hold.lock();
        queried_ = nullptr;
        changed_.notify_all();
      }
    }
  }

  static std::atomic<PeerWatch*> current;
  const pid_t owner_ = ::getpid();
  const Fd wake_;
  std::unique_ptr<LivenessPage> page_;  ///< null if the system gives no shared memory
  std::mutex guard_;
  std::list<WatchEntry> all_;
  bool runs_ = false, queries_ = false;  ///< the two threads
  double next_try_s_ = 0;                ///< to start the second thread
  PeerObserver* queried_ = nullptr;      ///< the observer with a running query
  std::condition_variable changed_;      ///< signals changes of all_ or queried_
};

std::atomic<PeerWatch*> PeerWatch::current{nullptr};

namespace {

[[gnu::destructor]] void end_in_good_order() {
  PeerWatch* const mine = PeerWatch::existing();
  if (mine != nullptr && mine->page() != nullptr) mine->page()->end();
}

}  // namespace

std::string publish_liveness(int& place) {
  place = -1;
  LivenessPage* const page = PeerWatch::mine().page();
  return page == nullptr ? std::string() : page->show(place);
}

int liveness_page_fd() {
  LivenessPage* const page = PeerWatch::mine().page();
  return page == nullptr ? -1 : page->file();
}

void publish_detach(int place, DetachStage left) noexcept {
  PeerWatch* const mine = PeerWatch::existing();
  if (mine != nullptr && mine->page() != nullptr) mine->page()->leave(place, left);
}

void publish_failed(int place) noexcept {
  PeerWatch* const mine = PeerWatch::existing();
  if (mine != nullptr && mine->page() != nullptr) mine->page()->fail(place);
}

std::shared_ptr<WatchedPeers> open_peer_pages(
    const std::vector<std::optional<std::string>>& published, int mine) {
  auto opened = std::make_shared<WatchedPeers>();
  for (int rank = 0; rank < static_cast<int>(published.size()); ++rank) {
    const std::optional<std::string>& shown = published[static_cast<std::size_t>(rank)];
    if (rank == mine || !shown) continue;
    std::optional<PeerLiveness> liveness = PeerLiveness::open(*shown);
    const bool is_elsewhere = liveness && liveness->process() != ::getpid();
    auto process = is_elsewhere ? descriptor_of(liveness->process()) : std::make_shared<const Fd>();
    opened->add(rank, std::move(liveness), std::move(process));
  }
  return opened;
}

void watch(std::shared_ptr<WatchedPeers> peers, PeerObserver& watched, ObserverCalls wants) {
  PeerWatch::mine().add(std::move(peers), watched, wants);
}

void answer_always() { PeerWatch::mine().begin(); }

void watch_open_calls(OpenCallsInfo info) {
  begin_open_calls(std::move(info));
  PeerWatch::mine().begin_thread();
}

void unwatch(const PeerObserver& watched) noexcept {
  if (PeerWatch* const mine = PeerWatch::existing()) mine->remove(watched);
}

}  // namespace plait
