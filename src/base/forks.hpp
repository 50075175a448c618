// Whether this process was made by fork from the one that something belongs to. A count that fork
// itself raises in the child, since getpid() is a system call, and is asked in every call.
#pragma once
#include <pthread.h>

#include <atomic>
#include <cstdint>

namespace plait {

namespace forks {
inline std::atomic<std::uint32_t> count{0};
inline void count_child() { count.fetch_add(1, std::memory_order_relaxed); }
}  // namespace forks

/// Forks between the first process that asked and this one. The same = the same process.
inline std::uint32_t forks_so_far() {
  [[maybe_unused]] static const int registered =
      ::pthread_atfork(nullptr, nullptr, forks::count_child);
  return forks::count.load(std::memory_order_relaxed);
}

}  // namespace plait
