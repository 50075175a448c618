// How long the paths of earlier calls took -> how much of the next one goes through host memory
// beside the direct link: the best share where the host path is free, less where another job
// loads PCIe, none where it is worth nothing, and a try now and then to see whether that is over.
// A value: it asks nobody for the time and draws no lots.
#pragma once

namespace plait::cuda {

/// A size of call, as it is best cut.
struct SharedSize {
  double host_share = 0.0;  ///< of the message, where the host path is free: level kLevels
  double alone_ns = 0.0;    ///< what the direct path takes for the whole message
  double fork_ns = 8000.0;  ///< what a second path adds: streams forked and joined (striped.cpp)
};

/// Thousandths of the message that go through host memory at a level above 0. least: of the
/// message, what shares are cut to.
unsigned permille_at(int level, const SharedSize& size, double least);

/// What a finished call took, from where its paths could begin.
struct PathSample {
  SharedSize size;
  int level = 0;
  double host_share = 0.0;  ///< that it ran with
  double direct_ns = 0.0;   ///< until the direct path's end
  double host_ns = 0.0;     ///< until the host path's
  int calls = 1;            ///< that were given a host share before these times were known
};

class HostShare {
 public:
  static constexpr int kLevels = 12;  ///< steps of the best share

  /// The level of the next call; 0 = direct only. Where that is the rule, now and then a level to
  /// be tried once, if `may_try`: no sample is on its way.
  int choose(const SharedSize& size, bool may_try) const;
  /// A call was put on streams at this level.
  void ran(int level);
  void learn(const PathSample& sample);

  /// What the host path carries, as far as is known; smaller sizes may make no use of it.
  int level() const { return level_; }

 private:
  int level_ = kLevels;
  int late_ = 0;         // samples in a row whose host path was late
  int idle_ = 0;         // calls since the host path last carried anything
  int pause_ = 0;        // such calls before the next try
  double credit_ = 1.0;  // what rises may still cost, in calls that go over the link alone
};

}  // namespace plait::cuda
