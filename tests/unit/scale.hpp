// How much a long test does: PLAIT_TEST_SCALE (1 = as usual, less under sanitizers, more at night)
// -> rounds to run, and which of many cases to take. Cases are picked by a hash of their number, so
// that no loop's period is met, and the same ones each time.
#pragma once
#include <algorithm>
#include <cstdint>

#include "base/env.hpp"

namespace plait_test {

#ifdef PLAIT_SANITIZED
inline constexpr bool kIsSanitized = true;
#else
inline constexpr bool kIsSanitized = false;
#endif
/// Under ThreadSanitizer, whose time is not for tests of one thread.
#ifdef __SANITIZE_THREAD__
inline constexpr bool kLooksForRaces = true;
#else
inline constexpr bool kLooksForRaces = false;
#endif

inline double scale() {
  static const double value = plait::read_env().test_scale;
  return value;
}

inline int rounds(int usual) { return std::max(1, static_cast<int>(usual * scale())); }

/// Too few for a long test to see all that it is about, as under sanitizers.
inline bool takes_few() { return scale() < 0.25; }
/// Whether a long test saw some of what it is about.
inline bool seen(std::uint64_t count) { return count > 0 || takes_few(); }

/// True for a share of `scale()` of all numbers, and for 0.
inline bool sampled(std::uint64_t number) {
  std::uint64_t mixed = (number + 1) * 0x9e3779b97f4a7c15ULL;
  mixed = (mixed ^ mixed >> 31) * 0xbf58476d1ce4e5b9ULL;
  return number == 0 || static_cast<double>(mixed >> 11) < scale() * 0x1p53;
}

/// Counts cases: true where the next one is to be taken.
class Sample {
 public:
  bool operator()() { return sampled(next_++); }

 private:
  std::uint64_t next_ = 0;
};

}  // namespace plait_test
