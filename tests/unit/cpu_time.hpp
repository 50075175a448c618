// CPU time of the calling thread, for tests that judge how long a computation takes: other programs
// on the machine change the wall-clock time of a test, and hardly its CPU time.
#pragma once
#include <ctime>

namespace plait_test {

/// Seconds of CPU time that this thread has taken.
inline double cpu_s() {
  timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

}  // namespace plait_test
