// Converts NCCL's numbers of types and reductions to plait's and back.
#pragma once
#include "plait/plan.hpp"

namespace plait::nccl {

/// Returns false if plait has no counterpart (user-defined reductions, unknown types).
bool translate_type(int type, DataType& translated);
bool translate_op(int op, ReduceOp& translated);
/// Returns NCCL's number; -1 if NCCL has none.
int nccl_type(DataType type);
int nccl_op(ReduceOp op);

}  // namespace plait::nccl
