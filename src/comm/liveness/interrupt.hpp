// A wait that the program may end: what it has set (CommunicatorOptions::interrupt) is asked now
// and then in the thread that waits.
#pragma once
#include <cstdint>
#include <functional>
#include <utility>

#include "comm/bootstrap/socket.hpp"

namespace plait {

/// For a Deadline or a watch that is asked more often than the program wants to be: asks it every
/// 0.1 s. Null where there is nothing to ask.
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
