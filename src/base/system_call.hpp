// Turns a failed system call into an Error that names the call, so that users find the kernel,
// seccomp profile or limit that denied the call.
#pragma once
#include <string>

#include "plait/error.hpp"

namespace plait {

/// error: errno. `what`: the purpose of the call. The code becomes `unsupported` if the call itself
/// is denied.
Error call_failed(ErrorCode code, const std::string& call, int error, const std::string& what = {});

}  // namespace plait
