// GPU models by name: the kernels that run on a GPU known from a topology only. Communicators on
// GPUs probe kernels instead (kernel_families.hpp).
#pragma once
#include <string>
#include <vector>

#include "gpu/engine/group.hpp"

namespace plait::cuda {

/// Compute capability times ten of a model: 80 for "NVIDIA A100-SXM4-40GB". 0 = unknown model; an
/// unknown GPU counts as running all kernels. 1 = a GPU of AMD, which runs none.
int capability_of(const std::string& model);
/// Fills in values that ranks on `models` agree on: kernel families that some model does not run,
/// and the multiprocessors of the smallest. No models: leaves the group unchanged.
void describe(Group& group, const std::vector<std::string>& models,
              const std::vector<const KernelFamily*>& families);

}  // namespace plait::cuda
