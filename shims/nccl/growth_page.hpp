// A page that all ranks of a node map, by which they agree from when on there is room for large
// calls (exec/cuda/share/growth.hpp).
#pragma once
#include "comm/memory.hpp"
#include "shims/nccl/engine.hpp"

namespace plait::nccl {

/// All ranks together. Empty on all of them where some cannot map it: then there is all room at
/// once.
Mapping growth_page(int rank, const Exchange& exchange);

}  // namespace plait::nccl
