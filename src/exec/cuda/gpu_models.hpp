// GPU models by name: which kernels a GPU runs that is described in a topology and need not be
// here. Communicators on GPUs launch their kernels instead (kernel_families.hpp).
#pragma once
#include <string>
#include <vector>

#include "exec/cuda/group.hpp"

namespace plait::cuda {

/// Compute capability times ten by a model's name, as in 80 of "NVIDIA A100-SXM4-40GB". 0 = plait
/// does not know the model; such a GPU counts as one that runs all kernels.
int capability_of(const std::string& model);
/// What ranks on these models agree on: families of kernels that one of them does not run, and the
/// multiprocessors of the smallest. None: the group stays as it is.
void describe(Group& group, const std::vector<std::string>& models);

}  // namespace plait::cuda
