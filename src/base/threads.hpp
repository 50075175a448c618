// Threads of plait's own in somebody's program: they take no signals.
#pragma once
#include <pthread.h>
#include <signal.h>

#include <thread>
#include <utility>

namespace plait {

/// Signals are the program's, for its own threads.
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
  } const masked;  // also where no thread can be had
  return std::thread(std::move(function));
}

}  // namespace plait
