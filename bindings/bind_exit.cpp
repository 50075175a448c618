// Handles threads that are in a call when Python ends.
#include <pthread.h>
#include <unistd.h>

#include <cstdlib>
#include <exception>

#include "bind.hpp"

namespace {

constexpr unsigned kLongestEndS = 60;  // limit for joins of such a thread

std::terminate_handler terminate_before = nullptr;
pthread_t thread_that_ends_python;

/// Before 3.14, Python unwinds a thread that takes the GIL after finalisation. A C++ call takes the
/// GIL in a destructor. A destructor cannot be unwound, and the process would abort ("terminate
/// called without an active exception"). Here the thread sleeps instead, as in 3.14.
[[noreturn]] void stand_still_or_terminate() {
  const bool is_unwound = std::current_exception() == nullptr &&
                          pthread_equal(pthread_self(), thread_that_ends_python) == 0;
  unsigned left_s = is_unwound ? kLongestEndS : 0;
  while (left_s != 0) left_s = sleep(left_s);  // signals interrupt sleep()
  terminate_before();
  std::abort();
}

void python_ends() {
  thread_that_ends_python = pthread_self();
  const std::terminate_handler found = std::set_terminate(stand_still_or_terminate);
  if (found != stand_still_or_terminate) terminate_before = found;
}

}  // namespace

void bind_exit(nb::module_&) {
  nb::module_::import_("atexit").attr("register")(nb::cpp_function(&python_ends));
}
