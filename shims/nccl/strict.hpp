// PLAIT_BITWISE_STRICT: refuses sums that NCCL would take in an order of its own.
#pragma once
#include <cstddef>

#include "comm/transport/nccl/abi.hpp"
#include "plait/plan.hpp"
#include "shims/nccl/call_config.hpp"
#include "shims/nccl/comm_table.hpp"

namespace plait::nccl {

/// Returns the result of a call that plait does not serve; ncclSuccess = forward it. Refuses sums,
/// products and averages of floats over more than two ranks. Two ranks give the same bits in either
/// order; integers, minimum and maximum in any order. type, op: NCCL's numbers; state: may be null;
/// wish: the call's own.
Result refused(Collective collective, std::size_t count, int type, int op, Comm comm,
               const CommState* state, const CallWish& wish);

}  // namespace plait::nccl
