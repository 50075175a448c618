// Ranges in the domain "plait" for Nsight and other NVTX tools: one a call, with its bytes. The
// tools' library is opened only where a tool has announced itself; else a range costs one test.
#pragma once
#include <cstdint>

namespace plait {

class NvtxRange {
 public:
  NvtxRange(const char* name, std::uint64_t bytes);
  ~NvtxRange();
  NvtxRange(const NvtxRange&) = delete;
  /// False where no tool is there.
  static bool is_listened_to();
  NvtxRange& operator=(const NvtxRange&) = delete;

 private:
  bool open_ = false;
};

}  // namespace plait
