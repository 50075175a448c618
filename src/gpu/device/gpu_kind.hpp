// Kind of a GPU, as a line that ranks compare: model, multiprocessors, and NVLinks as reported by
// NVML. Tuning tables hold for a kind.
#pragma once
#include <string>
#include <vector>

#include "driver/nvml/api.hpp"

namespace plait::cuda {

/// "NVIDIA H200, 132 multiprocessors, 18 NVLinks to switches". facts: null if NVML does not know
/// the GPU.
std::string gpu_kind(const std::string& model, int multiprocessors, const GpuFacts* facts);
/// Kind of a GPU of this process, by CUDA ordinal; cached.
std::string gpu_kind(int ordinal);
/// CUDA version of the driver: 13000 = 13.0; 0 without a driver.
int cuda_driver_version();
/// Kind shared by all ranks' GPUs; empty if kinds differ.
std::string common_kind(const std::vector<std::string>& kinds);

}  // namespace plait::cuda
