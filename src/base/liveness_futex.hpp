// A word in shared memory that tells others whether a thread still lives. The kernel itself marks
// it as the thread dies (robust futexes), before the teardown of its process begins: a pidfd tells
// the same only after that, which with a GPU's memory to free can take seconds.
#pragma once
#include <cstddef>
#include <cstdint>

namespace plait {

/// Held by the calling thread from construction to destruction, on the same thread. At most one a
/// thread, and none on threads that lock robust mutexes. Where the kernel has no robust futexes the
/// word stays 0 and tells nothing.
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
    long offset;  ///< from an entry to its word
    RobustEntry* pending;
  };
  std::uint32_t& word_;
  RobustEntry entry_;
  RobustHead head_;
  RobustHead* before_ = nullptr;  ///< the C library's
  std::size_t before_bytes_ = 0;
  bool held_ = false;
};

/// True once the thread that held the word has died with it; false while it lives, after it let go,
/// and before it took it.
bool holder_died(const std::uint32_t& word) noexcept;

}  // namespace plait
