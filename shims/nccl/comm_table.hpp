// Maps ncclComm_t to plait's state. Every call looks a communicator up, hence reading takes no
// lock: a counter pins the slot, and removal waits until all pins are gone. Slots are never freed,
// hence a pin is safe if NCCL reuses an address. A group holds a reference to the state instead of
// a pin, so a communicator can end while its group is open.
#pragma once
#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "comm/liveness/peer_watch.hpp"
#include "comm/meet/meeting.hpp"
#include "shims/nccl/comm_flight.hpp"
#include "shims/nccl/comm_names.hpp"
#include "shims/nccl/engine.hpp"
#include "shims/nccl/late_handle.hpp"
#include "shims/nccl/launch_order.hpp"
#include "shims/nccl/scaled_sums.hpp"
#include "shims/nccl/stream_order.hpp"

namespace plait::nccl {

enum class AttachPhase : int {
  attaching,  ///< in a helper thread (non-blocking communicators)
  attached,
  on_nccl,  ///< all ranks agreed to forward every call to NCCL
  failed,   ///< attaching failed midway; calls return `error`
  aborted,
};

/// A communicator's configuration, inherited by children.
struct CommConfig {
  unsigned most_ctas = 0;          ///< 0 = not set
  bool engines_move = false;       ///< CTA policy ZERO
  bool mixes_graphs = true;        ///< orders graphs with eager calls and each other
  bool launches_in_order = false;  ///< with the GPU's other communicators (launch_order.hpp)
};

/// What a rank has of a communicator before NCCL makes it.
struct CommSetup {
  CommSetup() = default;
  CommSetup(CommSetup&&) noexcept = default;
  CommSetup& operator=(CommSetup&&) noexcept = default;
  /// Keeps the staging memory for a later communicator, since to free the memory waits for kernels.
  ~CommSetup();

  CommConfig configured;
  std::unique_ptr<Meeting> meeting;          ///< null = the name is unknown
  std::unique_ptr<ExchangeStaging> staging;  ///< for an exchange over NCCL; null = made if needed
  int staging_ranks = 0;                     ///< that fit into `staging`
  int staging_device = 0;
};

/// Work to do after NCCL's thread has enqueued calls of a non-blocking communicator, which happens
/// after the program's call has returned.
class LateLaunches {
 public:
  bool any() const { return any_.load(std::memory_order_acquire); }
  void add(std::function<void()> then);
  /// Runs all recorded work: the calls are enqueued. Then throws the first error of the work.
  void done();

 private:
  std::atomic<bool> any_{false};
  std::mutex guard_;
  std::vector<std::function<void()>> then_;
};

/// State of a rank of a communicator, from creation to destruction.
struct CommState : PeerObserver {
  CommState();
  void lost(int rank, int process, Loss how) override;
  void fail_streams() noexcept override { engine->fail(); }
  void look() override;
  void query() override;
  /// Returns whether the communicator's calls have ended; unknown: a graph may be replayed.
  CallsEnded calls_ended();
  /// Whether query() last found calls that had not ended PLAIT_WARN_S after the last was made.
  /// Neither locks nor asks the driver, since an abort must come through.
  bool is_known_to_hang() const;
  /// Writes the last calls of all ranks, after the abort of calls that had not ended.
  void warn_of_abort() const noexcept;
  /// Reports the losses that lost() has noted.
  void report_losses() noexcept;
  /// Returns whether a thread of plait polls NCCL about the communicator. NCCL allows a single
  /// thread per communicator, hence the program gets ncclInProgress, and nothing is forwarded.
  bool is_being_queried() const {
    return making.load() != 0 || (phase.load() == AttachPhase::attaching && background.load());
  }

  Comm comm = nullptr;
  const std::uint64_t number;  ///< of no other communicator of the process; NCCL reuses handles
  std::atomic<AttachPhase> phase{
      AttachPhase::attaching};  // from here on: fields that every call reads
  std::atomic<int> making{0};   ///< children that plait's thread still waits for
  int rank = 0;
  int ranks = 1;
  int device = 0;
  std::uint64_t min_bytes = 0;
  std::uint32_t served = 0;  ///< bit by Collective
  LateLaunches late;
  std::unique_ptr<Meeting> meeting;  ///< while attaching
  /// Freed with the communicator, since freeing waits for every kernel of the process, and launches
  /// of the process wait meanwhile.
  std::unique_ptr<ExchangeStaging> staging;
  int staging_ranks = 0;  ///< as CommSetup's
  ChildNames children;
  CommConfig configured;
  ScaledSums scaled_sums;
  unsigned most_blocks = 0;  ///< limit of plait's kernels, agreed by all ranks; 0 = none
  std::unique_ptr<CommEngine> engine;
  std::unique_ptr<Marker> marker;  ///< if attached
  std::unique_ptr<Marker> joint;   ///< if attached: joins a group's streams
  StreamOrder order;
  std::shared_ptr<LaunchOrder> launches;  ///< launch order of the GPU; null = not requested
  std::atomic<bool> killed{false};        ///< a peer was killed or has failed: all calls fail
  std::atomic<bool> has_lost{false};      ///< a peer has died, or failed
  std::atomic<bool> suspended{false};     ///< from ncclCommSuspend to ncclCommResume
  struct LostRank {
    int rank, process;
    Loss how;
  };
  std::mutex noting;                    ///< guards `losses`
  std::vector<LostRank> losses;         ///< not reported yet
  std::shared_ptr<WatchedPeers> peers;  ///< if attached
  std::unique_ptr<CommFlight> flight;   ///< null until all ranks have shown their pages
  int liveness_index = -1;              ///< index on the process's liveness page; -1 = none
  std::string reason;                   ///< reason of on_nccl or failed
  Result error = ncclSuccess;
  std::atomic<bool> background{false};  ///< attaches while the program polls
  std::atomic<bool> cancelled{false};   ///< plait's threads must stop
  std::atomic<bool> finalizing{false};  ///< the program polls until all calls have ended
  LateHandle across;      ///< NCCL's communicator of the ranks with this one's index in all nodes
  double attach_s = 130;  ///< teardown's wait for attaching; attaching has a shorter deadline
};

class CommTable {
 public:
  static constexpr std::size_t kSlots = 4096;

  /// Returns null if the table is full; every call of the communicator is then forwarded.
  std::shared_ptr<CommState> insert(std::unique_ptr<CommState> state);
  /// Calls `look` for each communicator, pinned meanwhile.
  template <class Look>
  void for_each(const Look& look);
  /// Removes a communicator and returns the state once no call uses it. Returns null for an unknown
  /// communicator, or if a call still ran after `wait_s`. The last reference (a call, a group or
  /// the caller) tears the state down (teardown.hpp).
  std::shared_ptr<CommState> remove(Comm comm, double wait_s);

 private:
  enum class Handover : int { no, by_last_user, taken };
  struct TableSlot {
    std::atomic<Comm> comm{nullptr};
    std::atomic<int> users{0};
    std::atomic<Handover> handover{Handover::no};
    std::shared_ptr<CommState> state;
  };
  /// Returns the state of a slot whose last user cleans up; null if another user takes it.
  static std::shared_ptr<CommState> take(TableSlot& slot) noexcept;
  static void release(TableSlot& slot) noexcept {
    if (slot.users.fetch_sub(1) == 1 && slot.handover.load() == Handover::by_last_user) take(slot);
  }

 public:
  /// Keeps a state alive during a call.
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
  /// Mark of a slot that was used: probing continues past it.
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

/// Returns the process's table (never destroyed).
CommTable& comms();

}  // namespace plait::nccl
