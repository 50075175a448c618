// Batched copies from a GPU to other GPUs. A single driver call for all copies keeps several
// engines and all targets busy. Source: NCCL's copy-engine collectives.
#pragma once
#include <cstdint>
#include <vector>

#include "driver/cuda/api.hpp"

namespace plait::cuda {

/// A copy of a batch; copies of a batch have no order.
struct OneCopy {
  char* dst;
  const char* src;
  std::uint64_t bytes;
};

/// Splits each copy into up to four chunks of at least 256 KiB. Each round of chunks starts with
/// another target.
std::vector<OneCopy> in_chunks(const std::vector<OneCopy>& copies);

/// Enqueues copies to other GPUs in stream order: a single driver call with chunks, or a call per
/// whole copy if the driver has no batches (before CUDA 12.8), in a capture, and on the legacy
/// default stream.
void copy_to_others(const Api& driver, Stream stream, const std::vector<OneCopy>& copies);

}  // namespace plait::cuda
