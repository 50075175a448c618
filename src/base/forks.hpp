// Detects whether this process was forked after an object was made. fork() itself raises a counter
// in the child, since getpid() is a system call and every call checks this.
#pragma once
#include <pthread.h>

#include <atomic>
#include <cstdint>

namespace plait {

namespace forks {
inline std::atomic<std::uint32_t> count{0};
inline void count_child() { count.fetch_add(1, std::memory_order_relaxed); }
}  // namespace forks

/// Returns the number of forks between the first process that asked and this process. Equal numbers
/// = the same process.
inline std::uint32_t forks_so_far() {
  [[maybe_unused]] static const int registered =
      ::pthread_atfork(nullptr, nullptr, forks::count_child);
  return forks::count.load(std::memory_order_relaxed);
}

}  // namespace plait
