// Instances of the direct_ll kernels that sum in trees of 4, 8 or 16 ranks.
#include "gpu/ll/direct_ll_instances.cuh"

#define PLAIT_DIRECT_LL_TREE(type) \
  PLAIT_COMMON_DIRECT_LL(type, tree, 1, plait::cuda::kTreeSum, kReduceParts)
PLAIT_DIRECT_LL_TREE(fp32)
PLAIT_DIRECT_LL_TREE(bf16)
PLAIT_DIRECT_LL_TREE(fp16)

#define PLAIT_DIRECT_LL_ANYTREE(type)                                                           \
  PLAIT_DIRECT_LL_KERNEL(direct_ll, DirectLlArgs, 512, 1, type, anytree, plait::cuda::kTreeAny, \
                         plait::kReduceParts)
PLAIT_DIRECT_LL_ANYTREE(fp32)
PLAIT_DIRECT_LL_ANYTREE(fp64)
PLAIT_DIRECT_LL_ANYTREE(bf16)
PLAIT_DIRECT_LL_ANYTREE(fp16)
PLAIT_DIRECT_LL_ANYTREE(fp8e4m3)
PLAIT_DIRECT_LL_ANYTREE(fp8e5m2)
