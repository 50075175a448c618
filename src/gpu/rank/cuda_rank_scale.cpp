// Products of pre-multiplied sums: a rank's input times the rank's own factor.
#include <algorithm>

#include "base/log.hpp"
#include "base/text.hpp"
#include "gpu/rank/cuda_rank.hpp"
#include "plait/error.hpp"

namespace plait::cuda {

void CudaRank::enqueue_products(const ScaleArgs& args, unsigned most_blocks, Stream stream) {
  const Current current(context_);
  ScaleArgs given = args;
  kernels_->launch(kernels_->find("plait_scale"),
                   {scale_blocks(args, full_group_, most_blocks), kScaleThreads, false}, stream,
                   {&given});
}

/// An allocation may wait for the kernels of the process, as the large arena's may: a rank that is
/// a process waits for no kernel that waits for the rank. On a full GPU the rank must not fail,
/// since all ranks have agreed on the call: kernels reach host memory at the speed of PCIe.
char* CudaRank::memory_of_products(std::uint64_t bytes) {
  for (const ProductMemory& one : products_)
    if (one.bytes >= bytes) return reinterpret_cast<char*>(one.address);
  constexpr std::uint64_t kMib = 1ull << 20;
  std::uint64_t size = kMostScaledBytes;
  for (const std::uint64_t smaller : {16 * kMib, 2 * kMib})
    if (bytes <= smaller) size = smaller;
  const RelaxedCaptureMode relaxed;
  const Current current(context_);
  DevicePointer made = 0;
  try {
    PLAIT_CUDA_CALL(memory_alloc, &made, size);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::out_of_memory) throw;
    return host_memory_of_products(size);
  }
  products_.push_back({size, made, nullptr});
  held_.set(MemoryPart::products, held_.of(MemoryPart::products) + size);
  return reinterpret_cast<char*>(made);
}

char* CudaRank::host_memory_of_products(std::uint64_t bytes) {
  log(LogLevel::warn, options_.rank,
      text("the GPU has no {} bytes for the products of a pre-multiplied sum: these calls take the "
           "slower host memory",
           bytes));
  auto pages = std::make_unique<PinnedPages>(bytes);
  const DevicePointer made = pages->on_device();
  products_.push_back({bytes, made, std::move(pages)});
  held_.set(MemoryPart::host_products, held_.of(MemoryPart::host_products) + bytes);
  return reinterpret_cast<char*>(made);
}

}  // namespace plait::cuda
