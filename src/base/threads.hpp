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
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread made(std::move(function));
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return made;
}

}  // namespace plait
