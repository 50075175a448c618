// Down as soon as the host path is what a call waits for, up by as much as its times promise. What
// calls lose against the direct path is paid out of what others gained and an income of 1.5 % of a
// call each before the share may rise again, so that no pattern of load costs more than that.
#include "exec/cuda/share/host_share.hpp"

#include <algorithm>
#include <cmath>

namespace plait::cuda {
namespace {

constexpr double kIncome = 0.015;       // of a direct-only call, earned with every call
constexpr double kMostCredit = 20.0;    // calls: what gains are kept of
constexpr double kLeastCredit = -60.0;  // four thousand calls later the worst is paid for
constexpr double kLeastGain = 0.005;    // of the time: below it, direct only
constexpr double kSlackNs = 5000.0;     // of the host's end: its last event crosses GPUs
constexpr double kLate = 1.02;          // later than the direct path by noise alone
constexpr double kMuchLater = 1.10;     // no noise
constexpr double kSure = 0.98;          // of what times promise
constexpr int kFirstPause = 8, kLongestPause = 64;

/// The least level that pays for its fork.
int least_level(const SharedSize& size) {
  const double share = size.fork_ns / size.alone_ns + kLeastGain;
  const double level = std::ceil(share / size.host_share * HostShare::kLevels);
  return static_cast<int>(std::clamp(level, 1.0, double{HostShare::kLevels}));
}

/// Where both paths would end together, at the speeds that the sample had.
double balanced_level(const PathSample& sample) {
  const double host = sample.host_share / std::max(sample.host_ns - kSlackNs, 1.0);
  const double direct = (1.0 - sample.host_share) / sample.direct_ns;
  return host / (host + direct) / sample.size.host_share * HostShare::kLevels;
}

/// What the call took longer than the direct path alone would have; less than 0: a gain.
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
  // Calls whose times nobody took may have lost as much, but count for no gain.
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
