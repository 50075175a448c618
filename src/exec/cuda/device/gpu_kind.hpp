// What a measurement of GPUs holds for, as one line that ranks compare: the GPU's model, how much
// of it there is, and what NVML tells of its NVLinks.
#pragma once
#include <string>
#include <vector>

#include "driver/nvml/api.hpp"

namespace plait::cuda {

/// "NVIDIA H200, 132 multiprocessors, 18 NVLinks to switches". facts: null where NVML does not know
/// the GPU.
std::string gpu_kind(const std::string& model, int multiprocessors, const GpuFacts* facts);
/// That of a GPU of this process, by CUDA ordinal; asked once.
std::string gpu_kind(int ordinal);
/// What all ranks' GPUs are; empty where they are not of one kind.
std::string common_kind(const std::vector<std::string>& kinds);

}  // namespace plait::cuda
