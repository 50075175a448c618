// This build's device code: a program's own, or that of libplait_kernels.so, which is one for all
// libraries of an installed plait.
#pragma once
#include <string>

namespace plait::cuda {

struct DeviceCode {
  const void* const* fatbins;  ///< null-terminated
  std::string built_for;       ///< compute capabilities: "8.0, 9.0, PTX of 9.0"
  std::string why_none;        ///< empty where there is code
};

/// Looked for once a process, by the first who asks.
const DeviceCode& device_code();

}  // namespace plait::cuda
