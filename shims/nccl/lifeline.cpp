// One thread a process holds a word of its page as long as the process lives, and looks at the
// words and pidfds of all peers. Killed: abort at once. Ended by itself without leaving: after five
// seconds, since what it sent last may still be on its way through queues here.
#include "shims/nccl/lifeline.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <list>
#include <optional>

#include "base/life_word.hpp"
#include "base/log.hpp"
#include "base/text.hpp"
#include "base/threads.hpp"

namespace plait::nccl {
namespace {

constexpr std::size_t kPageBytes = 4096;
constexpr int kLife = kPageBytes / sizeof(std::uint32_t) - 1;  // the LifeWord's place
constexpr int kPlaces = kLife;
constexpr int kLookMs = 20;
constexpr double kGraceSeconds = 5;

using Word = std::atomic_ref<std::uint32_t>;

/// This process's page: word 0 = it ended by itself, the last = its watching thread's life, the
/// others = communicators left.
struct Page {
  int file = -1;
  std::uint32_t* words = nullptr;
  std::atomic<int> next{1};
  pid_t owner = ::getpid();
};

Page* make_page() {
  auto* page = new Page;
  page->file = ::memfd_create("plait-life", MFD_CLOEXEC);
  if (page->file < 0 || ::ftruncate(page->file, kPageBytes) != 0) return page;
  void* base = ::mmap(nullptr, kPageBytes, PROT_READ | PROT_WRITE, MAP_SHARED, page->file, 0);
  if (base != MAP_FAILED) page->words = static_cast<std::uint32_t*>(base);
  return page;
}

std::atomic<Page*> shown{nullptr};

Page& page() {
  static Page* const mine = [] {
    Page* made = make_page();
    shown.store(made);
    return made;
  }();
  return *mine;
}

[[gnu::destructor]] void end_in_good_order() {
  Page* mine = shown.load();
  if (mine != nullptr && mine->words != nullptr && mine->owner == ::getpid())
    Word(mine->words[0]).store(1);
}

struct Peer {
  std::uint64_t number = 0;
  Comm comm = nullptr;
  int rank = 0;
  int process = 0;
  int pidfd = -1;
  std::uint32_t* words = nullptr;
  int place = 0;
  bool by_itself = false;
  double ended_s = 0;  ///< when it was first seen to have ended
};

double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void close_peer(Peer& peer) {
  ::close(peer.pidfd);
  ::munmap(peer.words, kPageBytes);
}

class OpenPeers : public Peers {
 public:
  ~OpenPeers() override {
    for (Peer& peer : list) close_peer(peer);
  }
  std::vector<Peer> list;
};

class Watcher {
 public:
  void add(std::vector<Peer> peers) {
    const std::lock_guard<std::mutex> hold(guard_);
    for (Peer& peer : peers) peers_.push_back(peer);
    if (wake_ < 0) {
      wake_ = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
      start();
    }
    wake();
  }
  void remove(std::uint64_t number) {
    const std::lock_guard<std::mutex> hold(guard_);
    peers_.remove_if([&](Peer& peer) {
      if (peer.number != number) return false;
      close_peer(peer);
      return true;
    });
    wake();
  }

