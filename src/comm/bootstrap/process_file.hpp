// Descriptors of processes (pidfds). A descriptor shows a process's end, also if the kernel has
// given the process's number to another process.
#pragma once
#include "comm/bootstrap/socket.hpp"

namespace plait {

/// Returns a descriptor that becomes readable once the process has ended; invalid with errno on
/// failure (ESRCH: the process has ended, or another PID namespace has the process).
Fd open_process(int process);
/// The same of this process. Throws Error(unsupported) on failure.
Fd open_own_process();
/// Returns whether the process has ended; false without a descriptor. Never waits.
bool has_ended(const Fd& process);

}  // namespace plait
