// Fault injection for tests: PLAIT_FAULT=step:rank:action makes that rank die or stop at op number
// `step`, counted from 1 over the process's life. Only with -DPLAIT_FAULTS=ON; otherwise
// fault_point() does nothing.
#pragma once

#ifdef PLAIT_FAULTS
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <string>

#include "base/env.hpp"
#include "base/text.hpp"
#include "plait/error.hpp"

namespace plait {

struct InjectedFault {
  std::int64_t step = 0;  ///< 0 = none.
  int rank = -1;
  std::string action;  ///< kill, stop, abort or exit.
};

inline InjectedFault fault_from_environment() {
  const std::string value = foreign_env("PLAIT_FAULT");
  if (value.empty()) return {};
  const std::vector<std::string> parts = split(value, ':');
  if (parts.size() != 3)
    throw Error(ErrorCode::invalid_argument,
                text("PLAIT_FAULT: wanted step:rank:action, found {}", value));
  InjectedFault fault{parse_integer("PLAIT_FAULT's step", parts[0], 1, INT64_MAX),
                      static_cast<int>(parse_integer("PLAIT_FAULT's rank", parts[1], 0, 1 << 20)),
                      parts[2]};
  if (fault.action != "kill" && fault.action != "stop" && fault.action != "abort" &&
      fault.action != "exit")
    throw Error(ErrorCode::invalid_argument,
                text("PLAIT_FAULT: wanted kill, stop, abort or exit, found {}", fault.action));
  return fault;
}

/// The process's fault. A forked child sets a new fault before the first call.
inline InjectedFault& current_fault() {
  static InjectedFault fault = fault_from_environment();
  return fault;
}

inline void fault_point(int rank) {
  const InjectedFault& fault = current_fault();
  static std::atomic<std::int64_t> steps{0};
  if (fault.step == 0 || rank != fault.rank || ++steps != fault.step) return;
  if (fault.action == "kill") ::kill(::getpid(), SIGKILL);
  if (fault.action == "stop") ::kill(::getpid(), SIGSTOP);
  if (fault.action == "abort") std::abort();
  if (fault.action == "exit") ::_exit(1);
}

}  // namespace plait
#else
namespace plait {
inline void fault_point(int) {}
}  // namespace plait
#endif