 private:
  void wake() const {
    const std::uint64_t one = 1;
    [[maybe_unused]] const auto written = ::write(wake_, &one, sizeof one);
  }
  void start() {
    quiet_thread([this] { run(); }).detach();
  }
  void run() {
    std::optional<LifeWord> life;
    if (page().words != nullptr) life.emplace(page().words[kLife]);
    for (;;) {
      std::vector<pollfd> files{{wake_, POLLIN, 0}};
      int timeout_ms = -1;
      {
        const std::lock_guard<std::mutex> hold(guard_);
        for (const Peer& peer : peers_) {
          if (peer.ended_s == 0) files.push_back({peer.pidfd, POLLIN, 0});
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
    std::vector<Peer> lost;
    {
      const std::lock_guard<std::mutex> hold(guard_);
      peers_.remove_if([&](Peer& peer) {
        pollfd file{peer.pidfd, POLLIN, 0};
        if (!holder_died(peer.words[kLife]) && ::poll(&file, 1, 0) <= 0) return false;
        if (peer.ended_s == 0) peer.ended_s = now_s();
        const bool left = Word(peer.words[peer.place]).load() != 0;
        peer.by_itself = Word(peer.words[0]).load() != 0;
        if (!left && peer.by_itself && now_s() - peer.ended_s < kGraceSeconds) return false;
        if (!left) lost.push_back(peer);
        close_peer(peer);
        return true;
      });
    }
    for (const Peer& peer : lost) tell(peer);
  }
  static void tell(const Peer& peer) {
    const CommTable::Pin pin = comms().pin(peer.comm);
    if (!pin || pin->watched.load() != peer.number || pin->engine == nullptr) return;
    const std::string who = text("rank ", peer.rank, " (process ", peer.process, ")");
    if (peer.by_itself)  // as programs end that never destroy what they made: no fault of theirs
      log(LogLevel::info, pin->rank,
          text(who, " has ended, and communicator ", peer.comm, " with it"));
    else
      log(LogLevel::warn, pin->rank,
          text(who, " has died: calls on communicator ", peer.comm, " fail from here on"));
    pin->lost.store(true);
    pin->killed.store(!peer.by_itself);
    pin->engine->abort();
  }
  std::mutex guard_;
  std::list<Peer> peers_;
  int wake_ = -1;
};

Watcher& watcher() {
  static auto* const only = new Watcher;
  return *only;
}

/// The page and process that another rank showed; false where they cannot be had.
bool open_peer(const std::string& life, Peer& peer) {
  int file = -1;
  if (std::sscanf(life.c_str(), "%d %d %d", &peer.process, &file, &peer.place) != 3) return false;
  if (peer.process == ::getpid() || peer.place <= 0 || peer.place >= kPlaces) return false;
  const std::string path = text("/proc/", peer.process, "/fd/", file);
  const int opened = ::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOCTTY);
  if (opened < 0) return false;
  void* base = ::mmap(nullptr, kPageBytes, PROT_READ | PROT_WRITE, MAP_SHARED, opened, 0);
  ::close(opened);
  if (base == MAP_FAILED) return false;
  peer.words = static_cast<std::uint32_t*>(base);
  peer.pidfd = static_cast<int>(::syscall(SYS_pidfd_open, peer.process, 0));
  if (peer.pidfd >= 0) return true;
  ::munmap(base, kPageBytes);
  return false;
}

}  // namespace

std::string show_life(int& place) {
  Page& mine = page();
  place = 0;
  if (mine.words == nullptr || mine.owner != ::getpid()) return {};
  place = mine.next.fetch_add(1);
  return place < kPlaces ? text(::getpid(), ' ', mine.file, ' ', place) : std::string();
}

std::unique_ptr<Peers> open_peers(const std::vector<std::string>& lives) {
  auto opened = std::make_unique<OpenPeers>();
  for (std::size_t rank = 0; rank < lives.size(); ++rank) {
    Peer peer;
    peer.rank = static_cast<int>(rank);
    if (open_peer(lives[rank], peer)) opened->list.push_back(peer);
  }
  return opened;
}

void watch(State& state, std::unique_ptr<Peers> peers) {
  static std::atomic<std::uint64_t> numbers{0};
  const std::uint64_t number = ++numbers;
  state.watched.store(number);  // before anybody can be found dead
  std::vector<Peer> list = std::exchange(static_cast<OpenPeers&>(*peers).list, {});
  for (Peer& peer : list) {
    peer.number = number;
    peer.comm = state.comm;
  }
  if (!list.empty()) watcher().add(std::move(list));
}

void unwatch(const State& state) {
  if (state.watched.load() == 0) return;
  Page& mine = page();
  if (mine.words != nullptr && state.place > 0 && state.place < kPlaces)
    Word(mine.words[state.place]).store(1);
  watcher().remove(state.watched.load());
}

}  // namespace plait::nccl
