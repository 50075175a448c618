// Device code of this build: the program's own, or libplait_kernels.so, shared by all libraries of
// an installed plait.
#pragma once
#include <string>

namespace plait::cuda {

struct DeviceCode {
  const void* const* fatbins;  ///< null-terminated
  std::string built_for;       ///< Compute capabilities: "8.0, 9.0, PTX of 9.0".
  std::string why_none;        ///< Empty if code was found.
};

/// Searched once per process, at the first call.
const DeviceCode& device_code();

}  // namespace plait::cuda
