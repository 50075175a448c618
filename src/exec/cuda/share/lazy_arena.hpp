// The later room of a communicator's ranks: each makes it in a thread of its own once calls want
// it, and all take it from the same call on. No call waits for a peer, but for a bounded moment.
//
// Why so: a call that waited for its peers would stand still for ever where ranks come to two
// communicators in opposite orders. So calls go on with the first room until the later one stands
// on all ranks.
//
// An attempt fails on all ranks where it fails on one, as where a GPU has no memory left. A later
// call begins the next attempt: a second after the first, then each time after twice as long, a
// minute at most.
//
// Each rank must be a process of its own. The driver may let an allocation or a free wait for the
// kernels of its process, and launches wait for that. Where all ranks make their calls in one
// order, the kernels that run have been launched by every other process too, or wait for none that
// has not; so they end. Two ranks of one process lack this: a kernel of one may wait for the launch
// of the other, which waits for the allocation, which waits for that kernel.
#pragma once
#include <sys/types.h>

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "exec/cuda/share/agreed_switch.hpp"
#include "exec/cuda/share/page_exchange.hpp"

namespace plait::cuda {

/// In memory that all ranks map; zeros when the first of all begins.
struct LazyArenaPage {
  AgreedSwitch::SwitchPage switched;
  PageExchange::ExchangePage exchange;
  std::atomic<std::uint32_t> wanted;  ///< the last attempt that some rank has begun; 0 = none
};

/// What a call that wants the room may do for it.
enum class CallMode {
  captured,  ///< nothing: a capture allocates nothing and waits for nobody
  grouped,   ///< begin it: whoever else is to come may come to it in the same thread
  alone      ///< begin it, and wait for a moment until all have it
};

class LazyArena {
 public:
  using Exchange = std::function<std::vector<std::string>(const std::string& mine)>;
  static constexpr double kRetryS = 1;
  /// make: allocates and maps this rank's, with exchanges that all ranks make alike; throws Error.
  /// After that it is called again, and goes on with what it has made. patience_s: how long all
  /// calls together wait for the others, at most. page outlives this.
  LazyArena(LazyArenaPage& page, int rank, int ranks, double wait_s,
            std::function<void(const Exchange&)> make, double retry_s = kRetryS);
  ~LazyArena();
  LazyArena(const LazyArena&) = delete;
  LazyArena& operator=(const LazyArena&) = delete;

  /// Starts making, where that has not been done, or where another rank has begun the next attempt,
  /// and returns. Any thread.
  void begin() { start(false); }
  /// True where some rank has begun, so that all should.
  bool is_wanted() const { return page_.wanted.load(std::memory_order_relaxed) != 0; }
  /// Of the next call that wants the room, whether it has it: the same answer on all ranks, which
  /// ask for the same calls.
  bool next(CallMode call);
  /// The call asked for last was not made after all.
  void cancel_last() { agreed_.cancel_last(); }
  /// True once all calls from now on have it.
  bool is_on() const { return agreed_.is_on(); }
  /// Nothing is begun any more, and nobody waits. Any thread; returns at once.
  void cancel() noexcept { stopping_.store(true); }
  /// The same, and what was begun has ended when it returns.
  void stop() noexcept;
  /// Why the last attempt failed; "" where it may not, or has not.
  std::string failure() const { return exchange_.failure(); }

 private:
  void start(bool may_retry);
  bool is_due(bool may_retry) const;
  void run() noexcept;
  void end_attempt() noexcept;
  void wait_for_peers();

  LazyArenaPage& page_;
  const std::function<void(const Exchange&)> make_;
  const pid_t owner_;
  AgreedSwitch agreed_;
  PageExchange exchange_;
  double wait_budget_s_;
  double retry_s_;                         // until the next attempt; of who makes this one
  std::atomic<std::uint32_t> attempt_{0};  // that was begun last; 0 = none
  std::atomic<bool> runs_{false};          // it, in thread_
  std::atomic<std::int64_t> retry_ns_{0};  // when a call may begin the next one
  std::atomic<bool> stopping_{false};
  std::mutex guard_;  // of thread_
  std::unique_ptr<std::thread> thread_;
};

}  // namespace plait::cuda
