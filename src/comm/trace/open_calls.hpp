// Calls in which the program's threads are now, where another library runs the call and plait waits
// nowhere: the MPI's own calls. Each thread has a slot. A call stores a few words at its entry and
// a word at its return, and reads no clock. The watch thread (peer_watch.hpp) compares the slots
// with its last look, and writes a line for a call that lasts. `plait status` reads the slots too.
#pragma once
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace plait {

/// Slot of a thread: the call that the thread is in. The thread alone writes.
class CallSlot {
 public:
  static constexpr std::size_t kWords = 6;
  using Words = std::array<std::uint64_t, kWords>;

  /// Stores a call that the thread enters: up to kWords words. A call within a call takes the place
  /// of the outer one.
  template <class... Word>
  [[gnu::always_inline]] void enter(Word... words) {
    static_assert(sizeof...(words) <= kWords);
    const std::uint64_t before = sequence_.load(std::memory_order_relaxed);
    // Left by longjmp, or a call within a call.
    if (is_open(before)) sequence_.store(before + 1, std::memory_order_relaxed);
    // Behind the sequence number: their stores release.
    std::size_t at = 0;
    (words_[at++].store(words, std::memory_order_release), ...);
    sequence_.store((before + 1) | 1, std::memory_order_release);
  }
  [[gnu::always_inline]] void leave() {  // changes nothing behind a call within this call
    const std::uint64_t before = sequence_.load(std::memory_order_relaxed);
    sequence_.store((before + 1) & ~std::uint64_t{1}, std::memory_order_release);
  }

  /// A call at a moment.
  struct OpenCall {
    std::uint64_t sequence = 0;
    Words words{};
  };
  /// Returns the call that the thread is in, unless the thread leaves the call meanwhile.
  std::optional<OpenCall> read() const;
  /// Whether the thread is still in the call.
  bool is_in(const OpenCall& call) const {
    return sequence_.load(std::memory_order_acquire) == call.sequence;
  }

 private:
  friend struct CallSlots;
  static bool is_open(std::uint64_t sequence) { return (sequence & 1) != 0; }

  alignas(64) std::atomic<std::uint64_t> sequence_{0};  ///< odd = in a call
  std::array<std::atomic<std::uint64_t>, kWords> words_{};

  // The rest belongs to readers, but for a slot that changes hands.
  alignas(64) std::atomic<bool> is_taken_{false};
  std::atomic<int> thread_{0};
  CallSlot* next_ = nullptr;  ///< a slot is never freed
  std::uint64_t seen_ = 0;    ///< sequence number at the last look
  std::int64_t seen_ns_ = 0;  ///< time of the first look at that number
  bool is_said_ = false;      ///< a line has named the call
};

/// What is common to the calls of all slots.
struct OpenCallsInfo {
  std::string door;  ///< entry point: "mpi"
  int rank = 0;
  int ranks = 0;
  /// Returns for example "MPI_Recv of at most 4 MPI_INT from rank 1, tag 7, on MPI_COMM_WORLD". In
  /// threads of plait. The call may have returned, so its pointers may be invalid.
  std::string (*describe)(const CallSlot::Words& words) = nullptr;
};
/// Starts the looks, in the watch thread. Once a process.
void begin_open_calls(OpenCallsInfo info);
/// Returns a slot for this thread.
CallSlot& take_call_slot();
/// Gives a slot back, at the end of its thread.
void give_call_slot(CallSlot& slot) noexcept;

/// Milliseconds until the watch thread's next look; -1 = no look.
int open_calls_due_ms() noexcept;
/// Looks if a look is due: writes a line about each call that has lasted for PLAIT_WARN_S, ten
/// lines a process at most, and opens the status socket once a call has lasted for a second.
void look_at_open_calls();

/// A call that a thread is in, for `plait status`.
struct ThreadCall {
  int thread = 0;
  std::string call;
  double seconds = 0;  ///< since the first look that found the call
};
std::vector<ThreadCall> open_calls();
/// Null before begin_open_calls().
const OpenCallsInfo* open_calls_info() noexcept;

}  // namespace plait
