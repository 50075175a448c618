// Registers a robust list with a single entry for the calling thread. When the thread exits for any
// reason, the kernel walks the list and sets FUTEX_OWNER_DIED in futex words with the thread's id.
#include "base/liveness_futex.hpp"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>

namespace plait {

LivenessFutex::LivenessFutex(std::uint32_t& word) noexcept : word_(word) {
  entry_.next = reinterpret_cast<RobustEntry*>(&head_);
  head_.first = &entry_;
  head_.offset = reinterpret_cast<const char*>(&word) - reinterpret_cast<const char*>(&entry_);
  head_.pending = nullptr;
  if (syscall(SYS_get_robust_list, 0, &before_, &before_bytes_) != 0) return;
  const auto self = static_cast<std::uint32_t>(syscall(SYS_gettid));
  // The list first: the kernel would never mark the word of a thread that dies before it has one.
  held_ = syscall(SYS_set_robust_list, &head_, sizeof head_) == 0;
  if (held_) std::atomic_ref<std::uint32_t>(word_).store(self);
}

LivenessFutex::~LivenessFutex() {
  if (!held_) return;
  syscall(SYS_set_robust_list, before_, before_bytes_);
  std::atomic_ref<std::uint32_t>(word_).store(0);
}

bool holder_died(const std::uint32_t& word) noexcept {
  auto& shared = const_cast<std::uint32_t&>(word);
  return (std::atomic_ref<std::uint32_t>(shared).load() & FUTEX_OWNER_DIED) != 0;
}

}  // namespace plait
