// Warns once per object about a wait over 10 s and names the rank waited for, so that users know
// the rank to look at.
#pragma once
#include <cstdint>
#include <string>

#include "base/log.hpp"
#include "base/text.hpp"
#include "comm/bootstrap/socket.hpp"

namespace plait {

inline constexpr double kWaitWarningS = 10;  ///< longer than the start skew of a job's ranks

class WaitWarning {
 public:
  explicit WaitWarning(double after_s = kWaitWarningS) : after_s_(after_s) {}

  /// Starts a new wait, timed from the first look().
  void begin() { since_ns_ = 0; }
  /// Called now and then during a wait. Warns with the sentence ("rank 0 waits for rank 2 to ...")
  /// once per object, when the wait has lasted after_s.
  template <class Sentence>
  void look(int rank, const Sentence& sentence) {
    if (said_) return;
    const std::int64_t now = now_ns();
    if (since_ns_ == 0) since_ns_ = now;
    if (static_cast<double>(now - since_ns_) < after_s_ * 1e9) return;
    said_ = true;
    warn_unasked(rank, text("{}: {} s so far", sentence(), after_s_));
  }

 private:
  const double after_s_;
  std::int64_t since_ns_ = 0;
  bool said_ = false;
};

}  // namespace plait
