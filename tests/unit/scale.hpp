// Amount of work of long tests by PLAIT_TEST_SCALE (1 = normal, less under sanitizers, more at
// night): number of rounds, and a sample of many cases. The sample is by a hash of case numbers,
// and hence is deterministic and independent of loop periods.
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
/// True under ThreadSanitizer: tests of a single thread are skipped there.
#ifdef __SANITIZE_THREAD__
inline constexpr bool kLooksForRaces = true;
#else
inline constexpr bool kLooksForRaces = false;
#endif

/// Returns the seconds that a test allows for a task of `usual` seconds. Sanitized code is slower.
inline double allowed_s(double usual) { return kIsSanitized ? 20 * usual : usual; }

inline double scale() {
  static const double value = plait::read_env().test_scale;
  return value;
}

inline int rounds(int usual) { return std::max(1, static_cast<int>(usual * scale())); }

/// Whether the sample is too small for a long test to cover all its cases, as under sanitizers.
inline bool takes_few() { return scale() < 0.25; }
/// Whether a long test covered a case at all.
inline bool seen(std::uint64_t count) { return count > 0 || takes_few(); }

/// Returns true for a share scale() of all numbers, and for 0.
inline bool sampled(std::uint64_t number) {
  std::uint64_t mixed = (number + 1) * 0x9e3779b97f4a7c15ULL;
  mixed = (mixed ^ mixed >> 31) * 0xbf58476d1ce4e5b9ULL;
  return number == 0 || static_cast<double>(mixed >> 11) < scale() * 0x1p53;
}

/// Counts cases; a call returns true if the next case is in the sample.
class Sample {
 public:
  bool operator()() { return sampled(next_++); }

 private:
  std::uint64_t next_ = 0;
};

}  // namespace plait_test
