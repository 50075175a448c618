// A wait that only spins.
#pragma once
#include <chrono>

namespace plait {

inline void pause_once() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

/// Spins until ready(); returns false after `at_most`.
template <class Ready>
bool spin_until(const Ready& ready, std::chrono::microseconds at_most) {
  const auto end = std::chrono::steady_clock::now() + at_most;
  do {
    for (int i = 0; i < 64; ++i) {
      if (ready()) return true;
      pause_once();
    }
  } while (std::chrono::steady_clock::now() < end);
  return ready();
}

}  // namespace plait
