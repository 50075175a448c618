// Turns a failed system call into an Error that names the call, so that users find the kernel,
// seccomp profile or limit that denied the call.
#pragma once
#include <string>

#include "plait/error.hpp"

namespace plait {

/// error: errno. `what`: the purpose of the call. The code becomes `unsupported` if the call itself
/// is denied.
Error call_failed(ErrorCode code, const std::string& call, int error, const std::string& what = {});

/// Returns the new descriptor `fd`, moved above 2 if it has the number of a closed stdin, stdout or
/// stderr: writers to stderr would write into the descriptor. Negative with errno if `fd` is
/// negative or no descriptor is left; `fd` is closed then.
int above_stderr(int fd);

}  // namespace plait
