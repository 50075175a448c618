// The later room of a communicator's ranks: each makes it in a thread of its own once calls want
// it, and all take it from the same call on. No call waits for a peer, but for a bounded moment.
//
// Why so: a call that waited for its peers would stand still for ever where ranks come to two
// communicators in opposite orders. So calls go on with the first room until the later one stands
// on all ranks.
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
#include "exec/cuda/share/page_meeting.hpp"

namespace plait::cuda {

/// In memory that all ranks map; zeros when the first of all begins.
struct GrowthPage {
  AgreedSwitch::Words switched;
  PageMeeting::Words meeting;
  std::atomic<std::uint32_t> wanted;  ///< 1 = some rank has begun
};

/// What a call that wants the room may do for it.
enum class RoomCall {
  captured,  ///< nothing: a capture allocates nothing and waits for nobody
  grouped,   ///< begin it: whoever else is to come may come to it in the same thread
  alone      ///< begin it, and wait for a moment until all have it
};

class Growth {
 public:
  using Exchange = std::function<std::vector<std::string>(const std::string& mine)>;
  /// make: allocates and maps this rank's, with exchanges that all ranks make alike; throws Error.
  /// patience_s: how long all calls together wait for the others, at most. page outlives this.
  Growth(GrowthPage& page, int rank, int ranks, double patience_s,
         std::function<void(const Exchange&)> make);
  ~Growth();
  Growth(const Growth&) = delete;
  Growth& operator=(const Growth&) = delete;

  /// Starts making, where that has not been done, and returns. Any thread.
  void begin();
  /// True where some rank has begun, so that all should.
  bool is_wanted() const { return page_.wanted.load(std::memory_order_relaxed) != 0; }
  /// Of the next call that wants the room, whether it has it: the same answer on all ranks, which
  /// ask for the same calls.
  bool next(RoomCall call);
  /// The call asked for last was not made after all.
  void take_back() { agreed_.take_back(); }
  /// True once all calls from now on have it.
  bool is_on() const { return agreed_.is_on(); }
  /// Nothing is begun any more, and nobody waits. Any thread; returns at once.
  void cancel() noexcept { stopping_.store(true); }
  /// The same, and what was begun has ended when it returns.
  void stop() noexcept;
  /// Why it will not come; "" where it may or has.
  std::string failure() const { return meeting_.failure(); }

 private:
  void run() noexcept;
  void wait_a_moment();

  GrowthPage& page_;
  const std::function<void(const Exchange&)> make_;
  const pid_t owner_;
  AgreedSwitch agreed_;
  PageMeeting meeting_;
  double patience_s_;
  std::atomic<bool> begun_{false};
  std::atomic<bool> stopping_{false};
  std::mutex guard_;  // of thread_
  std::unique_ptr<std::thread> thread_;
};

}  // namespace plait::cuda
