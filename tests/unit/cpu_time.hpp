// CPU time of the calling thread, for tests of a computation's duration: unrelated programs change
// a test's wall-clock time, but hardly the CPU time.
#pragma once
#include <ctime>

namespace plait_test {

/// Returns the CPU time of this thread in seconds.
inline double cpu_s() {
  timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

}  // namespace plait_test
