// Ranges in NVTX domain "plait" for Nsight and other tools: a range per call, with the bytes. The
// NVTX library is opened only if a tool has announced itself; otherwise a range costs a test.
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
