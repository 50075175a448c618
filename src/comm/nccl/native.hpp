// The NCCL that the program uses -> a table of its functions, all from one object. Finding it wraps
// no dlopen: the program's own copy, wherever it was loaded from, is taken first.
#pragma once
#include <cstdint>
#include <string>

#include "comm/nccl/abi.hpp"

namespace plait::nccl {

struct NativeNccl {
#define PLAIT_NCCL_NATIVE(field, symbol, needed, arguments) Result(*field) arguments = nullptr;
#include "comm/nccl/functions.def"
#undef PLAIT_NCCL_NATIVE
  int version = 0;
  std::string path;                              ///< the file it came from
  std::string why_absent;                        ///< empty where it is there
  void* handle = nullptr;                        ///< for further look-ups
  std::uintptr_t first_code = 0, last_code = 0;  ///< where its code lies
  /// True where `caller`, a return address, is in the library: it calls some of its own public
  /// functions by name, and so finds the drop-in's. NCCL 2.28: ncclCommGetAsyncError.
  bool is_caller(const void* caller) const {
    const auto at = reinterpret_cast<std::uintptr_t>(caller);
    return at >= first_code && at < last_code;
  }
};

/// Found at the first call, any thread. Where there is none, `why_absent` says so and every needed
/// field is null.
const NativeNccl& native();

}  // namespace plait::nccl
