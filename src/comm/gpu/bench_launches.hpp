// Launches of a measured call: many of a short call, since noise is a large share of its time, and
// few of a long call, to spare the budget. measurement.hpp plans the launches, and gpu_bench.cpp
// makes them.
#pragma once
#include <algorithm>
#include <cmath>

namespace plait {

/// Launches of a call in a graph. Enqueued one by one, the call has as many.
struct BenchLaunches {
  int calls = 10;       ///< of a launch
  int warms = 1;        ///< untimed launches, before the timed launches
  int turns = 3;        ///< timed launches of plait's ways
  int nccl_turns = 3;   ///< timed launches of NCCL, whose first call ran before
  int first_warms = 1;  ///< before the first way: an idle GPU takes a while to reach its speed
  bool least = false;   ///< the shortest launch counts; else the median

  /// us of all launches of a way, of calls that take call_us.
  double all_us(double call_us) const { return call_us * calls * (warms + turns); }
};

/// Returns the launches of a call that takes about call_us; 0 = unknown, counts as a short call.
inline BenchLaunches bench_launches(double call_us) {
  constexpr double kLaunchUs = 200;  // a launch of a shorter time is bound by its own start
  constexpr double kAwakeUs = 300;   // work that brings the clocks of an idle GPU up
  constexpr double kLongUs = 400;    // calls that need no median of three
  constexpr int kMostCalls = 10, kMostWarms = 8;
  const double us = call_us > 0 ? call_us : 4;
  BenchLaunches made;
  if (us >= kLongUs)
    return {.calls = 1, .warms = 0, .turns = 2, .nccl_turns = 1, .first_warms = 0, .least = true};
  made.calls = std::clamp(static_cast<int>(std::ceil(kLaunchUs / us)), 1, kMostCalls);
  made.first_warms =
      std::clamp(static_cast<int>(std::ceil(kAwakeUs / (us * made.calls))), 1, kMostWarms);
  return made;
}

}  // namespace plait
