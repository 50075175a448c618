// One thread a process holds the LifeWord of its page as long as the process lives, and looks at
// the pages and pidfds of all peers. Killed: what waits for it fails half a second later. Ended by
// itself without leaving: after five seconds, since what it sent last may still be on its way
// through queues here.
#include "shims/nccl/peer_watch.hpp"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <list>
#include <map>
#include <optional>

#include "base/life_word.hpp"
#include "base/log.hpp"
#include "base/text.hpp"
#include "base/threads.hpp"
#include "plait/error.hpp"

namespace plait::nccl {
namespace {

constexpr int kLookMs = 20;
constexpr double kGraceSeconds = 5;
/// For the program to abort the communicator once ncclCommGetAsyncError says that a rank is lost:
/// PyTorch's watchdog asks ten times a second.
constexpr double kAbortSeconds = 0.5;
static_assert(LifePage::kPlaces >= CommTable::kSlots, "a place for every communicator");

std::atomic<LifePage*> shown{nullptr};

/// This process's page, never destroyed; null where the system gives none.
LifePage* page() {
  static LifePage* const mine = []() -> LifePage* {
    try {
      shown.store(new LifePage);
    } catch (const Error& error) {
      log(LogLevel::warn, -1, text("a rank that dies will not be noticed: ", error.what()));
    }
    return shown.load();
  }();
  return mine;
}

[[gnu::destructor]] void end_in_good_order() {
  if (LifePage* const mine = shown.load(); mine != nullptr) mine->end();
}

double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

struct Peer {
  int rank = 0;
  ShownLife life;
  Fd process;            ///< none: it is this one
  double ended_s = 0;    ///< when it was first seen to have ended
  bool settled = false;  ///< its end has been dealt with
};

bool is_gone(const Peer& peer) {
  pollfd file{peer.process.get(), POLLIN, 0};
  return peer.process.valid() && ::poll(&file, 1, 0) > 0;
}

class OpenPeers : public Peers {
 public:
  bool have_left(Left left, bool elsewhere) const override {
    if (unknown) return false;
    return std::all_of(list.begin(), list.end(), [&](const Peer& peer) {
      if (elsewhere && !peer.process.valid()) return true;
      return peer.life.has_left(left) || is_gone(peer);
    });
  }
  std::vector<Peer> list;
  bool unknown = false;  ///< some rank's page could not be opened
  Comm comm = nullptr;   ///< whose they are, once watched
  std::uint64_t number = 0;
};

/// A peer that has ended without leaving.
struct LostPeer {
  Comm comm;
  std::uint64_t number;
  int rank;
  int process;
  bool by_itself;
};

/// A communicator with a lost peer, until its streams fail.
struct Lost {
  Comm comm;
  std::uint64_t number;
  double fails_s;
};

class Watcher {
 public:
  void add(std::shared_ptr<OpenPeers> peers) {
    const std::lock_guard<std::mutex> hold(guard_);
    watched_.push_back(std::move(peers));
    if (wake_ < 0) {
      wake_ = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
      quiet_thread([this] { run(); }).detach();
    }
    wake();
  }
  void remove(std::uint64_t number) {
    const std::lock_guard<std::mutex> hold(guard_);
    watched_.remove_if([&](const auto& peers) { return peers->number == number; });
    let_go_.erase(number);
    wake();
  }
  void keep(std::shared_ptr<State> state) {
    const std::lock_guard<std::mutex> hold(guard_);
    let_go_[state->watched.load()] = std::move(state);
  }

