// The program's NCCL as a table of functions, all from the same library. No dlopen is intercepted:
// the program's own copy, wherever loaded, comes first.
#pragma once
#include <cstdint>
#include <string>

#include "comm/transport/nccl/abi.hpp"

namespace plait::nccl {

struct NativeNccl {
#define PLAIT_NCCL_NATIVE(field, symbol, needed, arguments) Result(*field) arguments = nullptr;
#include "comm/transport/nccl/functions.def"
#undef PLAIT_NCCL_NATIVE
  int version = 0;
  std::string path;                              ///< file of the library
  std::string why_absent;                        ///< empty if NCCL was found
  void* handle = nullptr;                        ///< for further look-ups
  std::uintptr_t first_code = 0, last_code = 0;  ///< range of the library's code
  /// True if return address `caller` is in the library. NCCL calls some public functions by name,
  /// and so reaches the drop-in (NCCL 2.28: ncclCommGetAsyncError).
  bool is_caller(const void* caller) const {
    const auto at = reinterpret_cast<std::uintptr_t>(caller);
    return at >= first_code && at < last_code;
  }
};

/// Searches at the first call; any thread. If NCCL is absent, `why_absent` says why and every
/// needed field is null.
const NativeNccl& native();

}  // namespace plait::nccl
