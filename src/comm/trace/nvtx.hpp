// Ranges in NVTX domain "plait" for Nsight and other tools: a range per call, with the bytes. A
// range costs a test if no tool has set NVTX_INJECTION64_PATH.
#pragma once
#include <cstdint>

namespace plait {

class NvtxRange {
 public:
  NvtxRange(const char* name, std::uint64_t bytes);
  ~NvtxRange();
  NvtxRange(const NvtxRange&) = delete;
  /// False if no tool listens.
  static bool is_listened_to();
  NvtxRange& operator=(const NvtxRange&) = delete;

 private:
  bool open_ = false;
};

}  // namespace plait
