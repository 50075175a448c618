// Tests waits of CPU ranks: under every wait policy, a thread checks the peers and the deadline.
#include <doctest/doctest.h>

#include <chrono>
#include <string>

#include "cpu/wait.hpp"
#include "plait/error.hpp"

using namespace plait;

namespace {

std::int64_t deadline_in_ms(std::int64_t ms) {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count() + ms * 1'000'000;
}

/// Throws at the `after`-th check.
class WaitAlarm : public Watch {
 public:
  explicit WaitAlarm(int after) : after_(after) {}
  void check(const std::string& waiting_for) override {
    if (++checks_ == after_) throw Error(ErrorCode::peer_lost, waiting_for);
  }
  int checks() const { return checks_; }

 private:
  int after_;
  int checks_ = 0;
};

ErrorCode code_of(const WaitPolicy& policy, std::int64_t deadline_ms, Watch& watch) {
  Doorbell bell{};
  try {
    wait_until(policy, {&bell, deadline_in_ms(deadline_ms), &watch, [] { return "a test waits"; }},
               [] { return false; });
  } catch (const Error& error) {
    CHECK(std::string(error.what()).find("a test waits") != std::string::npos);
    return error.code();
  }
  return ErrorCode::ok;
}

}  // namespace

TEST_CASE("a wait ends at a lost peer or the deadline, while it yields and while it sleeps") {
  constexpr int kForEver = 2'000'000'000;  // hours of yields if time did not end the wait
  for (const WaitPolicy policy : {WaitPolicy{0, kForEver}, WaitPolicy{0, 0}}) {
    CAPTURE(policy.yields);
    WaitAlarm third(3);
    CHECK(code_of(policy, 20'000, third) == ErrorCode::peer_lost);
    WaitAlarm never(0);
    CHECK(code_of(policy, 50, never) == ErrorCode::timeout);
    CHECK(never.checks() >= 1);
  }
}

TEST_CASE("a ready value needs no wait and no check") {
  Doorbell bell{};
  WaitAlarm alarm(1);
  wait_until({4, 4}, {&bell, deadline_in_ms(-1), &alarm, [] { return ""; }}, [] { return true; });
  CHECK(alarm.checks() == 0);
}

TEST_CASE("spinning pauses after several failures in a row") {
  constexpr WaitPolicy policy{1000, 0};
  SpinHistory::of_this_thread() = {};
  const auto failed_polls = [&] {
    int polls = 0;
    CHECK(!spin(policy, [&] { return ++polls < 0; }));
    return polls;
  };
  for (int wait = 0; wait < SpinHistory::kMostFailures; ++wait)
    CHECK(failed_polls() > policy.pauses);
  for (int wait = 0; wait < SpinHistory::kSkippedWaits; ++wait) CHECK(failed_polls() < 50);
  CHECK(failed_polls() > policy.pauses);  // the only wait that spins again
  CHECK(failed_polls() < 50);
}

TEST_CASE("a spin that succeeds resets the failures in a row, a value ready at once does not") {
  constexpr WaitPolicy policy{1000, 0};
  SpinHistory& spins = SpinHistory::of_this_thread();
  spins = {};
  int polls = 0;
  CHECK(!spin(policy, [] { return false; }));
  CHECK(spin(policy, [] { return true; }));
  CHECK(spins.failures == 1);
  CHECK(spin(policy, [&] { return ++polls > 300; }));
  CHECK(spins.failures == 0);
}