 private:
  void wake() const {
    const std::uint64_t one = 1;
    [[maybe_unused]] const auto written = ::write(wake_, &one, sizeof one);
  }
  static bool is_open(const Peer& peer) { return peer.process.valid() && !peer.settled; }
  void run() {
    std::optional<LifeWord> life;
    if (page() != nullptr) life.emplace(page()->life());
    for (;;) {
      std::vector<pollfd> files{{wake_, POLLIN, 0}};
      int timeout_ms = heard_of_.empty() ? -1 : kLookMs;
      {
        const std::lock_guard<std::mutex> hold(guard_);
        for (const auto& peers : watched_)
          for (const Peer& peer : peers->list) {
            if (!is_open(peer)) continue;
            if (peer.ended_s == 0) files.push_back({peer.process.get(), POLLIN, 0});
            timeout_ms = kLookMs;
          }
      }
      ::poll(files.data(), files.size(), timeout_ms);
      std::uint64_t count = 0;
      [[maybe_unused]] const auto got = ::read(wake_, &count, sizeof count);
      look();
    }
  }
  /// Deals with peers that have ended.
  void look() {
    std::vector<LostPeer> lost;
    {
      const std::lock_guard<std::mutex> hold(guard_);
      for (const auto& peers : watched_)
        for (Peer& peer : peers->list) {
          if (!is_open(peer) || (!peer.life.has_died() && !is_gone(peer))) continue;
          if (peer.ended_s == 0) peer.ended_s = now_s();
          const bool left = peer.life.has_left(Left::work_ended);
          const bool by_itself = peer.life.ended_by_itself();
          if (!left && by_itself && now_s() - peer.ended_s < kGraceSeconds) continue;
          if (!left)
            lost.push_back({peers->comm, peers->number, peer.rank, peer.life.process(), by_itself});
          peer.settled = true;
        }
    }
    for (const LostPeer& peer : lost) tell(peer);
    fail_streams();
  }
  void tell(const LostPeer& peer) {
    const std::string who = text("rank ", peer.rank, " (process ", peer.process, ")");
    with_state(peer.comm, peer.number, [&](State& state) {
      if (peer.by_itself)  // as programs end that never destroy what they made: no fault of theirs
        log(LogLevel::info, state.rank,
            text(who, " has ended, and communicator ", peer.comm, " with it"));
      else
        log(LogLevel::warn, state.rank,
            text(who, " has died: calls on communicator ", peer.comm, " fail from here on"));
      state.lost.store(true);
      if (!peer.by_itself) state.killed.store(true);
      heard_of_.push_back({peer.comm, peer.number, now_s() + kAbortSeconds});
    });
  }
  /// The communicator's, be it the program's still or let go of; else nothing is done.
  template <class Act>
  void with_state(Comm comm, std::uint64_t number, const Act& act) {
    if (const CommTable::Pin pin = comms().pin(comm); pin && pin->watched.load() == number) {
      if (pin->engine != nullptr) act(*pin);
      return;
    }
    const std::lock_guard<std::mutex> hold(guard_);  // until then nobody frees it
    const auto found = let_go_.find(number);
    if (found != let_go_.end()) act(*found->second);
  }
  /// What waits for a lost rank fails its stream, unless the program has aborted by now.
  void fail_streams() {
    std::erase_if(heard_of_, [this](const Lost& lost) {
      if (now_s() < lost.fails_s) return false;
      with_state(lost.comm, lost.number, [](State& state) { state.engine->fail(); });
      return true;
    });
  }
  std::mutex guard_;
  std::list<std::shared_ptr<OpenPeers>> watched_;
  std::map<std::uint64_t, std::shared_ptr<State>> let_go_;  ///< by number
  /// Of the watching thread alone.
  std::vector<Lost> heard_of_;
  int wake_ = -1;
};

Watcher& watcher() {
  static auto* const only = new Watcher;
  return *only;
}

}  // namespace

std::string show_life(int& place) {
  place = -1;
  return page() == nullptr ? std::string() : page()->show(place);
}

void show_left(int place, Left left) noexcept {
  if (LifePage* const mine = shown.load(); mine != nullptr) mine->leave(place, left);
}

std::shared_ptr<Peers> open_peers(const std::vector<std::optional<std::string>>& lives, int mine) {
  auto opened = std::make_shared<OpenPeers>();
  for (int rank = 0; rank < static_cast<int>(lives.size()); ++rank) {
    const std::optional<std::string>& shown_life = lives[static_cast<std::size_t>(rank)];
    if (rank == mine || !shown_life) continue;
    std::optional<ShownLife> life = ShownLife::open(*shown_life);
    Fd process;
    if (life && life->process() != ::getpid())
      process = Fd(static_cast<int>(::syscall(SYS_pidfd_open, life->process(), 0)));
    if (life && (process.valid() || life->process() == ::getpid()))
      opened->list.push_back({rank, std::move(*life), std::move(process)});
    else
      opened->unknown = true;
  }
  return opened;
}

void watch(State& state, std::shared_ptr<Peers> peers) {
  static std::atomic<std::uint64_t> numbers{0};
  const auto opened = std::static_pointer_cast<OpenPeers>(peers);
  opened->comm = state.comm;
  opened->number = ++numbers;
  state.peers = std::move(peers);
  state.watched.store(opened->number);  // before anybody can be found dead
  watcher().add(opened);
}

void keep_watching(std::shared_ptr<State> state) {
  if (state->watched.load() != 0) watcher().keep(std::move(state));
}

void unwatch(const State& state) {
  if (state.watched.load() != 0) watcher().remove(state.watched.load());
}

}  // namespace plait::nccl
