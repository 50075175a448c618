// Batched copies: a single driver call for all chunks, or a call per copy.
#include "gpu/device/copy_batch.hpp"

#include <algorithm>

namespace plait::cuda {
namespace {

DevicePointer address(const void* at) { return reinterpret_cast<DevicePointer>(at); }

bool takes_batches(const Api& driver, Stream stream) {
  const auto handle = reinterpret_cast<std::uintptr_t>(stream);
  // 0, 1: legacy default stream.
  if (driver.memory_copy_batch == nullptr || handle <= 1) return false;
  int status = kCaptureNone;
  require(driver.stream_is_capturing(stream, &status), "stream_is_capturing");
  return status == kCaptureNone;
}

}  // namespace

std::vector<OneCopy> in_chunks(const std::vector<OneCopy>& copies) {
  constexpr std::uint64_t kChunks = 4, kGrain = 4096, kLeast = 256 << 10;
  std::vector<OneCopy> all;
  for (std::uint64_t chunk = 0; chunk < kChunks; ++chunk)
    for (std::size_t k = 0; k < copies.size(); ++k) {
      const OneCopy& whole = copies[(k + chunk) % copies.size()];
      const std::uint64_t even = (whole.bytes + kChunks - 1) / kChunks;
      const std::uint64_t size = std::max(kLeast, (even + kGrain - 1) / kGrain * kGrain);
      const std::uint64_t from = std::min(whole.bytes, chunk * size);
      const std::uint64_t bytes = std::min(size, whole.bytes - from);
      if (bytes != 0) all.push_back({whole.dst + from, whole.src + from, bytes});
    }
  return all;
}

/// All copies go to other GPUs. No local copy may carry the flag: with the flag, local copies reach
/// a fraction of the speed.
void copy_to_others(const Api& driver, Stream stream, const std::vector<OneCopy>& copies) {
  const std::vector<OneCopy> chunks = in_chunks(copies);
  if (chunks.size() < 2 || !takes_batches(driver, stream)) {
    for (const OneCopy& one : copies)
      require(driver.memory_copy_async(address(one.dst), address(one.src), one.bytes, stream),
              "memory_copy_async");
    return;
  }
  std::vector<DevicePointer> dsts, srcs;
  std::vector<std::size_t> bytes;
  for (const OneCopy& one : chunks) {
    dsts.push_back(address(one.dst));
    srcs.push_back(address(one.src));
    bytes.push_back(one.bytes);
  }
  CopyAttributes attributes{};
  attributes.source_order = kSourceInStreamOrder;
  attributes.flags = kCopyOverlapCompute;
  const std::size_t first = 0;
  std::size_t failed = 0;
  require(driver.memory_copy_batch(dsts.data(), srcs.data(), bytes.data(), dsts.size(), &attributes,
                                   &first, 1, &failed, stream),
          "memory_copy_batch");
}

}  // namespace plait::cuda
