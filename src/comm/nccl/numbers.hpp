// NCCL's numbers of types and reductions, and plait's.
#pragma once
#include "plait/plan.hpp"

namespace plait::nccl {

/// NCCL's numbers -> plait's; false where plait has no counterpart (user-defined reductions,
/// unknown types).
bool translate_type(int type, DataType& translated);
bool translate_op(int op, ReduceOp& translated);
/// And back; -1 where NCCL has none.
int nccl_type(DataType type);
int nccl_op(ReduceOp op);

}  // namespace plait::nccl
