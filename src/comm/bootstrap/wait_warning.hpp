// Warns once per object about a wait over PLAIT_WARN_S and names the rank waited for, so that users
// know the rank to look at.
#pragma once
#include <cstdint>
#include <string>

#include "base/env.hpp"
#include "base/log.hpp"
#include "base/text.hpp"
#include "comm/bootstrap/socket.hpp"
#include "plait/error.hpp"

namespace plait {

/// Returns PLAIT_WARN_S, read once; the default is longer than the start skew of a job's ranks.
inline double wait_warning_s() {
  static const double found = [] {
    try {
      return read_env().warn_s;
    } catch (const Error&) {  // the reader of all settings reports errors
      return Env().warn_s;
    }
  }();
  return found;
}

class WaitWarning {
 public:
  explicit WaitWarning(double after_s = wait_warning_s()) : after_s_(after_s) {}

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
