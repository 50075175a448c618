// GPU models by name: which kernels run on a GPU known from a topology only. Communicators on GPUs
// probe their kernels instead (kernel_families.hpp).
#pragma once
#include <string>
#include <vector>

#include "exec/cuda/group.hpp"

namespace plait::cuda {

/// Compute capability times ten of a model, such as 80 for "NVIDIA A100-SXM4-40GB". 0 = unknown
/// model; such a GPU counts as running all kernels.
int capability_of(const std::string& model);
/// Fills in what ranks on these models agree on: kernel families that one of them does not run, and
/// the multiprocessors of the smallest. No models: leaves the group as it is.
void describe(Group& group, const std::vector<std::string>& models);

}  // namespace plait::cuda
