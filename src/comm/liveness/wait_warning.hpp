// A wait that lasts is said, once and unasked, with whom it is for: silence of minutes tells nobody
// which rank to look at.
#pragma once
#include <cstdint>
#include <string>

#include "base/log.hpp"
#include "base/text.hpp"
#include "comm/bootstrap/socket.hpp"

namespace plait {

inline constexpr double kWaitWarningS = 10;  ///< longer than ranks of one job start apart

class WaitWarning {
 public:
  explicit WaitWarning(double after_s = kWaitWarningS) : after_s_(after_s) {}

  /// Another wait, which begins with its first look.
  void begin() { since_ns_ = 0; }
  /// To be called now and then during a wait; says the sentence ("rank 0 waits for rank 2 to ...")
  /// once in this object's life, when the wait has lasted so long.
  template <class Sentence>
  void look(int rank, const Sentence& sentence) {
    if (said_) return;
    const std::int64_t now = now_ns();
    if (since_ns_ == 0) since_ns_ = now;
    if (static_cast<double>(now - since_ns_) < after_s_ * 1e9) return;
    said_ = true;
    warn_unasked(rank, text(sentence(), ": ", after_s_, " s so far"));
  }

 private:
  const double after_s_;
  std::int64_t since_ns_ = 0;
  bool said_ = false;
};

}  // namespace plait
