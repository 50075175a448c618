// Threads of plait's own in somebody's program: they take no signals; and waits that only spin.
#pragma once
#include <pthread.h>
#include <signal.h>

#include <chrono>
#include <thread>
#include <utility>

namespace plait {

/// Signals are the program's, for its own threads.
template <class Function>
std::thread quiet_thread(Function function) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread made(std::move(function));
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return made;
}

inline void pause_once() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

/// False where it is not ready in time.
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
