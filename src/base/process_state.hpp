// State of a process of this machine, as the kernel reports it.
#pragma once
#include <string>

namespace plait {

/// Returns the line of /proc/PID/stat: "pid (name) state parent ...". The name may hold any
/// character. Empty if the process has ended.
std::string stat_of_process(int pid);

enum class ProcessState { runs, stopped, dead };

/// Reads /proc/PID/stat. stopped: by SIGSTOP, a terminal or a debugger. dead: also a process that
/// its parent has not waited for.
ProcessState process_state(int pid);

}  // namespace plait
