// Lets the program end a wait: CommunicatorOptions::interrupt is called now and then in the waiting
// thread, and may throw.
#pragma once
#include <cstdint>
#include <functional>
#include <utility>

#include "comm/bootstrap/socket.hpp"

namespace plait {

/// Limits the calls of `interrupt` to a call every 0.1 s, for a Deadline or watch that is checked
/// more often. Null if `interrupt` is null.
inline std::function<void()> now_and_then(std::function<void()> interrupt) {
  if (!interrupt) return nullptr;
  constexpr std::int64_t kEveryNs = 100'000'000;
  return [ask = std::move(interrupt), next_ns = now_ns() + kEveryNs]() mutable {
    if (now_ns() < next_ns) return;
    ask();
    next_ns = now_ns() + kEveryNs;
  };
}

}  // namespace plait
