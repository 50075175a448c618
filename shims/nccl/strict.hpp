// PLAIT_BITWISE_STRICT: a sum that NCCL would take in an order of its own is an error.
#pragma once
#include <cstddef>

#include "comm/nccl/abi.hpp"
#include "plait/plan.hpp"
#include "shims/nccl/comm_table.hpp"

namespace plait::nccl {

/// What a call that plait does not take returns instead of going to NCCL; ncclSuccess = it may go.
/// Refused are sums, products and averages of floats, over more than two ranks: of two, either
/// order gives the same bits, and of whole numbers, least and largest any order does. `type` and
/// `op` are NCCL's; `state` may be null. is_configured: by a ...Config function.
Result refused(Collective collective, std::size_t count, int type, int op, Comm comm,
               const CommState* state, bool is_configured);

}  // namespace plait::nccl
