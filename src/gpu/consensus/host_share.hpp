// Computes the fraction of the next call that goes through host memory beside the direct link, from
// the times of earlier calls: the best fraction if the host path is free, less if another job loads
// PCIe, none without a gain, with a trial now and then. A pure value: reads no clock and uses no
// random numbers.
#pragma once
#include <cstdint>

namespace plait::cuda {

/// The fastest share on HGX H200, for 256 MiB to 1 GiB with PCIe idle.
inline constexpr std::uint32_t kBestHostPermille = 90;
/// Least bytes of a part for a share through host memory; a smaller part gains nothing.
inline constexpr std::uint64_t kLeastSharedBytes = 384ull << 20;
/// The same of a part that two ranks exchange one way beside a kernel (E-0533).
inline constexpr std::uint32_t kBestExchangedPermille = 90;
inline constexpr std::uint64_t kLeastExchangedBytes = 176ull << 20;
/// The same of results of three and four ranks beside a kernel.
inline constexpr std::uint64_t kLeastGatheredBytes = 120ull << 20;

/// Best cut of calls of a given size.
struct SharedSize {
  double host_share = 0.0;  ///< Fraction of the message at level kLevels, with a free host path.
  double alone_ns = 0.0;    ///< Time of the whole message on the direct path.
  double fork_ns = 8000.0;  ///< Cost of a second path: fork and join of streams (striped.cpp).
};

/// Thousandths of the message on the host path at a level above 0. least: smallest fraction that a
/// cut allows.
unsigned permille_at(int level, const SharedSize& size, double least);

/// Measured times of a finished call, from the start of the paths.
struct PathSample {
  SharedSize size;
  int level = 0;
  double host_share = 0.0;  ///< Fraction the call used.
  double direct_ns = 0.0;   ///< Until the end of the direct path.
  double host_ns = 0.0;     ///< Until the end of the host path.
  int calls = 1;            ///< Calls enqueued with a host share before the times were known.
};

class HostShare {
 public:
  static constexpr int kLevels = 12;  ///< Steps up to the best share.

  /// Level of the next call; 0 = direct path only. At level 0 a trial level now and then, if
  /// `may_try` (no sample is in flight).
  int choose(const SharedSize& size, bool may_try) const;
  /// Counts a call enqueued at this level.
  void ran(int level);
  void learn(const PathSample& sample);

  /// Level that the host path sustains, as far as known; small sizes may use less.
  int level() const { return level_; }

 private:
  int level_ = kLevels;
  int late_ = 0;         // Consecutive samples with a late host path.
  int idle_ = 0;         // Calls since the last call with a host share.
  int pause_ = 0;        // Calls without a host share before the next trial.
  double credit_ = 1.0;  // Budget for rises, in direct-only calls.
};

}  // namespace plait::cuda
