// Controls the host share by credit. The share falls as soon as a call waits for the host path, and
// rises by as much as the measured times promise. Time lost against the direct path is paid from
// gains of other calls and from an income of 1.5 % of each call; until it is paid the share may not
// rise. Hence no load pattern costs more than that income.
#include "gpu/consensus/host_share.hpp"

#include <algorithm>
#include <cmath>

namespace plait::cuda {
namespace {

constexpr double kIncome = 0.015;       // Fraction of a direct-only call, earned with every call.
constexpr double kMostCredit = 20.0;    // In calls: upper bound of saved gains.
constexpr double kLeastCredit = -60.0;  // In calls: paid back within four thousand calls.
constexpr double kLeastGain = 0.005;    // Fraction of the time; below it use the direct path only.
constexpr double kSlackNs = 5000.0;     // The last event of the host path crosses GPUs.
constexpr double kLate = 1.02;          // Later than the direct path by noise alone.
constexpr double kMuchLater = 1.10;     // Later than noise explains.
constexpr double kSure = 0.98;          // Fraction of the promised share that is used.
constexpr int kFirstPause = 8, kLongestPause = 64;

/// Smallest level that pays for the fork into two paths.
int least_level(const SharedSize& size) {
  const double share = size.fork_ns / size.alone_ns + kLeastGain;
  const double level = std::ceil(share / size.host_share * HostShare::kLevels);
  return static_cast<int>(std::clamp(level, 1.0, double{HostShare::kLevels}));
}

/// Level that would make both paths end together, at the speeds of the sample.
double balanced_level(const PathSample& sample) {
  const double host = sample.host_share / std::max(sample.host_ns - kSlackNs, 1.0);
  const double direct = (1.0 - sample.host_share) / sample.direct_ns;
  return host / (host + direct) / sample.size.host_share * HostShare::kLevels;
}

/// Time lost against the direct path alone, as a fraction; negative = a gain.
double loss_of(const PathSample& sample) {
  const double alone_ns = sample.direct_ns / (1.0 - sample.host_share);
  return (std::max(sample.direct_ns, sample.host_ns) + sample.size.fork_ns) / alone_ns - 1.0;
}

}  // namespace

unsigned permille_at(int level, const SharedSize& size, double least) {
  const double wanted = size.host_share * level / HostShare::kLevels;
  return static_cast<unsigned>(
      std::max(std::lround(1000 * wanted), static_cast<long>(std::ceil(1000 * least)) + 1));
}

int HostShare::choose(const SharedSize& size, bool may_try) const {
  if (level_ >= least_level(size)) return level_;
  const bool tries = may_try && credit_ >= 0.0 && idle_ >= pause_;
  return tries ? std::max(level_, 1) : 0;
}

void HostShare::ran(int level) {
  credit_ = std::min(credit_ + kIncome, kMostCredit);
  idle_ = level > 0 ? 0 : std::min(idle_ + 1, kLongestPause);
}

void HostShare::learn(const PathSample& sample) {
  // Calls without times may have lost as much, but count for no gain.
  const double lost = loss_of(sample);
  credit_ = std::clamp(credit_ - lost * (lost > 0.0 ? sample.calls : 1), kLeastCredit, kMostCredit);
  const double balanced = balanced_level(sample);
  const int before = level_;
  if (sample.host_ns > kLate * sample.direct_ns + kSlackNs) {
    ++late_;
    if (late_ < 2 && sample.host_ns < kMuchLater * sample.direct_ns) return;
    level_ =
        std::clamp(static_cast<int>(balanced), 0, std::max(std::min(level_, sample.level) - 1, 0));
  } else if (credit_ >= 0.0) {
    const int promised = static_cast<int>(std::min(kSure * balanced, double{kLevels}));
    level_ = std::max(level_, std::min(promised, std::max(2 * sample.level, 2)));
  }
  late_ = 0;
  pause_ = level_ > before ? 0 : std::clamp(2 * pause_, kFirstPause, kLongestPause);
}

}  // namespace plait::cuda
