// State of a process of this machine, as the kernel reports it.
#pragma once

namespace plait {

enum class ProcessState { runs, stopped, dead };

/// Reads /proc/PID/stat. stopped: by SIGSTOP, a terminal or a debugger. dead: also a process that
/// its parent has not waited for.
ProcessState process_state(int pid);

}  // namespace plait
