// ncclComm_t -> plait's state beside it. Looked up at every call, so reading takes no lock: a slot
// is pinned by a counter, and whoever removes a communicator waits until its pins are gone. Slots
// are never freed, which makes pinning safe against reuse of an address. A group notes a reference
// to the state instead of a pin, so that a communicator can end while a group of it is open.
#pragma once
#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "comm/liveness/peer_watch.hpp"
#include "shims/nccl/engine.hpp"
#include "shims/nccl/late_handle.hpp"
#include "shims/nccl/launch_order.hpp"
#include "shims/nccl/stream_order.hpp"

namespace plait::nccl {

enum class AttachPhase : int {
  attaching,  ///< a helper thread is at it (communicators that do not block)
  attached,
  on_nccl,  ///< all ranks agreed: every call is forwarded to NCCL
  failed,   ///< attaching broke on the way; calls return `error`
  aborted,
};

/// What a communicator's configuration says; children inherit it.
struct CommConfig {
  unsigned most_ctas = 0;          ///< 0 = not said
  bool mixes_graphs = true;        ///< graphs are ordered beside eager calls and each other
  bool launches_in_order = false;  ///< beside the GPU's other communicators (launch_order.hpp)
};

/// What is known of a communicator before NCCL makes it.
struct CommSetup {
  std::unique_ptr<ExchangeStaging> staging;
  CommConfig configured;
};

/// Calls of a communicator that does not block, which NCCL's thread puts on their streams after the
/// program's call has returned: what is to be done once they are there.
class LateLaunches {
 public:
  bool any() const { return any_.load(std::memory_order_acquire); }
  void add(std::function<void()> then);
  /// They are on their streams. Throws Error.
  void done();

 private:
  std::atomic<bool> any_{false};
  std::mutex guard_;
  std::vector<std::function<void()>> then_;
};

/// One rank of one communicator, from creation to destruction.
struct CommState : PeerObserver {
  CommState();
  void lost(int rank, int process, Loss how) override;
  void fail_streams() noexcept override { engine->fail(); }
  /// True while a thread of plait's asks NCCL about it. NCCL allows one thread a communicator: so
  /// the program is answered ncclInProgress, and nothing is forwarded.
  bool is_being_queried() const {
    return making.load() != 0 || (phase.load() == AttachPhase::attaching && background.load());
  }

  Comm comm = nullptr;
  std::atomic<AttachPhase> phase{
      AttachPhase::attaching};  // here: what every call looks at lies together
  std::atomic<int> making{0};   ///< children that plait's thread waits for
  int rank = 0;
  int ranks = 1;
  int device = 0;
  std::uint64_t min_bytes = 0;
  std::uint32_t served = 0;  ///< bit by Collective
  LateLaunches late;
  std::unique_ptr<ExchangeStaging> staging;  ///< while attaching
  CommConfig configured;
  unsigned most_blocks = 0;  ///< of plait's kernels, as all ranks agreed; 0 = not limited
  std::unique_ptr<CommEngine> engine;
  std::unique_ptr<Marker> marker;  ///< where attached
  std::unique_ptr<Marker> joint;   ///< likewise: of a group's streams
  StreamOrder order;
  std::shared_ptr<LaunchOrder> launches;  ///< of its GPU; null = not asked for
  std::atomic<bool> killed{false};        ///< a peer was, or has failed: all calls fail
  std::atomic<bool> has_lost{false};      ///< a peer has died, or failed
  std::shared_ptr<WatchedPeers> peers;    ///< where attached
  int liveness_index = -1;                ///< this rank's on its process's page; -1 = none
  std::string reason;                     ///< why on_nccl or failed
  Result error = ncclSuccess;
  std::atomic<bool> background{false};  ///< attaching while the program polls
  std::atomic<bool> cancelled{false};   ///< plait's threads must give up
  std::atomic<bool> finalizing{false};  ///< the program polls until all calls have ended
  LateHandle across;      ///< NCCL's communicator of the ranks at this one's place in all nodes
  double attach_s = 130;  ///< how long its end waits for attaching, which has a deadline below this
};

class CommTable {
 public:
  static constexpr std::size_t kSlots = 4096;

  /// Null where the table is full: every call of such a communicator is forwarded.
  std::shared_ptr<CommState> insert(std::unique_ptr<CommState> state);
  /// Each communicator there is, pinned meanwhile.
  template <class Look>
  void for_each(const Look& look);
  /// Removes and returns the state once no call uses it; null where there is none, or where a call
  /// still used it after `wait_s`. Who gives up the last reference lets it go (teardown.hpp): the
  /// caller, that call, or a group that has noted calls of it.
  std::shared_ptr<CommState> remove(Comm comm, double wait_s);

 private:
  enum class Handover : int { no, by_last_user, taken };
  struct TableSlot {
    std::atomic<Comm> comm{nullptr};
    std::atomic<int> users{0};
    std::atomic<Handover> handover{Handover::no};
    std::shared_ptr<CommState> state;
  };
  /// The state of a slot that was left to its last user; null where another takes it.
  static std::shared_ptr<CommState> take(TableSlot& slot) noexcept;
  static void release(TableSlot& slot) noexcept {
    if (slot.users.fetch_sub(1) == 1 && slot.handover.load() == Handover::by_last_user) take(slot);
  }

 public:
  /// Keeps the state alive while it lives.
  class Pin {
   public:
    Pin() = default;
    explicit Pin(TableSlot* slot) : slot_(slot) {}
    Pin(Pin&& other) noexcept : slot_(other.slot_) { other.slot_ = nullptr; }
    Pin& operator=(Pin&& other) noexcept {
      std::swap(slot_, other.slot_);
      return *this;
    }
    ~Pin() {
      if (slot_ != nullptr) release(*slot_);
    }
    explicit operator bool() const { return slot_ != nullptr; }
    CommState* operator->() const { return slot_->state.get(); }
    CommState& operator*() const { return *slot_->state; }
    const std::shared_ptr<CommState>& shared() const { return slot_->state; }

   private:
    TableSlot* slot_ = nullptr;
  };

  Pin pin(Comm comm) {
    for (std::size_t i = 0, at = home(comm); i < kSlots; ++i, at = (at + 1) % kSlots) {
      TableSlot& slot = slots_[at];
      const Comm there = slot.comm.load(std::memory_order_acquire);
      if (there == nullptr) return {};
      if (there != comm) continue;
      slot.users.fetch_add(1);
      if (slot.comm.load() == comm) return Pin(&slot);
      release(slot);
      return {};
    }
    return {};
  }

 private:
  static std::size_t home(Comm comm) {
    return (reinterpret_cast<std::uintptr_t>(comm) >> 6) * 0x9e3779b97f4a7c15ull >> 52;
  }
  /// Of a slot that was used: probing goes on past it.
  static Comm gone() { return reinterpret_cast<Comm>(std::uintptr_t{1}); }
  std::array<TableSlot, kSlots> slots_;
  std::mutex writing_;
};

template <class Look>
void CommTable::for_each(const Look& look) {
  for (TableSlot& slot : slots_) {
    const Comm there = slot.comm.load(std::memory_order_acquire);
    if (there == nullptr || there == gone()) continue;
    if (const Pin pinned = pin(there)) look(*pinned);
  }
}

/// The process's one table; never destroyed.
CommTable& comms();

}  // namespace plait::nccl
