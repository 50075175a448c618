// A system call that failed -> an Error that names the call, so that nobody looks elsewhere for
// what a kernel, a container's seccomp profile or a limit has denied.
#pragma once
#include <string>

#include "plait/error.hpp"

namespace plait {

/// error: errno. what: for which the call was made. The code becomes `unsupported` where the call
/// itself is denied.
Error call_failed(ErrorCode code, const std::string& call, int error, const std::string& what = {});

}  // namespace plait
