// The large arena of a communicator: each rank allocates it in a separate thread once a call wants
// it, and all ranks use it from the same call on. Calls wait for it for a bounded time only.
//
// Reason: a call that waited for peers would hang if ranks reach two communicators in opposite
// orders. Therefore calls use the small arena until the large arena exists on all ranks.
//
// An attempt that fails on a single rank (a GPU out of memory) fails on all. A later call begins
// the next attempt: after one second, then after twice the last interval, at most a minute.
//
// An arena that no call has used for a while can be given up (trim()): all ranks offer it, and the
// last to offer switches off for all. The next large call begins the next attempt. Not once a
// captured call has pinned the arena (pin()), since a graph may be replayed at any time.
//
// Each rank must be a separate process. An allocation or a free may wait in the driver for the
// kernels of the process, and launches wait for the allocation. If all ranks make calls in the same
// order, the running kernels have been launched by every other process too, or wait for no process
// that has not launched them, so they end. Two ranks of a process break this: a kernel of rank A
// may wait for the launch of rank B, the launch waits for the allocation, and the allocation waits
// for that kernel.
#pragma once
#include <sys/types.h>

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "gpu/consensus/agreed_switch.hpp"
#include "gpu/consensus/page_exchange.hpp"

namespace plait::cuda {

/// Mapped by all ranks; zeroed before the first rank starts.
struct LazyArenaPage {
  AgreedSwitch::SwitchPage switched;
  PageExchange::ExchangePage exchange;
  std::atomic<std::uint32_t> wanted;  ///< Last attempt that some rank began; 0 = none.
};

/// Permission of a call that wants the large arena.
enum class CallMode {
  counted,           ///< Neither begin nor wait: the call goes without another arena.
  captured,          ///< Neither begin nor wait: a capture allocates nothing.
  captured_waiting,  ///< Captured, but begin and wait as `alone`: the thread may allocate.
  captured_grouped,  ///< As `captured`, whatever calls were before: peers' calls may follow.
  grouped,           ///< Begin, but do not wait: the peers' calls may follow in the same thread.
  alone              ///< Begin, and wait for a bounded time until all ranks have the arena.
};

/// True for calls of a capture: a graph may replay the call at any time.
constexpr bool is_of_capture(CallMode call) {
  return call == CallMode::captured || call == CallMode::captured_waiting ||
         call == CallMode::captured_grouped;
}

class LazyArena {
 public:
  using Exchange = std::function<std::vector<std::string>(const std::string& mine)>;
  static constexpr double kRetryS = 1, kNoRetryS = 1e9;
  /// make: allocates and maps this rank's arena with exchanges that all ranks make alike; throws
  /// Error. After a failure `make` is called again and continues from the memory already made.
  /// wait_s: total time that all calls wait. retry_s: from a failure to the next attempt;
  /// kNoRetryS = never. page outlives this object.
  LazyArena(LazyArenaPage& page, int rank, int ranks, double wait_s,
            std::function<void(const Exchange&)> make, double retry_s = kRetryS);
  ~LazyArena();
  LazyArena(const LazyArena&) = delete;
  LazyArena& operator=(const LazyArena&) = delete;

  /// Begins an attempt if none has begun, or if another rank has begun the next attempt, and
  /// returns at once. Any thread.
  void begin() { start(false); }
  /// True once some rank has begun: then all ranks should.
  bool is_wanted() const { return page_.wanted.load(std::memory_order_relaxed) != 0; }
  /// Returns whether the next large call has the arena; the same on all ranks, since all make the
  /// same calls.
  bool next(CallMode call);
  /// Begins, and waits until all ranks have the arena or a rank has failed for good. Returns
  /// whether all have it; the same on all ranks, for work that is no call of all ranks. Error
  /// (aborted) after cancel().
  bool await();
  /// Rolls back the last next(): the call was not made. is_held: no end_call() has come since.
  void cancel_last(bool is_held = true);
  /// A graph may use the arena, for good: nothing gives the arena up from now on. Needs an open
  /// call, from next() to end_call().
  void pin() noexcept { is_pinned_.store(true); }
  /// A call that got the arena from next() has been enqueued.
  void end_call() { open_calls_.fetch_sub(1); }
  /// True once all later calls have the arena, until it is given up.
  bool is_on() const { return agreed_.is_on(); }

  /// Lets trim() give the arena up after that many seconds without a call that wants it. give_up:
  /// frees this rank's part; runs in the arena's thread; `make` makes it again. Before the first
  /// call.
  void allow_trim(double idle_s, std::function<void()> give_up);
  /// True if trim() has something to do. Any thread; takes no lock.
  bool wants_trim() const noexcept;
  /// Offers to give the arena up, or frees this rank's part if all have offered. have_ended:
  /// whether all calls of this rank have ended on the GPU. One thread at a time, beside that of the
  /// calls.
  void trim(const std::function<bool()>& have_ended);
  /// Ends the running attempt, and begins none until unpause(). Returns once no attempt runs.
  void pause() noexcept;
  void unpause() noexcept {
    retry_ns_.store(0);
    paused_.store(false);
  }
  /// True once the arena exists on all ranks. While all ranks pause, the same on all.
  bool is_ready() const { return agreed_.all_ready(); }
  /// Begins nothing more and ends waits. Any thread; returns at once.
  void cancel() noexcept { stopping_.store(true); }
  /// cancel(), then waits for the running attempt to end.
  void stop() noexcept;
  /// Reason why the last attempt failed; "" without a failure.
  std::string failure() const { return exchange_.failure(); }

 private:
  void start(bool may_retry);
  bool is_due(bool may_retry) const;
  void run() noexcept;
  void end_attempt() noexcept;
  void wait_for_peers();
  void join() noexcept;
  bool is_idle() const noexcept;
  bool offer_off(const std::function<bool()>& have_ended);
  void start_give_up();

  LazyArenaPage& page_;
  const std::function<void(const Exchange&)> make_;
  const pid_t owner_;
  AgreedSwitch agreed_;
  PageExchange exchange_;
  const double wait_s_;
  double wait_budget_s_;                   // Of wait_s_, since a call last had the arena.
  double retry_s_;                         // Until this rank's next attempt.
  std::atomic<std::uint32_t> attempt_{0};  // Last attempt begun; 0 = none.
  std::atomic<bool> runs_{false};          // An attempt runs in thread_.
  std::atomic<std::int64_t> retry_ns_{0};  // Earliest time of the next attempt.
  std::atomic<bool> stopping_{false};
  std::atomic<bool> paused_{false};
  double idle_s_ = 0;  // 0 = the arena stays
  std::function<void()> give_up_;
  std::atomic<std::uint32_t> memory_of_{0};  // Attempt that made this rank's memory; 0 = none.
  std::atomic<int> open_calls_{0};           // Calls that have got the arena and are not enqueued.
  std::atomic<std::int64_t> last_call_ns_{0}, next_trim_ns_{0};
  // Some call has got the arena. Before, trim() must not look at streams, which that call makes.
  bool has_granted_ = false;            // Guarded by calls_.
  std::atomic<bool> is_pinned_{false};  // A graph may use the arena.
  mutable std::mutex calls_;              // Guards agreed_ between calls and trim().
  std::mutex guard_;                      // Guards thread_.
  std::unique_ptr<std::thread> thread_;
};

}  // namespace plait::cuda
