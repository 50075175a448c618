// Copies from one GPU to others of which the driver is told by one call, so that it keeps several
// engines and all of their targets busy. Source: NCCL's collectives by copy engines.
#pragma once
#include <cstdint>
#include <vector>

#include "driver/cuda/api.hpp"

namespace plait::cuda {

/// One of several copies whose order says nothing.
struct OneCopy {
  char* dst;
  const char* src;
  std::uint64_t bytes;
};

/// The same bytes in up to four chunks a copy, of 256 KiB at least: each chunk's targets in turn
/// from another one on.
std::vector<OneCopy> in_chunks(const std::vector<OneCopy>& copies);

/// To other GPUs, after what the stream holds; what comes later comes after all. By one call of the
/// driver's, in chunks; whole and one by one where it has none (CUDA 12.8), in a capture and on the
/// legacy default stream, which take no batch.
void copy_to_others(const Api& driver, Stream stream, const std::vector<OneCopy>& copies);

}  // namespace plait::cuda
