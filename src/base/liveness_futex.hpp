// Liveness futex: a word in shared memory that shows peers whether a thread lives. The kernel marks
// the word when the thread dies (robust futex), before teardown of the process. A pidfd shows the
// death only after teardown, which with GPU memory to free can take seconds.
#pragma once
#include <cstddef>
#include <cstdint>

namespace plait {

/// Held by the calling thread from construction to destruction, both in that thread. At most a
/// single futex per thread, and none in threads that lock robust mutexes. Without robust futexes in
/// the kernel the word stays 0.
class LivenessFutex {
 public:
  explicit LivenessFutex(std::uint32_t& word) noexcept;
  ~LivenessFutex();
  LivenessFutex(const LivenessFutex&) = delete;
  LivenessFutex& operator=(const LivenessFutex&) = delete;

 private:
  /// The kernel's struct robust_list and robust_list_head.
  struct RobustEntry {
    RobustEntry* next;
  };
  struct RobustHead {
    RobustEntry* first;
    long offset;  ///< from an entry to the futex word
    RobustEntry* pending;
  };
  std::uint32_t& word_;
  RobustEntry entry_;
  RobustHead head_;
  RobustHead* before_ = nullptr;  ///< list set by the C library
  std::size_t before_bytes_ = 0;
  bool held_ = false;
};

/// True once the thread that held the futex has died holding it; false before that, and after a
/// release.
bool holder_died(const std::uint32_t& word) noexcept;

}  // namespace plait
