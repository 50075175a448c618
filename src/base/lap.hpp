// Times of the steps of a set-up, for logs.
#pragma once
#include <chrono>
#include <cmath>

namespace plait {

/// Milliseconds since the last look, to a tenth.
class Lap {
 public:
  double ms() {
    const auto now = std::chrono::steady_clock::now();
    const double took = std::chrono::duration<double, std::milli>(now - last_).count();
    last_ = now;
    return std::round(took * 10) / 10;
  }

 private:
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

}  // namespace plait
