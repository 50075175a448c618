// The check of tests whose ranks are processes.
#pragma once
#include <stdexcept>
#include <string>

namespace plait_test {

/// Fails the test by an exception, because doctest's output does not reach the parent process.
inline void require(bool holds, const std::string& what) {
  if (!holds) throw std::runtime_error(what);
}

}  // namespace plait_test
