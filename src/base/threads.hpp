// Threads of plait in the user's program block all signals, and sleep until woken.
#pragma once
#include <pthread.h>
#include <signal.h>

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>

namespace plait {

/// Starts a thread that blocks all signals, since they belong to the program's threads.
template <class Function>
std::thread quiet_thread(Function function) {
  struct Masked {
    Masked() {
      sigset_t all;
      sigfillset(&all);
      pthread_sigmask(SIG_SETMASK, &all, &before);
    }
    ~Masked() { pthread_sigmask(SIG_SETMASK, &before, nullptr); }
    sigset_t before;
  } const masked;  // restores the mask even if no thread can be started
  return std::thread(std::move(function));
}

/// wake.wait(hold, ready) without its symbol: GCC 12's is newer than the C++ libraries that a wheel
/// may rely on.
template <class Ready>
void await(std::condition_variable& wake, std::unique_lock<std::mutex>& hold, Ready ready) {
  while (!wake.wait_for(hold, std::chrono::hours(1), ready)) {
  }
}

}  // namespace plait
